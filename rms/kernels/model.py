"""Devices and tasks, what happens to them, what a strategy chooses, and what is decided."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import NewType

import msgspec

from rms.kernels.wire import Affinity, KernelSpec, Resource

TaskId = NewType("TaskId", int)
"""Tasks are numbered in the order in which they are registered."""


class Governor(StrEnum):
    """How much of the machine tasks may use (section 4); each strategy reads it its own way."""

    HIGH = "high"
    LOW = "low"


class Phase(StrEnum):
    """How far a task is."""

    BLOCKED = "BLOCKED"
    WAITING = "WAITING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    GONE = "GONE"


class Device(msgspec.Struct, frozen=True):
    """What one task at a time runs on.

    Attributes:
        units: numbers of what it is made of (nodes of the cluster). Devices may have units in
            common, as one core and all cores have: then only one of them is in use at a time.
    """

    name: str
    resource: Resource
    units: tuple[int, ...]


class TaskSpec(msgspec.Struct, frozen=True):
    """A task as it was registered.

    Attributes:
        owner: number of the process whose task it is; when that is gone, so is the task.
        kernels: one for each resource at most.
        priority: of waiting tasks the highest go first.
        after: tasks that must be done before.
        interruptible: it has yield points, at which it can be moved.
        malleable: its kernel for all cores can go on with fewer cores, and with more again.
    """

    owner: int
    kernels: tuple[KernelSpec, ...]
    priority: int = 0
    after: tuple[TaskId, ...] = ()
    interruptible: bool = False
    name: str = ""
    malleable: bool = False


# --- events ----------------------------------------------------------------------------------


class Registered(msgspec.Struct, frozen=True, tag=True):
    """A task has been handed in.

    Attributes:
        device: where it runs already, its daemon having been away: others may hold it for it.
    """

    at_s: float
    task: TaskId
    spec: TaskSpec
    device: str = ""


class Yielded(msgspec.Struct, frozen=True, tag=True):
    """A task that was told to has stopped at a yield point; its data is with the host."""

    at_s: float
    task: TaskId


class Resized(msgspec.Struct, frozen=True, tag=True):
    """A task that was told to goes on, at a yield point, on the cores of this device."""

    at_s: float
    task: TaskId
    device: str


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The kernel of a task has returned, or failed; a task that does not run is withdrawn."""

    at_s: float
    task: TaskId
    failed: bool = False


class OwnerGone(msgspec.Struct, frozen=True, tag=True):
    """A process is gone, and all its tasks with it."""

    at_s: float
    owner: int


class UnitsTaken(msgspec.Struct, frozen=True, tag=True):
    """Others (jobs) hold these units."""

    at_s: float
    units: tuple[int, ...]


class UnitsFreed(msgspec.Struct, frozen=True, tag=True):
    """Others have given these units back."""

    at_s: float
    units: tuple[int, ...]


class GovernorSet(msgspec.Struct, frozen=True, tag=True):
    """More or less of the machine may be used from here on."""

    at_s: float
    governor: Governor


class Woken(msgspec.Struct, frozen=True, tag=True):
    """Time has come that a strategy asked for, or the strategy is another one."""

    at_s: float


TaskEvent = (
    Registered
    | Yielded
    | Resized
    | Finished
    | OwnerGone
    | UnitsTaken
    | UnitsFreed
    | GovernorSet
    | Woken
)


# --- what a strategy chooses -----------------------------------------------------------------


class Start(msgspec.Struct, frozen=True, tag=True):
    """Run a task that waits, or is queued, on a free device."""

    task: TaskId
    device: str


class Enqueue(msgspec.Struct, frozen=True, tag=True):
    """Put a waiting task into the queue of a resource."""

    task: TaskId
    resource: Resource


class Dequeue(msgspec.Struct, frozen=True, tag=True):
    """Put a queued task back among those that wait."""

    task: TaskId


class Interrupt(msgspec.Struct, frozen=True, tag=True):
    """Let a running task stop at its next yield point and wait again, before those of its kind."""

    task: TaskId


class Resize(msgspec.Struct, frozen=True, tag=True):
    """Let a running, malleable task go on with the cores of another device, uninterrupted.

    Those are part of what it has, or what it has is part of them and the rest is free.
    """

    task: TaskId
    device: str


class Remember(msgspec.Struct, frozen=True, tag=True):
    """Keep a number for the next call, in ``state.memory``."""

    key: str
    value: float


