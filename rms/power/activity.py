"""The activity of jobs on this host: their processor time, and what the processors did in it.

The daemon divides the energy of a node that jobs share by it (:class:`rms.wire.messages.Activity`).
Jobs are read by their control groups or, where the daemon has made none, by their processes.

Compute nodes import this module, so it needs only :mod:`rms.wire` and msgspec.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import resource
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rms.wire.marks import AGENT, KEEPERS, METER, owner_of
from rms.wire.messages import MARK_VARIABLE, Activity

HOST = ""
KEPT_S = 60.0
"""An owner that has ended stays in the readings for so long: a device may be read that rarely."""

MOST_LETTERS = 255  # of a job's id, as of a folder's name
MOST_ENDED = 10_000  # ended owners whose sums are kept, as they may run again


class ActivityError(Exception):
    """The kernel does not count the work of processes; one sentence."""


# --- counters of the processors (perf_event_open(2)) ------------------------------------------


class Event(NamedTuple):
    """What is counted, by the numbers of ``linux/perf_event.h``."""

    type: int
    config: int


EVENTS = (Event(0, 1), Event(0, 0), Event(0, 3))
"""Instructions, cycles and misses of the last-level cache, in the order of an Activity."""

Counts = tuple[float | None, ...]
"""Counts of these events, None for those that are not counted."""

NO_COUNTS: Counts = (None,) * len(EVENTS)

_SYSCALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_OF_GROUP, _CLOSE_ON_EXEC = 4, 8  # PERF_FLAG_PID_CGROUP, PERF_FLAG_FD_CLOEXEC
_FORMAT = 1 | 2 | 8  # PERF_FORMAT_TOTAL_TIME_ENABLED | _TOTAL_TIME_RUNNING | _GROUP
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")  # struct perf_event_attr of the first version
_ABSENT = {errno.ENOENT, errno.EINVAL, errno.EOPNOTSUPP}
_NO_HARDWARE = {*_ABSENT, errno.ENODEV, errno.ENOSYS}
_CPUS = Path("/sys/devices/system/cpu/online")


def _open_event(event: Event, target: int, cpu: int, leader: int, flags: int) -> int:
    """Return the descriptor of a counter.

    Raises:
        OSError: the kernel refuses it.
    """
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = _ATTRIBUTES.pack(
        event.type, _ATTRIBUTES.size, event.config, 0, 0, _FORMAT, 0, 0, 0, 0
    )
    libc = ctypes.CDLL(None, use_errno=True)
    words = (ctypes.c_long(value) for value in (target, cpu, leader, flags | _CLOSE_ON_EXEC))
    file: int = libc.syscall(ctypes.c_long(number), ctypes.c_char_p(attributes), *words)
    if file < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return file


class Counters:
    """Counts of events in a control group, or in all processes, since they were opened.

    Each processor counts all events at the same times, and only a part of the time if others use
    its counters too: then its counts are scaled.

    Args:
        group: folder of the control group, None for all processes.

    Raises:
        ActivityError: the kernel refuses to count.
    """

    def __init__(self, group: Path | None, events: Sequence[Event] = EVENTS) -> None:
        self._files: list[int] = []
        self._last: dict[int, tuple[int, ...]] = {}  # newest reading by the first event's file
        self._places = list(range(len(events)))  # of the events that are counted
        self._events = len(events)
        target, flags = -1, 0
        try:
            if group is not None:
                target, flags = os.open(group, os.O_RDONLY | os.O_DIRECTORY), _OF_GROUP
            for cpu in _cpus():
                self._open(events, target, cpu, flags)
        except OSError as error:
            self.close()
            raise ActivityError(_refusal(error)) from None
        finally:
            if target >= 0:
                os.close(target)
        self._reading = struct.Struct(f"={3 + len(self._places)}Q")
        self._last = dict.fromkeys(self._last, (0,) * (3 + len(self._places)))

    def _open(self, events: Sequence[Event], target: int, cpu: int, flags: int) -> None:
        leader = -1
        for place in list(self._places):
            try:
                file = _open_event(events[place], target, cpu, leader, flags)
            except OSError as error:
                if error.errno not in _ABSENT or not self._places[1:]:
                    raise
                self._places.remove(place)  # this processor does not have it
                continue
            self._files.append(file)
            if leader < 0:
                leader = file
                self._last[file] = ()

    def read(self) -> Counts:
        """Return the counts since the last reading."""
        sums = [0.0] * len(self._places)
        for file, last in self._last.items():
            try:
                now = self._reading.unpack(os.read(file, self._reading.size))
            except (OSError, struct.error):  # a processor that was switched off
                continue
            enabled, running = now[1] - last[1], now[2] - last[2]
            if running <= 0:
                continue
            for n in range(len(sums)):
                sums[n] += (now[3 + n] - last[3 + n]) * enabled / running
            self._last[file] = now
        counts = dict(zip(self._places, sums, strict=True))
        return tuple(counts.get(place) for place in range(self._events))

    def close(self) -> None:
        """Stop counting."""
        for file in self._files:
            os.close(file)
        self._files.clear()
        self._last.clear()


def _cpus() -> list[int]:
    """Return the processors that are online.

    Raises:
        OSError: the kernel does not list them.
    """
    spans = (part.partition("-") for part in _CPUS.read_text().strip().split(","))
    return [cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)]


def _refusal(error: OSError) -> str:
    if error.errno in _NO_HARDWARE:
        return "expected counters of the processors, got none (as on most virtual machines)"
    if error.errno in (errno.EACCES, errno.EPERM):
        expected = "CAP_PERFMON or a kernel.perf_event_paranoid of at most 0"
        return f"expected {expected} to count instructions, got: {error.strerror}"
    return f"expected counters of the processors, got: {error.strerror}"


# --- jobs by their control groups (cgroups(7), version 2) --------------------------------------

_USAGE = re.compile(rb"^usage_usec (\d+)$", re.MULTILINE)


class Spent(NamedTuple):
    """What an owner did since the last reading."""

    owner: str
    cpu_s: float
    counts: Counts = NO_COUNTS


@dataclass
class _Group:
    """A group that is there; its open file is never that of a later group of this name."""

    file: int
    counters: Counters | None
    last_us: int = 0

    def spent_s(self) -> float | None:
        """Return the processor time since the last reading; None if the group was removed."""
        try:
            match = _USAGE.search(os.pread(self.file, 1 << 12, 0))
        except OSError:
            return None
        if match is None:
            return 0.0
        last_us, self.last_us = self.last_us, int(match[1])
        return max(0, self.last_us - last_us) * 1e-6

    def counts(self) -> Counts:
        return NO_COUNTS if self.counters is None else self.counters.read()

    def close(self) -> None:
        os.close(self.file)
        if self.counters is not None:
            self.counters.close()


@dataclass
class JobGroups:
    """Reads jobs by the groups that the daemon makes for them, with all groups below these.

    Processor time between the last reading and the removal of a group is lost. Counters begin at
    the first reading of a group.

    Attributes:
        folder: the daemon's own group, of which each job has a part.
        events: what is counted, None for nothing.
        refused: why nothing is counted, or "".
    """

    folder: Path
    events: Sequence[Event] | None = EVENTS
    refused: str = ""
    _groups: dict[str, _Group] = field(default_factory=dict)
    _before: set[str] | None = None
    """Groups that were there at the first reading, until they are read."""
    _host: Counters | None = None

    def read(self, now_s: float) -> Iterator[Spent]:
        """Yield what each job did."""
        for name, group in list(self._groups.items()):
            spent_s = group.spent_s()
            yield Spent(_job(name), spent_s or 0.0, group.counts())
            if spent_s is None:
                self._groups.pop(name).close()
        names = self._listed()
        if self._before is None:
            self._before = set(names)
            self._host = self._counters(None)
        for name in names:
            if name not in self._groups and _job(name):
                yield from self._begin(name)
        self._before &= set(names)

    def host_counts(self) -> Counts:
        """Return the counts of all processes since the last reading."""
        return NO_COUNTS if self._host is None else self._host.read()

    def close(self) -> None:
        """Close all files."""
        for group in self._groups.values():
            group.close()
        if self._host is not None:
            self._host.close()

    def _listed(self) -> list[str]:
        try:
            with os.scandir(self.folder) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:  # no job has been started, or the group was taken away
            return []

    def _begin(self, name: str) -> Iterator[Spent]:
        assert self._before is not None
        path = self.folder / name
        try:
            file = os.open(path / "cpu.stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # removed since it was listed, or it cannot be read now
            return
        group = self._groups[name] = _Group(file, self._counters(path))
        spent_s = group.spent_s() or 0.0
        yield Spent(_job(name), 0.0 if name in self._before else spent_s, group.counts())
        self._before.discard(name)

    def _counters(self, path: Path | None) -> Counters | None:
        if self.events is None or (self.refused and path is not None and self._host is None):
            return None
        try:
            return Counters(path, self.events)
        except ActivityError as error:
            self.refused = self.refused or str(error)
            return None


def _job(mark: str) -> str:
    """Return the job of a mark, "" for agents and for what can be no job."""
    return "" if mark in (METER, AGENT) or len(mark) > MOST_LETTERS else mark.removesuffix(KEEPERS)


class _LineFile:
    """A file of the kernel's whose first lines are read again and again."""

    def __init__(self, path: str) -> None:
        self._path, self._file = path, -1

    def read(self) -> bytes:
        """Return its first 256 bytes.

        Raises:
            OSError: it cannot be read now.
        """
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._file, 1 << 8, 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


