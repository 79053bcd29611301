"""What waits and runs, for launchers that ask for nodes by that, and until when those are held."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec

from rms.core.model.cluster import Cluster
from rms.formats.config import FileError
from rms.launch.processes import alive
from rms.power.frequency import Shares
from rms.wire.messages import ClockOrders
from rms.wire.users import SlurmRow


@dataclass(frozen=True)
class WaitingJob:
    """A job that waits: the nodes without which it does not start, those it wants, for how long."""

    least: int
    wants: int
    needs_s: float


@dataclass(frozen=True)
class Demand:
    """What there is to do for nodes.

    Attributes:
        waiting: jobs, the oldest first.
        busy: nodes that jobs have or are about to have.
        closed: nodes that are given to no job.
        barred: those of them that a user has drained, or that are broken.
    """

    waiting: Sequence[WaitingJob] = ()
    busy: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Leases:
    """Until when nodes are held.

    Attributes:
        until_s: of nodes that are not held for good, when jobs there are to be told to end, by the
            wall clock.
        most: how many nodes are held at once at most.
        longest_s: how long a job may run on nodes that have just come.
        waits: what nodes that are asked for wait for, "" where none are.
    """

    until_s: Mapping[str, float]
    most: int
    longest_s: float
    waits: str = ""


# FUSED rms.launch.base: The commands that power nodes off and on, as the user names them.

DEADLINE_S = 300.0
"""How long a command may take by default."""


@dataclass(frozen=True)
class PowerCommands:
    """Commands that power a node off and on.

    Attributes:
        off, on: words of the commands, to which the node's name is added.
        deadline_s: how long each may take.
    """

    off: tuple[str, ...]
    on: tuple[str, ...]
    deadline_s: float = DEADLINE_S

    @classmethod
    def parse(cls, off: str, on: str, deadline_s: float) -> PowerCommands | None:
        """Return the commands of two lines, None where both are empty.

        Raises:
            ValueError: there is only one, or there is no such program, or no time.
        """
        if not deadline_s > 0.0:
            raise ValueError(f"expected a power-on deadline above 0 s, got {deadline_s:g}")
        if bool(off) != bool(on):
            got = "only --power-off" if off else "only --power-on"
            raise ValueError(f"expected commands to power nodes off and on, got {got}")
        if not off:
            return None
        for line in (off, on):
            words = shlex.split(line)
            if not words or shutil.which(words[0]) is None:
                raise ValueError(f"expected a program to power nodes off or on, got {line!r}")
        return cls(tuple(shlex.split(off)), tuple(shlex.split(on)), deadline_s)


# FUSED rms.launch.base: What a daemon asks of whoever starts its processes: the launcher protocol and its values.

NODES_LOST = "GONE"
"""The ``end_state`` of a process that was lost with its nodes, not by its own fault."""

PendingCall = Callable[[], str | None]
"""A request to whoever manages the nodes: returns None until it is done, then why it failed, or "".