class Wake(msgspec.Struct, frozen=True, tag=True):
    """Ask again at a time, whatever happens until then."""

    at_s: float


Choice = Start | Enqueue | Dequeue | Interrupt | Resize | Remember | Wake


# --- what is decided -------------------------------------------------------------------------


class Run(msgspec.Struct, frozen=True, tag=True):
    """A task has a device now: its kernel for that resource is to run, or to go on there."""

    task: TaskId
    device: str
    resource: Resource


class Stop(msgspec.Struct, frozen=True, tag=True):
    """A running task is to stop at its next yield point, and to say so."""

    task: TaskId


class GoOn(msgspec.Struct, frozen=True, tag=True):
    """A running task is to go on with another device's cores, from a yield point on, and say so."""

    task: TaskId
    device: str


class Drop(msgspec.Struct, frozen=True, tag=True):
    """A task will never run."""

    task: TaskId
    reason: str


TaskDecision = Run | Stop | GoOn | Drop


# FUSED rms.kernels.model: The state of the tasks: what a strategy reads, and what changes it.

OTHERS = TaskId(-1)
"""Who holds a unit that no task holds."""

STEP = 2.0
"""How many times faster a kernel is taken to be than one of the next lower affinity, where their
run times are not known. The paper states none."""


@dataclass(slots=True, eq=False)
class Task:
    """A task there is.

    Attributes:
        preference: the resources it has kernels for, the best first.
        kernels: its kernels that may run, by resource.
        device: where it runs.
        queue: in whose queue it is.
        left: how many tasks it comes after are not done yet.
        asked: it was told to stop at its next yield point.
        coming: the device that it was told to go on with; what that has more is held for it.
        kernel: the resource that the kernel it runs is for.
        order: its place among waiting tasks: by priority, then by when it began to wait.
    """

    id: TaskId
    spec: TaskSpec
    phase: Phase = Phase.WAITING
    device: Device | None = None
    queue: Resource | None = None
    left: int = 0
    asked: bool = False
    coming: Device | None = None
    kernel: Resource | None = None
    registered_s: float = 0.0
    kernels: Mapping[Resource, KernelSpec] = field(init=False)
    preference: tuple[Resource, ...] = field(init=False)
    order: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        runs = [kernel for kernel in self.spec.kernels if kernel.affinity is not Affinity.NEVER]
        runs.sort(key=lambda kernel: -kernel.affinity)
        if all(kernel.expected_s for kernel in runs):
            runs.sort(key=lambda kernel: kernel.expected_s)
        self.kernels = {kernel.resource: kernel for kernel in runs}
        self.preference = tuple(self.kernels)

    def factor(self, better: Resource, worse: Resource) -> float:
        """Return how many times faster its kernel is on one resource than on another.

        That is the paper's delta (section 4.2): of the run times where both are known, else by
        affinities.
        """
        one, other = self.kernels[better], self.kernels[worse]
        if one.expected_s and other.expected_s:
            return other.expected_s / one.expected_s
        return float(STEP ** (one.affinity - other.affinity))


class Room:
    """The free devices, as a strategy goes through them: what it takes is free no more."""

    def __init__(self, state: TaskState, held: Iterable[int]) -> None:
        self._by_resource, self._held = state.by_resource, set(held)

    def free(self, resource: Resource, but: Device | None = None) -> Device | None:
        """Return the first free device of a kind; free to whoever leaves ``but`` for it."""
        held = self._held
        own = () if but is None else but.units
        for device in self._by_resource.get(resource, ()):
            if held.isdisjoint(device.units) or all(
                unit in own or unit not in held for unit in device.units
            ):
                return device
        return None

    def take(self, device: Device) -> None:
        """Take a device: none that has units in common with it is free any more."""
        self._held.update(device.units)

    def resources(self) -> list[Resource]:
        """Return the kinds of which a device is free."""
        return [resource for resource in self._by_resource if self.free(resource) is not None]


