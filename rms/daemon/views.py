"""What users' commands see of the daemon; looking changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from rms.core.model import Job, JobId, Node, sort_key
from rms.core.scheduler import repeats
from rms.daemon.jobs import JobRuntime
from rms.wire.users import BooksAnswer, HistoryEntry, JobRow, NodeRow, ResizeRow

if TYPE_CHECKING:
    from rms.daemon.daemon import Daemon


def jobs(daemon: Daemon, wanted: Callable[[str], bool] = lambda _: True) -> list[JobRow]:
    """Return a row for each wanted job, for queue, show, acct and reports, by rising id."""
    state, now_s = daemon.engine.state, daemon.time()
    by_state = (state.ended, state.running, state.pending, state.too_wide)
    found = [job for group in by_state for job_id, job in group.items() if wanted(job_id)]
    return [_row(daemon, job, now_s) for job in sorted(found, key=lambda j: sort_key(j.spec.id))]


def _row(daemon: Daemon, job: Job, now_s: float) -> JobRow:
    spec, scheduler = job.spec, daemon.scheduler
    live = daemon.live.get(spec.id, JobRuntime({}))
    details = daemon.launcher.job_details(spec.id)
    return JobRow(
        id=spec.id,
        name=live.note.get("name", ""),
        state=str(job.state),
        mode=str(spec.mode),
        submit_s=spec.submit_s,
        start_s=job.start_s,
        end_s=job.end_s,
        nodes=[daemon.cluster.names[n] for n in job.nodes] if job.end_s is None else [],
        size=len(job.nodes),
        nodes_min=spec.nodes_min,
        nodes_max=spec.nodes_max,
        reason=_reason(daemon, job) or details.waits or "",
        step=live.step,
        steps=live.total,
        energy_j=scheduler.ledger.job_j(spec.id, now_s),
        energy_source=scheduler.power_source,
        answer=live.answer,
        resizes=msgspec.convert(live.resizes, list[ResizeRow]),
        resizing="" if live.boot is None else live.boot.state,
        output=live.note.get("output", ""),
        slurm=details,
    )


def nodes(daemon: Daemon) -> list[NodeRow]:
    """Return the nodes and who is on them."""
    state, sources = daemon.engine.state, daemon.scheduler.power_sources
    held = {n: job for job, found in state.running.items() for n in found.held}
    return [
        NodeRow(
            name,
            list(daemon.cluster.slots[n]),
            _node_state(daemon, Node(n), is_held=n in held),
            held.get(Node(n)),
            sources.get(Node(n), "model"),
        )
        for n, name in enumerate(daemon.cluster.names)
    ]


def _node_state(daemon: Daemon, node: Node, *, is_held: bool) -> str:
    """Return a node's state by the words that sinfo has."""
    if daemon.cluster.names[node] in daemon.drained:
        return "draining" if is_held else "drained"
    if node in daemon.engine.state.down:
        return daemon.launcher.unavailable_label
    return "allocated" if is_held else "idle"


def _reason(daemon: Daemon, job: Job) -> str:
    """Return why a job waits, or what was said of it last."""
    waits = daemon.engine.explain(job.spec.id)
    return daemon.scheduler.reasons.get(job.spec.id, "") if waits is None else waits.reason


def history(daemon: Daemon, job_id: JobId) -> list[HistoryEntry]:
    """Return what was decided about a job, and, of one that waits, why it does now."""
    scheduler = daemon.scheduler
    known, waits = scheduler.history.get(job_id, []), scheduler.engine.explain(job_id)
    if waits is None:
        return known
    now = scheduler.entry(daemon.time(), waits)
    return known if known and repeats(now, known[-1]) else [*known, now]


def books(daemon: Daemon) -> BooksAnswer:
    """Return the energy books up to now, and who held which node when."""
    scheduler, now_s = daemon.scheduler, daemon.time()
    return BooksAnswer(
        energy=scheduler.books(now_s),
        spans=scheduler.timeline.spans,
        nodes=list(daemon.cluster.names),
        now_s=now_s,
        policy=daemon.engine.policy.name,
        power_w=scheduler.timeline.power_w,
        closed=scheduler.closed,
    )
