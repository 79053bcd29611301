"""The job's side of the RMS: threads of rank 0 that never hold up a step.

One thread keeps polling the daemon and keeps its newest resize request; the loop reads that once at
each resize point. Reports are queued and sent by another thread, in order. A daemon that is away is
asked again until it is back: the job goes on meanwhile.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from dataclasses import dataclass

import msgspec

from rms.wire.http import Connection, UnreachableError
from rms.wire.messages import (
    ApplicationResizeRequest,
    Poll,
    PollAnswer,
    Report,
    ResizeRequest,
)

RETRY_S = 0.5
TIMEOUT_S = 10.0
FLUSH_S = 2.0


@dataclass(frozen=True)
class Manager:
    """Where the RMS of this job is."""

    server: str
    job: str
    token: str

    @property
    def host(self) -> str:
        """The name by which the worlds of this job reach one another."""
        return "127.0.0.1" if self.server.startswith("unix:") else socket.gethostname()

    def connection(self) -> Connection:
        """Return what :meth:`post` sends over: one for each thread."""
        return Connection(self.server, TIMEOUT_S)

    def post(self, what: str, body: bytes, connection: Connection | None = None) -> bytes:
        """Send something to the RMS; return its answer.

        Args:
            connection: one that is kept, for what may arrive twice; None for one of its own.

        Raises:
            UnreachableError: it is not there, or refuses.
        """
        over = connection or self.connection()
        try:
            status, answer = over.request("POST", f"/jobs/{self.job}/{what}", body, self.token)
        finally:
            if connection is None:
                over.close()
        if status != 200:
            raise UnreachableError(f"status {status}")
        return answer


class RmsClient:
    """Rank 0's client of the RMS, for the life of one world.

    Attributes:
        request: the newest resize request not yet answered, or None. Reading it costs nothing.
        step, steps: how far the job is, for the daemon to know; set by the loop.
        strategy, launches: how the job wants to be resized; number and ranks of each launch that
            it consists of.
    """

    def __init__(
        self,
        manager: Manager,
        known: int,
        strategy: str,
        launches: tuple[tuple[int, int], ...],
        cooldown_s: float = 0.0,
        restarts: bool = False,
    ) -> None:
        self.request: ResizeRequest | None = None
        self.step = self.steps = 0
        self.strategy, self.launches = strategy, launches
        self._cooldown_s, self._restarts = cooldown_s, restarts
        self._manager, self._known = manager, known
        self._reports: deque[Report] = deque()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._sender = threading.Thread(target=self._send, name="rms-send", daemon=True)
        self._sender.start()
        threading.Thread(target=self._poll_daemon, name="rms-poll", daemon=True).start()

    def report(self, report: Report) -> None:
        """Have a report sent; the request that it answers is gone."""
        answers = 0 if isinstance(report, ApplicationResizeRequest) else report.number
        if self.request is not None and self.request.number == answers:
            self.request = None
        self._reports.append(report)
        self._wake.set()

    def close(self) -> None:
        """Send what is queued, within ``FLUSH_S`` at most, and stop."""
        self._closing.set()
        self._wake.set()
        self._sender.join(FLUSH_S)

    def _poll(self) -> Poll:
        return Poll(
            self.step,
            self.steps,
            self._known,
            self.strategy,
            self.launches,
            self._cooldown_s,
            self._restarts,
        )

    def _send(self) -> None:
        """Send reports, in order."""
        while True:
            pause = None
            try:
                while self._reports:
                    self._manager.post("report", msgspec.json.encode(self._reports[0]))
                    self._reports.popleft()
            except UnreachableError:
                pause = RETRY_S
            if self._closing.is_set():
                return
            self._wake.wait(pause)
            self._wake.clear()

    def _poll_daemon(self) -> None:
        """Poll for resize requests; the daemon holds a poll until it has one, or for a while."""
        connection = self._manager.connection()
        while not self._closing.is_set():
            try:
                said = self._manager.post("poll", msgspec.json.encode(self._poll()), connection)
                answer = msgspec.json.decode(said, type=PollAnswer)
                if answer.request is not None and answer.request.number > self._known:
                    self.request, self._known = answer.request, answer.request.number
                pause = answer.pause_s
            except (UnreachableError, msgspec.DecodeError):
                pause = RETRY_S
            if pause:
                connection.close()  # whoever waits for a turn keeps no connection from others
            self._closing.wait(pause)
        connection.close()
