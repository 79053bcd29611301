"""The connection of this process to the daemon: one for all its tasks, with a thread that reads.

The daemon knows by its end that the process is gone. If the daemon is gone, kernels go on; when
it is back, it is told which tasks there are, and where they run. Where it stays away, tasks that
wait run here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rms.kernels.wire import (
    Begin,
    DaemonMessage,
    Drop,
    Ended,
    Finished,
    Frames,
    GoOn,
    Hello,
    Lost,
    ProcessMessage,
    Register,
    Resized,
    Run,
    Stop,
    Yielded,
    frame,
    tasks_path,
)
from rms.wire.messages import JOB_VARIABLE

AGAIN_S = 0.1
"""How long to wait before a daemon that is gone is looked for again."""

ALONE_S = 30.0
"""How long a daemon may stay away before tasks that wait run without it."""

_decode = msgspec.msgpack.Decoder(DaemonMessage).decode


class TaskDroppedError(RuntimeError):
    """A task that will never run: it has no kernel for any device, or one before it failed."""


@dataclass(eq=False)
class Entry:
    """A task of this process that is not over.

    Attributes:
        deliver: is given what the daemon decides: where to run, or that it will not.
        best: what to do without a daemon.
        stop: set while the task is to stop at its next yield point.
        lost: its device is another's.
        coming: with what it is to go on from its next yield point on.
        ended: why its process on another node is over, "" while it is not.
    """

    message: Register
    deliver: Callable[[Run | Drop], object]
    best: Run | Drop
    stop: threading.Event = field(default_factory=threading.Event)
    device: str = ""
    lost: bool = False
    coming: GoOn | None = None
    ended: str = ""


class Connection:
    """Talks to the daemon of a socket; its methods may be called from any thread.

    Attributes:
        path: of the socket.
        alone: the daemon has stayed away.

    Raises:
        OSError: nobody answers there.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        self._open: dict[int, Entry] = {}
        self._socket: socket.socket | None = self._connect()
        self.alone = False
        threading.Thread(target=self._read, name="rms-tasks", daemon=True).start()

    def open(self, entry: Entry, after: Sequence[int]) -> None:
        """Register a task; those before it that are over already are done."""
        with self._lock:
            open_ones = tuple(number for number in after if number in self._open)
            entry.message = msgspec.structs.replace(entry.message, after=open_ones)
            self._open[entry.message.task] = entry
            if self.alone:
                entry.deliver(entry.best)
            self._send(entry.message)

    def begin(self, entry: Entry, command: list[str], env: Mapping[str, str]) -> None:
        """Have a process started on the node that a task has."""
        with self._lock:
            self._send(Begin(entry.message.task, command, str(Path.cwd()), dict(env)))

    def resized(self, entry: Entry) -> GoOn | None:
        """Return with what a task is to go on now, if it is; the daemon is told that it does."""
        with self._lock:
            coming, entry.coming = entry.coming, None
            if coming is not None:
                entry.device = coming.device
                self._send(Resized(entry.message.task, coming.device))
            return coming

    def yielded(self, entry: Entry) -> None:
        """Give the device of a task back: it waits for another."""
        with self._lock:
            entry.device, entry.coming = "", None
            if entry.lost:
                entry.lost = False
                self._send(entry.message)
            elif self.alone:
                entry.deliver(entry.best)
            else:
                self._send(Yielded(entry.message.task))

    def close(self, entry: Entry, *, failed: bool = False) -> None:
        """Say that a task is over."""
        with self._lock:
            if self._open.pop(entry.message.task, None) is not None and not entry.lost:
                self._send(Finished(entry.message.task, failed))

    def drop_copy(self) -> None:
        """Close this process's copy of its parent's socket, whose locks others may have held."""
        if self._socket is not None:
            self._socket.close()

    # --- the socket --------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            found.connect(str(self.path))
            found.sendall(frame(Hello(os.getpid(), program=Path(sys.argv[0]).name)))
        except BaseException:
            found.close()
            raise
        return found

    def _send(self, message: ProcessMessage) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the thread that reads finds out
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
            if isinstance(message, Stop | Lost):
                entry.lost |= isinstance(message, Lost)
                entry.stop.set()
                return
            if isinstance(message, GoOn):
                entry.coming = message
                return
            if isinstance(message, Ended):
                entry.ended = message.reason
                return
            if isinstance(message, Run):
                entry.ended = ""
                entry.device = message.device
                entry.stop.clear()
        entry.deliver(message)

    def _reconnect(self) -> None:
        """Find the daemon again and tell it of all tasks; give up after a while."""
        with self._lock:
            assert self._socket is not None
            self._socket.close()
            self._socket = None
            for entry in self._open.values():
                entry.coming = None  # who is there next does not know of it
        until_s = time.monotonic() + ALONE_S
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), self._lock:
                self._socket = self._connect()
                for entry in self._open.values():
                    self._send(msgspec.structs.replace(entry.message, device=entry.device))
                return
            time.sleep(AGAIN_S)
        with self._lock:
            self.alone = True
            for entry in self._open.values():
                if not entry.device:
                    entry.deliver(entry.best)


_connection: Connection | None = None
_connecting = threading.Lock()


def connection() -> Connection | None:
    """Return the connection of this process, None where no daemon answers, or in a job of its own.

    (Which holds its devices already, and would wait for them for ever.)
    """
    global _connection
    with _connecting:
        path = tasks_path(os.environ)
        if path is None or JOB_VARIABLE in os.environ:
            return None
        if _connection is not None and _connection.path == path and not _connection.alone:
            return _connection
        try:
            _connection = Connection(path)
        except OSError:
            return None
        return _connection


def _forget() -> None:
    """Leave the connection to the parent, in a process that was forked."""
    global _connection, _connecting
    if _connection is not None:
        _connection.drop_copy()
    _connection, _connecting = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
