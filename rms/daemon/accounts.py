"""The energy of jobs and of the rest, as the books have it: rows of owner, node, device, source."""

from __future__ import annotations

from rms.core.model import JobId
from rms.daemon.context import Context
from rms.wire.users import EnergyRow


def job_rows(context: Context, job_id: JobId) -> list[EnergyRow]:
    """Return what is booked of a job up to now."""
    state, scheduler, now_s = context.state, context.scheduler, context.time()
    job = state.ended.get(job_id) or state.running.get(job_id)
    if job is None or job.start_s is None:
        return []
    joules = scheduler.ledger.job_j(job_id, now_s)
    end_s = now_s if job.end_s is None else job.end_s
    source = scheduler.power_source
    times = job.start_s, end_s
    return [EnergyRow(job_id, None, 0, "", "node", source, *times, joules, 0.0, False, 0.0)]


def other_rows(context: Context) -> list[EnergyRow]:
    """Return what is booked of no job: idle, off and boot."""
    scheduler, state, now_s = context.scheduler, context.state, context.time()
    books, source = scheduler.books(now_s), scheduler.power_source
    jobs = [*state.ended.values(), *state.running.values(), *state.pending.values()]
    begin_s = min((job.spec.submit_s for job in jobs), default=now_s)
    sums = (("idle", books.idle_j), ("off", books.off_j), ("boot", books.boot_j))
    return [
        EnergyRow(owner, None, 0, "", "node", source, begin_s, now_s, joules, 0.0, False, 0.0)
        for owner, joules in sums
        if joules
    ]


def is_settled(context: Context, job_id: JobId) -> bool:
    """Return whether what is booked of a job that is over will not change any more."""
    return True
