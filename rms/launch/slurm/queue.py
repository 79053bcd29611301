"""Jobs in Slurm's queue: snapshots of it, submissions, resizes, and the states of jobs.

Snapshots of the queue and the nodes are taken about once a second on a thread.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from rms.launch.base import NODES_LOST, ManagedProcess
from rms.launch.processes import KEEP_STATUS
from rms.launch.slurm.commands import Executor, Meaning, Slurm, SlurmError
from rms.launch.slurm.output import DEAD, JobDetails, QueuedJob
from rms.launch.slurm.site import UNFIT
from rms.wire.files import write_whole

HOLDING = "RUNNING,COMPLETING,SUSPENDED,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
"""States in which a job has nodes."""

RESERVED = ("reserved", "planned", "powered_down", "powering_down", "rebooting")
URGENT_S = 0.2
CALM_S = 1.0
AWAY_S = 2.0
"""Time between snapshots: if a change is expected, if none is, and while Slurm is away."""

SHARE = 0.2
"""Share of the time for snapshots: a queue of thousands is not polled all the time."""


@dataclass(frozen=True)
class QueueSnapshot:
    """Slurm's answer at one time.

    Attributes:
        begun_s, ended_s: the monotonic clock before the query and after the answer; later changes
            may be missing.
        own: the jobs of this daemon by number, donors and ended ones too.
        unavailable: nodes that others hold, or that are not fit for work.
        dead: nodes that are down or do not answer the controller.
        down: those that are down.
        hidden: nodes held by jobs that are not shown, or that have come between two queries.
    """

    begun_s: float
    ended_s: float
    own: Mapping[int, QueuedJob]
    unavailable: frozenset[str]
    hidden: frozenset[str]
    dead: frozenset[str] = frozenset()
    down: frozenset[str] = frozenset()


def take_snapshot(
    slurm: Slurm, is_own: Callable[[str], bool], known: Mapping[int, str]
) -> QueueSnapshot:
    """Return a snapshot; ``known`` are the numbers and names of jobs that should be in it."""
    begun_s = time.monotonic()
    own = {
        row.job_id: row
        for row in slurm.jobs("--states=all", f"--user={slurm.user}", known=known)
        if is_own(row.name)
    }
    ours: set[str] = set()
    others: set[str] = set()
    for number, hosts in slurm.holders(HOLDING):
        (ours if number in own else others).update(hosts)
    hidden: set[str] = set()
    dead: set[str] = set()
    down: set[str] = set()
    for node in slurm.nodes():
        if node.state in ("allocated", "mixed") and node.name not in ours:
            hidden.add(node.name)
        if not node.responds or node.state in (*UNFIT, *RESERVED):
            others.add(node.name)
        if not node.responds or node.state in DEAD:
            dead.add(node.name)
        if node.state in DEAD:
            down.add(node.name)
    ended_s, found = time.monotonic(), map(frozenset, (others, hidden, dead, down))
    return QueueSnapshot(begun_s, ended_s, own, *found)


class QueuePoller:
    """Takes one snapshot after the other; never waits for an answer.

    Args:
        known: returns the numbers and names of jobs that Slurm should have.
    """

    def __init__(
        self,
        executor: Executor,
        is_own: Callable[[str], bool],
        known: Callable[[], Mapping[int, str]],
    ) -> None:
        self._executor, self._is_own, self._known = executor, is_own, known
        self._query: Future[QueueSnapshot] | None = None
        self._next_s = self._pause_s = 0.0
        self._hidden: frozenset[str] = frozenset()
        self.trouble = ""

    def poll(self, *, urgent: bool) -> QueueSnapshot | None:
        """Return a new snapshot, if any; take the next when it is time."""
        now = time.monotonic()
        snapshot = None
        if self._query is not None and self._query.done():
            query, self._query = self._query, None
            try:
                snapshot, self.trouble = query.result(), ""
                self._pause_s = (snapshot.ended_s - snapshot.begun_s) / SHARE
                self._next_s = snapshot.begun_s
                lasting, self._hidden = snapshot.hidden & self._hidden, snapshot.hidden
                snapshot = replace(snapshot, unavailable=snapshot.unavailable | lasting)
            except Exception as error:  # of Slurm, or of its output: the next query follows
                self.trouble = str(error) or type(error).__name__
                self._next_s = now + AWAY_S - CALM_S
        pause_s = CALM_S if self.trouble or not urgent else URGENT_S
        if self._query is None and now >= self._next_s + max(pause_s, self._pause_s):
            slurm, known = self._executor.slurm, self._known()
            self._query = self._executor.ask(lambda: take_snapshot(slurm, self._is_own, known))
        return snapshot


# --- A submitted job ------------------------------------------------------------------------------
#
# The record beside the job's script is written before sbatch is called and again after its answer,
# so that a job is submitted once whatever happens in between: the queue is searched for its name.

SLURM_NUMBER_VARIABLE = "RMS_SLURM_JOB_ID"
"""Slurm's own id of a job, for its script, whose ``SLURM_JOB_ID`` is the RMS's."""

VANISHED = "nothing of it any more"
END_STATES = {"CANCELLED": "CANCELLED", "TIMEOUT": "TIMEOUT", "DEADLINE": "TIMEOUT"}
"""Slurm's states of ended jobs, and the RMS's; with other states, nodes were lost."""

SUBMIT_AGAIN_S = 2.0
UNCLEAR_MOST = 3  # answers of sbatch that do not tell whether a job was submitted

WRAPPER = f"""#!/bin/sh
export {SLURM_NUMBER_VARIABLE}="$SLURM_JOB_ID"
for name in JOB_ID JOB_NUM_NODES ARRAY_JOB_ID ARRAY_TASK_ID; do
    eval "value=\\${{RMS_$name-}}"
    if [ -n "$value" ]; then export "SLURM_$name=$value"; else unset "SLURM_$name"; fi
