"""What a running job may use: its time, with a signal before that is up, and its memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from math import inf
from operator import itemgetter

from rms.core.model.jobs import Job, JobState
from rms.daemon.jobs.scripts import Scripts
from rms.daemon.jobs.worlds import Worlds
from rms.daemon.store.context import Context, Faults, describe
from rms.daemon.store.journal import JournalError
from rms.daemon.store.notes import SignalNote
from rms.daemon.store.record import JobRuntime
from rms.launch.processes import resident_mib

LIMITS_LOOK_S = 1.0
"""How often the memory of a job is looked at."""


class Limits:
    """Ends jobs that are past a limit."""

    def __init__(self, context: Context, scripts: Scripts) -> None:
        self._context, self._scripts = context, scripts

    def watch(self, job: JobRuntime, running: Job, now_s: float) -> None:
        """Look at a job once."""
        limit_s = running.spec.limit_s
        if limit_s is not None and running.start_s is not None:
            end_s, signal = running.start_s + limit_s, job.submission.signal
            if now_s > end_s:
                self._scripts.cancel(job, "TIMEOUT")
            elif signal and not job.signalled and now_s > end_s - signal.before_s:
                self._signal(job, signal.number, batch=signal.batch)
        if (
            job.submission.memory_mib
            and job.ending is None
            and now_s > job.memory_s + LIMITS_LOOK_S
        ):
            job.memory_s = now_s
            self._look_at_memory(job, running)

    def due_s(self, job: JobRuntime, running: Job) -> float:
        """Return when a job is to be looked at next, infinity where it has no limit."""
        limit_s, found = running.spec.limit_s, inf
        if limit_s is not None and running.start_s is not None:
            signal, found = job.submission.signal, running.start_s + limit_s
            if signal and not job.signalled:
                found -= signal.before_s
        if job.submission.memory_mib:
            found = min(found, job.memory_s + LIMITS_LOOK_S)
        return found

    def _signal(self, job: JobRuntime, number: int, *, batch: bool) -> None:
        """Send a job the signal that it asked for, once."""
        job.signalled = True
        self._context.journal.note(SignalNote(job.id, sent=True))
        script = 0 if job.script is None else job.script.pid
        self._context.launcher.send_signal(job.id, number, script if batch else 0)
        self._context.say(f"job {job.id}: gets signal {number} before the end of its time")

    def _look_at_memory(self, job: JobRuntime, running: Job) -> None:
        """End a job whose processes hold more memory than it asked for.

        Where the kernel holds it to that, it has ended all of it already, or what it could.
        """
        context = self._context
        hosts = len(context.cluster.hosts_of(running.held))
        most_mib = (job.submission.memory_mib or 0.0) * hosts
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


# FUSED rms.daemon.jobs.watch: The jobs that run, looked at again and again: what has ended, what is due, what has gone wrong.
#
# Of most there is nothing to be seen most of the time. A job whose processes are children of the
# daemon is looked at when a child has ended (SIGCHLD), when a limit of its own is due, and all the
# time only while it starts, is resized or is ending.

LOOK_S = 0.01
"""How long jobs are looked at before others have their turn."""


class JobWatch:
    """Looks at the jobs that run.

    Args:
        end_script: ends a job whose script has ended with a status.

    Attributes:
        told: whether :meth:`child_ended` is called whenever a child of this process has ended.
    """

    def __init__(
        self,
        context: Context,
        scripts: Scripts,
        worlds: Worlds,
        faults: Faults,
        end_script: Callable[[JobRuntime, int], None],
    ) -> None:
        self._context, self._scripts, self._worlds = context, scripts, worlds
        self._faults, self._end_script = faults, end_script
        self._limits = Limits(context, scripts)
        self.told = False
        self._ends, self._unseen = 0, 0

    def child_ended(self) -> None:
        """Have all jobs looked at: it may have been of any of them, or of none."""
        self._ends += 1

    def look(self) -> None:
        """Look once at each job of which there may be something to be seen.

        Where much has happened to many jobs, the rest of them are looked at the next time.
        """
        context, ends = self._context, self._ends
        now, known = context.now(), context.jobs
        first, self._unseen = self._unseen, 0
        due = [  # of thousands nearly none is: each costs an eighth of a microsecond
            (at, job)
            for at, job in enumerate(map(known.__getitem__, context.state.running))
            if job.seen != ends or now > job.calm_until_s or not job.calm
        ]
        begin = bisect_left(due, first, key=itemgetter(0))
        looked = False
        for at, job in [*due[begin:], *due[:begin]]:
            running = context.state.running.get(job.id)
            if running is None:
                continue
            if looked and context.now() > now + LOOK_S:
                self._unseen = at
                return
            looked = True
            with self._faults.of(f"job {job.id}"):
                job.calm_until_s = 0.0
                self._contain(job, running, now)
                if self.told and job.calm:
                    job.seen, job.calm_until_s = ends, self._calm_until_s(job)

    def _contain(self, job: JobRuntime, running: Job, now: float) -> None:
        """Look at a job; an error in that ends the job, but what the system is short of passes."""
        try:
            self._scripts.fail(job, job.fault) if job.fault else self._watch(job, running, now)
        except (JournalError, OSError):
            raise
        except Exception as error:
            self._scripts.fail(job, describe(error))

    def _watch(self, job: JobRuntime, running: Job, now: float) -> None:
        if running.state is JobState.CONFIGURING and not self._scripts.see_started(job):
            return
        self._worlds.watch(job)
        self._limits.watch(job, running, now)
        if job.kill_at is not None and now > job.kill_at:
            self._context.launcher.kill(job.id)
        if job.script is not None:
            status = job.script.status()
            if status is not None:
                self._end_script(job, status)

    def _calm_until_s(self, job: JobRuntime) -> float:
        """Return until when there is nothing to be seen of a job unless a child ends, or 0."""
        running = self._context.state.running.get(job.id)
        if running is None or running.state is not JobState.RUNNING or job.script is None:
            return 0.0
        found = [job.script]
        for step in job.steps:
            if step.exit_code is None:
                found += [step.worlds[n] for n in step.current]
        calm = all(each.is_child and each.status() is None for each in found)
        return self._limits.due_s(job, running) if calm else 0.0
