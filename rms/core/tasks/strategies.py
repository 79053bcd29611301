"""The four strategies of Süß et al. (section 4), with the numbers of their experiments.

Where the paper is silent:

- one budget for all resources (section 5.1 counts "a GPU and a multi-threaded kernel" against
  it, where section 4.3 says "each available resource");
- of a resource queue's length the running task counts, and it is divided by the number of devices;
- ``delta`` is the task's own factor between two resources, unless one is given;

Where the paper contradicts itself: with governor ``low`` the constraint's 9 credits pay for a task
on the GPU (section 4.4), but section 5.1 lists what may run then, all of it on the CPU, and section
5.2 explains its result by a prohibited GPU. The measured results are those of the CPU only, so
this is the default; ``gpu_when_low=True`` takes section 4.4 at its word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import floor
from typing import ClassVar

import msgspec

from rms.core.tasks.model import (
    Choice,
    Dequeue,
    Enqueue,
    Governor,
    Interrupt,
    Remember,
    Resize,
    Start,
    Wake,
)
from rms.core.tasks.scheduler import Strategy
from rms.core.tasks.state import Room, Task, TaskState
from rms.wire.tasks import Resource

CPU = (Resource.CORE, Resource.CORES)


class ShortTerm(msgspec.Struct, frozen=True):
    """Use all resources permanently (section 4.1); the governor is not looked at.

    A free resource takes the first task that prefers it most; if there is none, the first whose
    second preference it is, and so on. With nobody waiting, a task with yield points moves to
    a better device that has fallen free (the paper's third reason for idle accelerators).

    Not in the paper: a malleable task on all cores narrows to one of them while others wait for a
    core, and goes wide again when nobody does.
    """

    name: ClassVar[str] = "short-term"
    capacity: ClassVar[Mapping[Resource, int]] = dict.fromkeys(Resource, 1)
    move: bool = True
    narrow: bool = True

    def __call__(self, state: TaskState) -> Iterator[Choice]:
        """Fill every free device, then see who would be better off elsewhere."""
        room, started = state.room(), set[int]()
        for resource in state.by_resource:
            if not state.kernels.get(resource):
                continue
            while (device := room.free(resource)) is not None:
                task = _best_for(state, resource, started)
                if task is None:
                    break
                started.add(task.id)
                room.take(device)
                yield Start(task.id, device.name)
        if self.narrow and state.malleable:
            if len(state.waiting) > len(started):
                yield from _narrowed(state, started)
            else:
                yield from _widened(state, room)
        if self.move and not state.waiting:
            yield from _moves(state, room)


class LongTerm(msgspec.Struct, frozen=True):
    """Place every task on the resource it prefers most, queues being worked off alike (4.2).

    A task is queued for its first choice if that queue's length is at most delta times that of the
    second choice, else the second and third are compared, and so on; the last takes all. With
    governor ``low`` only CPU cores are used.
    """

    name: ClassVar[str] = "long-term"
    capacity: ClassVar[Mapping[Resource, int]] = {}
    delta: float | None = None

    def __call__(self, state: TaskState) -> Iterator[Choice]:
        """Queue every task that waits."""
        low = state.governor is Governor.LOW
        masked = [kind for kind in state.queues if low and kind not in CPU]
        back = [task for kind in masked for task in state.queues[kind]]
        yield from (Dequeue(task.id) for task in back)
        lengths = {kind: state.length(kind) for kind in state.by_resource if kind not in masked}
        for task in (*state.waiting, *back):
            kinds = [kind for kind in task.preference if kind in lengths]
            if kinds:
                kind = self._choice(task, kinds, lengths)
                lengths[kind] += 1.0 / len(state.by_resource[kind])
                yield Enqueue(task.id, kind)

    def _choice(
        self, task: Task, kinds: list[Resource], lengths: Mapping[Resource, float]
    ) -> Resource:
        for better, worse in pairwise(kinds):
            delta = self.delta or task.factor(better, worse)
            if lengths[better] <= delta * lengths[worse]:
                return better
        return kinds[-1]


class Banking(msgspec.Struct, frozen=True):
    """Running a kernel costs credits, of which so many come back every few seconds (4.3)."""

    name: ClassVar[str] = "banking"
    capacity: ClassVar[Mapping[Resource, int]] = dict.fromkeys(Resource, 1)
    most: float = 100.0
    every_s: float = 5.0
    refill_high: float = 15.0
    refill_low: float = 10.0
    gpu: float = 10.0
    cores: float = 5.0
    core: float = 1.0
    node: float = 10.0

    def __call__(self, state: TaskState) -> Iterator[Choice]:
        """Start, in order, who can be paid for on a free device, the most preferred first."""
        refill = self.refill_high if state.governor is Governor.HIGH else self.refill_low
        credits_ = state.memory.get("banking.credits", self.most)
        since_s = state.memory.get("banking.since_s", state.now_s)
        refills = floor((state.now_s - since_s) / self.every_s + 1e-9)
        credits_ = min(self.most, credits_ + refills * refill)
        since_s += refills * self.every_s
        starts, credits_ = _pay(state, self, credits_)
        yield from starts
        yield Remember("banking.credits", credits_)
        yield Remember("banking.since_s", since_s)
        if state.waiting:
            yield Wake(since_s + self.every_s)


class Constraint(msgspec.Struct, frozen=True):
    """The credits of all tasks that run at once stay within a limit (4.4).

    Attributes:
        gpu_when_low: whether the GPU and other nodes may be used with governor ``low``; if not,
            tasks that have no kernel for the CPU wait until it is ``high``, as under
            :class:`LongTerm` (sections 5.1 and 5.2).
    """

    name: ClassVar[str] = "constraint"
    capacity: ClassVar[Mapping[Resource, int]] = dict.fromkeys(Resource, 1)
    limit_high: float = 18.0
    limit_low: float = 9.0
    gpu_when_low: bool = False
    gpu: float = 9.0
    cores: float = 6.0
    core: float = 3.0
    node: float = 9.0

    def __call__(self, state: TaskState) -> Iterator[Choice]:
        """Start, in order, who fits on a free device, the most preferred first."""
        low = state.governor is Governor.LOW
        limit = self.limit_low if low else self.limit_high
        used = sum(
            getattr(self, task.device.resource)
            for task in state.running.values()
            if task.device is not None
        )
        masked = () if self.gpu_when_low or not low else (Resource.GPU, Resource.NODE)
        starts, _ = _pay(state, self, limit - used, masked)
        yield from starts


STRATEGIES: Mapping[str, Strategy] = {
    each.name: each for each in (ShortTerm(), LongTerm(), Banking(), Constraint())
}
"""The shipped ones, by name."""


def _pay(
    state: TaskState, costs: Banking | Constraint, left: float, masked: Sequence[Resource] = ()
) -> tuple[list[Start], float]:
    """Return who starts, in order, each where it would best be among what is left; and the rest."""
    room, starts = state.room(), list[Start]()
    kinds = [kind for kind in room.resources() if kind not in masked]
    for task in state.waiting:
        if not any(getattr(costs, kind) <= left for kind in kinds):
            break
        for kind in task.preference:
            device = room.free(kind) if kind in kinds else None
            if device is not None and getattr(costs, kind) <= left:
                left -= getattr(costs, kind)
                room.take(device)
                kinds = [each for each in room.resources() if each not in masked]
                starts.append(Start(task.id, device.name))
                break
    return starts, left


def _best_for(state: TaskState, resource: Resource, but: set[int]) -> Task | None:
    """Return the waiting task whose rank for a resource is best, of equal ones the first."""
    found, best = None, len(Resource)
    for task in state.waiting:
        if resource in task.kernels and task.id not in but:
            rank = task.preference.index(resource)
            if rank < best:
                found, best = task, rank
                if not rank:
                    break
    return found


def _narrowed(state: TaskState, but: set[int]) -> Iterator[Choice]:
    """Narrow malleable tasks to one core each, as long as more wait for one than are coming."""
    wait = sum(Resource.CORE in task.kernels and task.id not in but for task in state.waiting)
    for task in state.running.values():
        if task.device is not None and task.coming is not None:
            wait -= len(set(task.device.units) - set(task.coming.units))
    for task in state.running.values():
        if wait <= 0:
            return
        device = task.device
        if device is None or not state.can_resize(task) or len(device.units) == 1:
            continue
        for core in state.by_resource.get(Resource.CORE, ()):
            if set(core.units) <= set(device.units):
                wait -= len(device.units) - len(core.units)
                yield Resize(task.id, core.name)
                break


def _widened(state: TaskState, room: Room) -> Iterator[Choice]:
    """Let narrowed tasks have all cores again, where nobody else has one."""
    for task in state.running.values():
        if task.device is None or not state.can_resize(task):
            continue
        device = room.free(Resource.CORES, task.device)
        if device is not None and task.device.resource is Resource.CORE:
            room.take(device)
            yield Resize(task.id, device.name)


def _moves(state: TaskState, room: Room) -> Iterator[Choice]:
    """Interrupt running tasks for which a better device is free, one for each device."""
    for task in state.running.values():
        if task.asked or not task.spec.interruptible or task.device is None or task.coming:
            continue
        assert task.kernel is not None
        for resource in task.preference[: task.preference.index(task.kernel)]:
            device = room.free(resource, task.device)
            if device is not None:
                room.take(device)
                yield Interrupt(task.id)
                break