# --- jobs by their processes ------------------------------------------------------------------

TICKS = os.sysconf("SC_CLK_TCK")
LISTED_S = 60.0  # time between two lists of all processes
MOST_PROBED = 64  # ids given since the last reading, of which each is tried instead
FIRST_S, SETTLED_S = 0.5, 60.0
"""A foreign process is read again at intervals that grow from the one to the other: it may be about
to execute another program, with the environment of a job."""


@dataclass
class _Process:
    """A process; its open file is never that of a later process with its number."""

    file: int
    mark: str
    own: int = 0
    """Ticks of its own."""
    waited: int = 0
    """Ticks of its children that it has waited for, and of theirs."""
    _read: bytes = b""

    def ticks(self) -> tuple[int, int] | None:
        """Return new ticks of its own and of its children; None if it has ended."""
        try:
            read = os.pread(self.file, 1 << 12, 0)
        except OSError:
            return None
        return (0, 0) if read == self._read else self.take(read)

    def take(self, read: bytes) -> tuple[int, int]:
        """Take the contents of its file; return new ticks."""
        self._read, words = read, _words(read)
        own, waited = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
        new = max(0, own - self.own), max(0, waited - self.waited)
        self.own, self.waited = own, waited
        return new


@dataclass
class _Balance:
    """Ticks of a job since the last reading."""

    own: int = 0
    waited: int = 0
    """Of ended children; much of it was counted while they were alive."""
    ended: int = 0
    """Counted before, of processes that have ended."""


