"""What happened to tasks, as the journal keeps it, and each task's story put together from that.

Nothing is decided by it: it is what other strategies are tried on afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from rms.kernels.model import (
    Device,
    Finished,
    Governor,
    GovernorSet,
    OwnerGone,
    Registered,
    Resized,
    TaskEvent,
    TaskId,
    TaskSpec,
    UnitsFreed,
    UnitsTaken,
    Yielded,
)
from rms.kernels.wire import Resource


class UnitPower(msgspec.Struct, frozen=True):
    """What a unit draws idle, and what it draws more while a task runs on it."""

    idle_w: float = 0.0
    added_w: float = 0.0


class Recording(msgspec.Struct, frozen=True, tag=True):
    """What there is to run on from here on; said at a daemon's start, and now and then after that.

    Attributes:
        daemon: when it was started; another one's tasks and owners are numbered anew.
        power: of each unit, by the model.
        others: units that are not tasks' now.
    """

    at_s: float
    daemon: float
    devices: tuple[Device, ...]
    power: dict[int, UnitPower]
    strategy: str
    governor: Governor
    others: tuple[int, ...] = ()


class StrategySet(msgspec.Struct, frozen=True, tag=True):
    """Another strategy decides from here on."""

    at_s: float
    strategy: str


class Ran(msgspec.Struct, frozen=True, tag=True):
    """A task was given a device."""

    at_s: float
    task: TaskId
    device: str


RecordEntry = TaskEvent | Recording | StrategySet | Ran


@dataclass(eq=False)
class PastTask:
    """What became of a task.

    Attributes:
        spec: its owner, and what it comes after, are numbered over all daemons of the record.
        runs: where it ran, from when to when.
        end_s: when it was over; None if that is not known.
        done: it came to its end.
        follows: the task of its owner that was over before this one came, if that owner had
            nothing else open: then it would have come sooner after a faster one.
        pause_s: how long after that it came.
    """

    number: TaskId
    spec: TaskSpec
    came_s: float
    runs: list[tuple[Resource, float, float]] = field(default_factory=list)
    end_s: float | None = None
    done: bool = False
    follows: TaskId | None = None
    pause_s: float = 0.0

    @property
    def run_s(self) -> float:
        """Its time on devices."""
        return sum(end_s - begin_s for _, begin_s, end_s in self.runs)


@dataclass
class Record:
    """The tasks of a record, and what else there was to know.

    Attributes:
        others: units that were not tasks' from a time on, or were again.
        governors: from when on which one was set.
        strategies: what decided, in order.
        left_out: tasks that did not come to their end: withdrawn, gone, or open at the end.
    """

    devices: tuple[Device, ...] = ()
    power: dict[int, UnitPower] = field(default_factory=dict)
    tasks: list[PastTask] = field(default_factory=list)
    others: list[UnitsTaken | UnitsFreed] = field(default_factory=list)
    governors: list[GovernorSet] = field(default_factory=list)
    strategies: list[str] = field(default_factory=list)
    left_out: int = 0


def past_tasks(entries: Iterable[RecordEntry], since_s: float = 0.0) -> Record:
    """Return what happened to the tasks that came at ``since_s`` or later and were done.

    Devices are those of the last daemon; what is before the first :class:`Recording` is skipped.
    """
    reader = _Reader()
    for entry in entries:
        reader.take(entry)
    record = reader.record
    kept = [task for task in reader.past if task.came_s >= since_s]
    record.tasks = [task for task in kept if task.done]
    record.left_out = len(kept) - len(record.tasks)
    known = {task.number for task in record.tasks}
    for task in record.tasks:
        task.spec = replace(
            task.spec, after=tuple(each for each in task.spec.after if each in known)
        )
        if task.follows not in known:
            task.follows = None
    return record


class _Reader:
    """Goes through the entries of a record."""

    def __init__(self) -> None:
        self.record, self.past = Record(), list[PastTask]()
        self._daemon: float | None = None
        self._kinds: dict[str, Resource] = {}
        self._others: set[int] = set()
        self._known: dict[TaskId, PastTask] = {}
        self._open: dict[int, set[TaskId]] = {}
        self._last: dict[int, PastTask] = {}
        self._begun: dict[TaskId, tuple[Resource, float]] = {}
        self._owners = 0
        self._owner_of: dict[int, int] = {}

    def take(self, entry: RecordEntry) -> None:
        if isinstance(entry, Recording):
            self._begin(entry)
        elif self._daemon is None:
            return
        elif isinstance(entry, Registered):
            self._register(entry)
        elif isinstance(entry, StrategySet):
            self._strategy(entry.strategy)
        elif isinstance(entry, Ran):
            if entry.task in self._known:
                self._begun[entry.task] = self._kinds[entry.device], entry.at_s
        elif isinstance(entry, Yielded):
            self._stop(entry.task, entry.at_s)
        elif isinstance(entry, Resized):
            self._stop(entry.task, entry.at_s)
            if entry.task in self._known:
                self._begun[entry.task] = self._kinds[entry.device], entry.at_s
        elif isinstance(entry, Finished):
            self._end(entry.task, entry.at_s, done=not entry.failed)
        elif isinstance(entry, OwnerGone):
            for task in sorted(self._open.get(self._owner_of.get(entry.owner, 0), ())):
                self._end(task, entry.at_s, done=False)
        elif isinstance(entry, UnitsTaken | UnitsFreed):
            self._set_others(entry)
        elif isinstance(entry, GovernorSet):
            self.record.governors.append(entry)

    def _begin(self, entry: Recording) -> None:
        if entry.daemon != self._daemon:
            for each in (self._known, self._open, self._last, self._begun, self._owner_of):
                each.clear()
        self._daemon = entry.daemon
        self._kinds = {device.name: device.resource for device in entry.devices}
        self.record.devices, self.record.power = entry.devices, dict(entry.power)
        self._strategy(entry.strategy)
        now, taken = entry.at_s, set(entry.others)
        if taken - self._others:
            self._set_others(UnitsTaken(now, tuple(sorted(taken - self._others))))
        if self._others - taken:
            self._set_others(UnitsFreed(now, tuple(sorted(self._others - taken))))
        self.record.governors.append(GovernorSet(now, entry.governor))

    def _set_others(self, entry: UnitsTaken | UnitsFreed) -> None:
        taken = isinstance(entry, UnitsTaken)
        self._others = (self._others.union if taken else self._others.difference)(entry.units)
        self.record.others.append(entry)

    def _strategy(self, name: str) -> None:
        if self.record.strategies[-1:] != [name]:
            self.record.strategies.append(name)

    def _register(self, entry: Registered) -> None:
        number = TaskId(len(self.past))
        owner = self._owner_of.get(entry.spec.owner)
        if owner is None:
            self._owners += 1
            owner = self._owner_of[entry.spec.owner] = self._owners
        after = tuple(self._known[each].number for each in entry.spec.after if each in self._known)
        task = PastTask(number, replace(entry.spec, owner=owner, after=after), entry.at_s)
        before = self._last.get(owner)
        if before is not None and not self._open.get(owner) and before.end_s is not None:
            task.follows, task.pause_s = before.number, entry.at_s - before.end_s
        self.past.append(task)
        self._known[entry.task] = task
        self._open.setdefault(owner, set()).add(entry.task)
        if entry.device:
            self._begun[entry.task] = self._kinds[entry.device], entry.at_s

    def _stop(self, task_id: TaskId, at_s: float) -> None:
        begun = self._begun.pop(task_id, None)
        if begun is not None:
            self._known[task_id].runs.append((*begun, at_s))

    def _end(self, task_id: TaskId, at_s: float, *, done: bool) -> None:
        task = self._known.get(task_id)
        if task is None:
            return
        self._stop(task_id, at_s)
        task.end_s, task.done = at_s, done and bool(task.runs)
        self._open[task.spec.owner].discard(task_id)
        self._last[task.spec.owner] = task
