"""Processes of jobs on this machine, in shells, and listed by environment and control group.

Scripts and worlds run below shells that keep their exit status and are *subreapers* (prctl(2)): all
processes of a job stay below a shell, which ends them before itself, also when it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rms.wire.marks import NO_ENVIRONMENT, owner_of
from rms.wire.messages import MARK_VARIABLE

PR_SET_CHILD_SUBREAPER = 36

_END_CHILDREN = """
children=/proc/$$/task/$$/children
while left=; { read -r left < $children || [ -n "$left" ]; } 2>/dev/null; do
    [ -n "$left" ] || break
    kill -KILL $left 2>/dev/null
    /bin/sleep 0.05
done
exit $code
"""

KEEP_STATUS = f"""trap : TERM
"$@"
code=$?
echo $code > "$RMS_STATUS.part" && mv "$RMS_STATUS.part" "$RMS_STATUS"
{_END_CHILDREN}"""
"""Shell around a job script: saves its status for a daemon that was away when it ended.

It outlives a SIGTERM, which the script handles in its own time.
"""

KEEP_WORLD_STATUS = f""""$@" &
world=$!
trap 'kill -TERM $world' TERM
{{ wait $world; }} 2>/dev/null
code=$?
while kill -0 $world 2>/dev/null; do {{ wait $world; }} 2>/dev/null; code=$?; done
echo $code > "$0.part" && mv "$0.part" "$0"
trap : TERM
{_END_CHILDREN}"""
"""The same around a world, which gets the SIGTERM: not every program leaves a record."""

_SHELLS = KEEP_STATUS, KEEP_WORLD_STATUS


_prctl: Callable[..., int] | None = None
with contextlib.suppress(AttributeError, OSError):  # another system than Linux
    _prctl = ctypes.CDLL(None, use_errno=True).prctl


def uncontained() -> str:
    """Return why processes of a job may escape it, "" where they cannot."""
    if _prctl is None:
        return "expected Linux, whose subreapers adopt orphans of a job, got another system"
    if not Path("/proc/thread-self/children").exists():
        return "expected a kernel that lists children (CONFIG_PROC_CHILDREN), got another"
    return ""


def is_shell(command: Sequence[str]) -> bool:
    """Return whether a command is one of these shells."""
    return list(command[:3]) in [["/bin/sh", "-c", text] for text in _SHELLS]


def hold_orphans() -> None:
    """Let this process adopt the orphans of its descendants; for a child about to exec."""
    if _prctl is not None:
        _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def runs_shell(pid: int) -> bool:
    """Return whether a process is one of these shells."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return is_shell([os.fsdecode(word) for word in words[:3]])


def descendants(pids: list[int]) -> list[int]:
    """Return the processes below these, but not these themselves."""
    visited, new = set(pids), list(pids)
    below: list[int] = []
    while new:
        new = sorted({child for pid in new for child in children(pid)} - visited)
        visited.update(new)
        below += new
    return below


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process, none of an ended one."""
    pids: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (thread / "children").read_text().split())
    except OSError:
        pass
    return pids


# --- Processes of this daemon, by their environment -----------------------------------------------
#
# A restarted daemon recognizes the processes of jobs by their environment; one without it is a
# descendant of others.

INSTANCE_VARIABLE = MARK_VARIABLE
"""Environment variable of every process of a job: ``INSTANCE_ID:JOB``."""

NO_ENVIRONMENT_S = 0.05  # time until a process without an environment is read again

GENTLE_S = 10.0
"""Time for a keeper to free the memory of its host, from SIGTERM to SIGKILL."""

FOREIGN_S = 2.0  # time until a foreign process is read again: its pid may be reused


class Processes:
    """The processes of one daemon, by job and launch.

    Reading environments takes long (0.2 s for 3,000 processes), so foreign processes are read only
    now and then.
    """

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id
        self._own: dict[int, tuple[str, str]] = {}
        self._foreign: dict[int, float] = {}

    def of(self, job: str | None, launch: str | None) -> list[int]:
        """Return the live processes of a job, of all for None, or of one launch."""
        self._scan()
        pids = []
        for pid, before in list(self._own.items()):
            if job not in (None, before[0]):
                continue
            owner = owner_of(pid, self._instance_id)
            if owner is None:  # it has ended, or its pid was reused
                del self._own[pid]
                continue
            if owner == NO_ENVIRONMENT:
                owner = before
            self._own[pid] = owner
            if job in (None, owner[0]) and launch in (None, owner[1]) and alive(pid):
                pids.append(pid)
        return pids + [pid for pid in descendants(pids) if alive(pid)]

    def jobs(self) -> list[str]:
        """Return the jobs that live processes belong to, sorted."""
        self._scan()
        return sorted({job for pid, (job, _) in self._own.items() if alive(pid)})

    def owners(self) -> list[tuple[str, str]]:
        """Return the jobs and launches that live processes belong to, sorted."""
        self.of(None, None)
        return sorted({owner for pid, owner in self._own.items() if alive(pid)} - {NO_ENVIRONMENT})

    def _scan(self) -> None:
        now = time.monotonic()
        listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
        self._own = {pid: owner for pid, owner in self._own.items() if pid in listed}
        self._foreign = {pid: until for pid, until in self._foreign.items() if until > now}
        for pid in listed - self._own.keys() - self._foreign.keys():
            owner = owner_of(pid, self._instance_id)
            if owner is None:
                self._foreign[pid] = now + FOREIGN_S
            elif owner == NO_ENVIRONMENT:
                self._foreign[pid] = now + NO_ENVIRONMENT_S
            else:
                self._own[pid] = owner


def program_name(pid: int) -> str:
    """Return the name of a process's program, its first 15 characters; "" if it has ended."""
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
    """Return whether a process has running children; None if that is unknown."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None  # it has ended, or this kernel has no such file
    return any(alive(int(child)) for child in children)


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process; one that has ended, or is not ours to signal, gets none."""
    if pid <= 0:
        return  # no process: 0 is this process's own group
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


