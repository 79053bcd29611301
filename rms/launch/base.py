"""The interface between the daemon and the engines that run its jobs.

A launcher (:class:`rms.launch.local.LocalLauncher` and its subclasses) starts and ends processes.
Its parts are the :class:`EngineNodes` that a resource manager gives and takes, and the
:class:`NodeClocks`, which set frequencies.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import msgspec

from rms.formats.jobscript import WATCHED
from rms.launch.processes import alive
from rms.power.frequency import Shares
from rms.wire.messages import ClockOrders
from rms.wire.users import SlurmRow

DEADLINE_S = 300.0  # default time limit of a power command
NODES_LOST = "GONE"
"""The ``end_state`` of a process that was lost with its nodes, not by its own fault."""

PendingCall = Callable[[], str | None]
"""A request to a resource manager: returns None until it is done, then its error, or "".

An error that may not occur at a later try begins with "later: ".
"""


class LaunchError(OSError):
    """A process could not be started; one sentence."""


# --- scripts and worlds ----------------------------------------------------------------------


class LaunchCommand(msgspec.Struct):
    """A launcher line of a job script, from which all worlds of its step are started."""

    command: list[str]
    cwd: str
    env: dict[str, str]
    output: str
    errors: str


@dataclass(frozen=True)
class ScriptLaunch:
    """A job script to be run once, on the first of its nodes.

    Attributes:
        limit_s: the job's time limit, for launchers that enforce one themselves.
        errors: file of its standard error; None for its output.
        survives: whether the job goes on when one of its nodes fails.
        adapter: words before those of the script, of a job that is not notified by messages.
    """

    script: Path
    cwd: str
    env: Mapping[str, str]
    output: Path
    nodes: Sequence[Sequence[str]]
    limit_s: float | None = None
    arguments: Sequence[str] = ()
    errors: Path | None = None
    survives: bool = False
    adapter: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        """The words of the script's command line."""
        return [*self.adapter, str(self.script), *self.arguments]


@dataclass(frozen=True)
class WorldLaunch:
    """A world to be started by a mpiexec of its own, with one rank per slot.

    Attributes:
        step: number of the launcher line among those of the job's script.
        resize: number of the resize for which it takes over from a running world, or 0.
        cores: cores on which it boots, by default its own; its ranks then bind themselves.
        launches: all launches of a job's start with their ranks, if there are several.
        processors: the kinds of processors of the slots; empty if there is one kind.
        env: more variables of the ranks.
    """

    step: int
    launch: int
    slots: Sequence[str]
    command: LaunchCommand
    resize: int = 0
    cores: Sequence[int] = ()
    launches: Sequence[tuple[int, int]] = ()
    processors: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass
class ManagedProcess:
    """A process that this daemon, or the one before, has started.

    ``status_file`` holds the exit status of a script, for which only its parent can wait.
    """

    pid: int
    process: subprocess.Popen[bytes] | None = None
    status_file: Path | None = None

    started = True
    """Whether it runs or has run; a process that others start may have to wait."""

    end_state = ""
    """A state that overrules its exit status: ``NODES_LOST``, or the way it was ended by others."""

    end_reason = ""
    """The reason, in one sentence."""

    @property
    def is_child(self) -> bool:
        """Whether this process gets SIGCHLD when it ends."""
        return type(self) is ManagedProcess and self.process is not None

    def status(self) -> int | None:
        """Return the exit status, None while it runs; 1 if it is unknown."""
        if self.process is not None:
            code = self.process.poll()
            return None if code is None else (code if code >= 0 else 128 - code)
        if alive(self.pid):
            return None
        written = self.written_status()
        return 1 if written is None else written

    def written_status(self) -> int | None:
        """Return the exit status in its status file, None without one."""
        if self.status_file is not None:
            with contextlib.suppress(OSError, ValueError):
                return int(self.status_file.read_text())
        return None


# --- nodes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WaitingJob:
    """A pending job: its fewest nodes, the nodes that it wants, and the time it needs them."""

    least: int
    wants: int
    needs_s: float


@dataclass(frozen=True)
class Demand:
    """The need for nodes.

    Attributes:
        waiting: pending jobs, the oldest first.
        busy: nodes that jobs have or will have at once.
        closed: nodes that no job gets.
        barred: closed nodes that a user has drained, or that are broken.
    """

    waiting: Sequence[WaitingJob] = ()
    busy: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LeaseTerms:
    """The time for which nodes are held.

    Attributes:
        until_s: the time at which jobs on a node have to end, by the wall clock; without the nodes
            that are held for good.
        longest_s: the longest time of a job on nodes that have just come.
        waits: the reason why requested nodes have not come, "" without requests.
    """

    until_s: Mapping[str, float]
    most: int
    longest_s: float
    waits: str = ""


