"""Tasks that a daemon has seen, decided once more by another strategy, on the virtual clock.

What is not known is estimated, and how often is counted: the time that a kernel would have taken
where it did not run. Arrivals are as they were, but for those of a process that had one task after
another: such a task comes as long after the one before it as it did. Nodes that jobs had are not
to be had by tasks; one that a task has when a job took it goes to the job as soon as it is free.
An interrupted task stops at once: how far apart its yield points are was not recorded.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean, median

from rms.kernels.model import (
    OTHERS,
    Device,
    Finished,
    GoOn,
    Governor,
    GovernorSet,
    Registered,
    Resized,
    Run,
    Stop,
    Task,
    TaskDecision,
    TaskEvent,
    TaskId,
    TaskSpec,
    UnitsFreed,
    UnitsTaken,
    Woken,
    Yielded,
)
from rms.kernels.record import PastTask, Record
from rms.kernels.scheduler import Strategy, TaskScheduler
from rms.kernels.wire import Resource

IDLE_CALLS = 10_000
"""After so many calls in turn that nothing came of, a strategy is taken to start nothing more."""

Kind = tuple[str, tuple[Resource, ...]]
"""Tasks of the same name (without one: of the same process) and with kernels for the same resources
are taken to be alike."""


@dataclass
class Outcome:
    """What became of the tasks of a record.

    Attributes:
        makespan_s: from the first arrival to the last end.
        median_run_s, mean_wait_s: of a task's time on devices, and of the rest of its time.
        runs: how often a kernel was begun on each resource.
        busy_s: for how long kernels ran on each.
        energy_j: of all units over the makespan, by the model.
        interrupts: how often a task was stopped to go on elsewhere.
        times: by what the run times of kernels are known: ``seen`` (it ran there), ``alike`` (tasks
            like it did), ``affinity`` (neither; what its collection says of the difference).
        unfinished: tasks that the strategy never let come to their end.
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


def as_it_was(record: Record) -> Outcome:
    """Return what happened, in the same figures."""
    return _outcome(record, [(task, task.came_s, task.end_s, task.runs) for task in record.tasks])


def tried(record: Record, strategy: Strategy, governor: Governor | None = None) -> Outcome:
    """Return what would have happened under a strategy.

    Args:
        governor: all the time; None for what it was.

    Raises:
        Exception: what the strategy raises; ChoiceError if it chooses what cannot be.
    """
    return _Trial(record, strategy, governor).run()


class RunTimes:
    """How long the kernels of the tasks of a record take, those that did not run too.

    Args:
        cores: how many there are.
    """

    def __init__(self, tasks: Iterable[PastTask], cores: int) -> None:
        tasks, self._cores = list(tasks), cores
        seen: dict[Kind, dict[Resource, list[float]]] = {}
        for task in tasks:
            kinds = {resource for resource, _, _ in task.runs}
            if len(kinds) == 1:
                seen.setdefault(_kind(task.spec), {}).setdefault(kinds.pop(), []).append(task.run_s)
        self._alike = {
            kind: {resource: median(values) for resource, values in each.items()}
            for kind, each in seen.items()
        }
        self._scale = {task.number: self._scale_of(task) for task in tasks}

    def of(self, task: PastTask, resource: Resource) -> tuple[float, str]:
        """Return the run time of a whole task on a resource, and by what it is known."""
        known, how = self._of_kind(task, resource)
        if {kind for kind, _, _ in task.runs} == {resource}:
            how = "seen"
        return self._scale[task.number] * known, how

    def _scale_of(self, task: PastTask) -> float:
        """Return the size of a task over that of those like it: its parts make one whole."""
        return sum((end - begin) / self._of_kind(task, kind)[0] for kind, begin, end in task.runs)

    def _of_kind(self, task: PastTask, resource: Resource) -> tuple[float, str]:
        known = self._alike.get(_kind(task.spec), {})
        if known.get(resource):
            return known[resource], "alike"
        itself = Task(task.number, task.spec)
        if resource not in itself.kernels:  # narrowed: as many times slower as there are cores
            whole_s, _ = self._of_kind(task, Resource.CORES)
            return whole_s * self._cores, "affinity"
        factors = {kind: itself.factor(kind, resource) for kind in known if kind in itself.kernels}
        found = [known[kind] * factor for kind, factor in factors.items() if known[kind]]
        if found:
            return fmean(found), "affinity"
        return itself.factor(itself.preference[0], resource), "affinity"


