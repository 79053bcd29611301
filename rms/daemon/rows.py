"""The row of a job, as users' commands have it: all that is known of it in one."""

from __future__ import annotations

import time

import msgspec

from rms.core.model.events import Later, Reason
from rms.core.model.jobs import Job, JobId, JobState
from rms.core.policies.order import Multifactor, Priority
from rms.daemon.context import Context
from rms.daemon.jobs import JobRuntime
from rms.wire.users import JobRow, ResizeRow, SeenSteps, SlurmRow

_FOR_NODES = (Reason.RESOURCES, Reason.PRIORITY)
"""Why jobs wait that more nodes would let start."""


def row(context: Context, job: Job, now_s: float) -> JobRow:
    """Return the row of a job, with its energy up to a time."""
    spec, scheduler = job.spec, context.scheduler
    runtime = context.jobs.get(spec.id, JobRuntime(spec.id))
    energy_j = scheduler.energy.job_j(spec.id, now_s)
    parts = scheduler.energy.parts(spec.id, energy_j)
    details = _compared(context.launcher.job_details(spec.id), energy_j)
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
