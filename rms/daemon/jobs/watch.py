"""Checks of running jobs in every round: ended processes, limits, errors.

Most jobs need no check most of the time. A job whose processes are children of the daemon is
checked when a child has ended (SIGCHLD) or a limit of its own is due, and in every round only while
it starts, is resized or is ending.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Set
from math import inf
from operator import itemgetter

from rms.core.model.jobs import Job, JobState
from rms.daemon.jobs.machine import ScriptEnded
from rms.daemon.jobs.scripts import Scripts
from rms.daemon.jobs.worlds import Worlds
from rms.daemon.store.context import Context, Faults, describe, log
from rms.daemon.store.journal import JournalError
from rms.daemon.store.notes import SignalNote
from rms.daemon.store.record import JobRuntime, Pulse
from rms.launch.base import NODES_LOST
from rms.launch.processes import resident_mib

LIMITS_LOOK_S = 1.0  # interval between two checks of a job's memory
LOST_S = 10.0
"""Time for the processes of a job on lost nodes to end by themselves, with a better reason."""

BUDGET_S = 0.01  # time budget of a round, after which requests are answered


class JobWatch:
    """Checks running jobs.

    Attributes:
        has_signals: whether :meth:`child_ended` is called when a child of this process has ended.
    """

    def __init__(self, context: Context, scripts: Scripts, worlds: Worlds, faults: Faults) -> None:
        self._context, self._scripts, self._worlds = context, scripts, worlds
        self._faults, self.has_signals = faults, False
        self._ends, self._unseen = 0, 0
        self._lost: Collection[str] = ()
        self._down: frozenset[str] = frozenset()

    def child_ended(self) -> None:
        """Let the next tick check all jobs, as the child may belong to any of them."""
        self._ends += 1

    def tick(self) -> None:
        """Check the jobs that need it; those beyond the time budget in the next round."""
        context, ends = self._context, self._ends
        now, jobs = context.now(), context.jobs
        first, self._unseen = self._unseen, 0
        self._lost, before = context.launcher.nodes.lost(), self._down
        self._down = frozenset(context.launcher.nodes.down())
        if self._down - before:
            self._end_launches(self._down - before)
        due = [  # of thousands of jobs nearly none is due: the test takes 0.125 us per job
            (at, job)
            for at, job in enumerate(map(jobs.__getitem__, context.state.running))
            if job.checked_ends != ends or now > job.calm_until_s or not job.calm
        ]
        begin = bisect_left(due, first, key=itemgetter(0))
        looked = False
        for at, job in [*due[begin:], *due[:begin]]:
            running = context.state.running.get(job.id)
            if running is None:
                continue
            if looked and context.now() > now + BUDGET_S:
                self._unseen = at
                return
            looked = True
            with self._faults.of(f"job {job.id}"):
                job.calm_until_s = 0.0
                self._contain(job, running, now)
                if self.has_signals and job.calm:
                    job.checked_ends, job.calm_until_s = ends, self._calm_until_s(job)

    def _end_launches(self, down: Set[str]) -> None:
        """End the launches of jobs that have lost a host.

        A launch does not notice that ranks are gone which it has spawned there for a resize.
        """
        context = self._context
        for running in list(context.state.running.values()):
            step = context.jobs[running.spec.id].running_step
            if step is not None and not down.isdisjoint(context.cluster.hosts_of(running.nodes)):
                for launch in step.worlds:
                    context.launcher.kill(running.spec.id, launch)

    def _contain(self, job: JobRuntime, running: Job, now: float) -> None:
        """Check a job. An error ends the job, unless it is an error of the system or journal."""
        try:
            self._scripts.fail(job, job.fault) if job.fault else self._look(job, running, now)
        except (JournalError, OSError):
            raise
        except Exception as error:
            self._scripts.fail(job, describe(error))

    def _look(self, job: JobRuntime, running: Job, now: float) -> None:
        if running.state is JobState.CONFIGURING and not self._scripts.see_started(job):
            return
        self._worlds.tick(job)
        self._check_nodes(job, running, now)
        self._check_pulse(job, running, now)
        self._check_limits(job, running, now)
        launcher, status = self._context.launcher, None
        if job.script is not None:
            status = job.script.status()
        killed = job.kill_at is not None and now > job.kill_at
        # An engine may need rounds to kill the rest, and would begin anew with every request.
        if killed and (status is None or launcher.members(job.id)):
            launcher.kill(job.id)
        if status is not None:
            self.end_script(job, status)

    def end_script(self, job: JobRuntime, status: int) -> None:
        """End a job whose script has ended, once it has no processes left."""
        launcher = self._context.launcher
        self._worlds.tick(job)
        if job.id not in self._context.state.running or job.script is None:
            return
        if job.script.status() is None or self._worlds.lose(job, "its script has ended"):
            return  # with its node, and the job goes on
        job.inherited = None
        if launcher.members(job.id):
            launcher.kill(job.id)
            return
        if self._worlds.keepers.end(job.id, all_of=True):
            return
        lost = job.script is not None and job.script.end_state == NODES_LOST
        if not self._worlds.feed(job, ScriptEnded(lost)):
            self._scripts.end(job, status)

    def _calm_until_s(self, job: JobRuntime) -> float:
        """Return the time until which a job needs no check unless a child ends, or 0."""
        running = self._context.state.running.get(job.id)
        if running is None or running.state is not JobState.RUNNING or job.script is None:
            return 0.0
        processes = [job.script]
        for step in job.steps:
            if step.exit_code is None:
                processes += [step.worlds[n] for n in step.current]
        calm = all(process.is_child and process.status() is None for process in processes)
        limit_s, pulse = self._context.settings.stall_s, job.pulse
        pulse_s = inf if pulse is None else pulse.due_s(limit_s)
        return min(due_s(job, running), pulse_s) if calm else 0.0

    def _check_nodes(self, job: JobRuntime, running: Job, now_s: float) -> None:
        """Give up the run of a job on lost nodes whose processes do not end by themselves."""
        gone: list[str] = []
        if self._lost:
            hosts = self._context.cluster.hosts_of(running.nodes)
            gone = [host for host in hosts if host in self._lost]
        if (
            not gone
            or job.ending is not None
            or self._worlds.lose(job, f"lost its nodes: {', '.join(gone)}")
        ):
            job.lost_since_s = None
        elif job.lost_since_s is None:
            job.lost_since_s = now_s
        elif now_s > job.lost_since_s + LOST_S:
            self._scripts.give_up(job, f"lost its nodes: {', '.join(gone)}", gone)

    def _check_pulse(self, job: JobRuntime, running: Job, now_s: float) -> None:
        """Tell of a job without messages or steps; past ``--stall-limit`` give its run up."""
        step = job.running_step
        if running.state is not JobState.RUNNING or step is None or job.ending is not None:
            job.pulse = None
            return
        if job.pulse is None and (step.has_polled or job.polls):  # a start, restart, suspension
            job.pulse = Pulse.begin(now_s, job.step)
        pulse, limit_s = job.pulse, self._context.settings.stall_s
        if pulse is None or 0 < job.total <= job.step:
            return
        words = pulse.words(now_s)
        if words and not pulse.reported:
            log.warning(f"job {job.id}: {words}")
        elif pulse.reported and not words:
            log.info(f"job {job.id}: makes steps again")
        pulse.reported = words
        if limit_s is not None and now_s > pulse.stepped_s + pulse.late_s(limit_s):
            what = words or f"no step for {now_s - pulse.stepped_s:.0f} s, after step {pulse.step}"
            hosts = self._context.cluster.hosts_of(running.held)
            self._scripts.give_up(job, f"{what} (--stall-limit {limit_s:g})", hosts)

    def _check_limits(self, job: JobRuntime, running: Job, now_s: float) -> None:
        """End a job that is past a limit; send its signal before its time is up."""
        end_s, signal = running.limit_end_s, job.submission.signal
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
            self._check_memory(job, running)

    def _signal(self, job: JobRuntime, number: int, *, batch: bool) -> None:
        job.signalled = True
        self._context.journal.note(SignalNote(job.id, sent=True))
        script = 0 if job.script is None else job.script.pid
        self._context.launcher.send_signal(job.id, number, script if batch else 0)
        log.info(f"job {job.id}: gets signal {number} before the end of its time")

    def _check_memory(self, job: JobRuntime, running: Job) -> None:
        """End a job whose processes hold more memory than its ``--mem``.

        If the kernel enforces the limit, it has ended all processes of the job, or some.
        """
        context = self._context
        hosts = len(context.cluster.hosts_of(running.held))
        most_mib = (job.submission.memory_mib or 0.0) * hosts
        ended = context.launcher.limit_memory(job.id, most_mib)
        words = f"reached its memory limit of {most_mib:.0f} MiB"
        if ended is None:
            used_mib = sum_mib(context.launcher.members(job.id))
            words = f"uses {used_mib:.0f} MiB, limit {most_mib:.0f} MiB"
            ended = used_mib > most_mib
        if ended:
            log.info(f"job {job.id}: {words}")
            self._scripts.cancel(job, "OUT_OF_MEMORY", grace_s=0.0)


def due_s(job: JobRuntime, running: Job) -> float:
    """Return the time of the next check of a job's limits, infinity without limits."""
    due_s, signal = running.limit_end_s, job.submission.signal
    if signal and not job.signalled:
        due_s -= signal.before_s
    if job.submission.memory_mib:
        due_s = min(due_s, job.memory_s + LIMITS_LOOK_S)
    return due_s


def sum_mib(pids: Iterable[int]) -> float:
    """Return the resident memory of processes; shared memory counts for all of them."""
    return sum(map(resident_mib, pids))