@dataclass
class JobProcesses:
    """Reads jobs by their processes, which have the daemon's mark or are children of such.

    An ended process counts by the processes that have waited for it. Where none of its job has,
    its time since the last reading is lost, and so is that of the children that its job waited for
    in that and the next interval.
    """

    instance_id: str
    _own: dict[int, _Process] = field(default_factory=dict)
    _foreign: set[int] = field(default_factory=set)
    _again: dict[int, tuple[float, float]] = field(default_factory=dict)
    """When foreign processes are read again, and the time until the next time."""
    _newest: int | None = None
    """The newest id of a process or thread at the last reading."""
    _listed_s: float = 0.0
    _load: _LineFile = field(default_factory=lambda: _LineFile("/proc/loadavg"))
    _owed: dict[str, int] = field(default_factory=dict)
    _begun: bool = False
    refused: str = "expected control groups of jobs to count their instructions, got none"

    def read(self, now_s: float) -> Iterator[Spent]:
        """Yield what each job did."""
        jobs: dict[str, _Balance] = {}
        for pid, process in list(self._own.items()):
            balance = jobs.setdefault(_job(process.mark), _Balance())
            new = process.ticks()
            if new is None:
                balance.ended += process.own + process.waited
                os.close(self._own.pop(pid).file)
            else:
                balance.own += new[0]
                balance.waited += new[1]
        for process in self._find(now_s):
            balance = jobs.setdefault(_job(process.mark), _Balance())
            if self._begun:
                balance.own += process.own
                balance.waited += process.waited
        self._begun = True
        owed, self._owed = self._owed, {}
        for job, balance in jobs.items():
            # A parent may have been read before it waited for a child that was then gone.
            left = max(0, balance.waited - owed.get(job, 0))
            if balance.ended > left:
                self._owed[job] = balance.ended - left
            yield Spent(job, (balance.own + max(0, left - balance.ended)) / TICKS)

    def host_counts(self) -> Counts:
        """Return no counts."""
        return NO_COUNTS

    def close(self) -> None:
        """Close all files."""
        for process in self._own.values():
            os.close(process.file)
        self._load.close()

    def _find(self, now_s: float) -> Iterator[_Process]:
        """Yield the processes of jobs that were not known."""
        due = {pid for pid, (again_s, _) in self._again.items() if again_s <= now_s}
        for pid in sorted(due | self._new(now_s)):  # parents mostly come before their children
            try:
                process = self._open(pid)
            except OSError:  # it has ended
                self._foreign.discard(pid)
                self._again.pop(pid, None)
                continue
            if process is not None:
                self._own[pid] = process
                self._foreign.discard(pid)
                self._again.pop(pid, None)
                yield process
                continue
            _, wait_s = self._again.pop(pid, (0.0, FIRST_S if self._begun else SETTLED_S / 2))
            self._foreign.add(pid)
            if wait_s < SETTLED_S:
                self._again[pid] = now_s + wait_s, 2 * wait_s

    def _new(self, now_s: float) -> set[int]:
        """Return the ids given since the last reading, or else those of all unknown processes."""
        before, newest = self._newest, _newest(self._load)
        self._newest = newest
        count = -1 if before is None or newest is None else newest - before
        if before is not None and 0 <= count <= MOST_PROBED and now_s < self._listed_s + LISTED_S:
            return set(range(before + 1, before + count + 1)) - self._own.keys()
        self._listed_s = now_s
        listed = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
        self._foreign &= listed
        self._again = {pid: again for pid, again in self._again.items() if pid in listed}
        if before is not None and newest is not None:  # ids may have been given again
            self._foreign -= {pid for pid in self._foreign if _between(before, pid, newest)}
        return listed - self._own.keys() - self._foreign

    def _open(self, pid: int) -> _Process | None:
        """Return a process of a job, None for a foreign one or for a thread.

        Raises:
            OSError: there is no such process.
        """
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        process = None
        try:
            read = os.pread(file, 1 << 12, 0)
            words = _words(read)
            parent = self._own.get(int(words[1]))
            mark = self._mark(pid) if parent is None else parent.mark
            if _job(mark) and not (int(words[17]) > 1 and _is_thread(pid)):
                process = _Process(file, mark)
                process.take(read)
        finally:
            if process is None:
                os.close(file)
        return process

    def _mark(self, pid: int) -> str:
        owner = owner_of(pid, self.instance_id)
        return "" if owner is None else owner[0]


