"""Engine ``slurm``: every job of the RMS is a job of Slurm's, whose nodes change while it runs.

Nothing here waits for Slurm: :meth:`SlurmJobs.poll` reads the results of threads.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path

import msgspec

from rms.formats.jobscript import parse_script
from rms.launch.base import NODES_LOST, ManagedProcess, PendingCall, ScriptLaunch, hosts_of
from rms.launch.slurm import commands, queue
from rms.launch.slurm.commands import Meaning, SlurmError
from rms.launch.slurm.launcher import JobMeters, SlurmLauncher, SlurmNodes, failing_nodes
from rms.launch.slurm.output import JobDetails, QueuedJob
from rms.launch.slurm.queue import (
    SLURM_NUMBER_VARIABLE,
    VANISHED,
    WRAPPER,
    QueuePoller,
    QueueSnapshot,
    SlurmJob,
    SubmissionRecord,
    submit,
)
from rms.wire.marks import METER
from rms.wire.users import NodesHeld, SlurmRow

CANCEL_AGAIN_S = 2.0

WAIT_S = 5.0
"""Time for which a job waits for nodes that were free, before it gets others."""

CONTESTED_S = 20.0
"""Time for which nodes that a job did not get count as taken by others."""

COMPLETING_S = 30.0
"""Time for which Slurm may clean up after a job, before the job counts as ended."""

ACCOUNTING_DELAY_S = 5.0  # time from a job's end until accounting has all of it
CHECK_S = 0.25  # time between two checks whether the start or end of a job is expected
FEW = 100
"""Status files are checked of up to so many jobs; of more, some job ends all the time."""

RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
WAITS_FOR_NODES = ("Resources", "Priority", "None", "ReqNodeNotAvail", "Nodes_required", "Resv")


class SlurmJobs(SlurmNodes):
    """Nodes and scripts of an engine that runs every job as one of Slurm's.

    Args:
        partition: partition of jobs that name none, "" for Slurm's own choice, ``default``.
        grace_s: the time that a job has to end by itself, before Slurm's limit.
        no_grow, no_shrink: the reason why this site changes no running job, "" if it does.
        measures: whether Slurm's own plugin measures energy here.

    Attributes:
        contested: nodes that jobs have not got, and until when they are left alone.
    """

    requeue_by_default = True
    starts_steps = False
    reruns_scripts = False
    unavailable_label = "taken"

    max_concurrent_resizes = 4
    """More would wait for one another: see :class:`rms.launch.slurm.commands.RateLimiter`."""

    def __init__(
        self,
        launcher: SlurmLauncher,
        *,
        partition: str = "",
        default: str = "",
        limits_s: Mapping[str, float] = {},
        grace_s: float = 10.0,
        no_grow: str = "",
        no_shrink: str = "",
        measures: bool = False,
    ) -> None:
        self._launcher, self.executor = launcher, launcher.executor
        self._partition, self._default, self._limits_s = partition, default, limits_s
        self._grace_s, self._no_grow, self._no_shrink = grace_s, no_grow, no_shrink
        self._wrapper = launcher.shims / "slurm-job"
        self._wrapper.write_text(WRAPPER)
        self._wrapper.chmod(0o755)
        self._poller = QueuePoller(self.executor, self._is_own, self._known)
        options = launcher.step_options(launcher.name(METER))
        env = commands.plain_environment(self.executor.slurm.outer)
        start_agent = partial(launcher.start_agent, env=env)
        meters = JobMeters(start_agent, options, launcher.meters)
        self._meters = None if launcher.meters.none else meters
        self._measures = measures
        self.jobs: dict[str, SlurmJob] = {}
        self.resizes: dict[str, PendingCall] = {}
        self.contested: dict[str, float] = {}
        self._unread: deque[tuple[float, SlurmJob]] = deque()
        self._urgent, self._checked_s = False, 0.0
        self._cancelled_s: dict[str, float] = {}
        self._past: dict[str, SubmissionRecord | None] = {}
        self._unavailable: frozenset[str] | None = None
        self._dead = frozenset[str]()

    def _is_own(self, name: str) -> bool:
        instance = self._launcher.instance_id[:8]
        return name.startswith((f"rms.{instance}.", f"{queue.DONOR}.{instance}."))

    def _known(self) -> dict[int, str]:
        live = [job for job in self.jobs.values() if not job.finished]
        return {job.record.number: job.name for job in live if job.record.number is not None}

    def donor(self, job: str) -> str:
        """Return the name of the donors of a job."""
        return f"{queue.DONOR}.{self._launcher.instance_id[:8]}.{job}"

    def number(self, job: str) -> int | None:
        """Return a job's number in Slurm, None while it has none."""
        child = self.jobs.get(job)
        return None if child is None else child.number

    def allocations(self, job: str) -> list[int]:
        """Return a job's number in Slurm, if it has one."""
        number = self.number(job)
        return [] if number is None else [number]

    def allocation_of(self, job: str, host: str) -> int | None:
        """Return a job's number in Slurm, None if it has none."""
        return self.number(job)

    def open(self) -> None:
        """End the agents of an earlier daemon, which have its token."""
        self._launcher.kill(METER)

    def poll(self) -> None:
        """Read Slurm's report of all jobs, and poll again when it is time."""
        snapshot = self._poller.poll(urgent=self.take_answers())
        if snapshot is not None:
            self.update(snapshot)

    def close(self) -> None:
        """End the agents."""
        if self._meters is not None:
            self._meters.close()

    def start(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        """Submit a job script, unless an earlier daemon has submitted it."""
        before = self._record(job)
        maybe_submitted = before is not None and before.open
        if before is None:
            record = SubmissionRecord()
        else:
            record = before if maybe_submitted else before.next()
        own = parse_script(launch.script).slurm_options
        record.donor = commands.donor_options(own, self._partition_of(own, launch.env))
        record.survives = launch.survives
        child = self._job(job, record)
        child.hosts = tuple(hosts_of([slot for node in launch.nodes for slot in node]))
        if record.before and not maybe_submitted:
            # At once: the one before, and its status, must not be taken for this one's.
            self._launcher.status_file(job).unlink(missing_ok=True)
            child.keep()
        path = launch.env.get("PATH", os.defpath)
        env = commands.environment(launch.env) | self._launcher.script_env(job, path)
        env["RMS_SCRIPT"] = launch.words[0]
        call = self.executor, child, self._arguments(child, own, launch), env, launch.output.parent
        child.submission = self.executor.ask(lambda: submit(*call, search=maybe_submitted))
        self._past.pop(job, None)
        self._cancelled_s.pop(job, None)
        return child

    def _arguments(self, child: SlurmJob, own: Sequence[str], launch: ScriptLaunch) -> list[str]:
        """Return sbatch's options and script; ``own`` are the script's options for Slurm alone."""
        partition = self._partition_of(own, launch.env) or self._default
        errors = launch.errors
        return [
            *commands.sbatch_options(own, self._partition),
            *["--exclusive", "--no-requeue", f"--nodes={len(child.hosts)}"],
            *(["--no-kill"] if launch.survives else []),
            *[f"--job-name={child.name}", f"--nodelist={','.join(child.hosts)}"],
            *[f"--chdir={launch.cwd}", "--open-mode=append"],
            f"--output={commands.literal_path(launch.output)}",
            *([] if errors is None else [f"--error={commands.literal_path(errors)}"]),
            *self._limit(partition, launch.limit_s),
            str(self._wrapper),
            *launch.words[1:],
        ]

    def unheeded(self, own: Sequence[str]) -> list[str]:
        """Return the options of a script that sbatch does not get."""
        handed_on = commands.sbatch_options(own)
        return [word for word in own if word not in handed_on]

    def longest_s(self, own: Sequence[str], env: Mapping[str, str]) -> float:
        """Return the time limit of the partition of a job."""
        return self._limits_s.get(self._partition_of(own, env) or self._default, inf)

    def _partition_of(self, own: Sequence[str], env: Mapping[str, str]) -> str:
        """Return the partition of a job, "" for the default one."""
        return commands.partition_of(own) or self._partition or env.get("SBATCH_PARTITION", "")

    def _limit(self, partition: str, limit_s: float | None) -> list[str]:
        """Return Slurm's time limit: the RMS's, the grace and a minute, if the partition allows."""
        if limit_s is None:
            return []
        most_s = self._limits_s.get(partition, inf)
        seconds = int(min(max(limit_s, most_s), limit_s + self._grace_s + 60))
        return [f"--time={-(-seconds // 60)}"]

    def find(self, job: str, pid: int | None) -> ManagedProcess | None:
        """Return a job after a restart of the daemon; the next snapshot has its state."""
        record, over = self._record(job), self._launcher.status_file(job).exists()
        if record is None or record.closed or (record.number is None and not over):
            return None
        child = self._job(job, record)
        child.started = child.finished = record.number is None
        child.numbered_s = time.monotonic()
        return child

    def _job(self, job: str, record: SubmissionRecord) -> SlurmJob:
        """Return a job of Slurm's that is tracked from now on."""
        child = SlurmJob(
            0,
            None,
            self._launcher.status_file(job),
            name=self._launcher.name(job),
            record=record,
            record_file=self._record_file(job),
        )
        self.jobs[job] = child
        return child

    def _record_file(self, job: str) -> Path:
        return self._launcher.state / "jobs" / job / "slurm.json"

    def _record(self, job: str) -> SubmissionRecord | None:
        return SubmissionRecord.read(self._record_file(job))

    def resize_refusal(self, job: str, have: Sequence[str], wanted: Sequence[str]) -> str:
        """Return why this site does not let a running job move to other nodes."""
        if self._no_grow and not set(wanted) <= set(have):
            return self._no_grow
        if self._no_shrink and not set(have) <= set(wanted):
            return self._no_shrink
        return ""

    def grant(self, job: str, have: Sequence[str], wanted: Sequence[str]) -> PendingCall | None:
        """Give a running job the nodes that it lacks, by a donor."""
        number = self.number(job)
        hosts = tuple(dict.fromkeys((*have, *wanted)))
        if number is None:
            return lambda: "Slurm has not assigned its number yet"
        executor = self.executor
        donor, options = self.donor(job), self.jobs[job].record.donor
        change = queue.Retried(
            executor,
            lambda: queue.grow(executor, number, hosts, wanted, donor, options),
            give_up=True,
        )
        return self.resize(job, change)

    def release(self, job: str, hosts: Sequence[str]) -> PendingCall | None:
        """Take the nodes from a running job that it no longer needs."""
        number = self.number(job)
        if number is None or self.jobs[job].finished:
            return None
        executor, survives = self.executor, self.jobs[job].record.survives

        def shrink() -> JobDetails:
            if survives:
                queue.end_outside(executor, number, hosts)
            return queue.shrink(executor, number, hosts)

        return self.resize(job, queue.Retried(executor, shrink, give_up=False))

    def reach(self, job: str, env: dict[str, str]) -> list[str]:
        """Return mpiexec's option; it runs here, for a job whose line was read on a node."""
        number, outer = self.number(job), self.executor.slurm.outer
        own = env.get(SLURM_NUMBER_VARIABLE, "")
        env["SLURM_JOB_ID"] = own if number is None else str(number)
        if "SLURM_CONF" in outer:
            env["SLURM_CONF"] = outer["SLURM_CONF"]
        return ["-launcher", self._launcher.reach]

    def terminate(self, job: str, *, has_worlds: bool) -> None:
        """Ask a script to end if its job has no worlds; a pending one leaves Slurm's queue."""
        child = self.jobs.get(job)
        if child is None:
            return
        child.end_requested = True
        if not has_worlds and not child.finished and child.number is not None:
            slurm, number, started = self.executor.slurm, child.number, child.started
            self.executor.ask(
                lambda: slurm.send_signal(number, "TERM") if started else slurm.cancel(number)
            )

    def send_signal(self, job: str, name: str) -> None:
        """Send a signal to a job's script and its steps, which ``scancel --full`` leaves out."""
        slurm, number = self.executor.slurm, self.number(job)
        if number is None:
            return

        def signal_job(number: int = number) -> None:
            steps = [step for step, _ in slurm.steps(number) if step.partition(".")[2].isdecimal()]
            if steps:
                slurm.call("scancel", f"--signal={name}", *steps)
            slurm.send_signal(number, name)

        self.executor.ask(signal_job)

    def kill(self, job: str, launch: int | None) -> None:
        """Cancel a job that is killed."""
        child = self.jobs.get(job)
        if launch is not None or child is None or child.finished:
            return
        child.end_requested = True
        now, number = time.monotonic(), child.number
        if number is not None and now > self._cancelled_s.get(job, 0.0) + CANCEL_AGAIN_S:
            self._cancelled_s[job] = now
            self.cancel(number)

    def controller_answers(self) -> bool:
        """Return whether Slurm has answered the last poll."""
        return not self._poller.trouble

    def unavailable(self) -> Collection[str] | None:
        """Return the nodes that were unavailable in the last snapshot of Slurm's queue."""
        return self._unavailable

    def lost(self) -> frozenset[str]:
        """Return the lost nodes of the jobs that go on without them; Slurm ends all others."""
        live = [job.lost for job in self.jobs.values() if not job.finished]
        return frozenset().union(*live)

    def diagnose_failure(self, job: str, hosts: Sequence[str]) -> PendingCall:
        """Return the dead nodes of a failed job: its ranks may notice them before Slurm does."""
        child = self.jobs[job]
        lost = [host for host in hosts if host in self._dead]
        if child.record.survives and not child.finished and child.number is not None:
            return self._find_lost(child.number, hosts, lost)
        if lost:
            child.close()
        return lambda: f"lost its nodes: {', '.join(lost)}" if lost else ""

    def _find_lost(self, number: int, hosts: Sequence[str], dead: Sequence[str]) -> PendingCall:
        """Return the lost nodes of a job that goes on, which are left alone for a while."""
        slurm = self.executor.slurm
        options = self._launcher.step_options(self._launcher.name("probe"))

        def find() -> list[str]:
            if dead or not slurm.ping():
                return list(dead)
            return failing_nodes(slurm, number, hosts, options)

        query, answers = self.executor.ask(find), list[str]()

        def answer() -> str | None:
            if not query.done():
                return None
            if not answers:
                lost = [] if query.exception() is not None else query.result()
                if len(lost) == len(hosts):  # that is Slurm's trouble, or it will call them down
                    lost = []
                until_s = time.monotonic() + CONTESTED_S
                self.contested.update(dict.fromkeys(lost, until_s))
                self._unavailable = (self._unavailable or frozenset()) | frozenset(lost)
                answers.append(f"lost its nodes: {', '.join(lost)}" if lost else "")
            return answers[0]

        return answer

    def job_details(self, job: str) -> SlurmRow:
        """Return a job's number in Slurm, the nodes it held there, and Slurm's own energy."""
        child = self.jobs.get(job)
        if child is None and job not in self._past:  # over before this daemon began
            self._past[job] = self._record(job)
        record = self._past[job] if child is None else child.record
        if record is None:
            return SlurmRow()
        consumed_j: float | msgspec.UnsetType = msgspec.UNSET
        if child is not None and child.energy_j is not None and child.energy_j.done():
            with contextlib.suppress(SlurmError):
                consumed_j = child.energy_j.result()
        return SlurmRow(
            slurm_job=record.number,
            waits="" if child is None or child.finished else child.wait_reason,
            held=[NodesHeld(at_s, list(hosts)) for at_s, hosts in record.held],
            consumed_energy_j=consumed_j,
        )

    # --- following jobs from one snapshot to the next ----------------------------------------

    def take_answers(self) -> bool:
        """Read sbatch's answers; return whether the next snapshot is urgent."""
        live = [job for job in self.jobs.values() if not job.finished]
        for job in live:
            self._take_answer(job)
        now = time.monotonic()
        if now >= self._checked_s + CHECK_S:
            self._checked_s, few = now, len(live) <= FEW
            for job in self.jobs.values():
                if job.unsaved:
                    job.keep()
            self._urgent = bool(self.resizes) or any(
                not job.started or job.end_requested or (few and job.written_status() is not None)
                for job in live
            )
        while self._unread and self._unread[0][0] < now:
            job = self._unread.popleft()[1]
            if job.record.number is not None:
                consumed_j = partial(self.executor.slurm.consumed_j, job.record.number)
                job.energy_j = self.executor.ask(consumed_j)
        return self._urgent

    def update(self, snapshot: QueueSnapshot) -> None:
        """Update the jobs, and the nodes that are unavailable, by a snapshot of the queue."""
        live = [job for job in self.jobs.values() if not job.finished]
        for job in live:
            if job.record.number is not None:
                self._follow(job, job.record.number, snapshot)
        if self._meters is not None:
            self._meters.watch({job.record.number or 0 for job in live if not job.finished})
        self._cancel_strays(snapshot)
        now = time.monotonic()
        self.contested = {node: until for node, until in self.contested.items() if until > now}
        self._unavailable = snapshot.unavailable | self.contested.keys()
        self._dead = snapshot.dead

    def resize(self, job_id: str, change: Callable[[], queue.ChangeOutcome | None]) -> PendingCall:
        """Begin a change of a running job; at its end the job's new nodes are recorded."""
        job = self.jobs[job_id]

        def answer() -> str | None:
            outcome = change()
            if outcome is None:
                return None
            self.resizes.pop(job_id, None)
            job.changed_s = time.monotonic()
            now, failure = outcome
            if now is not None and now.hosts and now.resized_s is not None:
                job.enter_start((), now.start_s)
                # A job that is just ending loses its nodes one by one: that is no change.
                since_s = max((at_s for at_s, hosts in job.record.held if hosts), default=0.0)
                if now.resized_s > since_s:
                    job.enter_nodes(now.hosts, now.resized_s)
            return failure

        self.resizes[job_id] = answer
        return answer

    def cancel(self, number: int, *, only_pending: bool = False) -> None:
        """Cancel a job of Slurm's, or only if it is pending."""
        slurm = self.executor.slurm
        self.executor.ask(lambda: slurm.cancel(number, only_pending=only_pending))

    def _take_answer(self, job: SlurmJob) -> None:
        if job.submission is None or not job.submission.done():
            return
        submission, job.submission = job.submission, None
        try:
            number = submission.result()
        except Exception as error:
            job.finished, job.end_reason = True, str(error) or type(error).__name__
            if isinstance(error, SlurmError) and error.meaning is Meaning.LATER:
                self._give_up(job)
            return
        if not number:  # its end was requested before it was submitted, or it has ended
            job.finished, job.started = True, job.written_status() is not None
            return
        job.record.number, job.numbered_s = number, time.monotonic()
        job.keep()

    def _give_up(self, job: SlurmJob) -> None:
        """Let a job that did not get its nodes be requeued; no job gets them for a while."""
        job.end_state = NODES_LOST
        job.close()
        until_s = time.monotonic() + CONTESTED_S
        self.contested.update(dict.fromkeys(job.hosts, until_s))

    def _follow(self, job: SlurmJob, number: int, snapshot: QueueSnapshot) -> None:
        row = snapshot.own.get(number)
        if row is None or row.name != job.name:
            if snapshot.begun_s > job.numbered_s:
                self._end(job, VANISHED)
        elif row.state in RUNNING:
            job.started, job.wait_reason = True, ""
            job.enter_start(row.hosts, row.start_s)
            if job.record.survives and self._is_settled(job, snapshot):
                held = frozenset(job.held)
                job.lost = held - set(row.hosts) | held & snapshot.down
            if self._meters is not None and job.metered != job.held:
                self._meters.start(row.job_id, set(job.held) - set(job.metered))
                job.metered = job.held
        elif row.state in ("PENDING", "CONFIGURING"):
            self._waits(job, row)
        elif row.state == "COMPLETING":
            job.completing_s = job.completing_s or snapshot.begun_s
            if snapshot.begun_s > job.completing_s + COMPLETING_S:
                self._end(job, row.state)
        else:
            if row.hosts:
                job.enter_start(row.hosts, row.start_s)
            self._end(job, row.state)

    def _is_settled(self, job: SlurmJob, snapshot: QueueSnapshot) -> bool:
        """Return whether a snapshot has all changes of a job's nodes."""
        own = job.record.number
        resized = any(self.jobs[changed].record.number == own for changed in self.resizes)
        return not resized and snapshot.begun_s > job.changed_s

    def _waits(self, job: SlurmJob, row: QueuedJob) -> None:
        """Update a pending job; one that waits for nodes of others is withdrawn."""
        job.wait_reason = row.reason
        if job.withdrawn or job.end_requested or row.state != "PENDING":
            return
        for_nodes = row.reason.split(",")[0].startswith(WAITS_FOR_NODES)
        if job.started or (for_nodes and time.monotonic() > job.numbered_s + WAIT_S):
            job.withdrawn = True
            self.cancel(row.job_id, only_pending=True)

    def _end(self, job: SlurmJob, state: str) -> None:
        unstarted = not job.started and not job.end_requested
        if job.withdrawn and state == "CANCELLED" and unstarted:
            job.finished, job.end_reason = True, f"Slurm had it wait ({job.wait_reason})"
            self._give_up(job)
            return
        job.end(state)
        if job.held:
            job.enter_nodes(())
        if job.end_state == NODES_LOST:
            job.close()
        if self._measures:
            self._unread.append((time.monotonic() + ACCOUNTING_DELAY_S, job))

    def _cancel_strays(self, snapshot: QueueSnapshot) -> None:
        """Cancel donors without a resize and unknown jobs, which earlier daemons have left."""
        for row in snapshot.own.values():
            if row.state not in ("PENDING", "CONFIGURING", "RUNNING"):
                continue
            job = row.name.rpartition(".")[2]
            owners = self.resizes if row.name == self.donor(job) else self.jobs
            if job not in owners or (owners is self.jobs and self._is_second(job, row, snapshot)):
                self.cancel(row.job_id)

    def _is_second(self, job_id: str, row: QueuedJob, snapshot: QueueSnapshot) -> bool:
        """Return whether a job in Slurm is a second one of the same job; one that runs is kept.

        Slurm may have two after a submission whose answer was lost.
        """
        job = self.jobs[job_id]
        number = job.record.number
        if row.job_id == number or job.submission is not None:
            return False
        if number is None or job.finished or snapshot.begun_s < job.numbered_s:
            return job.finished
        first = snapshot.own.get(number)
        waits = first is not None and first.state == "PENDING"
        if row.state == "RUNNING" and waits and row.job_id not in job.record.before:
            job.record.number, job.withdrawn = row.job_id, False
            job.keep()
            self.cancel(number)
            return False
        return True
