"""What clients see of the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rms.core.model import Job, JobId, Node
from rms.daemon.jobs import JobRuntime

if TYPE_CHECKING:
    from rms.daemon.daemon import Daemon


def job(daemon: Daemon, job_id: JobId) -> Job | None:
    """Return a job, whatever its state."""
    state = daemon.engine.state
    return state.job(job_id)


def rows(daemon: Daemon) -> list[dict[str, Any]]:
    """Return one row per job, for queue, show, acct and reports."""
    daemon.ledger.advance(daemon.engine.state, daemon.time())
    state = daemon.engine.state
    waiting = [*state.pending.values(), *state.too_wide.values()]
    jobs = [*state.ended.values(), *state.running.values(), *waiting]
    return [_row(daemon, job) for job in sorted(jobs, key=lambda j: _sort_key(j.spec.id))]


def _row(daemon: Daemon, job: Job) -> dict[str, Any]:
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
        "reason": _why(daemon, job, live) or about.get("waits", ""),
        "step": live.step,
        "steps": live.total,
        "energy_j": daemon.ledger.busy_j.get(job.spec.id, 0.0),
        "energy_source": daemon.power_source,
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
                "power_source": daemon.sources.get(node, "model"),
            }
        )
    return rows


def _why(daemon: Daemon, job: Job, live: JobRuntime) -> str:
    """Return why a job waits, or what was said of it last."""
    waits = daemon.engine.explain(job.spec.id)
    return live.reason if waits is None else waits.reason


def history(daemon: Daemon, job_id: JobId) -> list[dict[str, Any]]:
    """Return what was decided about a job, and, of one that waits, why it does now."""
    live, waits = daemon.live[job_id], daemon.engine.explain(job_id)
    if waits is not None:
        daemon.remember(live, daemon.time(), waits)
    return live.history


def energy(daemon: Daemon) -> dict[str, Any]:
    """Return the books of the cluster, up to now."""
    daemon.ledger.advance(daemon.engine.state, daemon.time())
    return books(daemon)


def books(daemon: Daemon) -> dict[str, Any]:
    """Return the books as they stand."""
    ledger = daemon.ledger
    return {
        "at_s": ledger.at_s,
        "busy_j": sum(ledger.busy_j.values()),
        "idle_j": ledger.idle_j,
        "off_j": ledger.off_j,
        "boot_j": ledger.boot_j,
        "cluster_j": ledger.cluster_j,
        "busy_node_s": ledger.busy_node_s,
        "power_source": daemon.power_source,
    }


def _sort_key(job_id: str) -> tuple[int, int]:
    number, _, index = job_id.partition("_")
    return int(number), int(index or -1)
