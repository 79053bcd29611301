"""Control groups of jobs (cgroups(7), version 2), where this user was given some of their own.

A process may drop its environment, its session and its parents, but it stays in its control group:
so whatever a job has started is found there. Groups may be made below one that was delegated to the
user: systemd marks those (``Delegate=yes``) by the attribute ``user.delegate``; elsewhere
:data:`GROUP_VARIABLE` names one.

The kernel holds a job to its memory where the group above may give the memory controller to those
below it: where that controller is there, and no process is in that group itself ("no internal
processes" holds for groups that give controllers). So the daemon has to be in another one, such as
:data:`SUBGROUP` of a unit; it moves nobody, as a unit whose own group gives controllers is not
started again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from rms.launch.containment import uncontained
from rms.launch.processes import alive

GROUP_VARIABLE = "RMS_CGROUP"
"""A folder of cgroup v2 below which the daemon may make its own."""

SUBGROUP = "rms-daemon"
"""Of a delegated unit, for the daemon alone (``DelegateSubgroup=`` of systemd.exec(5))."""

DELEGATED = "user.delegate"
PROCESSES = "cgroup.procs"


def find_delegated(env: Mapping[str, str]) -> Path | None:
    """Return a group below which this process may make others, None where it was given none."""
    if GROUP_VARIABLE in env:
        found = Path(env[GROUP_VARIABLE])
        return found if _writable(found) else None
    own = _own_group()
    if own is not None and own.name == SUBGROUP:
        own = own.parent
    return own if own is not None and _is_delegated(own) and _writable(own) else None


def escapes(env: Mapping[str, str]) -> str:
    """Return what of a job may outlive it on this machine, "" where nothing may."""
    if find_delegated(env) is not None:
        return ""
    return uncontained() or (
        "only what is below a job's shell ends with it, as no control group was delegated "
        f"(systemd-run --user --scope -p Delegate=yes, or {GROUP_VARIABLE})"
    )


def _own_group() -> Path | None:
    """Return the folder of the group that this process is in."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        if path is not None and after.startswith("cgroup2 "):
            root, where = before.split()[3:5]
            with contextlib.suppress(ValueError):  # a part of the tree, and this is in another
                return Path(where) / Path(path).relative_to(root)
    return None


def _is_delegated(group: Path) -> bool:
    try:
        return os.getxattr(group, DELEGATED) == b"1"
    except (AttributeError, OSError):  # another system, or an older systemd
        return False


def _writable(group: Path) -> bool:
    return os.access(group, os.W_OK) and os.access(group / PROCESSES, os.W_OK)


class Groups:
    """A group for each job, in which all that is started for it begins.

    Args:
        above: where groups may be made, None where none may.
        instance_id: of the daemon.
        jobs: folder with one of each job, where a daemon that is started again finds its group.
    """

    def __init__(self, above: Path | None, instance_id: str, jobs: Path) -> None:
        self._name = f"rms-{instance_id}"
        self._own = None if above is None else above / self._name
        self._jobs, self._of = jobs, dict[str, Path]()
        self._limits, self._kills = dict[str, int](), dict[str, int]()
        self._gives = False

    def joined(self, job: str) -> Path | None:
        """Make a job's group; return the file that a process writes ``0`` to in order to join."""
        if self._own is None:
            return None
        group, noted = self._own / job, self._jobs / job / "group"
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            self._give_memory(self._own)
            group.mkdir(exist_ok=True)
            noted.write_text(f"{group}\n")
        except OSError:  # taken away since, or too many of them
            return None
        self._of[job] = group
        return group / PROCESSES

    def _give_memory(self, own: Path) -> None:
        """Let the groups of jobs limit memory, where that can be; it is tried once."""
        if not self._gives:
            self._gives = True
            with contextlib.suppress(OSError):
                for group in (own.parent, own):
                    (group / "cgroup.subtree_control").write_text("+memory")

    def limit_memory(self, job: str, most_mib: float | None = None) -> int | None:
        """Let the kernel end all of a job that comes to hold more memory; nothing is swapped.

        Args:
            most_mib: None for what was said before.

        Returns:
            How many of its processes were ended for that; None where the kernel cannot be asked.
        """
        group = self._find(job)
        if group is None or not (group / "memory.max").exists():
            return self._kills.pop(job, None)
        most = None if most_mib is None else int(most_mib * 2**20)
        if most is not None and self._limits.get(job) != most:
            with contextlib.suppress(OSError):  # of kernels without swap, or before 4.19
                (group / "memory.swap.max").write_text("0")
                (group / "memory.oom.group").write_text("1")
            try:
                (group / "memory.max").write_text(str(most))
            except OSError:
                return None
            self._limits[job] = most
        return _kills(group)

    def members(self, job: str) -> list[int]:
        """Return the live processes of a job's group; one that has none is removed."""
        group = self._find(job)
        if group is None:
            return []
        found: list[int] = []
        with contextlib.suppress(OSError):
            for file in group.rglob(PROCESSES):  # a job may make groups of its own
                found += map(int, file.read_text().split())
        found = [pid for pid in found if alive(pid)]
        if not found:
            if self._limits.pop(job, None) is not None:
                self._kills[job] = _kills(group)
            with contextlib.suppress(OSError):
                group.rmdir()
                self._of.pop(job, None)
                (self._jobs / job / "group").unlink()
        return found

    def _find(self, job: str) -> Path | None:
        if job not in self._of:
            try:
                group = Path((self._jobs / job / "group").read_text().rstrip("\n"))
            except OSError:
                return None
            if group.parent.name != self._name:  # of the original of a copied state folder
                return None
            self._of[job] = group
        return self._of[job]

    def close(self) -> None:
        """Remove the daemon's own group, if no job is in one of it."""
        if self._own is not None:
            with contextlib.suppress(OSError):
                self._own.rmdir()


def _kills(group: Path) -> int:
    """Return how many processes of a group the kernel has ended for want of memory."""
    with contextlib.suppress(OSError, ValueError):
        for line in (group / "memory.events").read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return 0


def join(file: Path | None) -> None:
    """Have this process join a group; for a child about to exec, which goes on where it cannot."""
    if file is not None:
        with contextlib.suppress(OSError):
            file.write_text("0")
