"""Nodes that are given to nobody: drained by the operator, or not to be had."""

from __future__ import annotations

from collections.abc import Sequence

from rms.core.events import NodeDown, NodeUp
from rms.daemon.context import Context, Handle


class Nodes:
    """Tells the scheduler which nodes are down."""

    def __init__(self, context: Context, handle: Handle) -> None:
        self._context, self._handle = context, handle
        self._away: frozenset[str] | None = None

    def watch(self) -> None:
        """Tell the scheduler of nodes that are not to be had, or are again."""
        launcher = self._context.launcher
        found = launcher.unavailable()
        if found is None or self._away == found:
            return
        gone = sorted(set(found) - (self._away or set()))
        if gone and launcher.requeue_on_shutdown:
            self._context.say(f"not to be had now: {', '.join(gone)}")
        self._away = frozenset(found)
        self._close_and_open(self._context.cluster.hosts)

    def drain(self, names: Sequence[str], *, drained: bool) -> None:
        """Give nodes to no more jobs, or to jobs again; who runs there is left alone.

        Raises:
            ValueError: there are no such nodes.
        """
        context = self._context
        unknown = [name for name in names if name not in context.cluster.hosts]
        if unknown:
            raise ValueError(f"expected nodes of this cluster, got {', '.join(unknown)}")
        before = context.drained
        context.drained = before.union(names) if drained else before.difference(names)
        context.journal.note("drained", {"names": sorted(context.drained)})
        if not drained and context.broken.intersection(names):
            context.set_broken(context.broken.difference(names))
        self._close_and_open(names)

    def _close_and_open(self, names: Sequence[str]) -> None:
        """Tell the scheduler which of these nodes are down now, and which are up.

        Where jobs share nodes the first slot of each stands for all of it.
        """
        context, away, down = self._context, self._away, self._context.state.down
        unfit = context.drained | context.broken
        for name in names:
            node = context.cluster.nodes_of[name][0]
            if name in unfit or (away is not None and name in away):
                if node not in down:
                    self._handle(NodeDown(context.time(), node))
            elif node in down:
                self._handle(NodeUp(context.time(), node))