@dataclass
class TaskState:
    """Everything a strategy may look at; only the scheduler changes it.

    Attributes:
        devices: by name.
        by_resource: the devices of each kind.
        holder: of each unit in use, the task that holds it, or :data:`OTHERS`.
        tasks: all there are.
        waiting: the global queue: the highest priority first, of equal ones the oldest.
        queues: of each kind of device, the tasks that are to run there next, in order.
        capacity: how many tasks each of these queues takes; one not in here any number.
        running: tasks that have a device.
        after: of each task that is not done, those that come after it.
        memory: numbers that strategies keep from call to call.
        failed: numbers of tasks that failed, or were dropped or gone.
        kernels: how many of the tasks have a kernel for a resource.
        malleable: how many can go on with fewer cores.
        serial: how often a task began to wait.
    """

    devices: Mapping[str, Device]
    now_s: float = 0.0
    governor: Governor = Governor.HIGH
    holder: dict[int, TaskId] = field(default_factory=dict)
    tasks: dict[TaskId, Task] = field(default_factory=dict)
    waiting: list[Task] = field(default_factory=list)
    queues: dict[Resource, list[Task]] = field(default_factory=dict)
    capacity: dict[Resource, int] = field(default_factory=dict)
    running: dict[TaskId, Task] = field(default_factory=dict)
    after: dict[TaskId, list[Task]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    failed: set[TaskId] = field(default_factory=set)
    serial: int = 0
    kernels: dict[Resource, int] = field(default_factory=dict)
    malleable: int = 0
    by_resource: dict[Resource, tuple[Device, ...]] = field(init=False)

    def __post_init__(self) -> None:
        kinds = dict.fromkeys(device.resource for device in self.devices.values())
        self.by_resource = {
            kind: tuple(each for each in self.devices.values() if each.resource is kind)
            for kind in kinds
        }
        for kind in kinds:
            self.queues.setdefault(kind, [])

    def room(self) -> Room:
        """Return the devices that are free now."""
        return Room(self, self.holder)

    def free(self, device: Device) -> bool:
        """Return whether nobody holds any unit of a device."""
        return not any(unit in self.holder for unit in device.units)

    def of_no_task(self, device: Device) -> bool:
        """Return whether no task holds any unit of a device: it is free, or kept for one."""
        return all(self.holder.get(unit, OTHERS) == OTHERS for unit in device.units)

    @property
    def held(self) -> dict[int, int]:
        """The units that tasks hold, each with the number of the process whose task it is."""
        tasks = self.tasks
        return {u: tasks[task].spec.owner for u, task in self.holder.items() if task != OTHERS}

    def length(self, resource: Resource) -> float:
        """Return how many tasks are queued for and run on a resource, for each of its devices."""
        running = sum(
            task.device is not None and task.device.resource is resource
            for task in self.running.values()
        )
        return (len(self.queues[resource]) + running) / len(self.by_resource[resource])

    def can_resize(self, task: Task) -> bool:
        """Return whether a task runs on cores, and could go on with others if told so now."""
        told = task.asked or task.coming is not None
        return task.spec.malleable and task.kernel is Resource.CORES and not told

    # --- what the scheduler does -------------------------------------------------------------

    def count(self, task: Task, by: int) -> None:
        """Count a task that comes (1) or goes (-1)."""
        self.malleable += by * task.spec.malleable
        for kind in task.kernels:
            self.kernels[kind] = self.kernels.get(kind, 0) + by

    def wait(self, task: Task) -> None:
        """Put a task into the global queue, behind those of its priority; back if it was there."""
        if task.phase is not Phase.QUEUED:
            self.serial += 1
            task.order = (-task.spec.priority, self.serial)
        task.phase = Phase.WAITING
        insort(self.waiting, task, key=_order)

    def leave(self, task: Task) -> None:
        """Take a task out of the queue that it is in."""
        if task.queue is not None:
            self.queues[task.queue].remove(task)
            task.queue = None
        else:
            del self.waiting[bisect_left(self.waiting, task.order, key=_order)]

    def hold(self, task: Task, device: Device) -> None:
        """Give a device to a task that is in no queue."""
        task.phase, task.device, task.asked = Phase.RUNNING, device, False
        task.kernel = device.resource
        self.running[task.id] = task
        for unit in device.units:
            self.holder[unit] = task.id

    def give_back(self, task: Task) -> None:
        """Take the device from a task."""
        for unit in self._units_of(task):
            del self.holder[unit]
        del self.running[task.id]
        task.device = task.coming = None

    def resize(self, task: Task, device: Device) -> None:
        """Hold what a task is to go on with, beside what it has."""
        task.coming = device
        for unit in device.units:
            self.holder[unit] = task.id

    def resized(self, task: Task) -> None:
        """Take from a task what it goes on without."""
        assert task.coming is not None
        for unit in self._units_of(task) - set(task.coming.units):
            del self.holder[unit]
        task.device, task.coming = task.coming, None

    def _units_of(self, task: Task) -> set[int]:
        """Return the units that a running task holds."""
        both = (task.device, task.coming)
        return {unit for device in both if device is not None for unit in device.units}


def _order(task: Task) -> tuple[int, int]:
    return task.order


# FUSED rms.kernels.model: What no strategy may break: checked on every choice, before it is taken.


class ChoiceError(RuntimeError):
    """A strategy chose what cannot be."""


def check(state: TaskState, choice: Choice) -> None:
    """Refuse a choice that gives a device twice, or a task what it has no kernel for.

    Raises:
        ChoiceError: the choice cannot be.
    """
    if isinstance(choice, Start):
        task, device = _task(state, choice.task), state.devices.get(choice.device)
        if device is None:
            known = ", ".join(state.devices)
            raise ChoiceError(f"expected a device of {known}, got {choice.device!r}")
        if task.phase not in (Phase.WAITING, Phase.QUEUED):
            raise ChoiceError(f"expected a waiting task to start, got {task.id}, {task.phase}")
        if device.resource not in task.kernels:
            raise ChoiceError(f"expected a kernel for {device.resource} in task {task.id}")
        if not state.free(device):
            raise ChoiceError(f"expected a free device for task {task.id}, got {device.name}")
    elif isinstance(choice, Enqueue):
        _check_enqueue(state, choice)
    elif isinstance(choice, Dequeue):
        task = _task(state, choice.task)
        if task.phase is not Phase.QUEUED:
            raise ChoiceError(f"expected a queued task, got {task.id}, {task.phase}")
    elif isinstance(choice, Interrupt):
        task = _task(state, choice.task)
        if task.phase is not Phase.RUNNING or not task.spec.interruptible:
            raise ChoiceError(
                f"expected a running task with yield points to interrupt, got {task.id}"
            )
    elif isinstance(choice, Resize):
        _check_resize(state, choice)
    elif isinstance(choice, Wake):
        if not choice.at_s > state.now_s:
            raise ChoiceError(
                f"expected a time after {state.now_s} s to wake at, got {choice.at_s}"
            )
    elif isinstance(choice, Remember):
        if not isfinite(choice.value):
            raise ChoiceError(f"expected a finite number to remember, got {choice.value}")
    else:
        raise ChoiceError(f"expected a choice (Start, Enqueue, ...), got {choice!r}")


def _check_enqueue(state: TaskState, choice: Enqueue) -> None:
    task = _task(state, choice.task)
    if task.phase is not Phase.WAITING:
        raise ChoiceError(f"expected a waiting task to queue, got {task.id}, {task.phase}")
    queue = state.queues.get(choice.resource)
    if queue is None or choice.resource not in task.kernels:
        raise ChoiceError(f"expected a device and a kernel for {choice.resource}, task {task.id}")
    most = state.capacity.get(choice.resource)
    if most is not None and len(queue) >= most:
        raise ChoiceError(f"expected at most {most} tasks queued for {choice.resource}, got more")


def _check_resize(state: TaskState, choice: Resize) -> None:
    task, device = _task(state, choice.task), state.devices.get(choice.device)
    if task.device is None or not task.spec.malleable or task.kernel is not Resource.CORES:
        raise ChoiceError(f"expected a malleable task on cores to resize, got {task.id}")
    if task.coming is not None or task.asked:
        raise ChoiceError(f"expected a task that was told nothing yet to resize, got {task.id}")
    if device is None or device.resource not in (Resource.CORE, Resource.CORES):
        raise ChoiceError(f"expected a device of cores for task {task.id}, got {choice.device!r}")
    now, then = set(task.device.units), set(device.units)
    if now == then or not (now < then or then < now):
        raise ChoiceError(
            f"expected more cores than {task.device.name} or some of them, got {device.name}"
        )
    if any(unit in state.holder for unit in then - now):
        raise ChoiceError(f"expected free cores for task {task.id} to grow, got {device.name}")


def _task(state: TaskState, task_id: TaskId) -> Task:
    task = state.tasks.get(task_id)
    if task is None:
        raise ChoiceError(f"expected a task there is, got {task_id}")
    return task
