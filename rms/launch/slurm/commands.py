"""Slurm's commands as typed calls: each with a deadline, each failure with what it means.

Measured on a test bed (22.05): squeue and scontrol answer in 7 to 9 ms, sacct in 100 (as JSON in
370), a grow takes 0.4 s, a shrink 0.2 s. So the queue is what to poll, never accounting.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import TypeVar

from rms.launch.slurm import output, output_json
from rms.launch.slurm.output import (
    JobDetails,
    OutputError,
    Partition,
    QueuedJob,
    Record,
    ReportedError,
    SiteNode,
)

DEADLINE_S = 30.0  # an unreachable controller takes up to 18 s to be given up
SILENT_S = 10.0
"""The controller counts as unreachable after this time without an answer."""

ASK_CONTROLLER = ("squeue", "sinfo", "scontrol")
"""Commands that the controller answers at once; sacct uses slurmdbd, srun and salloc may wait."""

KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER")
OPTIONS_OF = ("SLURM_", "SBATCH_", "SALLOC_", "SCANCEL_", "SQUEUE_", "SINFO_", "SACCT_")


class Meaning(Enum):
    """What a refusal means for whoever asked."""

    LATER = "may go through later"
    NEVER = "this site or this job does not allow it"
    GONE = "the job has ended, or there is none"
    DENIED = "it is not this user's to do"
    UNREACHABLE = "the controller does not answer"


_PHRASES = (
    (Meaning.UNREACHABLE, "unable to contact|socket timed out|zero bytes|connection refused"),
    (Meaning.DENIED, "invalid user id|permission denied"),
    (Meaning.GONE, "invalid job id|already finished|already completed|job dependency problem"),
    (
        Meaning.LATER,
        "nodes are busy|node not available|insufficient priority|temporarily|try again"
        "|in progress|submitjob",
    ),
)


class SlurmError(Exception):
    """A command that failed, in one sentence of Slurm's or ours."""

    def __init__(self, sentence: str, meaning: Meaning = Meaning.NEVER) -> None:
        super().__init__(sentence)
        self.meaning = meaning


@dataclass(frozen=True)
class CommandResult:
    """An ended command; ``status`` is None where it had to be ended at its deadline."""

    status: int | None
    out: str
    err: str


Run = Callable[[Sequence[str], Mapping[str, str], float], CommandResult]
Row = TypeVar("Row")


def run_command(
    command: Sequence[str], environment: Mapping[str, str], deadline_s: float
) -> CommandResult:
    """Run a command to its end, or interrupt it as Ctrl-C does: salloc then takes its wish back.

    Raises:
        SlurmError: there is no such command.
    """
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
    """Return what a refusal means, by Slurm's message."""
    lower = message.lower()
    return next((what for what, phrase in _PHRASES if re.search(phrase, lower)), Meaning.NEVER)


