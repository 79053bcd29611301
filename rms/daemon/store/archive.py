"""The row of a job, as users' commands have it: all that is known of it in one."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from itertools import islice
from math import inf

import msgspec

from rms.core.model.events import Later, Reason
from rms.core.model.jobs import Job, JobId, JobState
from rms.core.policies.order import Multifactor, Priority
from rms.daemon.store.context import Context
from rms.daemon.store.journal import Archived
from rms.daemon.store.record import JobRuntime
from rms.wire.users import EnergyRow, JobRow, ResizeRow, SeenSteps, SlurmRow

_FOR_NODES = (Reason.RESOURCES, Reason.PRIORITY)
"""Why jobs wait that more nodes would let start."""


def row(context: Context, job: Job, now_s: float) -> JobRow:
    """Return the row of a job, with its energy up to a time."""
    spec, scheduler = job.spec, context.scheduler
    runtime = context.jobs.get(spec.id, JobRuntime(spec.id))
    energy_j = scheduler.energy.job_j(spec.id, now_s)
    parts = scheduler.energy.parts(spec.id, energy_j)
    details = _compared(context.launcher.nodes.job_details(spec.id), energy_j)
    rank = priority(context, job)
    return JobRow(
        id=spec.id,
        name=runtime.note.get("name", ""),
        state=str(job.state),
        mode=str(spec.mode),
        submit_s=spec.submit_s,
        start_s=job.start_s,
        end_s=job.end_s,
        nodes=[context.cluster.names[n] for n in job.nodes] if job.end_s is None else [],
        size=len(job.nodes),
        nodes_min=spec.nodes_min,
        nodes_max=spec.nodes_max,
        reason=_reason(context, job) or details.waits or "",
        step=runtime.step,
        steps=runtime.total,
        energy_j=energy_j,
        energy_source=" and ".join(part.source for part in parts),
        energy=parts,
        answer=runtime.answer,
        resizes=[_resize(context, spec.id, each) for each in runtime.resizes],
        resizing=runtime.resizing,
        resize_to=_resize_to(context, job),
        output=runtime.note.get("output", ""),
        slurm=details,
        summary=runtime.summary,
        seen=[SeenSteps(n, *each) for n, each in sorted((job.seen or {}).items())],
        profile=runtime.note.get("profile", ""),
        frequency=min(job.frequencies, default=None) if job.end_s is None else None,
        exit_code=None if job.end_s is None else runtime.exit_code,
        account=spec.account,
        user=runtime.note.get("user", ""),
        limit_s=spec.limit_s,
        nodelist=list(spec.nodelist),
        exclude=list(spec.exclude),
        restartable=runtime.restartable,
        priority=float(spec.priority) if rank is None else rank.value,
    )


def _resize_to(context: Context, job: Job) -> int | None:
    """Return the target size of a requested or running resize, or None."""
    wanted = context.state.wanted.get(job.spec.id)
    return job.requested_size if wanted is None else wanted.size


def priority(context: Context, job: Job) -> Priority | None:
    """Return the computed priority of a waiting job, None if the policy computes none."""
    order, state = context.scheduler.engine.policy.order, context.state
    if isinstance(order, Multifactor) and job.spec.id in state.pending:
        return order.priority(state, job)
    return None


def _compared(details: SlurmRow, energy_j: float) -> SlurmRow:
    """Return what Slurm tells of a job, its energy beside ours."""
    consumed_j = details.consumed_energy_j
    if isinstance(consumed_j, msgspec.UnsetType) or not energy_j:
        return details
    return msgspec.structs.replace(details, consumed_energy_ratio=consumed_j / energy_j)


def _resize(context: Context, job_id: JobId, row: ResizeRow) -> ResizeRow:
    """Return a resize with its energy."""
    energy = context.scheduler.energy
    found = energy.resizes.get((job_id, row.number))
    if found is None:
        return row
    joules = energy.resize_j(job_id, row.number)
    return msgspec.structs.replace(row, energy_j=joules, saved_j=found.saved_j)


def waits_for(context: Context, job_id: JobId) -> Later | None:
    """Return why a job waits, with what nodes wait for that are asked for; None if it does not."""
    waits = context.scheduler.engine.explain(job_id)
    if waits is not None and waits.code is Reason.BEGIN:
        begin_s = context.state.held[job_id].spec.begin_s or 0.0
        at = time.localtime(begin_s + context.skew_s)
        reason = time.strftime("BeginTime: not before %Y-%m-%dT%H:%M:%S", at)
        return msgspec.structs.replace(waits, reason=reason)
    if waits is None or waits.code not in _FOR_NODES:
        return waits
    reasons = [waits.reason, *filter(None, (context.nodes_wait, context.controller_away))]
    return msgspec.structs.replace(waits, reason="; ".join(reasons))


def stalled(context: Context, job_id: JobId) -> str:
    """Return why a start or resize of a job waits for Slurm, or ""."""
    job = context.state.running.get(job_id)
    if job is None or (job.state is not JobState.CONFIGURING and job.requested_size is None):
        return ""
    return context.controller_away


def _reason(context: Context, job: Job) -> str:
    """Return why a job waits, or what was said of it last."""
    waits = waits_for(context, job.spec.id)
    if waits is not None:
        return waits.reason
    return stalled(context, job.spec.id) or context.scheduler.reasons.get(job.spec.id, "")


# FUSED rms.daemon.store.archive: The energy of jobs and of the rest, as the books have it: rows of owner, node, device, source.


def energy_rows(context: Context, jobs: Collection[str] | None = None) -> list[EnergyRow]:
    """Return what is booked up to now, what is written and what is newer; both by node and time.

    Args:
        jobs: of these only; of all owners where None.
    """
    measured = context.scheduler.energy.measured
    one = next(iter(jobs)) if jobs is not None and len(jobs) == 1 else None
    present = measured.spans.present(max(context.time(), measured.until_s), jobs)
    newer = {_key(row): row for row in present}
    found = [newer.pop(_key(row), row) for row in context.journal.energy(one)]
    found += [newer[key] for key in sorted(newer)]
    wanted = None if jobs is None else frozenset(jobs)
    return [row for row in found if wanted is None or row.owner in wanted]


def _key(row: EnergyRow) -> tuple[str, float, str, str, str]:
    """Return what tells a row from all others."""
    return row.node, row.begin_s, row.owner, row.device, row.source


def job_rows(context: Context, job_id: JobId) -> list[EnergyRow]:
    """Return what is booked of a job up to now."""
    return energy_rows(context, [job_id])


def is_settled(context: Context, job: Job) -> bool:
    """Return whether meters have reported of all nodes of a job since it was over.

    What nobody measures is settled.
    """
    hosts, cluster = context.scheduler.energy.measured.hosts, context.cluster
    for node in job.nodes:
        if node >= len(cluster.names):
            continue  # of a cluster before this one
        name = cluster.names[node]
        for host in (hosts.get(cluster.host_of(node)), hosts.get("")):
            until_s = inf if host is None else host.nodes.get(name, inf)
            if until_s < (job.end_s or 0.0):
                return False
    return True


# FUSED rms.daemon.store.archive: Jobs that have been over for long: a row in the journal is all that is left of each.
#
# The newest that are over stay in memory, as do those that meters may still speak of, and those that
# others wait for. Nothing is decided by one that is over, so a replay, which knows all, decides the
# same.

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
