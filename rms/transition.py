"""How the state follows events and decisions. Deterministic, no I/O, no clock."""

from __future__ import annotations

from rms.events import (
    Decision,
    Ended,
    Event,
    Never,
    Requeued,
    Resize,
    ResizeBegun,
    Resized,
    ResizePoint,
    ResizeRolledBack,
    Start,
    Started,
    Submitted,
)
from rms.model import Job, JobState, State


class TransitionError(RuntimeError):
    """An event that cannot have happened in this state."""


def apply(state: State, event: Event) -> None:
    """Change the state by what happened."""
    if event.at_s < state.now_s:
        raise TransitionError(f"expected time to go on from {state.now_s}, got {event.at_s}")
    state.now_s = event.at_s
    if isinstance(event, Submitted):
        for spec in event.specs:
            if any(spec.id in jobs for jobs in (state.pending, state.running, state.ended)):
                raise TransitionError(f"expected a new job, got {spec.id} again")
            state.pending[spec.id] = Job(spec)
        return
    if isinstance(event, Ended) and event.job in state.pending:
        _end(state, state.pending.pop(event.job), event)
        return
    job = state.running.get(event.job)
    if job is None:
        raise TransitionError(f"expected a running job, got {event.job} in {event}")
    if isinstance(event, Started):
        job.state, job.start_s = JobState.RUNNING, event.at_s
        job.answers = job.spec.resize_every_s is not None
        _set_rate(job, event.at_s)
    elif isinstance(event, ResizeBegun):
        if job.requested is None:
            raise TransitionError(f"expected a requested resize of {event.job}")
        job.progress_to(event.at_s)
        job.moving, job.rate = True, 0.0
    elif isinstance(event, Resized):
        _resized(state, job, event)
    elif isinstance(event, ResizeRolledBack):
        _rolled_back(state, job, event)
    elif isinstance(event, Requeued):
        state.give_back(state.running.pop(event.job).held)
        state.pending[event.job] = Job(job.spec)
    elif isinstance(event, Ended):
        _end(state, state.running.pop(event.job), event)
    elif isinstance(event, ResizePoint):
        job.answers = True


def take(state: State, decision: Decision) -> None:
    """Change the state by a decision: from planned to requested."""
    if isinstance(decision, Start):
        job = state.pending.pop(decision.job)
        job.state, job.nodes = JobState.CONFIGURING, decision.nodes
        state.running[decision.job] = job
        state.take(decision.nodes)
    elif isinstance(decision, Resize):
        job = state.running[decision.job]
        job.requested = decision.nodes
        state.take(tuple(node for node in decision.nodes if node not in job.nodes))
    elif isinstance(decision, Never):
        job = state.pending.pop(decision.job)
        job.state, job.end_s = JobState.CANCELLED, state.now_s
        state.ended[decision.job] = job


def _set_rate(job: Job, now: float) -> None:
    job.progress_to(now)
    speedup = job.spec.speedup
    job.rate = 0.0 if speedup is None else 1.0 / speedup.time(len(job.nodes))


def _resized(state: State, job: Job, event: Resized) -> None:
    if job.requested is None:
        raise TransitionError(f"expected a requested resize of {event.job}")
    job.progress_to(event.at_s)
    job.resizes.append((event.at_s, len(job.nodes), len(job.requested)))
    gone = tuple(node for node in job.nodes if node not in job.requested)
    job.nodes, job.requested, job.moving = job.requested, None, False
    state.give_back(gone)
    _set_rate(job, event.at_s)


def _rolled_back(state: State, job: Job, event: ResizeRolledBack) -> None:
    if job.requested is None:
        raise TransitionError(f"expected a requested resize of {event.job}")
    job.progress_to(event.at_s)
    held = tuple(node for node in job.requested if node not in job.nodes)
    job.refused.add(len(job.requested))
    job.requested, job.moving = None, False
    state.give_back(held)
    _set_rate(job, event.at_s)


def _end(state: State, job: Job, event: Ended) -> None:
    job.progress_to(event.at_s)
    job.rate = 0.0
    state.give_back(job.held)
    job.state, job.end_s, job.requested, job.moving = JobState(event.state), event.at_s, None, False
    state.ended[event.job] = job
