"""The connection of a process that has tasks."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec

from rms.core.state import TASKS
from rms.daemon.context import Context
from rms.kernels import wire
from rms.kernels.model import TaskId
from rms.kernels.scheduler import TaskError

_decode = msgspec.msgpack.Decoder(wire.ProcessMessage).decode


class Listener(Protocol):
    """Who is told what processes say."""

    context: Context

    def came(self, link: Link) -> None:
        """Take in a process."""

    def said(self, link: Link, message: wire.ProcessMessage) -> None:
        """Take in what a process says."""

    def went(self, link: Link) -> None:
        """Take back what a process held: it is gone."""


class Link(asyncio.Protocol):
    """The connection of one process; its end is the process's.

    Attributes:
        program: what it says that it is called.
        tasks: by the process's numbers, those that are not over.
    """

    def __init__(self, listener: Listener) -> None:
        self.owner = self.pid = 0
        self.program = ""
        self.tasks: dict[int, TaskId] = {}
        self._listener, self._frames = listener, wire.Frames()
        self._transport: Any = None

    @property
    def label(self) -> str:
        """Whose the energy of its tasks is."""
        return f"{TASKS}{self.program}[{self.pid}]"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected."""
        self._transport = transport
        self._listener.came(self)

    def data_received(self, data: bytes) -> None:
        """Something was said; whoever says what cannot be is not listened to any longer."""
        try:
            for body in self._frames.feed(data):
                self._listener.said(self, _decode(body))
        except (TaskError, msgspec.MsgspecError, RecursionError, ValueError) as error:
            self._listener.context.say(f"tasks: a process was cut off: {error}")
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """The process is gone."""
        self._listener.went(self)

    def send(self, message: wire.DaemonMessage) -> None:
        """Tell the process something."""
        self._transport.write(wire.frame(message))
