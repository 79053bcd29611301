"""The record of tasks: the entries of the journal, and other strategies tried on them.

No decision of the daemon depends on the record.

A trial estimates the run times of kernels where they did not run. Arrivals are as recorded, but a
task of a process that had one after another comes as long after its predecessor as it did. An
interrupted task stops at once.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean, median

import msgspec
from msgspec.structs import replace

from rms.kernels.model import (
    OTHERS,
    Governor,
    GovernorSet,
    KernelTask,
    OwnerGone,
    Resource,
    TaskDecision,
    TaskDevice,
    TaskEvent,
    TaskFinished,
    TaskGoOn,
    TaskId,
    TaskRegistered,
    TaskResized,
    TaskRun,
    TaskSpec,
    TaskStop,
    TaskYielded,
    UnitsFreed,
    UnitsTaken,
    Woken,
)
from rms.kernels.scheduler import Strategy, TaskScheduler

# --- Entries ---------------------------------------------------------------------------------


class UnitPower(msgspec.Struct, frozen=True):
    """The power of an idle unit, and the power that a task adds to it."""

    idle_w: float = 0.0
    added_w: float = 0.0


class TaskRecording(msgspec.Struct, frozen=True, tag=True):
    """The devices from here on, entered at a daemon's start and at intervals.

    Attributes:
        daemon: its start time; another daemon numbers tasks and owners anew.
    """

    at_s: float
    daemon: float
    devices: tuple[TaskDevice, ...]
    power: dict[int, UnitPower]
    strategy: str
    governor: Governor
    others: tuple[int, ...] = ()


class StrategySet(msgspec.Struct, frozen=True, tag=True):
    """Another strategy decides from here on."""

    at_s: float
    strategy: str


class TaskRan(msgspec.Struct, frozen=True, tag=True):
    """A task got a device."""

    at_s: float
    task: TaskId
    device: str


RecordEntry = TaskEvent | TaskRecording | StrategySet | TaskRan


# --- The history of tasks --------------------------------------------------------------------


@dataclass(eq=False)
class PastTask:
    """The history of a task.

    Attributes:
        spec: its specification; owners and tasks are numbered over all daemons of the record.
        runs: its resources, with begins and ends.
        follows: its predecessor, if its owner had no other task in between: after a faster
            predecessor it would have come sooner.
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
class TaskRecord:
    """The tasks of a record, and their surroundings.

    Attributes:
        left_out: number of tasks that were not completed: withdrawn, gone, or open at the end.
    """

    devices: tuple[TaskDevice, ...] = ()
    power: dict[int, UnitPower] = field(default_factory=dict)
    tasks: list[PastTask] = field(default_factory=list)
    others: list[UnitsTaken | UnitsFreed] = field(default_factory=list)
    governors: list[GovernorSet] = field(default_factory=list)
    strategies: list[str] = field(default_factory=list)
    left_out: int = 0


def past_tasks(entries: Iterable[RecordEntry], since_s: float = 0.0) -> TaskRecord:
    """Return the history of the tasks that came at ``since_s`` or later and were completed.

    Devices are those of the last daemon. Entries before the first :class:`TaskRecording` are
    skipped.
    """
    reader = _RecordReader()
    for entry in entries:
        reader.take(entry)
    record = reader.record
    kept = [task for task in reader.past if task.came_s >= since_s]
    record.tasks = [task for task in kept if task.done]
    record.left_out = len(kept) - len(record.tasks)
    numbers = {task.number for task in record.tasks}
    for task in record.tasks:
        after = tuple(number for number in task.spec.after if number in numbers)
        task.spec = replace(task.spec, after=after)
        if task.follows not in numbers:
            task.follows = None
    return record


