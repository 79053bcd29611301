"""The local engine: scripts and worlds as processes of this machine.

Every process of a job carries a mark in its environment, so that a daemon which was killed and
started again finds what still runs, and nothing of a job that is over is left behind.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rms.wire.messages import (
    COMPLETION_VARIABLE,
    JOIN_VARIABLE,
    LISTENER_VARIABLE,
    SLOTS_VARIABLE,
    WORLD_VARIABLE,
)

if TYPE_CHECKING:
    from rms.daemon.jobs import LaunchCommand

MARK = "RMS_MARK"
UNTOLD = ("", "")
UNTOLD_S = 0.05
"""A process without an environment: one of the kernel's, or one that is just about to get one."""

FOREIGN_S = 2.0
"""How long a process that was nobody's of ours is taken to be so: its number may be given anew."""

LAUNCHERS = ("srun", "mpirun", "mpiexec")
PER_WORLD = (JOIN_VARIABLE, LISTENER_VARIABLE)


KEEP_STATUS = """trap : TERM
"$@"
code=$?
echo $code > "$RMS_STATUS.part" && mv "$RMS_STATUS.part" "$RMS_STATUS"
exit $code
"""
"""Shell around a job script: writes down its status for a daemon that was away when it ended.

It outlives a SIGTERM that the script handles in its own time.
"""


class LaunchError(OSError):
    """A process could not be started; one sentence."""


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

    fate = ""
    """How somebody else ended it: a state that goes before what its status says, or "GONE"."""

    words = ""
    """What there is to say of that."""

    def status(self) -> int | None:
        """Return the exit status, None while it runs; 1 where nobody can know it any more."""
        if self.process is not None:
            code = self.process.poll()
            return None if code is None else (code if code >= 0 else 128 - code)
        if alive(self.pid):
            return None
        if self.status_file is not None:
            with contextlib.suppress(OSError, ValueError):
                return int(self.status_file.read_text())
        return 1


PendingCall = Callable[[], str | None]
"""Something asked of somebody else: None until it is done, then why it failed, or "".

What may go through another time begins with "later: ".
"""


class Processes:
    """Which of this machine's processes carry a mark, and whose they are.

    Their environments are what is dear to read (0.2 s for 3,000 processes), so each of ours is read
    once, all others now and then.
    """

    def __init__(self, mark: str) -> None:
        self._before = f"{MARK}={mark}:".encode()
        self._ours: dict[int, tuple[str, str]] = {}
        self._others: dict[int, float] = {}

    def of(self, job: str | None, launch: str | None) -> list[int]:
        """Return the live processes of a job, of all for None, or of one launch."""
        self._look()
        found = []
        for pid, known in list(self._ours.items()):
            if job not in (None, known[0]):
                continue
            now = self._read(pid)
            if now is None:  # it is gone, or another has been given its number
                del self._ours[pid]
                continue
            if now == UNTOLD:
                now = known
            self._ours[pid] = now
            if job in (None, now[0]) and launch in (None, now[1]) and alive(pid):
                found.append(pid)
        return found

    def _look(self) -> None:
        now = time.monotonic()
        listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
        self._ours = {pid: whose for pid, whose in self._ours.items() if pid in listed}
        self._others = {pid: until for pid, until in self._others.items() if until > now}
        for pid in listed - self._ours.keys() - self._others.keys():
            whose = self._read(pid)
            if whose is None:
                self._others[pid] = now + FOREIGN_S
            elif whose == UNTOLD:
                self._others[pid] = now + UNTOLD_S
            else:
                self._ours[pid] = whose

    def _read(self, pid: int) -> tuple[str, str] | None:
        try:
            items = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return None
        if items == [b""]:
            return UNTOLD
        mine = [i[len(self._before) :].decode() for i in items if i.startswith(self._before)]
        if not mine:
            return None
        before = f"{WORLD_VARIABLE}=".encode()
        world = [item[len(before) :].decode() for item in items if item.startswith(before)]
        return mine[0], (world or [""])[0]


