"""Tasks: their terms, events, the choices of a strategy, decisions and state.

The terms are those of Süß et al., "Impact of the Scheduling Strategy in Heterogeneous Systems That
Provide Co-Scheduling" (2017): a kernel is the code of a task for one kind of resource, a kernel
collection is all kernels of a task, an affinity states how well a kernel runs on its resource.

In messages (:mod:`rms.kernels.connection`) a task has its process's number, and no time and owner.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from operator import attrgetter
from typing import NewType

import msgspec

from rms.wire.messages import Seconds

TaskId = NewType("TaskId", int)
"""The number of a task: the daemon's (in the order of registration) or, in messages, its
process's."""


class Resource(StrEnum):
    """A kind of device that a kernel is written for."""

    CORE = "core"
    CORES = "cores"
    GPU = "gpu"
    NODE = "node"


class Affinity(IntEnum):
    """The suitability of a kernel for its resource; a kernel with ``NEVER`` is not run."""

    NEVER = 0
    LOW = 1
    MED = 2
    HIGH = 3


class Governor(StrEnum):
    """The part of the machine that tasks may use (section 4), as a strategy interprets it."""

    HIGH = "high"
    LOW = "low"


class TaskPhase(StrEnum):
    """The progress of a task."""

    BLOCKED = "BLOCKED"
    WAITING = "WAITING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    GONE = "GONE"


class TaskDevice(msgspec.Struct, frozen=True):
    """A device, on which one task runs at a time.

    Attributes:
        units: the nodes of the cluster that it is made of. Devices may have units in common, as
            one core and all cores have: then only one of them is in use at a time.
    """

    name: str
    resource: Resource
    units: tuple[int, ...]


class KernelSpec(msgspec.Struct, frozen=True):
    """A kernel as the scheduler sees it; an unknown run time is 0."""

    resource: Resource
    affinity: Affinity = Affinity.HIGH
    expected_s: Seconds = 0.0


class TaskSpec(msgspec.Struct, frozen=True):
    """A task as it was registered.

    Attributes:
        owner: number of its process; when that is gone, so is the task.
        kernels: at most one per resource.
        priority: waiting tasks of the highest priority go first.
        after: tasks that must be done before.
        interruptible: whether it has yield points, at which it can be moved.
        malleable: whether its kernel for all cores can go on with fewer cores, and more again.
    """

    owner: int
    kernels: tuple[KernelSpec, ...]
    priority: int = 0
    after: tuple[TaskId, ...] = ()
    interruptible: bool = False
    name: str = ""
    malleable: bool = False


# --- Events ----------------------------------------------------------------------------------


