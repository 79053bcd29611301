"""What becomes of jobs that were handed to Slurm, from one snapshot of its queue to the next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rms.launch.base import NODES_LOST, PendingCall
from rms.launch.slurm.commands import Meaning, SlurmError
from rms.launch.slurm.executor import Executor
from rms.launch.slurm.meters import JobMeters
from rms.launch.slurm.output import QueuedJob
from rms.launch.slurm.poller import QueueSnapshot
from rms.launch.slurm.resizing import Outcome
from rms.launch.slurm.submitted import VANISHED, SlurmJob

WAIT_S = 5.0
"""How long a job may wait for nodes that were free before it goes to others."""

CONTESTED_S = 20.0
"""How long nodes that a job waited for in vain count as taken by others."""

COMPLETING_S = 30.0
"""How long Slurm may clean up after a job before it counts as ended."""

ACCOUNTING_DELAY_S = 5.0
"""From a job's end until accounting has all of it."""

CHECK_S = 0.25
"""Time between two checks whether any job's end or start is to be expected."""

FEW = 100
"""Up to so many jobs, their status files are checked; with more, some job ends all the time."""

RUNNING = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
WAITS_FOR_NODES = ("Resources", "Priority", "None", "ReqNodeNotAvail", "Nodes_required", "Resv")