@dataclass
class LocalLauncher:
    """Starts and ends processes. Launchers for other engines override what differs.

    Attributes:
        state: the daemon's folder.
        mark: tells this daemon's processes from all others.
        server: address that jobs talk to.
    """

    state: Path
    mark: str
    server: str
    shims: Path = field(init=False)
    _processes: Processes = field(init=False, repr=False)

    resumes = False
    """Whether jobs that end because the daemon does wait for the next one; else they are over."""

    requeues = False
    """Whether a job that lost its nodes waits again where its script does not say."""

    distant = False
    """Whether jobs are on other machines, whose files may be seen here a little later."""

    at_once = 0
    """How many jobs policies should have resized at once, 0 for any number."""

    away_word = "down"
    """What nodes are that are not to be had."""

    meter_token = ""
    """What those show who send readings of power; without one there are none."""

    def __post_init__(self) -> None:
        self._processes = Processes(self.mark)
        self.shims = self.state / "bin"
        self.shims.mkdir(parents=True, exist_ok=True)
        for name in LAUNCHERS:
            shim = self.shims / name
            command = [sys.executable, "-m", "rms", "launch", "--as", name, "--"]
            shim.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
            shim.chmod(0o755)

    def start_script(
        self,
        job: str,
        script: Path,
        cwd: str,
        env: Mapping[str, str],
        output: Path,
        nodes: Sequence[Sequence[str]],
        limit_s: float | None = None,
    ) -> ManagedProcess:
        """Run a job script once, on its first node.

        Args:
            nodes: the slots of each of the job's nodes.
            limit_s: its time limit, for those who keep one themselves.
        """
        status = self.status_file(job)
        status.unlink(missing_ok=True)
        own = {**env, **self.script_env(job, env.get("PATH", os.defpath))}
        command = self.script_command(script)
        process = self._start(command, cwd, own, output, cores_of(nodes[0]))
        return ManagedProcess(process.pid, process, status)

    def status_file(self, job: str) -> Path:
        """Return where a job's script leaves its exit status."""
        return self.state / "jobs" / job / "status"

    def script_env(self, job: str, path: str) -> dict[str, str]:
        """Return what the environment of a job's script has from its launcher."""
        return {
            "PATH": f"{self.shims}{os.pathsep}{path}",
            "RMS_SERVER": self.server,
            "RMS_STATUS": str(self.status_file(job)),
            MARK: f"{self.mark}:{job}",
        }

    def script_command(self, script: Path) -> list[str]:
        """Return what runs a job script and keeps its status."""
        return ["/bin/sh", "-c", KEEP_STATUS, "job", str(script)]

    def find_script(self, job: str, pid: int | None) -> ManagedProcess | None:
        """Return a job's script after a restart of the daemon, None where nothing is left of it."""
        members, status = self.members(job), self.status_file(job)
        if not members and not status.exists():
            return None
        own = min(members, default=0) if pid is None else pid
        return ManagedProcess(own if own in members else 0, status_file=status)

    def boot_world(
        self,
        job: str,
        step: int,
        launch: int,
        slots: Sequence[str],
        line: LaunchCommand,
        wish: int = 0,
        cores: Sequence[int] = (),
    ) -> ManagedProcess:
        """Start a world: one rank on each slot, by a mpiexec of its own.

        Args:
            launch: its number among the job's launches.
            wish: number of the wish for which it is to take over from a running world, or 0.
            cores: where it is to boot, by default on its own; its ranks then bind themselves.
        """
        path = os.pathsep.join(
            part
            for part in line.env.get("PATH", os.defpath).split(os.pathsep)
            if part and Path(part) != self.shims
        )
        mpiexec = find_mpiexec(path)
        if mpiexec is None:
            raise LaunchError("no mpiexec found; expected one on PATH or beside python")
        own = {
            # What a rank that has died leaves behind in its peers is no news to the user.
            "UCX_LOG_LEVEL": "error",
            **{key: value for key, value in line.env.items() if key not in PER_WORLD},
            "PATH": path,
            SLOTS_VARIABLE: " ".join(slots),
            COMPLETION_VARIABLE: str(self.record(job, step)),
            WORLD_VARIABLE: str(launch),
            "RMS_SERVER": self.server,
            MARK: f"{self.mark}:{job}",
        }
        if wish:
            own[JOIN_VARIABLE] = str(wish)
        else:
            self.record(job, step).unlink(missing_ok=True)
        gpus = [slot.removeprefix("gpu:") for slot in slots if slot.startswith("gpu:")]
        if gpus:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)  # dmr gives each rank its own of them
        where = self.world_options(job, launch, slots, own)
        full = [mpiexec, *_root_options(mpiexec), *where, "-n", str(len(slots)), *line.command]
        process = self._start(
            full, line.cwd, own, Path(line.output), cores or cores_of(slots), Path(line.errors)
        )
        return ManagedProcess(process.pid, process)

    def world_options(
        self, job: str, launch: int, slots: Sequence[str], env: dict[str, str]
    ) -> list[str]:
        """Return how mpiexec is to reach the slots; may change the environment it is given."""
        return []

    # --- nodes that belong to somebody else --------------------------------------------------

    def in_place(self, job: str, have: Sequence[str], wanted: Sequence[str]) -> str:
        """Return why a running job cannot go over to other nodes, "" where it can."""
        return ""

    def grant(self, job: str, have: Sequence[str], wanted: Sequence[str]) -> PendingCall | None:
        """Have a job hold the nodes it has and those it is to have, before a resize.

        None where there is nobody to ask.
        """
        return None

    def release(self, job: str, hosts: Sequence[str]) -> PendingCall | None:
        """Have a job hold these nodes only, after a resize; None where there is nobody to ask."""
        return None

    def unavailable(self) -> Collection[str] | None:
        """Return the nodes that are not to be had now, None where there is no news of that."""
        return None

    def about(self, job: str) -> dict[str, Any]:
        """Return what else is to be said of a job: by whom its nodes were given, and when."""
        return {}

    def blame(self, job: str, hosts: Sequence[str]) -> PendingCall | None:
        """Ask whether a job died of its nodes; the answer says how, or is "" if it did not.

        None where there is nobody to ask.
        """
        return None

    def due(self) -> str:
        """Return why the daemon has to end now, "" while it has not."""
        return ""

    def open(self) -> None:
        """Begin what runs beside the jobs; called once the daemon serves."""

    def close(self) -> None:
        """End it; called when the daemon ends."""

    def record(self, job: str, step: int) -> Path:
        """Return where the completion record of a step goes."""
        return self.state / "jobs" / job / f"completion-{step}.json"

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        """Return the live processes of a launch, of a job, or of all jobs of this daemon."""
        return self._processes.of(job, None if launch is None else str(launch))

    def terminate(self, job: str, worlds: Sequence[ManagedProcess]) -> None:
        """Ask a job's worlds to checkpoint and end.

        MPICH's mpiexec passes SIGTERM on to its ranks and waits for them. Open MPI's ends them
        half a second later, so its ranks are told themselves.
        """
        ranks = [pid for pid in self.members(job) if worlds and _of_open_mpi(pid)]
        for pid in ranks or [world.pid for world in worlds] or self.members(job):
            _kill(pid, signal.SIGTERM)

    def kill(self, job: str, launch: int | None = None) -> None:
        """End whatever is left of a job, or of one of its launches, at once."""
        for pid in self.members(job, launch):
            _kill(pid, signal.SIGKILL)

    def _start(
        self,
        command: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        output: Path,
        cores: Sequence[int],
        errors: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        def bind() -> None:
            if cores and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, set(cores))

        try:
            with _open_output(output) as out, _open_output(errors or output) as err:
                return subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    preexec_fn=bind,
                )
        except OSError as error:
            raise LaunchError(f"could not start {command[0]}: {error}") from None


def cores_of(slots: Sequence[str]) -> list[int]:
    """Return the cores among slots; ranks that do not bind themselves share these."""
    return [int(slot.removeprefix("cpu:")) for slot in slots if slot.startswith("cpu:")]


def hosts_of(slots: Sequence[str]) -> list[str]:
    """Return the hosts of slots such as ``n1/core:0``, each once, in order."""
    return list(dict.fromkeys(slot.partition("/")[0] for slot in slots if "/" in slot))


def find_mpiexec(path: str) -> str | None:
    """Return the mpiexec on a search path, or the one beside this Python."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("mpiexec", path=path) or shutil.which("mpiexec", path=beside)


def alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _open_output(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def _root_options(mpiexec: str) -> list[str]:
    """Return what Open MPI wants to be told; MPICH's launcher needs nothing."""
    if (Path(mpiexec).parent / "ompi_info").exists():
        return ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    return []


def _of_open_mpi(pid: int) -> bool:
    """Return whether a process is a rank, or a rank's, that Open MPI's mpiexec started."""
    try:
        return b"\0OMPI_COMM_WORLD_RANK=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _kill(pid: int, number: int) -> None:
    if pid <= 0:
        return  # no process: to the system it would mean a whole group, our own
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
