"""The socket between a process with tasks and the daemon: messages, framing, the process's side.

A process has one connection for all its tasks, whose end is the end of the process. If the daemon
is gone, kernels go on, and register with the next; if it stays away, waiting tasks run here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from rms.kernels.model import (
    TaskDecision,
    TaskDrop,
    TaskFinished,
    TaskGoOn,
    TaskId,
    TaskRegistered,
    TaskResized,
    TaskRun,
    TaskStop,
    TaskYielded,
)
from rms.wire.files import state_folder
from rms.wire.messages import JOB_VARIABLE, SERVER_VARIABLE

# --- messages ------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first message of a process: its program has the energy of its tasks."""

    pid: int
    version: int = 1
    program: str = ""


class TaskCommand(msgspec.Struct, frozen=True, tag=True):
    """Start a command on the node of a task; it ends with the task's time there."""

    task: TaskId
    command: list[str]
    cwd: str
    env: dict[str, str]


class DeviceLost(msgspec.Struct, frozen=True, tag=True):
    """The device of a task was given to others while its process had no connection."""

    task: TaskId


class CommandEnded(msgspec.Struct, frozen=True, tag=True):
    """The command of a task on its node could not be started, or is over."""

    task: TaskId
    reason: str


ProcessMessage = Hello | TaskRegistered | TaskYielded | TaskResized | TaskFinished | TaskCommand
DaemonMessage = TaskDecision | DeviceLost | CommandEnded

LENGTH_BYTES = 4
LONGEST = 1 << 20


def frame(message: ProcessMessage | DaemonMessage) -> bytes:
    """Return a message as it is sent: its length, then MessagePack."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class Frames:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that these bytes complete; too long a message is a ValueError."""
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


# --- the side of the process ---------------------------------------------------------------------

AGAIN_S = 0.1  # interval between attempts to connect to a daemon that is gone
ALONE_S = 30.0  # time without a daemon after which waiting tasks run without it
_decode = msgspec.msgpack.Decoder(DaemonMessage).decode


class TaskDroppedError(RuntimeError):
    """A task that will never run: it has no kernel for any device, or one before it failed."""


@dataclass(eq=False)
class OpenTask:
    """A task of this process that is not over.

    Attributes:
        deliver: takes the daemon's decision: the device, or that it will never run.
        stop: set while the task is to stop at its next yield point.
        lost: whether its device was given to others.
        coming: the device that it is to go on with from its next yield point.
        ended: the reason why its process on another node is over, "" while it is not.
    """

    message: TaskRegistered
    deliver: Callable[[TaskRun | TaskDrop], object]
    best: TaskRun | TaskDrop
    stop: threading.Event = field(default_factory=threading.Event)
    device: str = ""
    lost: bool = False
    coming: TaskGoOn | None = None
    ended: str = ""

    @property
    def number(self) -> TaskId:
        """The process's own number of it."""
        return self.message.task


class TaskConnection:
    """A connection to the daemon of a socket; its methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        self._open: dict[TaskId, OpenTask] = {}
        self._socket: socket.socket | None = self._connect()
        self.alone = False
        threading.Thread(target=self._read, name="rms-tasks", daemon=True).start()

    def open(self, entry: OpenTask, after: Sequence[TaskId]) -> None:
        """Register a task. Tasks before it that are not open any more count as done."""
        with self._lock:
            open_ones = tuple(number for number in after if number in self._open)
            spec = replace(entry.message.spec, after=open_ones)
            entry.message = replace(entry.message, spec=spec)
            self._open[entry.number] = entry
            if self.alone:
                entry.deliver(entry.best)
            self._send(entry.message)

    def begin(self, entry: OpenTask, command: list[str], env: Mapping[str, str]) -> None:
        """Let the daemon start a command on the node of a task."""
        with self._lock:
            self._send(TaskCommand(entry.number, command, str(Path.cwd()), dict(env)))

    def resized(self, entry: OpenTask) -> TaskGoOn | None:
        """Return the device that a task goes on with now, if any, and report it."""
        with self._lock:
            coming, entry.coming = entry.coming, None
            if coming is not None:
                entry.device = coming.device
                self._send(TaskResized(0.0, entry.number, coming.device))
            return coming

    def yielded(self, entry: OpenTask) -> None:
        """Give the device of a task back; the task waits for another."""
        with self._lock:
            entry.device, entry.coming = "", None
            if entry.lost:
                entry.lost = False
                self._send(entry.message)
            elif self.alone:
                entry.deliver(entry.best)
            else:
                self._send(TaskYielded(0.0, entry.number))

    def close(self, entry: OpenTask, *, failed: bool = False) -> None:
        """Report that a task is over."""
        with self._lock:
            if self._open.pop(entry.number, None) is not None and not entry.lost:
                self._send(TaskFinished(0.0, entry.number, failed))

    def _connect(self) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.connect(str(self.path))
            connected.sendall(frame(Hello(os.getpid(), program=Path(sys.argv[0]).name)))
        except BaseException:
            connected.close()
            raise
        return connected

    def _send(self, message: ProcessMessage) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the thread that reads connects again
                self._socket.sendall(frame(message))

    def _read(self) -> None:
        while self._socket is not None:
            frames = Frames()
            with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
                while data := self._socket.recv(1 << 16):
                    for body in frames.feed(data):
                        self._take(_decode(body))
            self._reconnect()

    def _take(self, message: DaemonMessage) -> None:
        with self._lock:
            entry = self._open.get(message.task)
            if entry is None:
                return
            if isinstance(message, TaskStop | DeviceLost):
                entry.lost |= isinstance(message, DeviceLost)
                entry.stop.set()
                return
            if isinstance(message, TaskGoOn):
                entry.coming = message
                return
            if isinstance(message, CommandEnded):
                entry.ended = message.reason
                return
            if isinstance(message, TaskRun):
                entry.ended = ""
                entry.device = message.device
                entry.stop.clear()
        entry.deliver(message)

    def _reconnect(self) -> None:
        """Connect to the daemon again and register all tasks; give up after :data:`ALONE_S`."""
        with self._lock:
            assert self._socket is not None
            self._socket.close()
            self._socket = None
            for entry in self._open.values():
                entry.coming = None  # the next daemon has no record of it
        until_s = time.monotonic() + ALONE_S
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), self._lock:
                self._socket = self._connect()
                for entry in self._open.values():
                    self._send(replace(entry.message, device=entry.device))
                return
            time.sleep(AGAIN_S)
        with self._lock:
            self.alone = True
            for entry in self._open.values():
                if not entry.device:
                    entry.deliver(entry.best)


_connection: TaskConnection | None = None
_connecting = threading.Lock()


def connection() -> TaskConnection | None:
    """Return the connection of this process, None without a daemon and within a job.

    A job holds its devices already, and would wait for them for ever.
    """
    global _connection
    with _connecting:
        server = os.environ.get(SERVER_VARIABLE) or f"unix:{state_folder(os.environ) / 'socket'}"
        if not server.startswith("unix:") or JOB_VARIABLE in os.environ:
            return None  # devices are those of the daemon's machine
        path = Path(f"{server.removeprefix('unix:')}-tasks")
        if _connection is not None and _connection.path == path and not _connection.alone:
            return _connection
        try:
            _connection = TaskConnection(path)
        except OSError:
            return None
        return _connection


def _forget() -> None:
    """Leave the connection to the parent, in a process that was forked."""
    global _connection, _connecting
    if _connection is not None and _connection._socket is not None:
        _connection._socket.close()  # another thread may have held the lock
    _connection, _connecting = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
