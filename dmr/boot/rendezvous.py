"""How a new world meets the running one that it replaces or joins, or tells why it cannot."""

from __future__ import annotations

import atexit
import contextlib
import socket
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from dmr.boot.mpiexec import leave_launcher
from dmr.errors import described
from dmr.wire.channel import ChannelError, ControlChannel, Listener, Refused, connect, place_of
from rms.wire.messages import Failed, Ready, Report

if TYPE_CHECKING:
    from dmr.wire.rms import Manager

CONNECT_S = 10.0
WAIT_S = 600.0
"""Timeout for the running world, after which the new one leaves: the daemon may be gone."""

LOOK_S = 0.5
"""Interval at which a spawned rank checks that the old world still waits for it."""

_reached = threading.Event()
"""Set once dmr.run reports the errors of this process."""

_answered = threading.Event()
"""Set then, too, or once the old world has the reason why this one cannot take over."""


@dataclass(frozen=True)
class Rendezvous:
    """The place where this world meets the old one.

    Attributes:
        number: the RMS's resize request, 0 if the old world has started this one.
        launch: number of its launch.
        listener: address of the listener of the old world that has started this one, or "".
        manager: the RMS that has booted this world, or None.
    """

    number: int
    launch: int
    listener: str
    manager: Manager | None

    def watch(self, rank: int) -> None:
        """Report to the old world if the program fails or ends before it reaches dmr.run.

        A spawned rank then leaves by itself, and so do the ranks that wait for it in MPI: they
        see that the old world has given them up.
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
                    self.refuse(f"rank {rank}: {described(error)}")

        def report_end() -> None:
            if not _answered.is_set() and (rank == 0 or self.listener):
                self.refuse(f"rank {rank}: its program ended before it reached dmr.run")
            if self.listener and not _reached.is_set():
                leave_launcher()

        report_failure.reports_failures = True  # type: ignore[attr-defined]
        sys.excepthook = report_failure
        atexit.register(report_end)
        if self.listener:
            threading.Thread(target=self._leave_when_given_up, daemon=True).start()

    def _leave_when_given_up(self) -> None:
        """End this process, which may wait in MPI, once the old world has closed its listener."""
        place = place_of(self.listener)
        while not _reached.wait(LOOK_S):
            try:
                socket.create_connection(place, CONNECT_S).close()
            except ConnectionRefusedError:
                if not _reached.is_set():
                    leave_launcher()
                return
            except OSError:
                continue

    @staticmethod
    def reached() -> None:
        """Note that dmr.run reports the errors of this process from now on."""
        _answered.set()
        _reached.set()

    def meet(self, port: str) -> ControlChannel:
        """Rank 0: report that this world is ready; return the control channel to the old one.

        Raises:
            ChannelError: the old world does not come.
        """
        if self.listener:
            return connect(self.listener, CONNECT_S)
        if self.manager is None:
            raise ChannelError("expected an RMS that booted this world, got none")
        listener = Listener(self.manager.host)
        try:
            _post(self.manager, Ready(self.number, self.launch, listener.address, port))
            return listener.accept(WAIT_S)
        finally:
            listener.close()

    def refuse(self, why: str) -> None:
        """Report that this world cannot take over, before it has met the old one."""
        _answered.set()
        with contextlib.suppress(ChannelError):
            if self.listener:
                with connect(self.listener, CONNECT_S) as channel:
                    channel.send(Refused(why))
            elif self.manager is not None:
                _post(self.manager, Failed(self.number, self.launch, why), CONNECT_S)


def _post(manager: Manager, report: Report, wait_s: float = WAIT_S) -> None:
    """Report to the RMS; try again for up to ``wait_s`` if it is away."""
    from dmr.wire.rms import RETRY_S
    from rms.wire.http import UnreachableError

    until = time.monotonic() + wait_s
    while True:
        try:
            manager.post("report", msgspec.json.encode(report))
            return
        except UnreachableError as error:
            if time.monotonic() > until:
                raise ChannelError(str(error)) from None
            time.sleep(RETRY_S)