class _RecordReader:
    """A pass over the entries of a record."""

    def __init__(self) -> None:
        self.record, self.past = TaskRecord(), list[PastTask]()
        self._daemon: float | None = None
        self._kinds: dict[str, Resource] = {}
        self._others: set[int] = set()
        self._tasks: dict[TaskId, PastTask] = {}
        self._open: dict[int, set[TaskId]] = {}
        self._last: dict[int, PastTask] = {}
        self._begun: dict[TaskId, tuple[Resource, float]] = {}
        self._owners = 0
        self._owner_of: dict[int, int] = {}

    def take(self, entry: RecordEntry) -> None:
        if isinstance(entry, TaskRecording):
            self._begin(entry)
        elif self._daemon is None:
            return
        elif isinstance(entry, TaskRegistered):
            self._register(entry)
        elif isinstance(entry, StrategySet):
            self._strategy(entry.strategy)
        elif isinstance(entry, TaskRan):
            if entry.task in self._tasks:
                self._begun[entry.task] = self._kinds[entry.device], entry.at_s
        elif isinstance(entry, TaskYielded):
            self._stop(entry.task, entry.at_s)
        elif isinstance(entry, TaskResized):
            self._stop(entry.task, entry.at_s)
            if entry.task in self._tasks:
                self._begun[entry.task] = self._kinds[entry.device], entry.at_s
        elif isinstance(entry, TaskFinished):
            self._end(entry.task, entry.at_s, done=not entry.failed)
        elif isinstance(entry, OwnerGone):
            for task in sorted(self._open.get(self._owner_of.get(entry.owner, 0), ())):
                self._end(task, entry.at_s, done=False)
        elif isinstance(entry, UnitsTaken | UnitsFreed):
            self._set_others(entry)
        elif isinstance(entry, GovernorSet):
            self.record.governors.append(entry)

    def _begin(self, entry: TaskRecording) -> None:
        if entry.daemon != self._daemon:
            for table in (self._tasks, self._open, self._last, self._begun, self._owner_of):
                table.clear()
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

    def _register(self, entry: TaskRegistered) -> None:
        number = TaskId(len(self.past))
        owner = self._owner_of.get(entry.spec.owner)
        if owner is None:
            self._owners += 1
            owner = self._owner_of[entry.spec.owner] = self._owners
        after = tuple(self._tasks[task].number for task in entry.spec.after if task in self._tasks)
        task = PastTask(number, replace(entry.spec, owner=owner, after=after), entry.at_s)
        before = self._last.get(owner)
        if before is not None and not self._open.get(owner) and before.end_s is not None:
            task.follows, task.pause_s = before.number, entry.at_s - before.end_s
        self.past.append(task)
        self._tasks[entry.task] = task
        self._open.setdefault(owner, set()).add(entry.task)
        if entry.device:
            self._begun[entry.task] = self._kinds[entry.device], entry.at_s

    def _stop(self, task_id: TaskId, at_s: float) -> None:
        begun = self._begun.pop(task_id, None)
        if begun is not None:
            self._tasks[task_id].runs.append((*begun, at_s))

    def _end(self, task_id: TaskId, at_s: float, *, done: bool) -> None:
        task = self._tasks.get(task_id)
        if task is None:
            return
        self._stop(task_id, at_s)
        task.end_s, task.done = at_s, done and bool(task.runs)
        self._open[task.spec.owner].discard(task_id)
        self._last[task.spec.owner] = task


# --- Other strategies ------------------------------------------------------------------------

IDLE_CALLS = 10_000
"""Number of calls in a row without a change after which a strategy is considered finished."""

Kind = tuple[str, tuple[Resource, ...]]
"""The kind of a task: its name (without one, its process) and the resources of its kernels. Tasks
of one kind are assumed to have equal run times."""


@dataclass
class StrategyOutcome:
    """The figures of a strategy on the tasks of a record.

    Attributes:
        makespan_s: time from the first arrival to the last end.
        median_run_s, mean_wait_s: of a task's time on devices, and of the rest of its time.
        runs: number of kernels begun per resource.
        busy_s: time for which kernels ran per resource.
        energy_j: energy of all units over the makespan, by the model.
        interrupts: number of times that a task was stopped to go on elsewhere.
        times: number of run times by their source: ``seen`` (it ran there), ``alike`` (tasks of
            its kind did), ``affinity`` (neither; by the affinities of its collection).
        unfinished: number of tasks that the strategy did not complete.
    """

    makespan_s: float = 0.0
    median_run_s: float = 0.0
    mean_wait_s: float = 0.0
    runs: dict[Resource, int] = field(default_factory=dict)
    busy_s: dict[Resource, float] = field(default_factory=dict)
    energy_j: float = 0.0
    interrupts: int = 0
    times: dict[str, int] = field(default_factory=dict)
    unfinished: int = 0


def as_it_was(record: TaskRecord) -> StrategyOutcome:
    """Return the figures of the record."""
    return _outcome(record, [(task, task.came_s, task.end_s, task.runs) for task in record.tasks])


def tried(
    record: TaskRecord, strategy: Strategy, governor: Governor | None = None
) -> StrategyOutcome:
    """Return the figures of a strategy on the tasks of a record.

    The governor is constant, or with None that of the record. Errors of the strategy, and a
    ValueError for its impossible choices, are raised.
    """
    return _Trial(record, strategy, governor).run()