def _words(read: bytes) -> list[bytes]:
    """Return the words after the name in the ``stat`` of a process."""
    return read.rpartition(b")")[2].split(None, 18)


def _newest(load: _LineFile) -> int | None:
    """Return the newest id of a process or thread, None where the kernel does not state it."""
    try:
        return int(load.read().rpartition(b" ")[2])
    except (OSError, ValueError):
        return None


def _is_thread(pid: int) -> bool:
    """Return whether an id is that of a thread: its times are those of its whole process."""
    file = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"\nTgid:\t%d\n" % pid not in os.read(file, 1 << 12)
    finally:
        os.close(file)


def _between(before: int, pid: int, newest: int) -> bool:
    """Return whether an id was given since ``before``; they begin anew after the highest."""
    if before <= newest:
        return before < pid <= newest
    return pid > before or pid <= newest


# --- the host, and all of it ------------------------------------------------------------------


@dataclass
class _Sum:
    """Everything that an owner did, and when it was read last."""

    cpu_s: float
    counts: Counts
    seen_s: float
    gpu_s: dict[str, float] = field(default_factory=dict)

    def activity(self, owner: str) -> Activity:
        """Return it as a part of a report."""
        instructions, cycles, misses = self.counts
        figures = round(self.cpu_s, 6), instructions, cycles, misses
        return Activity(owner, *figures, dict(self.gpu_s))


