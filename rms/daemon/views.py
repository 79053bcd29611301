"""What users' commands see of the daemon; looking changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from rms.core.joules import MODEL
from rms.core.model import Job, JobId, Node, sort_key
from rms.core.powercap import expected_w
from rms.core.scheduler import repeats
from rms.daemon.accounts import energy_rows
from rms.daemon.context import Context
from rms.daemon.jobs import JobRuntime
from rms.daemon.selection import groups
from rms.daemon.tasks import Tasks
from rms.wire.users import (
    Accounts,
    BooksAnswer,
    HistoryEntry,
    JobRow,
    NodeRow,
    PolicyName,
    PowerCapRow,
    ResizeRow,
    SeenSteps,
    SlurmRow,
)


def jobs(context: Context, wanted: Callable[[str], bool] = lambda _: True) -> list[JobRow]:
    """Return a row for each wanted job, for queue, show, acct and reports, by rising id."""
    state, now_s = context.state, context.time()
    found = [job for group in groups(state) for job_id, job in group.items() if wanted(job_id)]
    return [row(context, job, now_s) for job in sorted(found, key=lambda j: sort_key(j.spec.id))]


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
    )


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


def nodes(context: Context) -> list[NodeRow]:
    """Return the nodes and who is on them; where slots are given one by one, their hosts."""
    state, sources = context.state, context.scheduler.energy.measured.sources
    held = {n: job for job, found in state.running.items() for n in found.held}
    set_to: dict[Node, float] = {}
    for job in state.running.values():
        set_to.update(zip(job.nodes, job.frequencies, strict=False))
    cluster, found, taken = context.cluster, [], held.keys() | state.lent.keys()
    for name in cluster.hosts:
        own = cluster.nodes_of[name]
        jobs = dict.fromkeys(held[node] for node in own if node in held)
        jobs |= {JobId(state.lent[node]): None for node in own if state.lent.get(node)}
        allocated = sum(len(cluster.slots[node]) for node in own if node in taken)
        found.append(
            NodeRow(
                name,
                list(cluster.slots_of(own)),
                _node_state(context, own, taken),
                ",".join(jobs) or None,
                sources.get(name, MODEL),
                allocated,
                max((set_to[node] for node in own if node in set_to), default=None),
            )
        )
    return found


def _node_state(context: Context, own: Sequence[Node], held: Collection[Node]) -> str:
    """Return the state of a node, or of a host of these slots, by the words that sinfo has."""
    state, is_held = context.state, not set(own).isdisjoint(held)
    if context.cluster.host_of(own[0]) in context.drained:
        return "draining" if is_held else "drained"
    if own[0] in state.down:
        return context.launcher.unavailable_label
    if own[0] in state.off:
        return "powered_down"
    if own[0] in state.booting:
        return "powering_up"
    if is_held:
        return "allocated" if set(own) <= set(held) else "mixed"
    return "idle"


def _reason(context: Context, job: Job) -> str:
    """Return why a job waits, or what was said of it last."""
    waits = context.scheduler.engine.explain(job.spec.id)
    return context.scheduler.reasons.get(job.spec.id, "") if waits is None else waits.reason


def policy(context: Context, tasks: Tasks) -> PolicyName:
    """Return what decides on jobs, and what on tasks."""
    name, scheduler = context.scheduler.engine.policy.name, tasks.scheduler
    if not scheduler.state.devices:
        return PolicyName(name)
    governor, rule = str(scheduler.state.governor), tasks.rule
    by = str(rule) if rule.automatic else ""
    return PolicyName(name, scheduler.strategy.name, governor, governor_rule=by)


def acct(context: Context, wanted: Callable[[str], bool] | None = None) -> Accounts:
    """Return jobs and what was booked to them, all at one time; of all jobs, to nobody too."""
    with context.as_of(context.now()):
        found = jobs(context) if wanted is None else jobs(context, wanted)
        ids = None if wanted is None else [job.id for job in found]
        rows = energy_rows(context, ids)
        return Accounts(found, context.scheduler.books(context.time()), rows)


def history(context: Context, job_id: JobId) -> list[HistoryEntry]:
    """Return what was decided about a job, and, of one that waits, why it does now."""
    scheduler = context.scheduler
    known, waits = scheduler.history.get(job_id, []), scheduler.engine.explain(job_id)
    if waits is None:
        return known
    now = scheduler.entry(context.time(), waits)
    return known if known and repeats(now, known[-1]) else [*known, now]


def power_cap(context: Context) -> PowerCapRow:
    """Return the power cap, and what is expected and measured under it."""
    state, energy = context.state, context.scheduler.energy
    measured_w = energy.power_w if energy.measured.node_w else None
    return PowerCapRow(state.power_cap_w, expected_w(state), state.idle_w, measured_w)


def books(context: Context) -> BooksAnswer:
    """Return the energy books up to now, and who held which node when."""
    scheduler, now_s = context.scheduler, context.time()
    return BooksAnswer(
        energy=scheduler.books(now_s),
        spans=scheduler.timeline.spans,
        nodes=list(context.cluster.names),
        now_s=now_s,
        policy=scheduler.engine.policy.name,
        power_w=scheduler.timeline.power_w,
        closed=scheduler.closed,
        power_spans=scheduler.timeline.power_spans,
    )