# --- Control groups of jobs (cgroups(7), version 2), if this user has delegated ones -----------
#
# Groups may be made below one that was delegated to the user: systemd marks those by the attribute
# ``user.delegate``. The kernel limits the memory of jobs if no process is in the group above theirs
# ("no internal processes"), so the daemon has to be in another, as :data:`SUBGROUP`. It moves no
# process: systemd would not start the unit again.

GROUP_VARIABLE = "RMS_CGROUP"
"""A folder of cgroup v2 below which the daemon may make its own."""

SUBGROUP = "rms-daemon"
"""Of a delegated unit, for the daemon alone (``DelegateSubgroup=`` of systemd.exec(5))."""

DELEGATED = "user.delegate"
PROCESSES = "cgroup.procs"


def find_delegated(env: Mapping[str, str]) -> Path | None:
    """Return a group below which this process may make others, None without one."""
    if GROUP_VARIABLE in env:
        named = Path(env[GROUP_VARIABLE])
        return named if _writable(named) else None
    own = _own_group()
    if own is None:
        return None
    if own.name == SUBGROUP:
        own = own.parent
    try:
        delegated = os.getxattr(own, DELEGATED) == b"1"
    except (AttributeError, OSError):  # another system, or an older systemd
        return None
    return own if delegated and _writable(own) else None


def escapes(env: Mapping[str, str]) -> str:
    """Return which processes of a job may outlive it on this machine, "" for none."""
    if find_delegated(env) is not None:
        return ""
    return uncontained() or (
        "only what is below a job's shell ends with it, as no control group was delegated "
        f"(systemd-run --user --scope -p Delegate=yes, or {GROUP_VARIABLE})"
    )


def _own_group() -> Path | None:
    """Return the folder of the group of this process."""
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


def _writable(group: Path) -> bool:
    return os.access(group, os.W_OK) and os.access(group / PROCESSES, os.W_OK)


