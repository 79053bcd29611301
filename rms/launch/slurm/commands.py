"""Slurm's commands as typed calls with deadlines, and the options and variables for them."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from threading import Event, Lock
from types import MappingProxyType
from typing import TypeVar

from rms.launch.slurm import output
from rms.launch.slurm.output import JobDetails, Partition, QueuedJob, SiteNode

_RMS_OPTIONS = """
--array --batch --begin --chdir --contiguous --dependency --distribution --error --exclude
--exclusive --export --export-file --get-user-env --hold --immediate --input --job-name
--kill-on-invalid-dep --no-kill --no-requeue --nodefile --nodelist --nodes --ntasks
--ntasks-per-core --ntasks-per-node --ntasks-per-socket --open-mode --output --oversubscribe
--overcommit --parsable --quiet --requeue --share --signal --spread-job --test-only --time
--time-min --uid --use-min-nodes --verbose --version --wait --wrap
-B -D -F -H -I -N -O -Q -V -W -a -b -d -e -h -i -J -k -m -n -o -s -t -v -w -x
"""
RMS_OPTIONS = frozenset(_RMS_OPTIONS.split())
"""Options that the RMS decides itself, or that would contradict it."""

_DONOR_OPTIONS = "--partition -p --account -A --qos -q --reservation --constraint -C --wckey"
DONOR_OPTIONS = frozenset(_DONOR_OPTIONS.split())
"""Options that a donor of nodes must have in common with the job that gets them."""

VARIABLES = frozenset(
    f"SBATCH_{name}"
    for name in ("ACCOUNT", "CONSTRAINT", "PARTITION", "QOS", "RESERVATION", "WCKEY")
)
"""Variables of a user's environment that restrict where jobs may run."""

SITE_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")
"""Variables that name the site, for every command of Slurm's."""

ARRAY_VARIABLES = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
"""Variables of a job's own array, which the RMS sets."""


def sbatch_options(own: Sequence[str], partition: str = "") -> list[str]:
    """Return the options of a script that sbatch gets.

    Args:
        partition: the partition of a script that names none, "" for Slurm's own choice.
    """
    words = [word for word in own if _name(word) not in RMS_OPTIONS]
    if partition and not partition_of(own):
        words.append(f"--partition={partition}")
    return words


def donor_options(own: Sequence[str], partition: str = "") -> list[str]:
    """Return the options of a script that salloc gets for a donor."""
    return [word for word in sbatch_options(own, partition) if _name(word) in DONOR_OPTIONS]


def partition_of(own: Sequence[str]) -> str:
    """Return the partition that a script names, "" for none."""
    for word in reversed(own):
        option = re.fullmatch(r"(?:--partition=|-p)(.+)", word)
        if option:
            return option[1]
    return ""


def literal_path(path: PurePath) -> str:
    """Return a path as sbatch takes it without replacements: a backslash turns them all off."""
    text = str(path)
    return text.replace("\\", r"\\") if "\\" in text else text.replace("%", "%%")


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return a job's environment without the variables that steer sbatch, accounts aside."""
    return {
        key: value
        for key, value in env.items()
        if key in VARIABLES or not key.startswith(("SLURM_", "SBATCH_"))
    }


def inner_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a step without the variables of an outer allocation or step."""
    kept = (*SITE_VARIABLES, *ARRAY_VARIABLES)
    return {k: v for k, v in env.items() if k in kept or not k.startswith("SLURM_")}


def plain_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of Slurm and the RMS, but for the site's."""
    foreign = ("SLURM_", "RMS_")
    return {k: v for k, v in env.items() if k in SITE_VARIABLES or not k.startswith(foreign)}


def _name(word: str) -> str:
    return word.partition("=")[0] if word.startswith("--") else word[:2]


# --- Slurm's commands -----------------------------------------------------------------------------
#
# Measured on a test bed (22.05): squeue and scontrol answer in 7 to 9 ms, sacct in 100, a grow
# takes 0.4 s, a shrink 0.2 s. So the queue is polled, never accounting.

DEADLINE_S = 30.0  # a command gives up an unreachable controller after up to 18 s
SILENT_S = 10.0
"""The controller counts as unreachable after this time without an answer."""

