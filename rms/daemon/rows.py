"""The row of a job, as users' commands have it: all that is known of it in one."""

from __future__ import annotations

import msgspec

from rms.core.events import Later, Reason
from rms.core.model import Job, JobId
from rms.core.policies.multifactor import Multifactor, Priority
from rms.daemon.context import Context
from rms.daemon.jobs import JobRuntime
from rms.wire.users import JobRow, ResizeRow, SeenSteps, SlurmRow

_FOR_NODES = (Reason.RESOURCES, Reason.PRIORITY)
"""Why jobs wait that more nodes would let start."""


def row(context: Context, job: Job, now_s: float) -> JobRow:
    """Return all that is known of a job, its energy up to a time."""
    spec, scheduler = job.spec, context.scheduler
    known = context.jobs.get(spec.id, JobRuntime(spec.id))
    energy_j = scheduler.energy.job_j(spec.id, now_s)
    parts = scheduler.energy.parts(spec.id, energy_j)
    details = _compared(context.launcher.job_details(spec.id), energy_j)
    return JobRow(
        id=spec.id,
        name=known.note.get("name", ""),
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
        step=known.step,
        steps=known.total,
        energy_j=energy_j,
        energy_source=" and ".join(part.source for part in parts),
        energy=parts,
        answer=known.answer,
        resizes=[_resize(context, spec.id, each) for each in known.resizes],
        resizing=known.resizing,
        output=known.note.get("output", ""),
        slurm=details,
        summary=known.summary,
        seen=[SeenSteps(n, *each) for n, each in sorted((job.seen or {}).items())],
        profile=known.note.get("profile", ""),
        frequency=min(job.frequencies, default=None) if job.end_s is None else None,
        exit_code=None if job.end_s is None else known.exit_code,
        account=spec.account,
        nodelist=list(spec.nodelist),
        exclude=list(spec.exclude),
        priority=None if (found := priority(context, job)) is None else found.value,
    )


def priority(context: Context, job: Job) -> Priority | None:
    """Return the priority of a job that waits, None where there is none."""
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
    if waits is None or not context.nodes_wait or waits.code not in _FOR_NODES:
        return waits
    return msgspec.structs.replace(waits, reason=f"{waits.reason}; {context.nodes_wait}")


def _reason(context: Context, job: Job) -> str:
    """Return why a job waits, or what was said of it last."""
    waits = waits_for(context, job.spec.id)
    return context.scheduler.reasons.get(job.spec.id, "") if waits is None else waits.reason