A failure that may go through another time begins with "later: ".
"""


class LaunchError(OSError):
    """A process could not be started; one sentence."""


class LaunchCommand(msgspec.Struct):
    """A launcher line of a job script: what every world of the step is started from."""

    command: list[str]
    cwd: str
    env: dict[str, str]
    output: str
    errors: str


@dataclass(frozen=True)
class ScriptLaunch:
    """A job script to be run once, on the first of its nodes.

    Attributes:
        nodes: the slots of each of the job's nodes.
        limit_s: the job's time limit, for launchers that enforce one themselves.
        arguments: of the script.
        errors: where its standard error goes; None: to its output.
    """

    script: Path
    cwd: str
    env: Mapping[str, str]
    output: Path
    nodes: Sequence[Sequence[str]]
    limit_s: float | None = None
    arguments: Sequence[str] = ()
    errors: Path | None = None


@dataclass(frozen=True)
class WorldLaunch:
    """A world to be started: one rank on each slot, by a mpiexec of its own.

    Attributes:
        step: number of the launcher line among those of the job's script.
        launch: its number among the job's launches.
        resize: number of the resize for which it is to take over from a running world, or 0.
        cores: where it is to boot, by default on its own; its ranks then bind themselves.
        launches: all of a job's start and the ranks of each, where they are several.
        processors: the kind of processors of each slot; empty where all are alike.
    """

    step: int
    launch: int
    slots: Sequence[str]
    command: LaunchCommand
    resize: int = 0
    cores: Sequence[int] = ()
    launches: Sequence[tuple[int, int]] = ()
    processors: Sequence[str] = ()


@dataclass
class ManagedProcess:
    """A process this daemon started, or found again after a restart.

    ``status_file`` holds the exit status of a script, which only its parent could wait for.
    """

    pid: int
    process: subprocess.Popen[bytes] | None = None
    status_file: Path | None = None

    started = True
    """Whether it runs or has run; where others start it, it may have to wait."""

    end_state = ""
    """How it was ended from outside: a state that overrules its exit status, or ``NODES_LOST``."""

    end_reason = ""
    """Why, in one sentence."""

    @property
    def is_child(self) -> bool:
        """Whether the system tells its parent, this process, when it ends (SIGCHLD)."""
        return type(self) is ManagedProcess and self.process is not None

    def status(self) -> int | None:
        """Return the exit status, None while it runs; 1 where it can no longer be known."""
        if self.process is not None:
            code = self.process.poll()
            return None if code is None else (code if code >= 0 else 128 - code)
        if alive(self.pid):
            return None
        written = self.written_status()
        return 1 if written is None else written

    def written_status(self) -> int | None:
        """Return what the script left in its status file, None while there is nothing."""
        if self.status_file is not None:
            with contextlib.suppress(OSError, ValueError):
                return int(self.status_file.read_text())
        return None


class Launcher(Protocol):
    """Starts, watches and ends the processes of jobs, on nodes of this machine or of a site.

    Its queries only read. What takes time or changes anything happens in the methods that say so,
    and in :meth:`poll`, which the daemon's loop calls all the time.

    Attributes:
        state: the daemon's folder.
        instance_id: tells this daemon's processes from those of all others.
        server: address that jobs talk to.
        requeue_on_shutdown: whether jobs that end because the daemon does wait for the next one;
            else they are over.
        requeue_by_default: whether a job that lost its nodes waits again where its script does not
            say.
        shared_filesystem: whether jobs are on other machines, whose files may be seen here a
            little later.
        starts_steps: whether a script can be started on a node without a job of its own.
        watches_processes: whether the memory of all processes of a job is seen, and any signal can
            be sent to them.
        max_concurrent_resizes: how many jobs policies should have resized at once, 0 for any
            number.
        unavailable_label: what nodes are called that are not to be had.
        meter_token: what those show who send readings of power; "" for no such readings.
    """

    state: Path
    instance_id: str
    server: str
    requeue_on_shutdown: bool
    requeue_by_default: bool
    shared_filesystem: bool
    starts_steps: bool
    watches_processes: bool
    max_concurrent_resizes: int
    unavailable_label: str
    meter_token: str

    # --- what runs beside the jobs -----------------------------------------------------------

    def open(self) -> None:
        """Begin what runs beside the jobs; called once the daemon serves."""

    def poll(self) -> None:
        """Do what is due now: ask what is to be asked, start what waits; never blocks."""

    def close(self) -> None:
        """End what runs beside the jobs; called when the daemon ends."""

    # --- scripts and worlds ------------------------------------------------------------------

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        """Run a job script once.

        Raises:
            LaunchError: it could not be started.
        """

    def find_script(self, job: str, pid: int | None) -> ManagedProcess | None:
        """Return a job's script after a restart of the daemon, None where nothing is left of it."""

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        """Start a world.

        Raises:
            LaunchError: it could not be started.
        """

    def joins_launches(self, command: LaunchCommand) -> bool:
        """Return whether the ranks of several launches can become one world, with its MPI."""

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """Ask a job's worlds, or else its script, to checkpoint and end."""

    def send_signal(self, job: str, number: int, script: int = 0) -> None:
        """Send a signal to a job's ranks, or to the script below the shell ``script``."""

    def kill(self, job: str, launch: int | None = None) -> None:
        """End whatever is left of a job, or of one of its launches, at once."""

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        """Return the live processes of a launch, of a job, or of all jobs of this daemon."""

    def limit_memory(self, job: str, most_mib: float | None = None) -> int | None:
        """Hold a job to so much memory; return how many of its processes were ended for that.

        Args:
            most_mib: None for what was said before.

        Returns:
            None where nobody but who looks at its processes can tell.
        """

    def jobs(self) -> Collection[str]:
        """Return the jobs of this daemon of which processes are there, and what else it started."""

    def status_file(self, job: str) -> Path:
        """Return where a job's script leaves its exit status."""

    def world_status_file(self, job: str, launch: int) -> Path:
        """Return where a world may leave its exit status."""

    def completion_file(self, job: str, step: int) -> Path:
        """Return where the completion record of a step goes."""

    def unheeded(self, own: Sequence[str]) -> list[str]:
        """Return which of a script's options for sbatch (one word each) have no effect here."""

    def longest_s(self, own: Sequence[str], env: Mapping[str, str]) -> float:
        """Return the maximum time limit of a job with these options for sbatch, or inf."""

    # --- nodes that a resource manager gives and takes -----------------------------------------

    def resize_refusal(self, job: str, have: Sequence[str], wanted: Sequence[str]) -> str:
        """Return why a running job cannot go over to other nodes, "" where it can."""

    def grant(self, job: str, have: Sequence[str], wanted: Sequence[str]) -> PendingCall | None:
        """Have a job hold the nodes it has and those it is to have, before a resize.

        None where no resource manager has to be asked.
        """

    def release(self, job: str, hosts: Sequence[str]) -> PendingCall | None:
        """Have a job hold these nodes only, after a resize.

        None where no resource manager has to be asked.
        """

    def diagnose_failure(self, job: str, hosts: Sequence[str]) -> PendingCall | None:
        """Ask whether a job died of its nodes; the answer says how, or is "" if it did not.

        None where no resource manager has to be asked.
        """

    def unavailable(self) -> Collection[str] | None:
        """Return the nodes that are not to be had now, None while that is not known."""

    def silent_s(self) -> float:
        """Return the time without an answer of the resource manager, 0 while it answers."""

    def leases(self) -> Leases | None:
        """Return until when nodes are held, None where they are there for good."""

    def follow(self, demand: Demand) -> Sequence[str]:
        """Take in what waits and runs, to ask for nodes by that; return what is to be said."""

    def job_details(self, job: str) -> SlurmRow:
        """Return more about a job: who gave its nodes, and when."""

    def shutdown_reason(self) -> str:
        """Return why the daemon has to end now, "" while it has not."""

    # --- frequencies -------------------------------------------------------------------------

    def frequency_refusal(self, slots: Sequence[str]) -> str:
        """Return why the frequencies of slots cannot be set, "" where they can."""

    def clock_orders(self, node: str) -> ClockOrders:
        """Return what a node, whose own process asks, is to be set to."""

    def set_frequencies(self, shares: Shares, highest_mhz: float | None) -> None:
        """Set the frequencies of all slots of its nodes; they are put back when the daemon ends.

        Args:
            highest_mhz: what they are shares of; None for the highest of each slot itself.

        Raises:
            FrequencyError: they cannot be; all are then as they were found.
        """


