"""Which nodes a job may have by its lists (``--nodelist``, ``--exclude``), by their names. Pure."""

from __future__ import annotations

from collections.abc import Set

from rms.core.model import JobSpec, Node
from rms.core.state import State


def allowed(state: State, spec: JobSpec) -> frozenset[Node]:
    """Return the nodes of the cluster that a job may have: all where it has no lists."""
    key = spec.nodelist, spec.exclude
    found = state.allowed.get(key)
    if found is None:
        only, never = frozenset(spec.nodelist), frozenset(spec.exclude)
        found = state.allowed[key] = frozenset(
            Node(node)
            for node, name in enumerate(state.site.names)
            if (not only or _named(only, name)) and not _named(never, name)
        )
    return found


def _named(names: Set[str], name: str) -> bool:
    """Return whether a node, or the host of a slot (``n1`` of ``n1/0``), is among some by name."""
    return name in names or name.rpartition("/")[0] in names