UNSET = (2**32 - 2, 2**32 - 1)  # Slurm's NO_VAL and INFINITE of 32 bits
UNDERFLOW = 2**63  # those of 64 bits are above this, and so is a number below 0 without its sign
ASK_CONTROLLER = ("squeue", "sinfo", "scontrol")
"""Commands that the controller answers at once; sacct uses slurmdbd, srun and salloc may wait."""

OPTIONS_OF = ("SLURM_", "SBATCH_", "SALLOC_", "SCANCEL_", "SQUEUE_", "SINFO_", "SACCT_")


class Meaning(Enum):
    """The meaning of a refusal."""

    LATER = "may go through later"
    NEVER = "this site or this job does not allow it"
    GONE = "the job has ended, or there is none"
    DENIED = "this user may not do it"
    UNREACHABLE = "the controller does not answer"
    UNCLEAR = "the answer is cut or garbled, and does not tell what was done"


_PHRASES = (
    # salloc --immediate that had to wait in the queue
    (Meaning.LATER, "unable to allocate resources: connection timed out"),
    (
        Meaning.UNREACHABLE,
        "unable to contact|socket timed out|zero bytes|connection refused"
        "|connection timed out|no route to host",
    ),
    (Meaning.DENIED, "invalid user id|permission denied"),
    (Meaning.GONE, "invalid job id|already finished|already completed|job dependency problem"),
    (
        Meaning.LATER,
        "nodes are busy|node not available|insufficient priority|temporarily|try again"
        "|in progress|submitjob",
    ),
)


class SlurmError(Exception):
    """A command has failed; one sentence."""

    def __init__(self, sentence: str, meaning: Meaning = Meaning.NEVER) -> None:
        super().__init__(sentence)
        self.meaning = meaning


@dataclass(frozen=True)
class CommandResult:
    """An ended command; ``status`` is None if it was interrupted at its deadline."""

    status: int | None
    out: str
    err: str


Answer = TypeVar("Answer")
Run = Callable[[Sequence[str], Mapping[str, str], float], CommandResult]


def run_command(
    command: Sequence[str], environment: Mapping[str, str], deadline_s: float
) -> CommandResult:
    """Run a command, or interrupt it at its deadline by SIGINT, on which salloc gives up."""
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise SlurmError(f"expected Slurm's {command[0]} on PATH, got: {error.strerror}") from None
    with process:
        try:
            out, err = process.communicate(timeout=deadline_s)
            return CommandResult(process.returncode, out, err)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=5)
                return CommandResult(None, out, err)
            return CommandResult(None, "", "")
        finally:
            process.kill()


def meaning_of(message: str) -> Meaning:
    """Return the meaning of a refusal by Slurm's message."""
    lower = message.lower()
    return next((what for what, phrase in _PHRASES if re.search(phrase, lower)), Meaning.NEVER)