@dataclass
class Slurm:
    """One site's commands. ``outer`` is the caller's environment, whose options are left out.

    The variables of an allocation are left out too: within one, ``scontrol update`` would leave
    files in the working folder.

    JSON is some 3.5 kB a job where text is 70 B: on a big site pass ``{"squeue": False}``.
    """

    outer: Mapping[str, str]
    user: str
    run: Run = run_command
    deadline_s: float = DEADLINE_S
    json_offered: dict[str, bool] = field(default_factory=dict)  # by command, once asked
    _begun_s: dict[int, float] = field(default_factory=dict)  # of commands under way, by thread
    _silent_since_s: float | None = None

    def __post_init__(self) -> None:
        kept = {
            name: value
            for name, value in self.outer.items()
            if name in KEPT or not name.startswith(OPTIONS_OF)
        }
        self._json_environment = kept  # sacct --json fails with the other
        self._environment = {**kept, "SLURM_TIME_FORMAT": "%s"}

    def call(
        self,
        *command: str,
        deadline_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a command that has to succeed.

        Args:
            environment: instead of this process's own.

        Raises:
            SlurmError: it failed, or did not end in time.
        """
        if environment is None:
            environment = self._json_environment if "--json" in command else self._environment
        limit_s, name = deadline_s or self.deadline_s, PurePath(command[0]).name
        begun_s, thread = time.monotonic(), threading.get_ident()
        if name in ASK_CONTROLLER:
            self._begun_s[thread] = begun_s
        try:
            done = self.run(command, environment, limit_s)
        finally:
            self._begun_s.pop(thread, None)
        words = " ".join((done.err.strip() or done.out.strip() or "no reason given").split())
        error = None
        if done.status is None:
            error = SlurmError(f"{name} did not end within {limit_s:g} s", Meaning.UNREACHABLE)
        elif done.status != 0:
            error = SlurmError(f"{name} failed: {words}", meaning_of(words))
        if name in ASK_CONTROLLER and "--version" not in command:
            away = "ping" in command and " is UP" not in done.out
            away |= error is not None and error.meaning is Meaning.UNREACHABLE
            since_s = begun_s if self._silent_since_s is None else self._silent_since_s
            self._silent_since_s = since_s if away else None
        if error is not None:
            raise error
        return done

    def silent_s(self) -> float:
        """Return the time without an answer of the controller, 0 while it answers."""
        now = time.monotonic()
        since_s = min(list(self._begun_s.values()), default=now)
        if self._silent_since_s is not None:
            since_s = min(since_s, self._silent_since_s)
        return now - since_s if now - since_s >= SILENT_S else 0.0

    # -- Reading -----------------------------------------------------------------------------

    def version(self) -> tuple[int, ...]:
        """Return Slurm's version, as (22, 5, 8)."""
        return output.version_from_text(self.call("sinfo", "--version").out)

    def config(self) -> dict[str, str]:
        """Return the controller's configuration."""
        return output.config_from_text(self.call("scontrol", "show", "config").out)

    def ping(self) -> bool:
        """Tell at once whether a controller answers; other commands take many seconds to."""
        with contextlib.suppress(SlurmError):
            return " is UP" in self.call("scontrol", "ping").out
        return False

    def queue(self) -> list[QueuedJob]:
        """Return all jobs of all users, and those that have ended since minutes."""
        return self._read(
            ["squeue"],
            ["--noheader", "--array", "--states=all", f"--format={output.QUEUE_FORMAT}"],
            output_json.queue_from_json,
            output.queue_from_text,
        )

    def jobs(self, *options: str) -> list[QueuedJob]:
        """Return the jobs that squeue's options select, always read as text: it is the cheaper."""
        command = ["squeue", "--noheader", "--array", f"--format={output.QUEUE_FORMAT}", *options]
        return output.queue_from_text(self.call(*command).out)

    def partitions(self) -> list[Partition]:
        """Return all partitions."""
        done = self.call("sinfo", "--noheader", f"--format={output.PARTITIONS_FORMAT}")
        return output.partitions_from_text(done.out)

    def nodes(self) -> list[SiteNode]:
        """Return all nodes."""
        return self._read(
            ["sinfo"],
            ["--noheader", "--Node", f"--format={output.NODES_FORMAT}"],
            output_json.nodes_from_json,
            output.nodes_from_text,
        )

    def all_nodes(self) -> list[SiteNode]:
        """Return the same by fewer rows, one for all nodes that are alike, always read as text.

        ``sinfo --Node`` takes a second for 10,000 nodes, this 35 ms.
        """
        command = ["sinfo", "--noheader", "--exact", f"--format={output.NODES_FORMAT}"]
        return output.nodes_from_text(self.call(*command).out)

    def records(self, jobs: Sequence[int]) -> list[Record]:
        """Return what accounting has of jobs, oldest first; a resized job has several.

        Accounting counts in whole seconds: of two resizes within one, it keeps the last only.
        """
        return self._read(
            ["sacct", "--duplicates", f"--jobs={','.join(map(str, jobs))}"],
            ["--noheader", "--parsable2", f"--format={output.RECORDS_FORMAT}"],
            output_json.records_from_json,
            output.records_from_text,
        )

    def consumed_j(self, job: int) -> float:
        """Return the energy that Slurm's own plugin has measured of a job that is over."""
        # Without steps: their energies, of the same nodes at the same time, are in its own.
        command = ["sacct", "--noheader", "--parsable2", "--allocations", "--duplicates"]
        done = self.call(*command, f"--jobs={job}", "--format=ConsumedEnergyRaw")
        return sum(float(line) for line in done.out.split() if line.isdecimal())

    def job(self, job: int) -> JobDetails:
        """Return what the controller knows of a job now."""
        return output.details_from_text(
            self.call("scontrol", "--details", "show", "job", str(job)).out
        )

    def oversubscribed(self) -> bool:
        """Tell whether some nodes are one machine, as on a test bed: times mean nothing there."""
        rows = self.call("sinfo", "--noheader", "--Node", "--format=%N %n").out.split("\n")
        nodes = {tuple(row.split()) for row in rows if row.strip()}
        return len({machine for _, machine in nodes}) < len(nodes)

    def steps(self, job: int) -> list[tuple[str, str]]:
        """Return (id, name) of the steps of a job that run now; none where the job is over."""
        try:
            done = self.call("squeue", "--steps", f"--jobs={job}", "--noheader", "--format=%i|%j")
        except SlurmError as error:
            if error.meaning is Meaning.GONE:
                return []
            raise
        rows = (line.strip().partition("|") for line in done.out.splitlines())
        return [(step, name.strip()) for step, _, name in rows if step]

    def _read(
        self,
        command: list[str],
        for_text: list[str],
        from_json: Callable[[str], list[Row]],
        from_text: Callable[[str], list[Row]],
    ) -> list[Row]:
        """Read a command's JSON where it offers that in a shape we know; this is asked once."""
        name = command[0]
        if self.json_offered.get(name, True):
            try:
                rows = from_json(self.call(*command, "--json").out)
                self.json_offered[name] = True
                return rows
            except ReportedError:
                # An empty list and success: what is wrong, the text's command says by its status.
                return from_text(self.call(*command, *for_text).out)
            except OutputError:
                pass
            except SlurmError as error:
                if name in self.json_offered or error.meaning is Meaning.UNREACHABLE:
                    raise
        rows = from_text(self.call(*command, *for_text).out)
        self.json_offered[name] = False
        return rows

    # -- Acting ------------------------------------------------------------------------------

    def submit(self, *words: str, environment: Mapping[str, str] | None = None) -> int:
        """Hand options and a script to sbatch; return the job's id.

        Args:
            environment: what the script is to have, instead of this process's own.
        """
        own, sbatch = None, "sbatch"
        if environment is not None:  # with a PATH of its own, on which there may be no sbatch
            own = {**environment, **{k: v for k, v in self._environment.items() if k in KEPT}}
            sbatch = shutil.which("sbatch", path=self.outer.get("PATH")) or sbatch
        answer = self.call(sbatch, "--parsable", *words, environment=own).out.strip()
        number = answer.partition(";")[0]  # the cluster's name may follow
        if not number.isdecimal():
            raise SlurmError(f"expected a job id of sbatch, got {answer!r}")
        return int(number)

    def cancel(self, *jobs: int, only_pending: bool = False) -> None:
        """End jobs, or take out of the queue those that wait; one that has ended is no failure."""
        if jobs:
            which = ["--state=PENDING"] if only_pending else []
            self._call_unless_gone("scancel", *which, *map(str, jobs))

    def signal_script(self, job: int) -> None:
        """Ask a running job's script to end (SIGTERM); one that has ended is no failure."""
        self._call_unless_gone("scancel", "--full", "--signal=TERM", str(job))

    def end_steps(self, steps: Sequence[str]) -> None:
        """Kill steps; one that has ended already is no failure."""
        self._call_unless_gone("scancel", "--signal=KILL", *steps)

    def _call_unless_gone(self, *command: str) -> None:
        try:
            self.call(*command)
        except SlurmError as error:
            if error.meaning is not Meaning.GONE:
                raise

    def shrink(self, job: int, kept: Sequence[str]) -> JobDetails:
        """Leave a running job these of its nodes; what still runs on the others is killed.

        Raises:
            SlurmError: refused; the job has the nodes it had.
        """
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
        here. ``donor_name`` is this donor's alone: by it :meth:`cancel_named` finds what a killed
        caller left, for a donor outlives the job it was for.

        Raises:
            SlurmError: refused or no node free; the job goes on as it was, without a donor.
        """
        before = self.job(job)
        if before.has_gres:
            raise SlurmError(f"job {job} has GRES, and Slurm cannot give such a job more nodes")
        named = [f"--nodelist={','.join(on)}"] if on else []
        try:
            donor = self.allocate(nodes, donor_name, f"--dependency=expand:{job}", *named, *options)
            if self.job(donor).has_gres:  # all of a node's, as it is exclusive
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
        """Return a job without steps that holds whole nodes until it is cancelled.

        At once or not at all: it never waits in the queue.
        """
        done = self.call(
            *["salloc", "--no-shell", "--immediate=1", "--exclusive", f"--nodes={nodes}"],
            *[f"--job-name={name}", *options],
        )
        granted = re.search(r"Granted job allocation (\d+)", done.err)
        if granted is None:
            raise SlurmError(f"expected a granted job of salloc, got {done.err.strip()!r}")
        return int(granted[1])

    def cancel_named(self, name: str) -> None:
        """Cancel all jobs of this user with a name, such as donors, whether they wait or run."""
        self.call("scancel", f"--user={self.user}", f"--name={name}")
