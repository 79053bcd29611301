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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rms.protocol import (
    COMPLETION_VARIABLE,
    DOOR_VARIABLE,
    JOIN_VARIABLE,
    SLOTS_VARIABLE,
    WORLD_VARIABLE,
)

if TYPE_CHECKING:
    from rms.live import Line

MARK = "RMS_MARK"
LAUNCHERS = ("srun", "mpirun", "mpiexec")
PER_WORLD = (JOIN_VARIABLE, DOOR_VARIABLE)


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
class Child:
    """A process this daemon started, or found again after a restart.

    ``status_file`` holds the exit status of a script, which only its parent could wait for.
    """

    pid: int
    process: subprocess.Popen[bytes] | None = None
    status_file: Path | None = None

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


@dataclass
class LocalLauncher:
    """Starts and ends processes.

    Attributes:
        state: the daemon's folder.
        mark: tells this daemon's processes from all others.
        server: address that jobs talk to.
    """

    state: Path
    mark: str
    server: str
    shims: Path = field(init=False)

    def __post_init__(self) -> None:
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
        cores: Sequence[int],
    ) -> Child:
        """Run a job script once, on its first node."""
        folder = self.state / "jobs" / job
        status = folder / "status"
        status.unlink(missing_ok=True)
        own = {
            **env,
            "PATH": f"{self.shims}{os.pathsep}{env.get('PATH', os.defpath)}",
            "RMS_SERVER": self.server,
            "RMS_STATUS": str(status),
            MARK: f"{self.mark}:{job}",
        }
        command = ["/bin/sh", "-c", KEEP_STATUS, "job", str(script)]
        process = self._start(command, cwd, own, output, cores)
        return Child(process.pid, process, status)

    def boot_world(
        self,
        job: str,
        step: int,
        launch: int,
        slots: Sequence[str],
        line: Line,
        wish: int = 0,
        cores: Sequence[int] = (),
    ) -> Child:
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
        full = [mpiexec, *_root_options(mpiexec), "-n", str(len(slots)), *line.command]
        process = self._start(
            full, line.cwd, own, Path(line.output), cores or cores_of(slots), Path(line.errors)
        )
        return Child(process.pid, process)

    def record(self, job: str, step: int) -> Path:
        """Return where the completion record of a step goes."""
        return self.state / "jobs" / job / f"completion-{step}.json"

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        """Return the live processes of a launch, of a job, or of all jobs of this daemon."""
        wanted = f"{MARK}={self.mark}:{job or ''}".encode()
        number = f"{WORLD_VARIABLE}={launch}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                items = entry.read_bytes().split(b"\0")
                mine = any(i == wanted or (job is None and i.startswith(wanted)) for i in items)
                if mine and (launch is None or number in items):
                    found.append(int(entry.parent.name))
        return [pid for pid in found if alive(pid)]

    def terminate(self, job: str, worlds: Sequence[Child]) -> None:
        """Ask a job's worlds to checkpoint and end (SIGTERM reaches ranks through mpiexec)."""
        for world in worlds:
            _kill(world.pid, signal.SIGTERM)
        if not worlds:
            for pid in self.members(job):
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


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