@dataclass
class Slurm:
    """The commands of one site; a call that fails or has no answer raises :class:`SlurmError`.

    ``outer`` is the caller's environment; its options for Slurm and its allocation are left out.
    Output is read as text: JSON is 50 times as long.

    Attributes:
        complaints: lines for the log on answers that cannot be used; one for each command until
            it is answered well.
    """

    outer: Mapping[str, str]
    user: str
    run: Run = run_command
    deadline_s: float = DEADLINE_S
    complaints: list[str] = field(default_factory=list)
    _complained: set[str] = field(default_factory=set)
    _begun_s: dict[int, float] = field(default_factory=dict)  # of commands under way, by thread
    _silent_since_s: float | None = None

    def __post_init__(self) -> None:
        kept = {
            name: value
            for name, value in self.outer.items()
            if name in SITE_VARIABLES or not name.startswith(OPTIONS_OF)
        }
        self._environment = {**kept, "SLURM_TIME_FORMAT": "%s"}

    def call(
        self,
        *command: str,
        deadline_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a command that has to succeed."""
        if environment is None:
            environment = self._environment
        limit_s, name = deadline_s or self.deadline_s, PurePath(command[0]).name
        begun_s, thread = time.monotonic(), threading.get_ident()
        if name in ASK_CONTROLLER:
            self._begun_s[thread] = begun_s
        try:
            done = self.run(command, environment, limit_s)
        finally:
            self._begun_s.pop(thread, None)
        words = " ".join((done.err.strip() or done.out.strip()).split())
        error = None
        if done.status is None:
            error = SlurmError(f"{name} did not end within {limit_s:g} s", Meaning.UNREACHABLE)
        elif done.status != 0:
            meaning = meaning_of(words) if words else Meaning.UNCLEAR
            error = SlurmError(f"{name} failed: {words or 'it prints no reason'}", meaning)
        if name in ASK_CONTROLLER and "--version" not in command:
            away = "ping" in command and " is UP" not in done.out
            away |= error is not None and error.meaning is Meaning.UNREACHABLE
            since_s = begun_s if self._silent_since_s is None else self._silent_since_s
            self._silent_since_s = since_s if away else None
        if error is not None:
            raise error
        return done

    def read(self, parse: Callable[[str], Answer], *command: str) -> Answer:
        """Return the values in a command's output; SlurmError if they cannot be read."""
        text = self.call(*command).out
        try:
            found = parse(text)
        except ValueError as error:
            raise self.unclear(command[0], str(error)) from None
        self._complained.discard(command[0])
        return found

    def unclear(self, command: str, words: str) -> SlurmError:
        """Return the error of an answer that is cut or garbled, after a line for the log."""
        name = PurePath(command).name
        error = SlurmError(f"{name} gave no clear answer: {words}", Meaning.UNCLEAR)
        if name not in self._complained:
            self._complained.add(name)
            self.complaints.append(f"{error}; it is called again")
        return error

    def silent_s(self) -> float:
        """Return the time without an answer of the controller, 0 while it answers."""
        now = time.monotonic()
        since_s = min(list(self._begun_s.values()), default=now)
        if self._silent_since_s is not None:
            since_s = min(since_s, self._silent_since_s)
        return now - since_s if now - since_s >= SILENT_S else 0.0

    def version(self) -> tuple[int, ...]:
        """Return Slurm's version, as (22, 5, 8)."""
        return output.version_from_text(self.call("sinfo", "--version").out)

    def config(self) -> dict[str, str]:
        """Return the controller's configuration."""
        lines = self.call("scontrol", "show", "config").out.splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {key.strip(): value.strip() for key, _, value in pairs}

    def ping(self) -> bool:
        """Return at once whether a controller answers; other commands take many seconds."""
        with contextlib.suppress(SlurmError):
            return " is UP" in self.call("scontrol", "ping").out
        return False

    def jobs(
        self, *options: str, known: Mapping[int, str] = MappingProxyType({})
    ) -> list[QueuedJob]:
        """Return the jobs that squeue's options select.

        Args:
            known: numbers and names of jobs that are among them, if Slurm still has them. An
                answer without one that the controller shows is cut.
        """
        command = ["squeue", "--noheader", "--array", f"--format={output.QUEUE_FORMAT}", *options]

        def whole(text: str) -> list[QueuedJob]:
            rows = output.queue_from_text(text)
            names = {row.job_id: row.name for row in rows}
            for number, name in known.items():
                if names.get(number) != name and self._has(number, name):
                    raise ValueError(f"expected job {number} in its list, got {len(rows)} jobs")
            return rows

        return self.read(whole, *command)

    def holders(self, states: str) -> list[tuple[int, tuple[str, ...]]]:
        """Return numbers and nodes of all users' jobs in these states."""
        command = ["squeue", "--noheader", "--array", f"--format={output.HOLDERS_FORMAT}"]
        return self.read(output.holders_from_text, *command, f"--states={states}")

    def _has(self, job: int, name: str) -> bool:
        """Return whether the controller has a job of this number and name."""
        try:
            return self.job(job).name == name
        except SlurmError as error:
            if error.meaning is Meaning.GONE:
                return False
            raise

    def partitions(self) -> list[Partition]:
        """Return all partitions."""
        command = ["sinfo", "--noheader", f"--format={output.PARTITIONS_FORMAT}"]
        return self.read(output.partitions_from_text, *command)

    def nodes(self) -> list[SiteNode]:
        """Return all nodes: one row for all that are alike, as ``sinfo --Node`` takes a second."""
        command = ["sinfo", "--noheader", "--exact", f"--format={output.NODES_FORMAT}"]
        return self.read(output.nodes_from_text, *command)

    def check_accounting(self, job: int) -> None:
        """Refuse a site whose accounting does not answer queries of jobs."""
        self.call("sacct", "--duplicates", f"--jobs={job}", "--noheader", "--format=JobIDRaw")

    def consumed_j(self, job: int) -> float:
        """Return the energy of a job that is over, by Slurm's own plugin; unset values are none."""
        # Without steps: their energies, of the same nodes at the same time, are in its own.
        command = ["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates"]
        done = self.call(*command, f"--jobs={job}", "--format=ConsumedEnergyRaw")
        stated = [int(line) for line in done.out.split() if line.isdecimal()]
        values = [value for value in stated if value not in UNSET and value < UNDERFLOW]
        if stated and not values:
            raise SlurmError(f"expected the energy of job {job} in Slurm, got {stated[0]} J")
        return float(sum(values))

    def job(self, job: int) -> JobDetails:
        """Return the controller's details of a job."""
        command = ["scontrol", "--details", "show", "job", str(job)]
        return self.read(output.details_from_text, *command)

    def steps(self, job: int) -> list[tuple[str, str]]:
        """Return (id, name) of the running steps of a job; none if the job is over."""
        try:
            command = ["squeue", "--steps", f"--jobs={job}", "--noheader", "--format=%i|%j"]
            return self.read(output.steps_from_text, *command)
        except SlurmError as error:
            if error.meaning is Meaning.GONE:
                return []
            raise

    def stranded(self, job: int) -> set[str]:
        """Return the ids of the steps of a job that are on none of its nodes any more.

        Slurm 22.05 lists a step whose only node has failed until the job ends.
        """
        held = self.job(job).hosts
        return {step for step, hosts in self.step_hosts(job).items() if hosts.isdisjoint(held)}

    def step_hosts(self, job: int) -> dict[str, frozenset[str]]:
        """Return the nodes of the running steps of a job by their ids."""
        command = ["squeue", "--steps", f"--jobs={job}", "--noheader", "--format=%i|%N"]
        steps = self.read(output.steps_from_text, *command)
        return {step: frozenset(output.hosts(nodes)) for step, nodes in steps}

    def submit(self, *words: str, environment: Mapping[str, str] | None = None) -> int:
        """Hand options and a script to sbatch; return the job's id."""
        own, sbatch = None, "sbatch"
        if environment is not None:  # with a PATH of its own, on which there may be no sbatch
            own = {
                **environment,
                **{k: v for k, v in self._environment.items() if k in SITE_VARIABLES},
            }
            sbatch = shutil.which("sbatch", path=self.outer.get("PATH")) or sbatch
        answer = self.call(sbatch, "--parsable", *words, environment=own).out
        number = re.fullmatch(r"(\d+)(?:;\S+)?\n", answer)  # the cluster's name may follow
        if number is None:
            raise self.unclear("sbatch", f"expected a job's number, got {answer!r}")
        return int(number[1])

    def cancel(self, *jobs: int, only_pending: bool = False) -> None:
        """End jobs, or only pending ones; a job that has ended is no failure."""
        if jobs:
            which = ["--state=PENDING"] if only_pending else []
            self._call_unless_gone("scancel", *which, *map(str, jobs))

    def send_signal(self, job: int, name: str) -> None:
        """Send a signal to a job's script and steps; a job that has ended is no failure."""
        self._call_unless_gone("scancel", "--full", f"--signal={name}", str(job))

    def end_steps(self, steps: Sequence[str]) -> None:
        """Kill steps; a step that has ended is no failure."""
        self._call_unless_gone("scancel", "--signal=KILL", *steps)

    def terminate_steps(self, steps: Sequence[str]) -> None:
        """Ask steps to end; a step that has ended is no failure."""
        self._call_unless_gone("scancel", "--signal=TERM", *steps)

    def _call_unless_gone(self, *command: str) -> None:
        try:
            self.call(*command)
        except SlurmError as error:
            if error.meaning is not Meaning.GONE:
                raise

    def shrink(self, job: int, kept: Sequence[str]) -> JobDetails:
        """Leave a running job these of its nodes; processes on the others are killed."""
        self.call("scontrol", "update", f"jobid={job}", f"NodeList={','.join(kept)}")
        now = self.job(job)
        if set(now.hosts) != set(kept):
            raise SlurmError(
                f"expected job {job} on {','.join(kept)}, got {','.join(now.hosts) or 'no node'}",
                Meaning.GONE,
            )
        return now

    def grow(
        self, job: int, nodes: int, donor_name: str, *options: str, on: Sequence[str] = ()
    ) -> JobDetails:
        """Give a running job more nodes by a donor, at once or not at all.

        ``on`` are these nodes by name, ``options`` are more of salloc's for the donor.

        Slurm breaks a donor of a job with GRES (it stays COMPLETING for good), so that is refused
        here. By ``donor_name``, which is this donor's alone, :meth:`cancel_named` ends a left one.

        Raises:
            SlurmError: refused or no node free; the job is unchanged, without a donor.
        """
        before = self.job(job)
        if before.has_gres:
            raise SlurmError(f"job {job} has GRES, and Slurm cannot give such a job more nodes")
        named = [f"--nodelist={','.join(on)}"] if on else []
        try:
            donor = self.allocate(nodes, donor_name, f"--dependency=expand:{job}", *named, *options)
            try:
                granted = self.job(donor)
            except SlurmError as error:
                if error.meaning is not Meaning.GONE:
                    raise
                raise self.unclear("salloc", f"expected {donor_name}, got no job {donor}") from None
            if granted.name != donor_name:
                raise self.unclear(
                    "salloc", f"expected {donor_name}, got job {donor}, {granted.name}"
                )
            if granted.has_gres:  # all of a node's, as it is exclusive
                raise SlurmError("the free nodes have GRES, and Slurm cannot give those away")
            # Slurm 22.05 also merges a donor into a COMPLETING job, which then keeps the
            # nodes until an administrator sets them down and resumes them.
            if (state := self.job(job).state) != "RUNNING":
                raise SlurmError(f"job {job} is {state}, no longer RUNNING", Meaning.GONE)
            self.call("scontrol", "update", f"jobid={donor}", "NumNodes=0")
        except BaseException:
            self.cancel_named(donor_name)
            raise
        # Success is also reported where the job ended meanwhile and the nodes went back.
        now = self.job(job)
        if now.state != "RUNNING" or len(now.hosts) != len(before.hosts) + nodes:
            raise SlurmError(
                f"expected job {job} to run on {len(before.hosts) + nodes} nodes,"
                f" got {now.state} on {len(now.hosts)}",
                Meaning.GONE,
            )
        return now

    def allocate(self, nodes: int, name: str, *options: str) -> int:
        """Return a job without steps that holds whole nodes, granted at once or refused."""
        done = self.call(
            *["salloc", "--no-shell", "--immediate=1", "--exclusive", f"--nodes={nodes}"],
            *[f"--job-name={name}", *options],
        )
        granted = re.search(r"Granted job allocation (\d+)\n", done.err)
        if granted is None:
            raise self.unclear("salloc", f"expected a granted job, got {done.err.strip()!r}")
        return int(granted[1])

    def cancel_named(self, name: str) -> None:
        """Cancel all jobs of this user with a name, such as donors, pending or running."""
        self.call("scancel", f"--user={self.user}", f"--name={name}")


# --- Commands on threads --------------------------------------------------------------------------

THREADS = 8  # most threads wait: for an answer, or for the next second
SHARE = 0.5
"""Share of the time in which changes of running jobs may keep the controller busy."""


class RateLimiter:
    """Lets one change of a running job at a time through, with pauses in between.

    Slurm's controller makes them one by one, in 0.2 to 0.4 s, and answers no command of any user
    meanwhile.
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share, self._next_s = share, 0.0
        self._lock = Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        time.sleep(max(0.0, self._next_s - time.monotonic()))
        self._begun_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        now = time.monotonic()
        self._next_s = now + (now - self._begun_s) * (1 / self._share - 1)
        self._lock.release()


class Executor:
    """Commands under way; several at once.

    Attributes:
        closing: set when the daemon ends: waits for a controller that is away end.
    """

    def __init__(self, slurm: Slurm, threads: int = THREADS) -> None:
        self.slurm, self.rate_limiter, self.closing = slurm, RateLimiter(), Event()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="slurm")

    def ask(self, what: Callable[[], Answer]) -> Future[Answer]:
        """Run a call on a thread; its result may raise :class:`SlurmError`."""
        return self._threads.submit(what)

    def close(self) -> None:
        """Wait for the commands under way; run no more, and repeat none."""
        self.closing.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
