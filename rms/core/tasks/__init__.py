"""Tasks that have kernels for several devices: who runs where, decided by a strategy.

Pure: events in, decisions out, time in the state. Beside the engine of jobs and apart from it: what
both share are units (nodes), of which the one tells the other which it holds.

    events ──► scheduler: state ──► strategy ──► choices ──► rules ──► decisions

A task is in one of these places:

| state | where it is kept |
|---|---|
| BLOCKED | ``tasks`` only, until the tasks that it comes after are done |
| WAITING | ``waiting``, the global queue: by priority, then age |
| QUEUED | ``queues[resource]``: it starts there as soon as a device is free, in order |
| RUNNING | ``running``; its device's units are held |
| DONE, FAILED, GONE | nowhere: it is forgotten, but that it failed |

A strategy is a function of the state that changes nothing and returns choices
(:mod:`rms.core.tasks.model`); whatever it wants to remember is in the state too. It may be replaced
at any time, and the queues stay as they are.
"""

from rms.core.tasks.model import (
    Dequeue,
    Device,
    Enqueue,
    Governor,
    Interrupt,
    Remember,
    Resize,
    Start,
    TaskId,
    TaskSpec,
    Wake,
)
from rms.core.tasks.scheduler import Strategy, TaskScheduler
from rms.core.tasks.state import Room, Task, TaskState
from rms.wire.tasks import Affinity, KernelSpec, Resource

__all__ = [
    "Affinity",
    "Dequeue",
    "Device",
    "Enqueue",
    "Governor",
    "Interrupt",
    "KernelSpec",
    "Remember",
    "Resize",
    "Resource",
    "Room",
    "Start",
    "Strategy",
    "Task",
    "TaskId",
    "TaskScheduler",
    "TaskSpec",
    "TaskState",
    "Wake",
]
