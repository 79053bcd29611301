"""How a world that was booted beside a running one meets it, or says why it cannot."""

from __future__ import annotations

import atexit
import contextlib
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

import msgspec

from dmr.boot.mpiexec import leave_launcher
from dmr.errors import described
from dmr.wire.channel import ChannelError, ControlChannel, Listener, Refused, connect
from dmr.wire.rms import RETRY_S, Manager
from rms.wire.http import UnreachableError
from rms.wire.messages import (
    JOIN_VARIABLE,
    LISTENER_VARIABLE,
    WORLD_VARIABLE,
    Failed,
    Ready,
    Report,
)

CONNECT_S = 10.0
WAIT_S = 600.0
"""A world that nobody has connected to by then leaves: its daemon may be gone for good."""

LOOK_S = 0.5
"""How often a spawned rank looks whether the old world still waits for it."""

_reached = threading.Event()
"""Set once dmr.run speaks for this process."""

_answered = threading.Event()
"""Set once dmr.run speaks for this process, or the old world has been told why it will not."""


@dataclass(frozen=True)
class Rendezvous:
    """How this world meets the old one.

    Attributes:
        number: the RMS's resize request that it was booted for, 0 where the old world started it.
        launch: number of its launch.
        listener: address of the listener of the old world that started it, or "".
    """

    number: int
    launch: int
    listener: str

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Rendezvous | None:
        """Return what the environment says, None for the first world of a job."""
        listener, number = env.get(LISTENER_VARIABLE, ""), env.get(JOIN_VARIABLE, "")
        if not listener and not number:
            return None
        return cls(int(number or 0), int(env.get(WORLD_VARIABLE, "0")), listener)

    def watch(self, rank: int, manager: Manager | None) -> None:
        """Report to the old world if the program fails or ends before it reaches dmr.run.

        A spawned rank then leaves by itself, and so do those that wait for it in MPI: they see
        that the old world has given them up.
        """
        if _answered.is_set() or getattr(sys.excepthook, "reports_failures", False):
            return
        usual = sys.excepthook

        def report_failure(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            try:
                usual(kind, error, trace)
            finally:
                if not _answered.is_set():
                    self.refuse(f"rank {rank}: {described(error)}", manager)

        def report_end() -> None:
            if not _answered.is_set() and (rank == 0 or self.listener):
                self.refuse(f"rank {rank}: its program ended before it reached dmr.run", manager)
            if self.listener and not _reached.is_set():
                leave_launcher()

        report_failure.reports_failures = True  # type: ignore[attr-defined]
        sys.excepthook = report_failure
        atexit.register(report_end)
        if self.listener:
            threading.Thread(target=self._leave_when_given_up, daemon=True).start()

    def _leave_when_given_up(self) -> None:
        """End this process, which may be caught in MPI, once nobody waits for it any more."""
        host, port, _ = self.listener.rsplit(":", 2)
        while not _reached.wait(LOOK_S):
            try:
                socket.create_connection((host, int(port)), CONNECT_S).close()
            except ConnectionRefusedError:
                if not _reached.is_set():
                    leave_launcher()
                return
            except OSError:
                continue

    @staticmethod
    def reached() -> None:
        """From now on dmr.run speaks for this process."""
        _answered.set()
        _reached.set()

    def meet(self, manager: Manager | None, port: str) -> ControlChannel:
        """Rank 0: say that this world is ready; return the control channel to the old one.

        Raises:
            ChannelError: the old world does not come.
        """
        if self.listener:
            return connect(self.listener, CONNECT_S)
        if manager is None:
            raise ChannelError("expected an RMS that booted this world, got none")
        listener = Listener(manager.host)
        try:
            _post(manager, Ready(self.number, self.launch, listener.address, port))
            return listener.accept(WAIT_S)
        finally:
            listener.close()

    def refuse(self, why: str, manager: Manager | None) -> None:
        """Say that this world cannot take over, before it has met the old one."""
        _answered.set()
        with contextlib.suppress(ChannelError):
            if self.listener:
                with connect(self.listener, CONNECT_S) as channel:
                    channel.send(Refused(why))
            elif manager is not None:
                _post(manager, Failed(self.number, self.launch, why), CONNECT_S)


def _post(manager: Manager, report: Report, wait_s: float = WAIT_S) -> None:
    """Report to the RMS; if it is away, for up to ``wait_s``.

    Raises:
        ChannelError: it does not come back.
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            manager.post("report", msgspec.json.encode(report))
            return
        except UnreachableError as error:
            if time.monotonic() > until:
                raise ChannelError(str(error)) from None
            time.sleep(RETRY_S)
