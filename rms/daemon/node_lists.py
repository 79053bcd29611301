"""``--nodelist`` and ``--exclude`` of a submission: which nodes its jobs may have.

As with ``sbatch``, but that a job gets no other nodes beside those of its list.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from rms.core.model.jobs import JobSpec
from rms.core.policies.node_power import Consolidate
from rms.core.policies.placement import FirstFit
from rms.core.rules.checks import allowed
from rms.core.state import State
from rms.daemon.context import Context
from rms.formats.jobscript import Options, ScriptError
from rms.formats.nodelist import expand

MOST_NAMES = 1_000_000
"""Of all tasks of an array together: each has its own list in the journal."""


@dataclass(frozen=True)
class NodeLists:
    """The lists of a submission.

    Attributes:
        sized: it says how many nodes its jobs take.
        preferred: the preferred size is set.
    """

    state: State
    only: tuple[str, ...]
    never: tuple[str, ...]
    sized: bool
    preferred: bool

    def of(self, spec: JobSpec) -> JobSpec:
        """Return a job with these lists, no wider than they allow.

        Raises:
            ScriptError: they leave it too few nodes.
        """
        spec = replace(spec, nodelist=self.only, exclude=self.never)
        most = len(allowed(self.state, spec))
        if self.only and not self.sized and most:
            return replace(spec, nodes_min=most, nodes_max=most, preferred=most)
        least = spec.preferred if self.preferred and not spec.mode.any_start else spec.nodes_min
        if most >= least:
            preferred = min(spec.preferred, most)
            spec = replace(spec, preferred=preferred, nodes_max=min(spec.nodes_max, most))
        if most < least or not spec.sizes() or spec.smallest_start > most:
            lists = "--nodelist" if self.only else "--exclude"
            raise ScriptError(f"{lists}: expected at least {least} nodes left to it, got {most}")
        return spec


def node_lists(context: Context, options: Options, tasks: int) -> NodeLists | None:
    """Return the lists of a submission of so many jobs, None where it has none.

    Raises:
        ScriptError: they cannot be heeded.
    """
    asked = {"--nodelist": options.nodelist, "--exclude": options.exclude}
    given = {name: text for name, text in asked.items() if text}
    if not given:
        return None
    name, state, policy = next(iter(given)), context.state, context.scheduler.engine.policy
    if state.lease is not None:
        raise ScriptError(f"expected no {name} where allocations come and go, got {given[name]!r}")
    if not isinstance(policy.placement, FirstFit | Consolidate):  # others pick nodes themselves
        expected = "a policy that takes nodes in order (placement first-fit)"
        raise ScriptError(f"{name}: expected {expected}, got {policy.name}")
    names = {name: tuple(dict.fromkeys(expand(text))) for name, text in given.items()}
    for name, each in names.items():
        unknown = [node for node in each if node not in context.cluster.nodes_of]
        if unknown:
            raise ScriptError(f"{name}: expected nodes of this cluster, got {unknown[0]!r}")
    if (number := sum(map(len, names.values())) * tasks) > MOST_NAMES:
        raise ScriptError(f"{name}: expected {MOST_NAMES} names for all tasks, got {number}")
    only, never = names.get("--nodelist", ()), names.get("--exclude", ())
    preferred = options.preferred is not None
    return NodeLists(state, only, never, options.nodes is not None or preferred, preferred)