class RunTimes:
    """The run times of all kernels of the tasks of a record, also of those that did not run."""

    def __init__(self, tasks: Sequence[PastTask], cores: int) -> None:
        self._cores = cores
        runs: dict[Kind, dict[Resource, list[float]]] = {}
        for task in tasks:
            kinds = {resource for resource, _, _ in task.runs}
            if len(kinds) == 1:
                runs.setdefault(_kind(task.spec), {}).setdefault(kinds.pop(), []).append(task.run_s)
        self._alike = {
            kind: {resource: median(values) for resource, values in times.items()}
            for kind, times in runs.items()
        }
        self._scale = {  # the size of a task relative to its kind: the sum of its parts
            task.number: sum(
                (end - begin) / self._of_kind(task, kind)[0] for kind, begin, end in task.runs
            )
            for task in tasks
        }

    def of(self, task: PastTask, resource: Resource) -> tuple[float, str]:
        """Return the run time of a whole task on a resource, and its source."""
        kind_s, how = self._of_kind(task, resource)
        if {kind for kind, _, _ in task.runs} == {resource}:
            how = "seen"
        return self._scale[task.number] * kind_s, how

    def _of_kind(self, task: PastTask, resource: Resource) -> tuple[float, str]:
        times = self._alike.get(_kind(task.spec), {})
        if times.get(resource):
            return times[resource], "alike"
        itself = KernelTask(task.number, task.spec)
        if resource not in itself.kernels:  # narrowed to one core: slower by the number of cores
            whole_s, _ = self._of_kind(task, Resource.CORES)
            return whole_s * self._cores, "affinity"
        factors = {kind: itself.factor(kind, resource) for kind in times if kind in itself.kernels}
        estimates = [times[kind] * factor for kind, factor in factors.items() if times[kind]]
        if estimates:
            return fmean(estimates), "affinity"
        return itself.factor(itself.preference[0], resource), "affinity"


