"""What a running job may use: its time, with a signal before that is up, and its memory."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from rms.core.model.jobs import Job
from rms.daemon.context import Context
from rms.daemon.jobs import JobRuntime
from rms.daemon.scripts import Scripts
from rms.launch.processes import resident_mib

LOOK_S = 1.0
"""How often the memory of a job is looked at."""

NOTE = "signal"
"""Kind of the note that a job has got the signal that it asked for."""


class Limits:
    """Ends jobs that are past a limit."""

    def __init__(self, context: Context, scripts: Scripts) -> None:
        self._context, self._scripts = context, scripts

    def watch(self, job: JobRuntime, running: Job, now_s: float) -> None:
        """Look at a job once."""
        limit_s = running.spec.limit_s
        if limit_s is not None and running.start_s is not None:
            end_s, asked = running.start_s + limit_s, job.shared.get("signal")
            if now_s > end_s:
                self._scripts.cancel(job, "TIMEOUT")
            elif asked and not job.signalled and now_s > end_s - asked["before_s"]:
                self._signal(job, asked["number"], batch=asked["batch"])
        if job.shared.get("memory_mib") and job.ending is None and now_s > job.memory_s + LOOK_S:
            job.memory_s = now_s
            self._look_at_memory(job, running)

    def due_s(self, job: JobRuntime, running: Job) -> float:
        """Return when a job is to be looked at next, infinity where it has no limit."""
        limit_s, found = running.spec.limit_s, inf
        if limit_s is not None and running.start_s is not None:
            asked, found = job.shared.get("signal"), running.start_s + limit_s
            if asked and not job.signalled:
                found -= asked["before_s"]
        if job.shared.get("memory_mib"):
            found = min(found, job.memory_s + LOOK_S)
        return found

    def _signal(self, job: JobRuntime, number: int, *, batch: bool) -> None:
        """Send a job the signal that it asked for, once."""
        job.signalled = True
        self._context.note(NOTE, job, {"sent": True})
        script = 0 if job.script is None else job.script.pid
        self._context.launcher.send_signal(job.id, number, script if batch else 0)
        self._context.say(f"job {job.id}: gets signal {number} before the end of its time")

    def _look_at_memory(self, job: JobRuntime, running: Job) -> None:
        """End a job whose processes hold more memory than it asked for.

        Where the kernel holds it to that, it has ended all of it already, or what it could.
        """
        context = self._context
        hosts = len(context.cluster.hosts_of(running.held))
        most_mib = job.shared["memory_mib"] * hosts
        ended = context.launcher.limit_memory(job.id, most_mib)
        if ended is not None:
            if ended:
                context.say(f"job {job.id}: came to hold {most_mib:.0f} MiB, as it asked for")
                self._scripts.cancel(job, "OUT_OF_MEMORY", grace_s=0.0)
            return
        used_mib = sum_mib(context.launcher.members(job.id))
        if used_mib > most_mib:
            context.say(f"job {job.id}: holds {used_mib:.0f} MiB, asked for {most_mib:.0f} MiB")
            self._scripts.cancel(job, "OUT_OF_MEMORY", grace_s=0.0)


def sum_mib(pids: Iterable[int]) -> float:
    """Return the resident memory of processes; what they share counts once for each."""
    return sum(map(resident_mib, pids))
