"""What clients see of the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rms.core.model import Job, JobId, Node, sort_key
from rms.core.scheduler import repeats
from rms.daemon.jobs import JobRuntime
from rms.wire.users import HistoryEntry

if TYPE_CHECKING:
    from rms.daemon.daemon import Daemon


def job(daemon: Daemon, job_id: JobId) -> Job | None:
    """Return a job, whatever its state."""
    state = daemon.engine.state
    return state.job(job_id)


def rows(daemon: Daemon) -> list[dict[str, Any]]:
    """Return one row per job, for queue, show, acct and reports."""
    state, now_s = daemon.engine.state, daemon.time()
    waiting = [*state.pending.values(), *state.too_wide.values()]
    jobs = [*state.ended.values(), *state.running.values(), *waiting]
    return [_row(daemon, job, now_s) for job in sorted(jobs, key=lambda j: sort_key(j.spec.id))]


def _row(daemon: Daemon, job: Job, now_s: float) -> dict[str, Any]:
    live = daemon.live.get(job.spec.id, JobRuntime({}))
    about = daemon.launcher.job_details(job.spec.id)
    return {
        "id": job.spec.id,
        "name": live.note.get("name", ""),
        "state": str(job.state),
        "mode": str(job.spec.mode),
        "submit_s": job.spec.submit_s,
        "start_s": job.start_s,
        "end_s": job.end_s,
        "nodes": [daemon.cluster.names[n] for n in job.nodes] if job.end_s is None else [],
        "size": len(job.nodes),
        "nodes_min": job.spec.nodes_min,
        "nodes_max": job.spec.nodes_max,
        "reason": _why(daemon, job) or about.get("waits", ""),
        "step": live.step,
        "steps": live.total,
        "energy_j": daemon.scheduler.ledger.job_j(job.spec.id, now_s),
        "energy_source": daemon.scheduler.power_source,
        "answer": live.answer,
        "resizes": live.resizes,
        "resizing": "" if live.boot is None else live.boot.state,
        "output": live.note.get("output", ""),
        "slurm": about,
    }


def nodes(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the nodes and who is on them; those given to nobody by the words that sinfo has."""
    state, down = daemon.engine.state, daemon.engine.state.down
    held = {n: job for job, found in state.running.items() for n in found.held}
    rows = []
    for n, name in enumerate(daemon.cluster.names):
        node = Node(n)
        word = "allocated" if node in held else "idle"
        if name in daemon.drained:
            word = "draining" if node in held else "drained"
        elif node in down:
            word = daemon.launcher.unavailable_label
        rows.append(
            {
                "name": name,
                "slots": daemon.cluster.slots[n],
                "state": word,
                "job": held.get(node),
                "power_source": daemon.scheduler.power_sources.get(node, "model"),
            }
        )
    return rows


def _why(daemon: Daemon, job: Job) -> str:
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
