"""Devices and tasks, what happens to them, what a strategy chooses, and what is decided."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

import msgspec

from rms.wire.tasks import KernelSpec, Resource

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