done
exec /bin/sh -c {shlex.quote(KEEP_STATUS)} job "$RMS_SCRIPT" "$@"
"""
"""The script that Slurm runs; to the user's script its job is the RMS's, as under every engine."""


class SubmissionRecord(msgspec.Struct):
    """The record of a job of Slurm's.

    Attributes:
        before: numbers of earlier jobs of that name.
        closed: whether it is over, and the job of the RMS waits for another.
        donor: salloc's options for its donors.
        survives: whether Slurm leaves it its other nodes when one fails.
        held: times and nodes that the job of the RMS has held, under all its numbers.
    """

    before: list[int] = []
    number: int | None = None
    closed: bool = False
    donor: list[str] = []
    survives: bool = False
    held: list[tuple[float, tuple[str, ...]]] = []

    @classmethod
    def read(cls, path: Path) -> SubmissionRecord | None:
        """Return the record in a file, None without one."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None

    def next(self) -> SubmissionRecord:
        """Return the record of another job of Slurm's for the same job of the RMS."""
        used = [*self.before, *([] if self.number is None else [self.number])]
        return SubmissionRecord(used, held=self.held)

    @property
    def open(self) -> bool:
        """Whether an earlier daemon may have submitted it without saving its number."""
        return self.number is None and not self.closed


@dataclass(kw_only=True)
class SlurmJob(ManagedProcess):
    """A job script that Slurm runs.

    Attributes:
        numbered_s: the monotonic clock when it got its number.
        withdrawn: whether it was taken out of Slurm's queue, because it had to wait.
        metered: the nodes with agents of meters.
        completing_s: the monotonic clock of the first snapshot in which Slurm cleans up after it.
        changed_s: the monotonic clock when its last change of nodes was answered.
        lost: nodes that Slurm has taken from it, as they have failed, or that are down.
    """

    name: str
    record: SubmissionRecord
    record_file: Path
    hosts: tuple[str, ...] = ()
    started: bool = False
    end_state: str = ""
    end_reason: str = ""
    submission: Future[int] | None = None
    numbered_s: float = 0.0
    end_requested: bool = False
    withdrawn: bool = False
    metered: tuple[str, ...] = ()
    completing_s: float | None = None
    changed_s: float = 0.0
    lost: frozenset[str] = frozenset()
    finished: bool = False
    wait_reason: str = ""
    energy_j: Future[float] | None = None
    unsaved: bool = False

    def status(self) -> int | None:
        """Return the script's status once Slurm is done with the job."""
        if not self.finished:
            return None
        written = self.written_status()
        return 1 if written is None else written

    @property
    def number(self) -> int | None:
        """Its number in Slurm, None while it has none."""
        answer = self.submission
        if answer is None or not answer.done() or answer.exception() is not None:
            return self.record.number
        return answer.result() or None

    @property
    def held(self) -> tuple[str, ...]:
        """Its nodes by its record."""
        return self.record.held[-1][1] if self.record.held else ()

    def close(self) -> None:
        """Let the job of the RMS wait for another one of Slurm's."""
        self.record.closed = True
        self.keep()

    def keep(self) -> None:
        """Save its record; on a full disk later."""
        self.unsaved = True
        with contextlib.suppress(OSError):
            self.save()

    def save(self) -> None:
        """Save its record."""
        self.record_file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.record_file, msgspec.json.encode(self.record))
        self.unsaved = False

    def enter_nodes(self, hosts: Sequence[str], at_s: float | None = None) -> None:
        """Record its nodes since a time of Slurm's; since now for None."""
        held, now = self.record.held, tuple(hosts)
        if self.finished and now:  # the nodes at its end, reported late
            if len(held) > 1 and held[-2][1] != now and at_s is not None:
                held.insert(-1, (at_s, now))
                self.keep()
        elif self.held != now:
            held.append((time.time() if at_s is None else at_s, now))
            self.keep()

    def enter_start(self, hosts: Sequence[str], at_s: float | None) -> None:
        """Record the nodes of its start, unless it is recorded to hold nodes, or to have ended.

        They are the nodes of its submission, as it may have been resized since.

        Args:
            hosts: its nodes now, for a job that an earlier daemon has submitted; none if these are
                the nodes after a resize.
            at_s: time of its start.
        """
        if not self.held and not self.finished:
            self.enter_nodes(self.hosts or hosts, at_s)

    def end(self, state: str) -> None:
        """Record that Slurm is done with it."""
        self.finished, code = True, self.written_status()
        if self.end_requested:
            return
        forgotten = state == VANISHED and code is not None  # the script's own status is left
        if state in ("COMPLETED", "FAILED") or code == 0 or forgotten:
            self.started = True
        else:
            self.end_state = END_STATES.get(state, NODES_LOST)
            self.end_reason = f"Slurm says {state}"