@dataclass(frozen=True)
class Engine:
    """An engine of ``rms serve``: the nodes, and who starts processes on them.

    Attributes:
        launcher: makes one of the daemon's folder, its instance id and the address that jobs talk
            to.
        remote: whether jobs are on other machines, so that they need TCP.
        where: what tells these nodes from others that a daemon may go on with, "" where it may not.
    """

    cluster: Cluster
    launcher: Callable[[Path, str, str], Launcher]
    remote: bool = False
    where: str = ""

    def first(self, nodes: int | None) -> Engine:
        """Return the same with only the first nodes there are, all of them for None.

        Raises:
            FileError: there are fewer.
        """
        names = self.cluster.names
        if nodes is not None and not 1 <= nodes <= len(names):
            raise FileError(f"expected 1 to {len(names)} nodes, got {nodes}")
        return replace(self, cluster=self.cluster.first(len(names) if nodes is None else nodes))

    def sharing(self) -> Engine:
        """Return the same with nodes whose slots are given one by one."""
        return replace(self, cluster=self.cluster.split())


def cores_of(slots: Sequence[str]) -> list[int]:
    """Return the cores among slots; ranks that do not bind themselves share these."""
    return [int(slot.removeprefix("cpu:")) for slot in slots if slot.startswith("cpu:")]


def hosts_of(slots: Sequence[str]) -> list[str]:
    """Return the hosts of slots such as ``n1/core:0``, each once, in order."""
    return list(dict.fromkeys(slot.partition("/")[0] for slot in slots if "/" in slot))