@dataclass
class JobTracker:
    """Keeps the jobs of this daemon up to date; acts on what it sees.

    Attributes:
        meters: reads the power of the nodes that jobs hold, None for no meters.
        measures: whether Slurm's own plugin measures energy here.
        jobs: by the id that the RMS gave them.
        resizes: changes of running jobs that are under way.
        contested: nodes that jobs waited for in vain, and until when they are left alone.
    """

    executor: Executor
    meters: JobMeters | None = None
    measures: bool = False
    jobs: dict[str, SlurmJob] = field(default_factory=dict)
    resizes: dict[str, PendingCall] = field(default_factory=dict)
    contested: dict[str, float] = field(default_factory=dict)
    _unread: deque[tuple[float, SlurmJob]] = field(default_factory=deque)
    _urgent: bool = False
    _checked_s: float = 0.0

    def take_answers(self) -> bool:
        """Take in sbatch's answers; return whether the next snapshot is urgent."""
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
            self._read_energy(self._unread.popleft()[1])
        return self._urgent

    def follow(self, snapshot: QueueSnapshot, donors: Callable[[str], str]) -> frozenset[str]:
        """Take in a snapshot of the queue; return the nodes that are not to be had now.

        Args:
            donors: what donors of a job are called.
        """
        live = [job for job in self.jobs.values() if not job.finished]
        for job in live:
            if job.record.number is not None:
                self._follow(job, job.record.number, snapshot)
        if self.meters is not None:
            self.meters.watch({job.record.number or 0 for job in live if not job.finished})
        self._cancel_strays(snapshot, donors)
        now = time.monotonic()
        self.contested = {node: until for node, until in self.contested.items() if until > now}
        return snapshot.unavailable | self.contested.keys()

    def resize(self, job_id: str, change: Callable[[], Outcome | None]) -> PendingCall:
        """Enter a change of a running job; when it is done, which nodes the job has then."""
        job = self.jobs[job_id]

        def answer() -> str | None:
            outcome = change()
            if outcome is None:
                return None
            self.resizes.pop(job_id, None)
            now = outcome.job
            if now is not None and now.hosts and now.resized_s is not None:
                # A job that is just ending is shown with fewer nodes and fewer: no change of ours.
                since_s = max((at_s for at_s, hosts in job.record.held if hosts), default=0.0)
                if now.resized_s > since_s:
                    job.enter_nodes(now.hosts, now.resized_s)
            return outcome.failure

        self.resizes[job_id] = answer
        return answer

    def cancel(self, number: int, *, only_pending: bool = False) -> None:
        """Have a job of Slurm's cancelled, or taken out of its queue."""
        slurm = self.executor.slurm
        self.executor.ask(lambda: slurm.cancel(number, only_pending=only_pending))

    # --- one job -----------------------------------------------------------------------------

    def _take_answer(self, job: SlurmJob) -> None:
        """Take in the answer to a submission."""
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
        if not number:  # asked to end before it was submitted
            job.finished = True
            return
        job.record.number, job.known_s = number, time.monotonic()
        job.keep()

    def _give_up(self, job: SlurmJob) -> None:
        """Let a job that did not get its nodes be requeued; keep others off them for a while."""
        job.end_state, job.record.closed = NODES_LOST, True
        job.keep()
        until_s = time.monotonic() + CONTESTED_S
        self.contested.update(dict.fromkeys(job.hosts, until_s))

    def _follow(self, job: SlurmJob, number: int, snapshot: QueueSnapshot) -> None:
        """See what has become of a job."""
        row = snapshot.own.get(number)
        if row is None or row.name != job.name:
            if snapshot.begun_s > job.known_s:
                self._end(job, VANISHED)
        elif row.state in RUNNING:
            self._runs(job, row)
        elif row.state in ("PENDING", "CONFIGURING"):
            self._waits(job, row)
        elif row.state == "COMPLETING":
            job.completing_s = job.completing_s or snapshot.begun_s
            if snapshot.begun_s > job.completing_s + COMPLETING_S:
                self._end(job, row.state)
        else:
            if row.hosts and not job.held:
                job.enter_nodes(row.hosts, row.start_s)
            self._end(job, row.state)

    def _runs(self, job: SlurmJob, row: QueuedJob) -> None:
        job.started, job.wait_reason = True, ""
        if not job.held:
            job.enter_nodes(row.hosts, row.start_s)
        if self.meters is not None and job.metered != job.held:
            self.meters.start(row.job_id, set(job.held) - set(job.metered))
            job.metered = job.held

    def _waits(self, job: SlurmJob, row: QueuedJob) -> None:
        """See a job that Slurm has not started: one that waits for others' nodes goes elsewhere."""
        job.wait_reason = row.reason
        if job.withdrawn or job.end_requested or row.state != "PENDING":
            return
        for_nodes = row.reason.split(",")[0].startswith(WAITS_FOR_NODES)
        if job.started or (for_nodes and time.monotonic() > job.known_s + WAIT_S):
            job.withdrawn = True
            self.cancel(row.job_id, only_pending=True)

    def _end(self, job: SlurmJob, state: str) -> None:
        """Enter that Slurm is done with a job."""
        unstarted = not job.started and not job.end_requested
        if job.withdrawn and state == "CANCELLED" and unstarted:
            job.finished, job.end_reason = True, f"Slurm had it wait ({job.wait_reason})"
            self._give_up(job)
            return
        job.end(state)
        if job.held:
            job.enter_nodes(())
        if job.end_state == NODES_LOST:
            job.record.closed = True
            job.keep()
        if self.measures:
            self._unread.append((time.monotonic() + ACCOUNTING_DELAY_S, job))

    def _read_energy(self, job: SlurmJob) -> None:
        """Ask what Slurm has measured of a job that is over."""
        slurm, number = self.executor.slurm, job.record.number
        if number is not None:
            job.energy_j = self.executor.ask(lambda: slurm.consumed_j(number))

    def _cancel_strays(self, snapshot: QueueSnapshot, donors: Callable[[str], str]) -> None:
        """Cancel donors that no resize waits for, and jobs that nobody knows of any more.

        They are what a daemon has left that was killed, or whose journal was lost.
        """
        for row in snapshot.own.values():
            job = row.name.rpartition(".")[2]
            known = self.resizes if row.name == donors(job) else self.jobs
            stray = job not in known
            if stray and row.state in ("PENDING", "CONFIGURING", "RUNNING"):
                self.cancel(row.job_id)