def submit(
    executor: Executor,
    job: SlurmJob,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    search: bool,
) -> int:
    """Submit a job, on a thread, unless it was submitted; repeat that while Slurm is away.

    Args:
        search: whether an earlier daemon may have submitted it: then the queue is searched first,
            which takes long with many jobs.

    Returns:
        Its number in Slurm; 0 if its end was requested before, or if its script has ended and Slurm
        has forgotten it.

    Raises:
        SlurmError: refused, or its record could not be saved, or the daemon ends: its record stays
            open, and the next daemon searches for it first.
    """
    slurm, record = executor.slurm, job.record
    try:
        if not search and job.status_file is not None:
            job.status_file.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        job.save()
        with job.record_file.open("rb") as file:
            os.fsync(file.fileno())
    except OSError as error:
        raise SlurmError(f"expected to write down that {job.name} starts: {error}") from None
    unclear = 0
    while True:
        try:
            for row in slurm.jobs("--states=all", f"--user={slurm.user}") if search else ():
                if row.job_id not in record.before and row.name == job.name:
                    return row.job_id
            over = job.end_requested or (search and job.written_status() is not None)
            return 0 if over else slurm.submit(*arguments, environment=environment)
        except SlurmError as error:
            unclear += error.meaning is Meaning.UNCLEAR
            away = error.meaning in (Meaning.UNREACHABLE, Meaning.UNCLEAR)
            if not away or unclear > UNCLEAR_MOST:
                raise
            if executor.closing.wait(SUBMIT_AGAIN_S):
                raise
        search = True


# --- Changes of a running job: grown by a donor, shrunk by a list of nodes ------------------------
#
# Both look at the job's real nodes first, so that a repetition does no harm.

DONOR = "rms-donor"
LATER_S = 8.0
"""Time limit for nodes that are not free yet: those of a job that is just ending, or that have not
yet reported to a controller that has just started."""

RESIZE_AWAY_S = 60.0  # a resize fails if the controller does not answer for so long
AGAIN_S = 0.5
OUTSIDE_S = 5.0  # time that steps have to end before their nodes are given back


