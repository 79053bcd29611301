"""Tasks with several kernels: what a program and the scheduler say of them to each other.

Words of Süß et al., "Impact of the Scheduling Strategy in Heterogeneous Systems That Provide
Co-Scheduling" (2017): a kernel is the code of a task for one kind of resource, a kernel collection
all kernels of a task, an affinity says how well a kernel runs there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum, StrEnum
from pathlib import Path

import msgspec

from rms.wire.files import state_folder
from rms.wire.messages import SERVER_VARIABLE, Seconds

TASK_STRATEGIES = ("short-term", "long-term", "banking", "constraint")
"""What ``rms policy`` takes to be a strategy of tasks."""


class Resource(StrEnum):
    """A kind of device that a kernel is written for."""

    CORE = "core"
    CORES = "cores"
    GPU = "gpu"
    NODE = "node"


class Affinity(IntEnum):
    """How well a kernel runs on its resource; one with ``NEVER`` is not run."""

    NEVER = 0
    LOW = 1
    MED = 2
    HIGH = 3


class KernelSpec(msgspec.Struct, frozen=True):
    """What the scheduler knows of a kernel.

    Attributes:
        expected_s: its run time as far as known, 0 where it is not.
    """

    resource: Resource
    affinity: Affinity = Affinity.HIGH
    expected_s: Seconds = 0.0


# --- from a process to the daemon ------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A process that has tasks; the first message on its connection.

    Attributes:
        program: its name: whose the energy of its tasks is.
    """

    pid: int
    version: int = 1
    program: str = ""


class Register(msgspec.Struct, frozen=True, tag=True):
    """A task, by the process's own number of it.

    Attributes:
        after: tasks of this process that must be done before.
        device: where it runs already, the daemon having been away.
        malleable: its kernel for all cores can go on with fewer, and with more again.
    """

    task: int
    kernels: tuple[KernelSpec, ...]
    priority: int = 0
    after: tuple[int, ...] = ()
    interruptible: bool = False
    name: str = ""
    device: str = ""
    malleable: bool = False


class Yielded(msgspec.Struct, frozen=True, tag=True):
    """A task has stopped at a yield point and holds its device no more."""

    task: int


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The kernel of a task has returned, or failed; or the task is wanted no more."""

    task: int
    failed: bool = False


class Resized(msgspec.Struct, frozen=True, tag=True):
    """A task goes on with the cores of this device, as it was told to."""

    task: int
    device: str


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Start a command on the node that a task has; it is ended with the task's time there."""

    task: int
    command: list[str]
    cwd: str
    env: dict[str, str]


ProcessMessage = Hello | Register | Yielded | Resized | Finished | Begin


# --- from the daemon to a process ------------------------------------------------------------


class Run(msgspec.Struct, frozen=True, tag=True):
    """Run the kernel for this resource; ``slots`` as ``cpu:3`` or ``gpu:0``."""

    task: int
    device: str
    resource: Resource
    slots: tuple[str, ...] = ()


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Stop at the next yield point, and say so."""

    task: int


class GoOn(msgspec.Struct, frozen=True, tag=True):
    """Go on with these cores from the next yield point on, and say so."""

    task: int
    device: str
    slots: tuple[str, ...]


class Drop(msgspec.Struct, frozen=True, tag=True):
    """The task will never run."""

    task: int
    reason: str


class Lost(msgspec.Struct, frozen=True, tag=True):
    """The device that a task ran on was given to others while its process could not be heard."""

    task: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The command that a task had started on its node could not be, or is over."""

    task: int
    reason: str


DaemonMessage = Run | Stop | GoOn | Drop | Lost | Ended


# --- how messages travel ---------------------------------------------------------------------

LENGTH_BYTES = 4
LONGEST = 1 << 20
"""No message is longer; what says it is, is none."""


def frame(message: ProcessMessage | DaemonMessage) -> bytes:
    """Return a message as it is sent: its length, then MessagePack."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class Frames:
    """Bytes in, whole messages out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are whole with this.

        Raises:
            ValueError: what came is no message.
        """
        self._data += data
        while len(self._data) >= LENGTH_BYTES:
            length = int.from_bytes(self._data[:LENGTH_BYTES], "big")
            if length > LONGEST:
                raise ValueError(f"expected a message of at most {LONGEST} bytes, got {length}")
            if len(self._data) < LENGTH_BYTES + length:
                return
            body = bytes(self._data[LENGTH_BYTES : LENGTH_BYTES + length])
            del self._data[: LENGTH_BYTES + length]
            yield body


def tasks_path(env: Mapping[str, str]) -> Path | None:
    """Return the socket for tasks of the daemon that ``RMS_SERVER`` names, or of this user's.

    None where that is on another machine: devices are those of the machine that the daemon is on.
    """
    server = env.get(SERVER_VARIABLE) or f"unix:{state_folder(env) / 'socket'}"
    return Path(f"{server.removeprefix('unix:')}-tasks") if server.startswith("unix:") else None