class EngineNodes:
    """The nodes of an engine. Those of this class are there for good, without a resource manager.

    Queries only read. :meth:`poll` is called in every round of the daemon's loop and never blocks.

    Attributes:
        requeue_on_shutdown: whether jobs that end with the daemon wait for the next one.
        requeue_by_default: whether a job that lost its nodes waits again, unless its script has
            an option for it.
        starts_steps: whether a script can be started on a node without a job of its own.
        reruns_scripts: whether a script whose node is lost can run again on another node of its
            job, while the keepers of its data go on.
        max_concurrent_resizes: how many jobs policies should resize at once, 0 for any number.
        unavailable_label: the state of nodes that are unavailable.
        logs_nodes: whether it logs itself which nodes become unavailable.
    """

    requeue_on_shutdown = False
    requeue_by_default = False
    starts_steps = True
    reruns_scripts = True
    max_concurrent_resizes = 0
    unavailable_label = "down"
    logs_nodes = False

    def open(self) -> None:
        """Begin: the daemon serves."""

    def poll(self) -> None:
        """Do everything that is due."""

    def close(self) -> None:
        """End: the daemon ends."""

    def unheeded(self, own: Sequence[str]) -> list[str]:
        """Return the options of a script for sbatch, as single words, that have no effect."""
        return [word for word in own if word.partition("=")[0].removeprefix("--") not in WATCHED]

    def longest_s(self, own: Sequence[str], env: Mapping[str, str]) -> float:
        """Return the maximum time limit of a job with these options for sbatch, or inf."""
        return inf

    def resize_refusal(self, job: str, have: Sequence[str], wanted: Sequence[str]) -> str:
        """Return why a running job cannot move to other nodes, "" if it can."""
        return ""

    def grant(self, job: str, have: Sequence[str], wanted: Sequence[str]) -> PendingCall | None:
        """Let a job hold its nodes and the wanted ones, before a resize; None: it holds them."""
        return None

    def release(self, job: str, hosts: Sequence[str]) -> PendingCall | None:
        """Let a job hold these nodes only, after a resize; None: it does."""
        return None

    def diagnose_failure(self, job: str, hosts: Sequence[str]) -> PendingCall | None:
        """Return the way a job has lost its nodes, "" if it has not; None: it cannot have."""
        return None

    def unavailable(self) -> Collection[str] | None:
        """Return the nodes that jobs cannot have now, None while these are unknown."""
        return None

    def lost(self) -> Collection[str]:
        """Return nodes that are down or no longer held, and whose processes may not end here."""
        return ()

    def down(self) -> Collection[str]:
        """Return nodes without any process of a job, where launches from here can tell."""
        return ()

    def silent_s(self) -> float:
        """Return the time without an answer of the resource manager, 0 while it answers."""
        return 0.0

    def complaints(self) -> Sequence[str]:
        """Return lines for the log on answers of the resource manager that cannot be used."""
        return ()

    def leases(self) -> LeaseTerms | None:
        """Return the time for which nodes are held, None for nodes that are there for good."""
        return None

    def follow(self, demand: Demand) -> Sequence[str]:
        """Request and return nodes by demand; return lines for the log."""
        return ()

    def job_details(self, job: str) -> SlurmRow:
        """Return the resource manager's own record of a job."""
        return SlurmRow()

    def shutdown_reason(self) -> str:
        """Return why the daemon has to end now, "" if it has not."""
        return ""


class NodeClocks:
    """The frequencies of the nodes. Those of this class are not set."""

    def refusal(self, slots: Sequence[str]) -> str:
        """Return why the frequencies of slots cannot be set, "" if they can."""
        return ""

    def orders(self, node: str) -> ClockOrders:
        """Return the frequencies of a node whose own agent polls for them."""
        return ClockOrders()

    def set(self, shares: Shares, highest_mhz: float | None) -> None:
        """Set the frequencies of all slots of the nodes; they are restored when the daemon ends."""

    def close(self) -> None:
        """Restore all frequencies."""


@dataclass(frozen=True)
class PowerCommands:
    """Commands that power a node off and on.

    Attributes:
        off, on: words of the commands, to which the node's name is added.
    """

    off: tuple[str, ...]
    on: tuple[str, ...]
    deadline_s: float = DEADLINE_S

    @classmethod
    def parse(cls, off: str, on: str, deadline_s: float) -> PowerCommands | None:
        """Return the commands of two lines, None if both are empty.

        Raises:
            ValueError: one line is empty, a program is missing, or the time limit is not positive.
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


def cores_of(slots: Sequence[str]) -> list[int]:
    """Return the cores among slots; ranks that do not bind themselves share these."""
    return [int(slot.removeprefix("cpu:")) for slot in slots if slot.startswith("cpu:")]


def hosts_of(slots: Sequence[str]) -> list[str]:
    """Return the hosts of slots such as ``n1/core:0``, every host once, in order."""
    return list(dict.fromkeys(slot.partition("/")[0] for slot in slots if "/" in slot))