@dataclass
class ActivityReader:
    """Reads the activity of all jobs of a daemon on this host, and of the host.

    Attributes:
        log: prints why nothing is counted.
        gpus: returns the busy time of GPUs since the last call, by process.
        instance_id: the daemon's, in the marks of processes.
    """

    jobs: JobGroups | JobProcesses
    log: Callable[[str], None] = lambda _: None
    gpus: Callable[[], Mapping[str, Mapping[int, float]]] = dict
    instance_id: str = ""
    clock: Callable[[], float] = time.monotonic
    _sums: dict[str, _Sum] = field(default_factory=dict)
    _stat: _LineFile = field(default_factory=lambda: _LineFile("/proc/stat"))
    _host_ticks: int | None = None
    _refused: str = ""

    @classmethod
    def of(
        cls,
        groups: str,
        env: Mapping[str, str],
        log: Callable[[str], None],
        gpus: Callable[[], Mapping[str, Mapping[int, float]]] = dict,
    ) -> ActivityReader | None:
        """Return the reader of a daemon's jobs.

        Args:
            groups: folder of their control groups, "" for their processes.
            env: names the daemon by the agent's own mark; None is returned without one.
        """
        with contextlib.suppress(OSError, ValueError):  # a file for each counter or process
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        instance_id = env.get(MARK_VARIABLE, "").rpartition(":")[0]
        if not groups and not instance_id:
            return None
        jobs = JobGroups(Path(groups)) if groups else JobProcesses(instance_id)
        return cls(jobs, log, gpus, instance_id)

    def read(self) -> list[Activity]:
        """Return the activity of each owner since its first reading."""
        now_s = self.clock()
        for spent in self.jobs.read(now_s):
            self._add(spent, now_s)
        self._add(Spent(HOST, self._host_s(), self.jobs.host_counts()), now_s)
        self._add_gpus(now_s)
        if self.jobs.refused != self._refused:
            self._refused = self.jobs.refused
            self.log(self._refused)
        if len(self._sums) > MOST_ENDED:
            newest = sorted(self._sums, key=lambda owner: -self._sums[owner].seen_s)
            self._sums = {owner: self._sums[owner] for owner in newest[: MOST_ENDED // 2]}
        return [
            own.activity(owner) for owner, own in self._sums.items() if own.seen_s >= now_s - KEPT_S
        ]

    def close(self) -> None:
        """Close all files."""
        self.jobs.close()
        self._stat.close()

    def _add(self, spent: Spent, now_s: float) -> None:
        own = self._sums.get(spent.owner)
        if own is None:
            self._sums[spent.owner] = _Sum(spent.cpu_s, spent.counts, now_s)
            return
        own.cpu_s += spent.cpu_s
        own.counts = tuple(
            None if before is None or new is None else before + new
            for before, new in zip(own.counts, spent.counts, strict=True)
        )
        own.seen_s = now_s

    def _add_gpus(self, now_s: float) -> None:
        """Add the busy time of GPUs to the jobs of their processes, and to the host."""
        for device, of_process in self.gpus().items():
            host = self._sums[HOST].gpu_s
            host[device] = host.get(device, 0.0) + sum(of_process.values())
            for pid, busy_s in of_process.items():
                mark = owner_of(pid, self.instance_id)
                job = "" if mark is None else _job(mark[0])
                if not job:
                    continue
                if job not in self._sums:
                    self._sums[job] = _Sum(0.0, NO_COUNTS, now_s)
                own = self._sums[job].gpu_s
                own[device] = own.get(device, 0.0) + busy_s

    def _host_s(self) -> float:
        """Return the processor time of all processes since the last reading, s."""
        try:
            words = self._stat.read().split(None, 8)[1:8]
            user, nice, system, _idle, _iowait, irq, softirq = map(int, words)
        except (OSError, ValueError):
            return 0.0
        now = user + nice + system + irq + softirq  # that of guests is in user and nice
        last, self._host_ticks = self._host_ticks, now
        return 0.0 if last is None else max(0, now - last) / TICKS
