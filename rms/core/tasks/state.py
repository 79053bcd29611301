"""The state of the tasks: what a strategy reads, and what changes it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rms.core.tasks.model import Device, Governor, Phase, TaskId, TaskSpec
from rms.wire.tasks import Affinity, KernelSpec, Resource

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
