"""Which of this machine's processes belong to this daemon: found by what their environment says.

Every process of a job carries the daemon's instance id and the job's id in its environment, so that
a daemon which was killed and started again finds what still runs, and nothing of a job that is over
is left behind. One that has dropped its environment is found below those that have not.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from rms.launch.containment import descendants
from rms.wire.messages import WORLD_VARIABLE

INSTANCE_VARIABLE = "RMS_MARK"
"""Environment variable of every process of a job: ``INSTANCE_ID:JOB``."""

NO_ENVIRONMENT = ("", "")
NO_ENVIRONMENT_S = 0.05
"""A process without an environment: one of the kernel's, or one that is just about to get one."""

FOREIGN_S = 2.0
"""How long a process that was not this daemon's is not read again: its pid may be given anew."""


class Processes:
    """The processes of one daemon, by job and launch.

    Their environments are what is expensive to read (0.2 s for 3,000 processes), so all processes
    of others are read only now and then.
    """

    def __init__(self, instance_id: str) -> None:
        self._before = f"{INSTANCE_VARIABLE}={instance_id}:".encode()
        self._own: dict[int, tuple[str, str]] = {}
        self._foreign: dict[int, float] = {}

    def of(self, job: str | None, launch: str | None) -> list[int]:
        """Return the live processes of a job, of all for None, or of one launch."""
        self._scan()
        found = []
        for pid, known in list(self._own.items()):
            if job not in (None, known[0]):
                continue
            now = self._read(pid)
            if now is None:  # it has ended, or another has been given its pid
                del self._own[pid]
                continue
            if now == NO_ENVIRONMENT:
                now = known
            self._own[pid] = now
            if job in (None, now[0]) and launch in (None, now[1]) and alive(pid):
                found.append(pid)
        return found + [pid for pid in descendants(found) if alive(pid)]

    def jobs(self) -> list[str]:
        """Return the jobs that live processes belong to, sorted."""
        self._scan()
        return sorted({job for pid, (job, _) in self._own.items() if alive(pid)})

    def _scan(self) -> None:
        now = time.monotonic()
        listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
        self._own = {pid: owner for pid, owner in self._own.items() if pid in listed}
        self._foreign = {pid: until for pid, until in self._foreign.items() if until > now}
        for pid in listed - self._own.keys() - self._foreign.keys():
            owner = self._read(pid)
            if owner is None:
                self._foreign[pid] = now + FOREIGN_S
            elif owner == NO_ENVIRONMENT:
                self._foreign[pid] = now + NO_ENVIRONMENT_S
            else:
                self._own[pid] = owner

    def _read(self, pid: int) -> tuple[str, str] | None:
        """Return the job and launch that a process belongs to, None for a foreign one."""
        variables = environment(pid)
        if variables is None:
            return None
        if variables == [b""]:
            return NO_ENVIRONMENT
        own = [v[len(self._before) :].decode() for v in variables if v.startswith(self._before)]
        if not own:
            return None
        before = f"{WORLD_VARIABLE}=".encode()
        launch = [v[len(before) :].decode() for v in variables if v.startswith(before)]
        return own[0], (launch or [""])[0]


def environment(pid: int) -> list[bytes] | None:
    """Return what a process's environment was at its start, None where it cannot be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None


def program_name(pid: int) -> str:
    """Return the name of what a process runs, its first 15 characters; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        return ""


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process (RSS, proc(5)), 0 if it has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0.0
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def has_live_children(pid: int) -> bool | None:
    """Return whether a process has children that run; None where this cannot be told."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None  # it has ended, or this kernel does not tell
    return any(alive(int(child)) for child in children)


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process; one that has ended, or is not ours to signal, gets none."""
    if pid <= 0:
        return  # no process: to the system it would mean a whole group, our own
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
