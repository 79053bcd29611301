"""A resize where nobody can change a running job: it ends at a checkpoint and runs again.

For the RMS it stays one job. Its script runs again from its first line, at the new size, and what
it launches goes on from the checkpoint; so only jobs that say they would (``--checkpoint-dir`` and
``--restart``) are resized so. The steps of it, in :class:`rms.daemon.jobs.PendingResize`:
``stopping`` (the job is told to end; its line gets no answer), ``starting`` (the script is handed
in again).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rms.core.events import ResizeBegun, Resized
from rms.core.model import JobId
from rms.daemon.jobs import JobRuntime, PendingResize
from rms.launch.base import NODES_LOST
from rms.wire.messages import ProtocolError, read_completion

if TYPE_CHECKING:
    from rms.daemon.daemon import Daemon

STATES = ("stopping", "starting")


def begin(
    daemon: Daemon, job_id: JobId, live: JobRuntime, slots: tuple[str, ...], why: str
) -> None:
    """Tell a job to end at a checkpoint, if it can go on from one.

    Args:
        why: it cannot be resized while it runs.
    """
    step = live.running
    if step is None or not step.restarts:
        words = f"{why}; and the job could not go on from a checkpoint (--checkpoint-dir --restart)"
        live.wish = None
        daemon.worlds.roll_back(job_id, live, words)
        return
    now = daemon.now()
    live.boot = PendingResize(
        daemon.scheduler.resizes[job_id],
        slots,
        "relaunch",
        state="stopping",
        begun_s=now,
        until_s=now + daemon.grace_s,
    )
    daemon.worlds.keep(job_id, live)
    daemon.handle(ResizeBegun(daemon.time(), job_id))
    daemon.terminate(job_id, live)


def watch(daemon: Daemon, job_id: JobId, live: JobRuntime, boot: PendingResize) -> None:
    """End a world that has not ended in time; it goes on from the checkpoint before."""
    step = live.running
    late = daemon.now() > boot.until_s
    if boot.state == "stopping" and late and not boot.committed and step is not None:
        boot.until_s, boot.why = float("inf"), "killed: no checkpoint in time"
        for launch in step.current:
            daemon.launcher.kill(job_id, launch)


def stopped(
    daemon: Daemon, job_id: JobId, live: JobRuntime, number: int, boot: PendingResize
) -> bool:
    """Take in that the world has ended; return False where that was not for the resize."""
    if boot.committed:
        return True
    try:
        record = read_completion(daemon.launcher.completion_file(job_id, number))
        if record.state != "CANCELLED":
            return False
        boot.at_step = record.step
    except (OSError, ProtocolError):
        if not boot.why:
            return False
    boot.committed = True
    daemon.worlds.keep(job_id, live)
    daemon.launcher.kill(job_id)
    return True


def script_over(daemon: Daemon, job_id: JobId, live: JobRuntime) -> bool:
    """Run a script again that ended for a resize; return False where it did not."""
    boot, job = live.boot, daemon.engine.state.running[job_id]
    if boot is None or boot.state not in STATES or live.ending is not None:
        return False
    if boot.state == "starting":
        if live.script is None or live.script.end_state != NODES_LOST:
            return False
        daemon.requeue(job_id, live, "could not start at its new size")
        return True
    if not boot.committed or job.requested_nodes is None:
        return False
    live.steps, live.keys = [], []
    daemon.worlds.note(job_id, live)
    start(daemon, job_id, live, boot)
    return True


def start(daemon: Daemon, job_id: JobId, live: JobRuntime, boot: PendingResize) -> None:
    """Hand the script in again, at the new size."""
    requested = daemon.engine.state.running[job_id].requested_nodes
    if requested is None:
        raise RuntimeError(f"expected a requested resize of {job_id}")
    daemon.run_script(job_id, live, requested)
    boot.state = "starting"
    daemon.worlds.keep(job_id, live)


def spoke(daemon: Daemon, job_id: JobId, live: JobRuntime) -> None:
    """The job computes again: the resize is done."""
    boot, job = live.boot, daemon.engine.state.running[job_id]
    if boot is None or boot.state != "starting":
        return
    stall_s = daemon.now() - boot.begun_s
    live.resizes.append(
        {
            "at_s": daemon.time(),
            "step": boot.at_step,
            "from": len(daemon.slots(job.nodes)),
            "to": len(boot.slots),
            "strategy": "relaunch",
            "boot_s": stall_s,
            "stall_s": stall_s,
            "move_s": 0.0,
            "bytes": 0,
            "gb_per_s": 0.0,
        }
    )
    daemon.journal.note(f"resizes/{job_id}", {"rows": live.resizes})
    live.boot = None
    daemon.worlds.keep(job_id, live)
    daemon.handle(Resized(daemon.time(), job_id, daemon.worlds.rest(live)))
