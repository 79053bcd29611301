"""Jobs that have been over for long: a row in the journal is all that is left of each.

The newest that are over stay in memory, as do those that meters may still speak of, and those that
others wait for. Nothing is decided by one that is over, so a replay, which knows all, decides the
same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rms.core.model.jobs import Job
from rms.daemon.context import Context
from rms.daemon.journal_entries import Archived
from rms.daemon.rows import row

KEPT = 1_000
"""How many jobs that are over stay in memory."""

AT_ONCE = 100
"""How many are archived at once: others have their turn in between."""

BACKLOG = 5_000
"""More than so many (of a journal of before) are archived before anybody is served."""

NOTES = ("job", "script", "steps", "boot", "resizes", "ending", "end", "signal", "summary")
"""Kinds of notes about a job."""


def retire(context: Context, at_once: int = AT_ONCE) -> bool:
    """Archive some of the jobs that are over, where there are many; return whether any were.

    Args:
        at_once: how many at most.

    Raises:
        JournalFullError: there is no room for that now; nothing has changed.
    """
    state, scheduler = context.state, context.scheduler
    more = len(state.ended) - KEPT
    if more < AT_ONCE:
        return False
    jobs = list(islice(_due(context, more), at_once))
    if not jobs:
        return False
    found = [
        Archived(row(context, job, context.time()), scheduler.history.get(job.spec.id, []))
        for job in jobs
    ]
    ids = [job.spec.id for job in jobs]
    keys = [f"{kind}/{job_id}" for job_id in ids for kind in NOTES]
    keys += [f"line/{job_id}/" for job_id in ids]
    gone = frozenset(ids)
    arrays = {job.spec.array for job in jobs if job.spec.array is not None}
    arrays -= state.arrays.keys() | _held(context)
    rest = (job.spec.array for job_id, job in state.ended.items() if job_id not in gone)
    for array in rest if arrays else ():
        arrays.discard(array)
        if not arrays:
            break
    keys += [f"job/{array}" for array in arrays]
    context.journal.archive(found, keys)
    scheduler.forget(ids)
    for job_id in ids:
        context.jobs.pop(job_id, None)
    return True


def catch_up(context: Context) -> None:
    """Archive all jobs that are to be, where there are too many to do it in between.

    Raises:
        JournalFullError: there is no room for that now; nothing has changed.
    """
    more = len(context.state.ended) - KEPT
    if more > BACKLOG:
        context.say(f"archives {more} jobs that are over, once")
        retire(context, more)


def _held(context: Context) -> set[str | None]:
    """Return the arrays of jobs that may not start yet, which are not among those that wait."""
    state = context.state
    return {job.spec.array for group in (state.held, state.too_wide) for job in group.values()}


def _due(context: Context, number: int) -> Iterator[Job]:
    """Yield those of the first so many that are over of whom all is known."""
    state, spans = context.state, context.scheduler.energy.measured.spans
    wanted = {each.job for job in state.held.values() for each in job.spec.after}
    booked = {span.owner for span in spans.kept()}
    return (
        job
        for job_id, job in islice(state.ended.items(), number)
        if job_id not in booked
        and wanted.isdisjoint((job_id, job.spec.array or job_id))
        and context.jobs[job_id].summary != ""
    )