ChangeOutcome = tuple[JobDetails | None, str]
"""The result of a change: the job (None: it is over), and the reason of a failure, or ""."""


def grow(
    executor: Executor,
    job: int,
    hosts: Sequence[str],
    wanted: Sequence[str],
    donor: str,
    options: Sequence[str],
) -> JobDetails:
    """Let a job hold ``hosts``, by a throw-away job ``donor``; return its details after that."""
    slurm = executor.slurm
    now = slurm.job(job)
    if now.state != "RUNNING":
        raise SlurmError(f"expected a running job, got job {job}, {now.state}", Meaning.GONE)
    if now.batch_host is not None and now.batch_host not in wanted:
        raise SlurmError(
            f"the script of the job runs on {now.batch_host}, which Slurm cannot take from it"
        )
    missing = [host for host in hosts if host not in now.hosts]
    if not missing:
        return now
    slurm.cancel_named(donor)  # of a daemon that was killed
    _next_second(now)
    try:
        with executor.rate_limiter:
            return slurm.grow(job, len(missing), donor, *options, on=missing)
    except SlurmError:
        now = slurm.job(job)
        if set(missing) <= set(now.hosts):
            return now  # it had them when it ended
        raise


def shrink(executor: Executor, job: int, hosts: Sequence[str]) -> JobDetails:
    """Let a job hold only ``hosts``; return its details after that."""
    slurm = executor.slurm
    now = slurm.job(job)
    kept = [host for host in now.hosts if host in hosts]
    if now.state != "RUNNING" or len(kept) == len(now.hosts):
        return now
    _next_second(now)
    with executor.rate_limiter:
        return slurm.shrink(job, kept)


def end_outside(executor: Executor, job: int, hosts: Sequence[str]) -> None:
    """Have the steps of a job end that are on none of these nodes, before it gives theirs back.

    Slurm would kill them, and a keeper would leave its copies in the memory of its node.
    """
    slurm, until = executor.slurm, time.monotonic() + OUTSIDE_S
    while time.monotonic() < until:
        going = set(slurm.job(job).hosts).difference(hosts)
        left = [step for step, own in slurm.step_hosts(job).items() if own and own <= going]
        if not left:
            return
        slurm.terminate_steps(left)
        time.sleep(AGAIN_S)


def _next_second(job: JobDetails) -> None:
    """Wait for the second after a job's last change: accounting keeps one record a second."""
    last_s = max(job.start_s or 0.0, job.resized_s or 0.0)
    time.sleep(min(1.0, max(0.0, last_s + 1.02 - time.time())))


class Retried:
    """A change of a running job that is repeated while it may go through later.

    Args:
        give_up: whether it fails after a while; else it ends only with the job.
    """

    def __init__(
        self, executor: Executor, change: Callable[[], JobDetails], *, give_up: bool
    ) -> None:
        self._executor, self._change, self._give_up = executor, change, give_up
        self._first_s: dict[Meaning, float] = {}
        self._again_s = 0.0
        self._answer: Future[JobDetails] | None = executor.ask(change)

    def __call__(self) -> ChangeOutcome | None:
        """Return its result, None while that is open; repeat it when it is time."""
        now = time.monotonic()
        if self._answer is None:
            if now >= self._again_s:
                self._answer = self._executor.ask(self._change)
            return None
        if not self._answer.done():
            return None
        answer, self._answer = self._answer, None
        try:
            return answer.result(), ""
        except Exception as error:  # of Slurm, or of its output
            words, meaning = str(error), getattr(error, "meaning", Meaning.LATER)
        if meaning is Meaning.GONE and not self._give_up:
            return None, ""
        first_s = self._first_s.setdefault(meaning, now)
        # A controller that has just restarted refuses changes until its nodes have reported.
        away = Meaning.UNREACHABLE in self._first_s
        later = away or meaning in (Meaning.LATER, Meaning.UNCLEAR)
        patience_s = RESIZE_AWAY_S if away else LATER_S if later else 0.0
        if self._give_up and now >= first_s + patience_s:
            return None, f"later: {words}" if later else words
        self._again_s = now + (AGAIN_S if self._give_up else 4 * AGAIN_S)
        return None
