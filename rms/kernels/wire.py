"""The socket between a program with tasks and the daemon: messages, and how they travel.

Events of a task travel to the daemon, decisions on it to the process, as they are in
:mod:`rms.kernels.model`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from rms.kernels.model import (
    TaskDecision,
    TaskFinished,
    TaskId,
    TaskRegistered,
    TaskResized,
    TaskYielded,
)
from rms.wire.files import state_folder
from rms.wire.messages import SERVER_VARIABLE


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A process that has tasks; the first message on its connection.

    Attributes:
        program: the name of its program, to which the energy of its tasks belongs.
    """

    pid: int
    version: int = 1
    program: str = ""


class TaskCommand(msgspec.Struct, frozen=True, tag=True):
    """Start a command on the node of a task; it is ended with the task's time there."""

    task: TaskId
    command: list[str]
    cwd: str
    env: dict[str, str]


class DeviceLost(msgspec.Struct, frozen=True, tag=True):
    """The device of a task went to others while its process had no connection."""

    task: TaskId


class CommandEnded(msgspec.Struct, frozen=True, tag=True):
    """The command of a task on its node could not be started, or is over."""

    task: TaskId
    reason: str


ProcessMessage = Hello | TaskRegistered | TaskYielded | TaskResized | TaskFinished | TaskCommand
DaemonMessage = TaskDecision | DeviceLost | CommandEnded

LENGTH_BYTES = 4
LONGEST = 1 << 20
"""The greatest length of a message."""


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
            ValueError: a length is above :data:`LONGEST`.
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

    None where that is on another machine: devices are those of the daemon's machine.
    """
    server = env.get(SERVER_VARIABLE) or f"unix:{state_folder(env) / 'socket'}"
    return Path(f"{server.removeprefix('unix:')}-tasks") if server.startswith("unix:") else None