class Groups:
    """A control group per job.

    Args:
        above: the group below which groups may be made, None for no groups.
        jobs: folder of the jobs' folders, in which their groups are saved for a later daemon.
    """

    def __init__(self, above: Path | None, instance_id: str, jobs: Path) -> None:
        self._name = f"rms-{instance_id}"
        self._own = None if above is None else above / self._name
        self._jobs, self._of = jobs, dict[str, Path]()
        self._limits, self._kills = dict[str, int](), dict[str, int]()
        self._gives = False

    @property
    def folder(self) -> Path | None:
        """The group that has the groups of jobs, None without groups."""
        return self._own

    def joined(self, job: str) -> Path | None:
        """Make a job's group; return the file that a process writes ``0`` to in order to join."""
        if self._own is None:
            return None
        group, noted = self._own / job, self._jobs / job / "group"
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            if not self._gives:  # let the groups of jobs limit memory, if possible
                self._gives = True
                with contextlib.suppress(OSError):
                    for above in (self._own.parent, self._own):
                        (above / "cgroup.subtree_control").write_text("+memory")
            group.mkdir(exist_ok=True)
            noted.write_text(f"{group}\n")
        except OSError:  # taken away since, or too many of them
            return None
        self._of[job] = group
        return group / PROCESSES

    def limit_memory(self, job: str, most_mib: float | None = None) -> int | None:
        """Let the kernel end a job that exceeds a limit of its memory; nothing is swapped.

        Return the number of processes that were ended for that, None if it cannot be limited.
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
        """Return the live processes of a job's group; an empty group is removed."""
        group = self._find(job)
        if group is None:
            return []
        pids: list[int] = []
        with contextlib.suppress(OSError):
            for file in group.rglob(PROCESSES):  # a job may make groups of its own
                pids += map(int, file.read_text().split())
        pids = [pid for pid in pids if alive(pid)]
        if not pids:
            if self._limits.pop(job, None) is not None:
                self._kills[job] = _kills(group)
            with contextlib.suppress(OSError):
                group.rmdir()
                self._of.pop(job, None)
                (self._jobs / job / "group").unlink()
        return pids

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
        """Remove the daemon's own group, if no job has one in it."""
        if self._own is not None:
            with contextlib.suppress(OSError):
                self._own.rmdir()


def _kills(group: Path) -> int:
    """Return how many processes of a group the kernel has ended for lack of memory."""
    with contextlib.suppress(OSError, ValueError):
        for line in (group / "memory.events").read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return 0


def join(file: Path | None) -> None:
    """Let this process join a group, if possible; for a child about to exec."""
    if file is not None:
        with contextlib.suppress(OSError):
            file.write_text("0")


# --- Outputs and strings that a process can be started with ---------------------------------------

KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

MOST_BYTES = 4095
MOST_NAME_BYTES = 255
MOST_NAMES = 256
"""Limits of Linux for a path and for names in it, and our limit of names in a path."""

MOST_LINKS = 40  # symbolic links that Linux follows in a path


def check_output(place: Path | int, name: Path | None = None) -> None:
    """Refuse an output that exists and is neither a regular file nor ``/dev/null``.

    Args:
        place: a path, or an open file, of this ``name``.
    """
    try:
        status = os.fstat(place) if isinstance(place, int) else place.stat()
    except OSError:
        return  # it does not exist yet
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == Path(os.devnull).stat().st_rdev:
        return
    got = next((words for is_one, words in KINDS if is_one(status.st_mode)), "something else")
    where = place if name is None else name
    raise ValueError(f"expected a regular file as output, got {where}, which is {got}")


def check_strings(path: str, env: Mapping[str, str]) -> None:
    """Refuse a path and variables with which no process can be started.

    Raises:
        ValueError: the path is invalid (:func:`check_path`), a variable holds a NUL or cannot be
            encoded, or its name is empty or has a ``=``.
    """
    check_path(path)
    for name, value in env.items():
        if not name or "=" in name or not _encodes(name):
            raise ValueError(f"expected names of variables without = and NUL, got {name!r}")
        if not _encodes(value):
            raise ValueError(f"expected variables without NUL, got {name}={value!r}")


def check_path(path: str) -> None:
    """Refuse a path that no file can have."""
    if not _encodes(path):
        raise ValueError(f"expected a path without NUL, got {path[:60]!r}")
    whole = os.fsencode(path)
    names = whole.split(b"/")
    if len(whole) > MOST_BYTES or len(names) > MOST_NAMES or max(map(len, names)) > MOST_NAME_BYTES:
        form = f"a path of {MOST_BYTES} bytes, {MOST_NAMES} names of {MOST_NAME_BYTES} bytes"
        raise ValueError(f"expected at most {form}, got {path[:60]!r}... of {len(whole)} bytes")


def check_own_file(path: Path, state: Path) -> None:
    """Refuse an output that is one of the daemon's own files."""
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(state)):
        raise ValueError(f"expected an output outside the daemon's state folder, got {path}")
    for _ in range(MOST_LINKS):
        if os.path.realpath(path.parent).startswith("/proc/"):
            raise ValueError(f"expected an output outside /proc, got {path}")
        if not os.path.islink(path):  # noqa: PTH114 - Path.is_symlink raises without permission
            return
        path = path.parent / path.readlink()


def _encodes(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
