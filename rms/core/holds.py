"""Jobs that may not start yet, whatever is free: a user holds them, or it is before their time.

As Slurm has it (``scontrol hold`` and ``release``, ``sbatch --hold`` and ``--begin``). Such a job
is in ``state.held``, where no policy sees it. Once it may start it has its place in the queue by
the order of submission, and the policy is told of it as of a job that is handed in.

That its time has come is an event (:class:`rms.core.events.Freed`) that a driver enters for the
jobs that :func:`due` names: after the time that :func:`next_s` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from msgspec.structs import replace

from rms.core.dependencies import end, unmet
from rms.core.events import Event, Freed, HeldByUser, Later, Reason, Submitted, Withdrawn
from rms.core.model import Job, JobId, JobState
from rms.core.node_events import TransitionError
from rms.core.state import State

EVENTS = frozenset((HeldByUser, Freed))
"""Events by which jobs come to be held, and into the queue, beside their submission."""


def waits_for(state: State, job: Job, at_s: float) -> Later | None:
    """Return what a job waits for beside nodes, None if it may start at ``at_s``."""
    job_id, begin_s = job.spec.id, job.spec.begin_s
    if job.held_by_user:
        return Later(job_id, "JobHeldUser", Reason.HELD_BY_USER)
    if begin_s is not None and begin_s > at_s:
        after_s = begin_s - job.spec.submit_s
        return Later(job_id, f"BeginTime: {after_s:.0f} s after it was submitted", Reason.BEGIN)
    return unmet(state, job)


def due(state: State, at_s: float) -> tuple[JobId, ...]:
    """Return the held jobs that may start at ``at_s``."""
    held = state.held.items()
    return tuple(job_id for job_id, job in held if waits_for(state, job, at_s) is None)


def next_s(state: State) -> float:
    """Return when a held job may start by the time alone, inf for never."""
    times = (job.spec.begin_s for job in state.held.values() if not job.held_by_user)
    return min((begin_s for begin_s in times if begin_s is not None), default=inf)


def submitted(state: State, job: Job) -> None:
    """Hold the newest job in the queue, if it may not start yet."""
    job.held_by_user = job.spec.hold
    if waits_for(state, job, state.now_s) is not None:
        state.new_jobs.pop()
        state.held[job.spec.id] = state.dequeue(job.spec.id)


def held_by_user(state: State, event: HeldByUser) -> None:
    """Hold jobs, or let go those that a user held: who waits for nothing else is in the queue."""
    known = (state.pending, state.too_wide, state.held)
    _expect_all(event, lambda job_id: any(job_id in group for group in known))
    state.now_s = event.at_s
    for job_id in event.jobs if event.held else ():
        if job_id in state.pending:
            job = state.dequeue(job_id)
            state.held[job_id] = job
            if job in state.new_jobs:
                state.new_jobs.remove(job)
        elif job_id in state.too_wide:
            state.held[job_id] = state.too_wide.pop(job_id)
    held = [state.held[job_id] for job_id in event.jobs if job_id in state.held]
    for job in held:
        job.held_by_user = event.held
    _enqueue(state, [job for job in held if waits_for(state, job, event.at_s) is None])


def freed(state: State, event: Freed) -> None:
    """Let jobs start whose time has come."""
    _expect_all(event, lambda job_id: job_id in state.held)
    state.now_s = event.at_s
    _enqueue(state, [state.held[job_id] for job_id in event.jobs])


def withdrawn(state: State, event: Withdrawn) -> None:
    """End jobs that wait, held or not."""
    known = (state.pending, state.too_wide, state.held)
    _expect_all(event, lambda job_id: any(job_id in group for group in known))
    state.now_s = event.at_s
    for job_id in event.jobs:
        job = state.too_wide.pop(job_id, None) or state.held.pop(job_id, None)
        job = job or state.dequeue(job_id)
        job.state, job.end_s, job.expected_end_s = JobState.CANCELLED, event.at_s, inf
        end(state, job)


def as_seen(state: State, events: Sequence[Event]) -> Sequence[Event]:
    """Return events as a policy is told of them: jobs are handed in when they come to the queue."""
    if not (state.held or state.too_wide) and not any(type(event) in EVENTS for event in events):
        return events
    return [_seen(state, event) for event in events]


def _seen(state: State, event: Event) -> Event:
    if isinstance(event, Submitted):
        specs = tuple(spec for spec in event.specs if spec.id in state.pending)
        return replace(event, specs=specs)
    if isinstance(event, HeldByUser | Freed):
        here = (state.pending.get(job_id) for job_id in event.jobs)
        return Submitted(event.at_s, tuple(job.spec for job in here if job is not None))
    return event


def _expect_all(event: HeldByUser | Freed | Withdrawn, known: Callable[[JobId], bool]) -> None:
    for job_id in event.jobs:
        if not known(job_id):
            raise TransitionError(f"expected a job that waits, got {job_id} in {event}")


def _enqueue(state: State, jobs: Iterable[Job]) -> None:
    """Put held jobs in their places in the queue, but those too wide for the cluster."""
    for job in jobs:
        del state.held[job.spec.id]
        if job.least > state.nodes:
            state.too_wide[job.spec.id] = job
        else:
            state.enqueue(job, sort=False)
    state.pending = dict(sorted(state.pending.items(), key=lambda item: item[1].number))
