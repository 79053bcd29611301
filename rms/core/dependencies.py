"""Jobs that wait for the ends of others, as with Slurm's ``--dependency``: pure, by outcomes known.

What is asked is a list of conditions, all of which are to hold, or any of them. A condition may be
open, hold, or have become impossible for good: a job that can never start for that waits on and
says so (``DependencyNeverSatisfied``), as under Slurm without ``kill_invalid_depend``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rms.core.events import Later, Reason
from rms.core.model import Dependency, Job, JobId, JobState
from rms.core.state import State

OK, ANY, NOT_OK, CORRESPONDING = "afterok", "afterany", "afternotok", "aftercorr"
KINDS = (OK, ANY, NOT_OK, CORRESPONDING)


def unmet(state: State, job: Job) -> Later | None:
    """Return why a job's dependencies keep it from starting, None where they do not."""
    asked = job.spec.after
    if not asked:
        return None
    found = [_holds(state, job, each) for each in asked]
    if (any if job.spec.after_any else all)(each is True for each in found):
        return None
    hopeless = (all if job.spec.after_any else any)(each is False for each in found)
    left = [f"{each.kind}:{each.job}" for each, met in zip(asked, found, strict=True) if not met]
    words = ("?" if job.spec.after_any else ",").join(left)
    if hopeless:
        return Later(job.spec.id, f"DependencyNeverSatisfied: {words}", Reason.NEVER_SATISFIED)
    return Later(job.spec.id, f"Dependency: {words}", Reason.DEPENDENCY)


def _holds(state: State, job: Job, asked: Dependency) -> bool | None:
    """Return whether a condition holds: None while that is open, False for never."""
    kind, wanted = asked.kind, asked.job
    if kind == CORRESPONDING:
        _, _, index = job.spec.id.partition("_")
        other = JobId(f"{wanted}_{index}")
        kind = OK
        if index and state.job(other) is not None:
            wanted = other
    total, over, failed = _outcome(state, wanted)
    if kind == ANY:
        return True if over == total else None
    if kind == OK:
        return False if failed or not total else (True if over == total else None)
    if over < total:
        return None
    return failed > 0


def _outcome(state: State, wanted: str) -> tuple[int, int, int]:
    """Return how many jobs there are by an id, are over, and are so without success."""
    one = state.job(JobId(wanted))
    if one is None:
        return state.outcomes.get(wanted, (0, 0, 0))
    over = one.end_s is not None
    return 1, int(over), int(over and one.state is not JobState.COMPLETED)


def enter(state: State, job: Job) -> None:
    """Count a job of an array that has come."""
    array = job.spec.array
    if array is not None:
        total, over, failed = state.outcomes.get(array, (0, 0, 0))
        state.outcomes[array] = total + 1, over, failed


def end(state: State, job: Job) -> None:
    """Put a job among those that are over."""
    state.ended[job.spec.id] = job
    if state.listed:
        state.listed.discard(job.spec.id)
    array = job.spec.array
    if array is not None:
        total, over, failed = state.outcomes.get(array, (0, 0, 0))
        failed += job.state is not JobState.COMPLETED
        state.outcomes[array] = total, over + 1, failed


def is_met(kind: str, states: Sequence[JobState]) -> bool:
    """Return whether a condition on jobs holds that have ended in these states."""
    failed = any(state is not JobState.COMPLETED for state in states)
    return True if kind == ANY else failed if kind == NOT_OK else not failed


def unknown(state: State, ids: Iterable[str]) -> str:
    """Return the first of these that is the id of no job and no array, "" where there is none."""
    return next((i for i in ids if state.job(JobId(i)) is None and i not in state.outcomes), "")