class _Trial:
    """The tasks of a record under a strategy."""

    def __init__(self, record: Record, strategy: Strategy, governor: Governor | None) -> None:
        self.record = record
        cores = (len(each.units) for each in record.devices if each.resource is Resource.CORES)
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
                self._push(Registered(task.came_s, task.number, task.spec))
            else:
                self.followers.setdefault(task.follows, []).append(task)
        first_s = min((task.came_s for task in record.tasks), default=0.0)
        for each in record.others:
            self._push(each)
        governors = record.governors if governor is None else [GovernorSet(first_s, governor)]
        for entry in governors:
            self._push(entry)

    def run(self) -> Outcome:
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
        found = _outcome(self.record, rows)
        found.interrupts, found.times = self.interrupts, dict(self.how)
        found.unfinished = len(self.past) - len(self.ended)
        return found

    def _push(self, event: TaskEvent) -> int:
        order = next(self._order)
        heapq.heappush(self._heap, (event.at_s, order, event))
        return order

    def _next(self) -> TaskEvent | None:
        """Return what happens next; None where nothing is to come."""
        state, heap, wake_s = self.scheduler.state, self._heap, self.scheduler.wake_s
        while heap and self._interrupted(*heap[0][1:]):
            heapq.heappop(heap)
        if heap and (wake_s is None or heap[0][0] <= wake_s):
            return heapq.heappop(heap)[2]
        if not heap and not state.tasks:
            return None
        others = tuple(unit for unit, task in state.holder.items() if task == OTHERS)
        if not heap and others:
            return UnitsFreed(state.now_s, others)  # the record is over
        return None if wake_s is None else Woken(wake_s)

    def _interrupted(self, order: int, event: TaskEvent) -> bool:
        """Return whether an end will not come, since its task was stopped before."""
        return isinstance(event, Finished) and self._turn.get(event.task) != order

    def _feed(self, event: TaskEvent) -> None:
        state = self.scheduler.state
        decisions: list[TaskDecision] = []
        if isinstance(event, Resized) and event.task not in self.begun:
            return  # it came to its end before
        if isinstance(event, UnitsTaken):
            self.wanted.update(self.units.intersection(event.units))
        elif isinstance(event, UnitsFreed):
            held = [unit for unit in event.units if state.holder.get(unit) == OTHERS]
            self.wanted.difference_update(event.units)
            self.scheduler.apply(UnitsFreed(event.at_s, tuple(held)))
        else:
            if isinstance(event, Yielded):
                self._stop(event.task, event.at_s)
            elif isinstance(event, Resized):
                self._stop(event.task, event.at_s)
                self._begin(event.task, state.devices[event.device].resource, event.at_s)
            elif isinstance(event, Finished):
                self._stop(event.task, event.at_s)
                self.ended[event.task] = event.at_s
            elif isinstance(event, Registered):
                self.came[event.task] = event.at_s
            decisions += self.scheduler.apply(event)
        free = tuple(sorted(unit for unit in self.wanted if unit not in state.holder))
        if free:
            self.wanted.difference_update(free)
            self.scheduler.apply(UnitsTaken(event.at_s, free))
        self._act([*decisions, *self.scheduler.decide()])
        if isinstance(event, Finished):
            for task in self.followers.get(event.task, ()):
                self._push(Registered(event.at_s + task.pause_s, task.number, task.spec))

    def _act(self, decisions: Sequence[TaskDecision]) -> None:
        now_s = self.scheduler.state.now_s
        for decision in decisions:
            if isinstance(decision, Run):
                self._begin(decision.task, decision.resource, now_s)
            elif isinstance(decision, GoOn):
                self._push(Resized(now_s, decision.task, decision.device))
            elif isinstance(decision, Stop):
                self.interrupts += 1
                self._turn.pop(decision.task)
                self._push(Yielded(now_s, decision.task))

    def _begin(self, number: TaskId, resource: Resource, at_s: float) -> None:
        whole_s, how = self.times.of(self.past[number], resource)
        self.how[how] += 1
        self.begun[number] = resource, at_s
        self._turn[number] = self._push(Finished(at_s + self.left[number] * whole_s, number))

    def _stop(self, number: TaskId, at_s: float) -> None:
        resource, begin_s = self.begun.pop(number)
        whole_s, _ = self.times.of(self.past[number], resource)
        if whole_s:
            self.left[number] = max(0.0, self.left[number] - (at_s - begin_s) / whole_s)
        self.runs.setdefault(number, []).append((resource, begin_s, at_s))


def _kind(spec: TaskSpec) -> Kind:
    return spec.name or f"#{spec.owner}", tuple(kernel.resource for kernel in spec.kernels)


def _outcome(
    record: Record,
    rows: Sequence[tuple[PastTask, float, float | None, Sequence[tuple[Resource, float, float]]]],
) -> Outcome:
    found = Outcome()
    if not rows:
        return found
    ends = [(came_s, came_s if end_s is None else end_s) for _, came_s, end_s, _ in rows]
    found.makespan_s = max(end for _, end in ends) - min(came for came, _ in ends)
    run_s = [sum(end - begin for _, begin, end in runs) for *_, runs in rows]
    found.median_run_s = median(run_s)
    found.mean_wait_s = fmean(
        end - came - ran for (came, end), ran in zip(ends, run_s, strict=True)
    )
    by_kind: dict[Resource, Device] = {}
    for device in record.devices:
        by_kind.setdefault(device.resource, device)
    idle_w = sum(power.idle_w for power in record.power.values())
    found.energy_j = idle_w * found.makespan_s
    for *_, runs in rows:
        for resource, begin, end in runs:
            found.runs[resource] = found.runs.get(resource, 0) + 1
            found.busy_s[resource] = found.busy_s.get(resource, 0.0) + end - begin
            units = by_kind[resource].units if resource in by_kind else ()
            added_w = sum(record.power[unit].added_w for unit in units if unit in record.power)
            found.energy_j += added_w * (end - begin)
    return found
