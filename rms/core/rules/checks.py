"""Rules that no policy may break. Pure.

The nodes that a job may have by its lists, the jobs that may start on nodes that are held for a
time, and the check of a decision before it is taken.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence, Set
from math import inf

from rms.core.model.events import (
    Decision,
    Event,
    Later,
    Never,
    NodesLeased,
    PowerOff,
    PowerOn,
    Reason,
    Resize,
    Start,
    Submitted,
)
from rms.core.model.jobs import Job, JobId, JobSpec, JobState, Node
from rms.core.rules.powercap import ROUNDING, boot_extra_w, expected_w, growth_w, job_w
from rms.core.state import State

# --- node lists (``--nodelist``, ``--exclude``) --------------------------------------------------


def allowed(state: State, spec: JobSpec) -> frozenset[Node]:
    """Return the nodes that a job may have by its lists: all where it has none."""
    key = spec.nodelist, spec.exclude
    nodes = state.allowed.get(key)
    if nodes is None:
        only, never = frozenset(spec.nodelist), frozenset(spec.exclude)
        nodes = state.allowed[key] = frozenset(
            Node(node)
            for node, name in enumerate(state.site.names)
            if (not only or _named(only, name)) and not _named(never, name)
        )
    return nodes


def _named(names: Set[str], name: str) -> bool:
    """Return whether a node, or the host of a slot (``n1`` of ``n1/0``), is named."""
    return name in names or name.rpartition("/")[0] in names


# --- nodes that are held for a time only ---------------------------------------------------------
#
# A pilot's nodes belong to allocations of a resource manager, which end. A job that states a time
# limit, and cannot be resized, is not started where it could not end in time. A job that can be
# resized writes a checkpoint when it is requested to end, and needs a little time only, as does a
# job without a limit. A job may get any free nodes, so the node that goes back first counts.

LEAST_S = 60.0
"""Least time on its nodes of a job that can be requested to end: to start and make progress."""


def needs_s(spec: JobSpec) -> float:
    """Return the minimum time on its nodes for which starting the job is worthwhile."""
    if spec.limit_s is None:
        return LEAST_S
    return min(spec.limit_s, LEAST_S) if spec.mode.resizable else spec.limit_s


def left_s(state: State, lease: NodesLeased) -> float:
    """Return the time for which all free nodes are still held, inf where there are none."""
    vacant, pairs = state.vacant, zip(lease.nodes, lease.until_s, strict=True)
    return min((until_s for node, until_s in pairs if vacant[node]), default=inf) - state.now_s


def obstacle(lease: NodesLeased, job: Job, free_s: float) -> Later | None:
    """Return the reason if a job may not start on nodes held for ``free_s``, else None."""
    spec = job.spec
    if job.least > lease.most:
        text = f"TooWide: needs {job.least} nodes, at most {lease.most} are held at once"
        return Later(spec.id, text, Reason.TOO_WIDE)
    needed_s = needs_s(spec)
    if needed_s <= min(lease.longest_s, free_s):
        return None
    until = "to end" if needed_s == spec.limit_s else "to reach a checkpoint"
    if needed_s > lease.longest_s:
        there = f"allocations last for {lease.longest_s:.0f} s"
    else:
        there = f"the nodes that are free go back in {max(0.0, free_s):.0f} s"
    text = f"AllocationEnds: needs {needed_s:.0f} s {until}, {there}"
    return Later(spec.id, text, Reason.ALLOCATION_ENDS)


def obstacles(state: State) -> dict[JobId, Later]:
    """Return the waiting jobs that may not start on the free nodes, with reasons."""
    lease = state.lease
    if lease is None:
        return {}
    free_s = left_s(state, lease)
    waits = {name: obstacle(lease, job, free_s) for name, job in state.pending.items()}
    return {name: later for name, later in waits.items() if later is not None}


def usable(state: State, events: Sequence[Event]) -> tuple[State, Sequence[Event]]:
    """Return the state and events without the jobs that cannot be started, for policies.

    Policies see the jobs that are too wide for the cluster, and refuse them.
    """
    waits = obstacles(state)
    hidden = {name for name in waits if state.pending[name].least <= state.nodes}
    if not hidden:
        return state, events
    return without_jobs(state, events, hidden)


def without_jobs(
    state: State, events: Sequence[Event], hidden: Set[JobId], nodes: Sequence[Node] = ()
) -> tuple[State, Sequence[Event]]:
    """Return a state and events for a policy, without hidden jobs and some free nodes."""
    view = copy.copy(state)
    view.needs_pass = True
    if hidden:
        view.set_pending({name: job for name, job in state.pending.items() if name not in hidden})
        events = [_without(event, hidden) for event in events]
    if nodes:
        view.vacant = bytearray(state.vacant)
        for node in nodes:
            view.vacant[node] = 0
        view.free_count -= len(nodes)
        gone = set(nodes)
        view.asleep = tuple(node for node in state.asleep if node not in gone)
    return view, events


def _without(event: Event, hidden: Set[JobId]) -> Event:
    if not isinstance(event, Submitted):
        return event
    return Submitted(event.at_s, tuple(spec for spec in event.specs if spec.id not in hidden))


# --- decisions -----------------------------------------------------------------------------------


class RuleError(RuntimeError):
    """A decision that breaks a rule; ``taken`` are the decisions before it."""

    taken: tuple[Decision, ...] = ()


def check(state: State, decision: Decision, *, ahead: bool = False) -> None:
    """Refuse a decision that breaks a rule about nodes, sizes or power.

    Args:
        ahead: starts go by expected ends: a counted job may get nodes whose end event comes later
            in the same instant. :func:`check_instant` checks that it came.

    Raises:
        RuleError: the decision breaks a rule.
    """
    if isinstance(decision, Start):
        job = state.pending.get(decision.job)
        if job is None:
            raise RuleError(f"expected a pending job to start, got {decision.job}")
        spec, size = job.spec, decision.size
        if decision.nodes:
            _distinct(decision.nodes)
            _free(state, decision.nodes, decision)
            if decision.frequencies:
                _clocked(state, decision)
        elif not state.counted or (size > state.free_count and not ahead):
            raise RuleError(f"expected free nodes for {decision.job}, got {size}")
        if decision.job in state.listed:
            _listed(state, spec, decision)
        if state.lease is not None:
            later = obstacle(state.lease, job, left_s(state, state.lease))
            if later is not None:
                raise RuleError(f"expected no start of {decision.job}, got one: {later.reason}")
        if size != spec.preferred:
            if not spec.mode.any_start:
                raise RuleError(f"expected {spec.preferred} nodes for {decision.job}, got {size}")
            _allowed(job.spec.sizes(), size, decision)
        if state.power_cap_w is not None:
            _within_cap(state, decision, job_w(state, spec, size), state.power_cap_w)
    elif isinstance(decision, Resize):
        job = state.running.get(decision.job)
        if job is None or job.state is not JobState.RUNNING or not job.spec.mode.resizable:
            raise RuleError(f"expected a running job that may be resized, got {decision.job}")
        if job.requested_size is not None:
            raise RuleError(f"expected no resize in flight for {decision.job}")
        if decision.nodes:
            _distinct(decision.nodes)
            own = set(job.nodes)
            _free(state, [node for node in decision.nodes if node not in own], decision)
        elif not state.counted or decision.size - job.size > state.free_count:
            raise RuleError(f"expected free nodes for {decision.job}, got {decision.size}")
        if decision.job in state.listed:
            _listed(state, job.spec, decision)
        _allowed(job.spec.sizes(), decision.size, decision)
        if state.power_cap_w is not None:
            more_w = growth_w(state, job, decision.size, decision.nodes)
            _within_cap(state, decision, more_w, state.power_cap_w)
    elif isinstance(decision, Never) and decision.job not in state.pending:
        raise RuleError(f"expected a pending job to refuse, got {decision.job}")
    elif isinstance(decision, PowerOff | PowerOn):
        _check_power(state, decision)


def check_instant(state: State) -> None:
    """Refuse an instant after which jobs hold more nodes than there are."""
    if state.free_count < 0:
        raise RuleError(
            f"expected every node given once at the end of {state.now_s} s, got "
            f"{-state.free_count} given twice"
        )


def _check_power(state: State, decision: PowerOff | PowerOn) -> None:
    """Refuse to power off busy nodes, to power on nodes that are not off, or to exceed the cap."""
    nodes, cap_w = decision.nodes, state.power_cap_w
    _distinct(nodes)
    if state.counted:
        raise RuleError("expected nodes that are placed, to be powered off or on")
    there = set(nodes)
    if not all(there.issuperset(state.together(node)) for node in nodes):
        raise RuleError(f"expected whole hosts to be powered off or on, got {nodes}")
    if isinstance(decision, PowerOff):
        if not all(state.vacant[node] for node in nodes):
            raise RuleError(f"expected idle nodes to power off, got {nodes}")
        return
    if not state.off.issuperset(nodes):
        raise RuleError(f"expected nodes that are off to power on, got {nodes}")
    more_w = boot_extra_w(state, nodes)
    if cap_w is not None and more_w > 0.0:
        then_w = expected_w(state) + more_w
        if then_w > cap_w * (1.0 + ROUNDING):
            raise RuleError(f"expected at most {cap_w:g} W, got {then_w:g} W with boots of {nodes}")


def _within_cap(state: State, decision: Start | Resize, more_w: float, cap_w: float) -> None:
    """Refuse a decision by which expected power exceeds the cap; a shrink never does."""
    if more_w > 0.0 and (then_w := expected_w(state) + more_w) > cap_w * (1.0 + ROUNDING):
        raise RuleError(f"expected at most {cap_w:g} W, got {then_w:g} W with {decision.job}")


def _distinct(nodes: tuple[int, ...]) -> None:
    if len(set(nodes)) != len(nodes):
        raise RuleError(f"expected every node once, got {nodes}")


def _listed(state: State, spec: JobSpec, decision: Start | Resize) -> None:
    if not allowed(state, spec).issuperset(decision.nodes):
        raise RuleError(f"expected nodes of its list for {decision.job}, got {decision.nodes}")


def _free(state: State, nodes: Sequence[int], decision: Start | Resize) -> None:
    vacant = state.vacant
    there = not nodes or (min(nodes) >= 0 and max(nodes) < len(vacant))
    if not there or not all(map(vacant.__getitem__, nodes)):
        raise RuleError(f"expected free nodes for {decision.job}, got {decision.nodes}")


def _clocked(state: State, decision: Start) -> None:
    """Refuse frequencies that nodes do not state, or not one per node."""
    shares, levels = decision.frequencies, state.site.levels
    stated = {ghz / levels[-1][0] for ghz, _ in levels}
    if len(shares) != len(decision.nodes) or not stated.issuperset(shares):
        raise RuleError(
            f"expected a frequency per node of {decision.job}, over the highest one, of "
            f"{sorted(stated)}, got {shares}"
        )


def _allowed(sizes: Sequence[int], size: int, decision: Start | Resize) -> None:
    if size not in sizes:
        raise RuleError(f"expected a size of {list(sizes)} for {decision.job}, got {size}")
