"""Nodes that are held for a time only: who can be of use there before they go back. Pure.

A pilot's nodes belong to allocations of a resource manager, each of which ends. A job that states
a time limit, and cannot be resized, is not started where it could not end in time; one that can be
resized writes a checkpoint when it is told to end, and needs a little time only, as does one that
states none. A job may get any free nodes, so the one that goes back first counts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence, Set
from math import inf

from rms.core.events import Event, Later, NodesLeased, Reason, Submitted
from rms.core.model import Job, JobId, JobSpec
from rms.core.state import State

LEAST_S = 60.0
"""What a job is to have that can be told to end: to start, and to get somewhere."""


def needs_s(spec: JobSpec) -> float:
    """Return for how long a job has to have its nodes, lest it has run for nothing."""
    if spec.limit_s is None:
        return LEAST_S
    return min(spec.limit_s, LEAST_S) if spec.mode.resizable else spec.limit_s


def left_s(state: State, lease: NodesLeased) -> float:
    """Return for how long all nodes that are free are held, inf where there are none."""
    vacant, pairs = state.vacant, zip(lease.nodes, lease.until_s, strict=True)
    return min((until_s for node, until_s in pairs if vacant[node]), default=inf) - state.now_s


def obstacle(lease: NodesLeased, job: Job, free_s: float) -> Later | None:
    """Return why a job is not started on nodes that are held for so long, None if it may be."""
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
    """Return why waiting jobs are not started on the nodes that are free, those that are not."""
    lease = state.lease
    if lease is None:
        return {}
    free_s = left_s(state, lease)
    found = {name: obstacle(lease, job, free_s) for name, job in state.pending.items()}
    return {name: later for name, later in found.items() if later is not None}


def usable(state: State, events: Sequence[Event]) -> tuple[State, Sequence[Event]]:
    """Return a state as policies are to see it, without jobs that cannot be started, and events.

    Jobs that no cluster of this size can ever run are left to them.
    """
    waits = obstacles(state)
    hidden = {name for name in waits if state.pending[name].least <= state.nodes}
    if not hidden:
        return state, events
    view = copy.copy(state)
    view.only({name: job for name, job in state.pending.items() if name not in hidden})
    view.needs_pass = True
    return view, [without(event, hidden) for event in events]


def without(event: Event, hidden: Set[JobId]) -> Event:
    """Return an event without those of its submitted jobs that a policy is not to see."""
    if not isinstance(event, Submitted):
        return event
    return Submitted(event.at_s, tuple(spec for spec in event.specs if spec.id not in hidden))