class _TaskEvent(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    task: TaskId


class _UnitsEvent(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    units: tuple[int, ...]


class _OfTask(msgspec.Struct, frozen=True, tag=True):
    task: TaskId


class TaskRegistered(_TaskEvent, frozen=True):
    """A task is registered.

    Attributes:
        device: the device on which it runs already, after a restart of the daemon, or "".
    """

    spec: TaskSpec
    device: str = ""


class TaskYielded(_TaskEvent, frozen=True):
    """A task has stopped at a yield point, as decided; its data is in host memory."""


class TaskResized(_TaskEvent, frozen=True):
    """A task goes on, from a yield point, on the cores of this device, as decided."""

    device: str


class TaskFinished(_TaskEvent, frozen=True):
    """The kernel of a task has returned or failed, or a task that does not run is withdrawn."""

    failed: bool = False


class OwnerGone(msgspec.Struct, frozen=True, tag=True):
    """A process is gone, and all its tasks with it."""

    at_s: float
    owner: int


class UnitsTaken(_UnitsEvent, frozen=True):
    """Others (jobs) hold these units."""


class UnitsFreed(_UnitsEvent, frozen=True):
    """Others have released these units."""


class GovernorSet(msgspec.Struct, frozen=True, tag=True):
    """The governor changes."""

    at_s: float
    governor: Governor


class Woken(msgspec.Struct, frozen=True, tag=True):
    """The time of a strategy's ``Wake`` has come, or the strategy was replaced."""

    at_s: float


TaskEvent = (
    TaskRegistered
    | TaskYielded
    | TaskResized
    | TaskFinished
    | OwnerGone
    | UnitsTaken
    | UnitsFreed
    | GovernorSet
    | Woken
)


# --- Choices of a strategy -------------------------------------------------------------------


class TaskStart(_OfTask, frozen=True):
    """Run a task that waits, or is queued, on a free device."""

    device: str


class TaskEnqueue(_OfTask, frozen=True):
    """Put a waiting task into the queue of a resource."""

    resource: Resource


class TaskDequeue(_OfTask, frozen=True):
    """Put a queued task back among those that wait."""


class TaskInterrupt(_OfTask, frozen=True):
    """Let a running task stop at its next yield point and wait again, behind earlier tasks."""


class TaskResize(_OfTask, frozen=True):
    """Let a running, malleable task go on with the cores of another device, uninterrupted.

    The new cores are a part of the present ones, or contain them and are otherwise free.
    """

    device: str


class Remember(msgspec.Struct, frozen=True, tag=True):
    """Keep a number for the next call, in ``state.memory``."""

    key: str
    value: float


class Wake(msgspec.Struct, frozen=True, tag=True):
    """Call the strategy again at a time, even if nothing happens until then."""

    at_s: float


Choice = TaskStart | TaskEnqueue | TaskDequeue | TaskInterrupt | TaskResize | Remember | Wake


# --- Decisions -------------------------------------------------------------------------------


class TaskRun(_OfTask, frozen=True):
    """A task has a device now, on which its kernel for that resource is to run or go on.

    Attributes:
        slots: the slots of the device, as ``cpu:3`` or ``gpu:0``; only in messages.
    """

    device: str
    resource: Resource
    slots: tuple[str, ...] = ()


class TaskStop(_OfTask, frozen=True):
    """A running task is to stop at its next yield point, and to report it."""


class TaskGoOn(_OfTask, frozen=True):
    """A running task is to go on with another device's cores, from a yield point, and report it."""

    device: str
    slots: tuple[str, ...] = ()


class TaskDrop(_OfTask, frozen=True):
    """A task will never run."""

    reason: str


TaskDecision = TaskRun | TaskStop | TaskGoOn | TaskDrop


# --- The state: read by strategies, changed by the scheduler ---------------------------------

OTHERS = TaskId(-1)  # the holder of a unit that is a job's
_order = attrgetter("order")

STEP = 2.0
"""Assumed speedup of a kernel over one of the next lower affinity, if their run times are unknown.
The paper states none."""


@dataclass(slots=True, eq=False)
class KernelTask:
    """A task that is not over.

    Attributes:
        preference: the resources it has kernels for, the best first.
        kernels: its kernels that may run, by resource.
        queue: the resource in whose queue it is.
        left: number of tasks before it that are not done yet.
        stopping: whether it is to stop at its next yield point.
        coming: the device that it is to go on with, whose units are held for it.
        kernel: the resource of the kernel that it runs.
        order: its place among waiting tasks: by priority, then by the time of its arrival there.
    """

    id: TaskId
    spec: TaskSpec
    phase: TaskPhase = TaskPhase.WAITING
    device: TaskDevice | None = None
    queue: Resource | None = None
    left: int = 0
    stopping: bool = False
    coming: TaskDevice | None = None
    kernel: Resource | None = None
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

    @property
    def units(self) -> set[int]:
        """The units that it holds."""
        both = (self.device, self.coming)
        return {unit for device in both if device is not None for unit in device.units}

    def factor(self, better: Resource, worse: Resource) -> float:
        """Return the speedup of its kernel on one resource over that on another.

        That is the paper's delta (section 4.2), by the run times if both are stated, else by the
        affinities.
        """
        one, other = self.kernels[better], self.kernels[worse]
        if one.expected_s and other.expected_s:
            return other.expected_s / one.expected_s
        return float(STEP ** (one.affinity - other.affinity))


class FreeDevices:
    """The free devices during one call of a strategy, less those that it has chosen."""

    def __init__(self, state: TaskState) -> None:
        self._by_resource, self._held = state.by_resource, set(state.holder)

    def free(self, resource: Resource, but: TaskDevice | None = None) -> TaskDevice | None:
        """Return the first free device of a kind; units of ``but`` count as free."""
        held = self._held
        if but is not None:
            held = held.difference(but.units)
        for device in self._by_resource.get(resource, ()):
            if held.isdisjoint(device.units):
                return device
        return None

    def take(self, device: TaskDevice) -> None:
        """Take a device, and all devices that have units in common with it."""
        self._held.update(device.units)

    def resources(self) -> list[Resource]:
        """Return the kinds of free devices."""
        return [resource for resource in self._by_resource if self.free(resource) is not None]


@dataclass
class TaskState:
    """The state of all tasks, which strategies read and only the scheduler changes.

    Attributes:
        holder: the task that holds a unit in use, or :data:`OTHERS`.
        waiting: the global queue: the highest priority first, of equal ones the oldest.
        queues: the tasks that are to run next on a kind of device, in order.
        capacity: the maximum length of these queues; a missing one is unlimited.
        after: the tasks that come after one that is not done.
        memory: numbers that strategies keep from call to call.
        failed: numbers of tasks that failed, were dropped or are gone.
    """

    devices: Mapping[str, TaskDevice]
    now_s: float = 0.0
    governor: Governor = Governor.HIGH
    holder: dict[int, TaskId] = field(default_factory=dict)
    tasks: dict[TaskId, KernelTask] = field(default_factory=dict)
    waiting: list[KernelTask] = field(default_factory=list)
    queues: dict[Resource, list[KernelTask]] = field(default_factory=dict)
    capacity: dict[Resource, int] = field(default_factory=dict)
    running: dict[TaskId, KernelTask] = field(default_factory=dict)
    after: dict[TaskId, list[KernelTask]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    failed: set[TaskId] = field(default_factory=set)
    serial: int = 0
    kernels: dict[Resource, int] = field(default_factory=dict)
    malleable: int = 0
    by_resource: dict[Resource, tuple[TaskDevice, ...]] = field(init=False)

    def __post_init__(self) -> None:
        kinds = dict.fromkeys(device.resource for device in self.devices.values())
        self.by_resource = {
            kind: tuple(device for device in self.devices.values() if device.resource is kind)
            for kind in kinds
        }
        for kind in kinds:
            self.queues.setdefault(kind, [])

    def room(self) -> FreeDevices:
        """Return the devices that are free now."""
        return FreeDevices(self)

    def free(self, device: TaskDevice) -> bool:
        """Return whether all units of a device are free."""
        return not any(unit in self.holder for unit in device.units)

    @property
    def held(self) -> dict[int, int]:
        """The units that tasks hold, with the numbers of the tasks' processes."""
        tasks = self.tasks
        return {u: tasks[task].spec.owner for u, task in self.holder.items() if task != OTHERS}

    @property
    def others(self) -> tuple[int, ...]:
        """The units that others hold, rising."""
        return tuple(sorted(unit for unit, task in self.holder.items() if task == OTHERS))

    def length(self, resource: Resource) -> float:
        """Return the number of tasks queued for or running on a resource, per device."""
        running = sum(
            task.device is not None and task.device.resource is resource
            for task in self.running.values()
        )
        return (len(self.queues[resource]) + running) / len(self.by_resource[resource])

    def can_resize(self, task: KernelTask) -> bool:
        """Return whether a task runs on cores, and could be resized now."""
        leaving = task.stopping or task.coming is not None
        return task.spec.malleable and task.kernel is Resource.CORES and not leaving

    def count(self, task: KernelTask, by: int) -> None:
        """Count a task that comes (1) or goes (-1)."""
        self.malleable += by * task.spec.malleable
        for kind in task.kernels:
            self.kernels[kind] = self.kernels.get(kind, 0) + by

    def wait(self, task: KernelTask) -> None:
        """Put a task into the global queue by its priority; a queued one at its former place."""
        if task.phase is not TaskPhase.QUEUED:
            self.serial += 1
            task.order = (-task.spec.priority, self.serial)
        task.phase = TaskPhase.WAITING
        insort(self.waiting, task, key=_order)

    def leave(self, task: KernelTask) -> None:
        """Take a task out of the queue that it is in."""
        if task.queue is not None:
            self.queues[task.queue].remove(task)
            task.queue = None
        else:
            del self.waiting[bisect_left(self.waiting, task.order, key=_order)]

    def hold(self, task: KernelTask, device: TaskDevice) -> None:
        """Give a device to a task that is in no queue."""
        task.phase, task.device, task.stopping = TaskPhase.RUNNING, device, False
        task.kernel = device.resource
        self.running[task.id] = task
        for unit in device.units:
            self.holder[unit] = task.id

    def give_back(self, task: KernelTask) -> None:
        """Take the device from a task."""
        for unit in task.units:
            del self.holder[unit]
        del self.running[task.id]
        task.device = task.coming = None

    def resize(self, task: KernelTask, device: TaskDevice) -> None:
        """Hold the device that a task is to go on with, beside its present one."""
        task.coming = device
        for unit in device.units:
            self.holder[unit] = task.id

    def resized(self, task: KernelTask) -> None:
        """Take from a task the units of its former device that it no longer needs."""
        assert task.coming is not None
        for unit in task.units - set(task.coming.units):
            del self.holder[unit]
        task.device, task.coming = task.coming, None
