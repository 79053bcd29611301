"""Whether an event can have happened: asked before it is written down, and changes nothing.

What cannot be applied to the state never enters a journal, where each restart would meet it again.
:mod:`rms.core.transition` refuses the same events; it is not asked there again, since a simulation
makes none that cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rms.core.events import (
    Ended,
    Event,
    Freed,
    HeldByUser,
    NodeBooted,
    NodeDown,
    NodePowerFailed,
    NodesLeased,
    NodeUp,
    Reopened,
    Requeued,
    ResizeAsked,
    ResizeBegun,
    Resized,
    ResizePoint,
    ResizeRolledBack,
    Started,
    Stepped,
    Submitted,
    TasksHold,
)
from rms.core.lending import can_hold
from rms.core.model import Job, JobId
from rms.core.node_events import TransitionError
from rms.core.state import State


def check(state: State, event: Event) -> None:
    """Refuse an event that cannot have happened in a state.

    Raises:
        TransitionError: it cannot.
    """
    if not event.at_s >= state.now_s:
        raise TransitionError(f"expected time to go on from {state.now_s}, got {event.at_s}")
    found = _CHECK.get(type(event))
    if found is not None:
        found(state, event)


def _submitted(state: State, event: Submitted) -> None:
    new = set[JobId]()
    for spec in event.specs:
        if spec.id in new or state.job(spec.id) is not None:
            raise TransitionError(f"expected a new job, got {spec.id} again")
        new.add(spec.id)


def _running(state: State, event: Any) -> Job:
    job = state.running.get(event.job)
    if job is None:
        raise TransitionError(f"expected a running job, got {event.job} in {event}")
    return job


def _resizing(state: State, event: Any) -> None:
    if _running(state, event).requested_size is None:
        raise TransitionError(f"expected a requested resize of {event.job}")


def _stepped(state: State, event: Stepped) -> None:
    _running(state, event)
    if min(event.steps, event.total) < 1 or not event.span_s > 0.0:
        raise TransitionError(f"expected steps that took time, got {event}")


def _asked(state: State, event: ResizeAsked) -> None:
    _running(state, event)
    _nodes(state.nodes, event.nodes)


def _ended(state: State, event: Ended) -> None:
    job = state.job(event.job)
    if job is None or job.end_s is not None:
        raise TransitionError(f"expected a job that is not over, got {event.job} in {event}")


def _held(state: State, event: HeldByUser) -> None:
    for job_id in event.jobs:
        if all(job_id not in group for group in (state.pending, state.too_wide, state.held)):
            raise TransitionError(f"expected a job that waits, got {job_id} in {event}")


def _freed(state: State, event: Freed) -> None:
    for job_id in event.jobs:
        if job_id not in state.held:
            raise TransitionError(f"expected a job that waits, got {job_id} in {event}")


def _down(state: State, event: NodeDown) -> None:
    _nodes(state.nodes, (event.node,))
    if event.node in state.down:
        raise TransitionError(f"expected a node that is up, got {event.node}")


def _up(state: State, event: NodeUp) -> None:
    if event.node not in state.down:
        raise TransitionError(f"expected a node that is down, got {event.node}")


def _booted(state: State, event: NodeBooted) -> None:
    if event.node not in state.booting:
        raise TransitionError(f"expected a node that is booting, got {event.node}")


def _power_failed(state: State, event: NodePowerFailed) -> None:
    if event.node not in state.off and event.node not in state.booting:
        raise TransitionError(f"expected a node that is off or booting, got {event.node}")


def _tasks_hold(state: State, event: TasksHold) -> None:
    if not can_hold(state, event):
        raise TransitionError(f"expected free nodes for tasks, got {event.nodes}")


def _leased(state: State, event: NodesLeased) -> None:
    _nodes(state.nodes, event.nodes)
    if len(event.nodes) != len(event.until_s):
        raise TransitionError(f"expected a time for each node, got {event}")


def _reopened(state: State, event: Reopened) -> None:
    if state.counted:
        raise TransitionError("expected a cluster whose jobs are placed, got one that is counted")
    _nodes(len(event.nodes), event.down)


def _nodes(number: int, nodes: Iterable[int]) -> None:
    for node in nodes:
        if not 0 <= node < number:
            raise TransitionError(f"expected one of {number} nodes, got {node}")


_CHECK: dict[type, Callable[[State, Any], object]] = {
    Submitted: _submitted,
    **dict.fromkeys((Started, ResizePoint, Requeued), _running),
    **dict.fromkeys((ResizeBegun, Resized, ResizeRolledBack), _resizing),
    Stepped: _stepped,
    ResizeAsked: _asked,
    Ended: _ended,
    HeldByUser: _held,
    Freed: _freed,
    NodeDown: _down,
    NodeUp: _up,
    NodeBooted: _booted,
    NodePowerFailed: _power_failed,
    TasksHold: _tasks_hold,
    NodesLeased: _leased,
    Reopened: _reopened,
}