class _Trial:
    """A simulation of the tasks of a record under another strategy."""

    def __init__(self, record: TaskRecord, strategy: Strategy, governor: Governor | None) -> None:
        self.record = record
        cores = (len(dev.units) for dev in record.devices if dev.resource is Resource.CORES)
        self.times = RunTimes(record.tasks, max(cores, default=1))
        self.scheduler = TaskScheduler(record.devices, strategy)
        self.units = {unit for device in record.devices for unit in device.units}
        self.past = {task.number: task for task in record.tasks}
        self.followers: dict[TaskId, list[PastTask]] = {}
        self.wanted: set[int] = set()
        self.left = dict.fromkeys(self.past, 1.0)
        self.begun: dict[TaskId, tuple[Resource, float]] = {}
        self.came: dict[TaskId, float] = {}
        self.ended: dict[TaskId, float] = {}
        self.runs: dict[TaskId, list[tuple[Resource, float, float]]] = {}
        self.interrupts, self.how = 0, Counter[str]()
        self._heap: list[tuple[float, int, TaskEvent]] = []
        self._order = count()
        self._turn: dict[TaskId, int] = {}
        for task in record.tasks:
            if task.follows is None:
                self._push(TaskRegistered(task.came_s, task.number, task.spec))
            else:
                self.followers.setdefault(task.follows, []).append(task)
        first_s = min((task.came_s for task in record.tasks), default=0.0)
        governors = record.governors if governor is None else [GovernorSet(first_s, governor)]
        for entry in (*record.others, *governors):
            self._push(entry)

    def run(self) -> StrategyOutcome:
        idle = 0
        while (event := self._next()) is not None and idle < IDLE_CALLS + len(self.past):
            before = len(self.ended), len(self.came), len(self._heap)
            self._feed(event)
            moved = before != (len(self.ended), len(self.came), len(self._heap))
            idle = 0 if moved else idle + 1
        rows = [
            (self.past[number], self.came[number], end_s, self.runs[number])
            for number, end_s in self.ended.items()
        ]
        outcome = _outcome(self.record, rows)
        outcome.interrupts, outcome.times = self.interrupts, dict(self.how)
        outcome.unfinished = len(self.past) - len(self.ended)
        return outcome

    def _push(self, event: TaskEvent) -> int:
        order = next(self._order)
        heapq.heappush(self._heap, (event.at_s, order, event))
        return order

    def _next(self) -> TaskEvent | None:
        """Return the next event; None when the trial is over."""
        state, heap, wake_s = self.scheduler.state, self._heap, self.scheduler.wake_s
        while heap:
            _, order, event = heap[0]
            if not isinstance(event, TaskFinished) or self._turn.get(event.task) == order:
                break
            heapq.heappop(heap)  # the end of a run that was stopped before
        if heap and (wake_s is None or heap[0][0] <= wake_s):
            return heapq.heappop(heap)[2]
        if not heap and not state.tasks:
            return None
        if not heap and state.others:
            return UnitsFreed(state.now_s, state.others)  # the record is over
        return None if wake_s is None else Woken(wake_s)

    def _feed(self, event: TaskEvent) -> None:
        state = self.scheduler.state
        decisions: list[TaskDecision] = []
        if isinstance(event, TaskResized) and event.task not in self.begun:
            return  # it has ended before
        if isinstance(event, UnitsTaken):
            self.wanted.update(self.units.intersection(event.units))
        elif isinstance(event, UnitsFreed):
            held = [unit for unit in event.units if state.holder.get(unit) == OTHERS]
            self.wanted.difference_update(event.units)
            self.scheduler.apply(UnitsFreed(event.at_s, tuple(held)))
        else:
            if isinstance(event, TaskYielded):
                self._stop(event.task, event.at_s)
            elif isinstance(event, TaskResized):
                self._stop(event.task, event.at_s)
                self._begin(event.task, state.devices[event.device].resource, event.at_s)
            elif isinstance(event, TaskFinished):
                self._stop(event.task, event.at_s)
                self.ended[event.task] = event.at_s
            elif isinstance(event, TaskRegistered):
                self.came[event.task] = event.at_s
            decisions += self.scheduler.apply(event)
        free = tuple(sorted(unit for unit in self.wanted if unit not in state.holder))
        if free:
            self.wanted.difference_update(free)
            self.scheduler.apply(UnitsTaken(event.at_s, free))
        self._act([*decisions, *self.scheduler.decide()])
        if isinstance(event, TaskFinished):
            for task in self.followers.get(event.task, ()):
                self._push(TaskRegistered(event.at_s + task.pause_s, task.number, task.spec))

    def _act(self, decisions: Sequence[TaskDecision]) -> None:
        now_s = self.scheduler.state.now_s
        for decision in decisions:
            if isinstance(decision, TaskRun):
                self._begin(decision.task, decision.resource, now_s)
            elif isinstance(decision, TaskGoOn):
                self._push(TaskResized(now_s, decision.task, decision.device))
            elif isinstance(decision, TaskStop):
                self.interrupts += 1
                self._turn.pop(decision.task)
                self._push(TaskYielded(now_s, decision.task))

    def _begin(self, number: TaskId, resource: Resource, at_s: float) -> None:
        whole_s, how = self.times.of(self.past[number], resource)
        self.how[how] += 1
        self.begun[number] = resource, at_s
        self._turn[number] = self._push(TaskFinished(at_s + self.left[number] * whole_s, number))

    def _stop(self, number: TaskId, at_s: float) -> None:
        resource, begin_s = self.begun.pop(number)
        whole_s, _ = self.times.of(self.past[number], resource)
        if whole_s:
            self.left[number] = max(0.0, self.left[number] - (at_s - begin_s) / whole_s)
        self.runs.setdefault(number, []).append((resource, begin_s, at_s))


def _kind(spec: TaskSpec) -> Kind:
    return spec.name or f"#{spec.owner}", tuple(kernel.resource for kernel in spec.kernels)


def _outcome(
    record: TaskRecord,
    rows: Sequence[tuple[PastTask, float, float | None, Sequence[tuple[Resource, float, float]]]],
) -> StrategyOutcome:
    outcome = StrategyOutcome()
    if not rows:
        return outcome
    ends = [(came_s, came_s if end_s is None else end_s) for _, came_s, end_s, _ in rows]
    outcome.makespan_s = max(end for _, end in ends) - min(came for came, _ in ends)
    run_s = [sum(end - begin for _, begin, end in runs) for *_, runs in rows]
    outcome.median_run_s = median(run_s)
    outcome.mean_wait_s = fmean(
        end - came - ran for (came, end), ran in zip(ends, run_s, strict=True)
    )
    by_kind: dict[Resource, TaskDevice] = {}
    for device in record.devices:
        by_kind.setdefault(device.resource, device)
    idle_w = sum(power.idle_w for power in record.power.values())
    outcome.energy_j = idle_w * outcome.makespan_s
    for *_, runs in rows:
        for resource, begin, end in runs:
            outcome.runs[resource] = outcome.runs.get(resource, 0) + 1
            outcome.busy_s[resource] = outcome.busy_s.get(resource, 0.0) + end - begin
            units = by_kind[resource].units if resource in by_kind else ()
            added_w = sum(record.power[unit].added_w for unit in units if unit in record.power)
            outcome.energy_j += added_w * (end - begin)
    return outcome
