"""The job's side of the RMS: threads of rank 0 that never delay a step.

One thread polls the daemon and keeps its newest resize request, which the loop reads at each resize
point. Another one sends the queued reports, in order. Both try again while the daemon is away.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
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
SUPERSEDED = 410  # status of an answer to an earlier run of a job


class SupersededError(UnreachableError):
    """The RMS has given this run of the job up, and requeued the job."""


@dataclass(frozen=True)
class Manager:
    """The address of this job's RMS, and the number of this run of the job."""

    server: str
    job: str
    token: str
    run: str = "0"

    @property
    def host(self) -> str:
        """The name by which the worlds of this job reach one another."""
        return "127.0.0.1" if self.server.startswith("unix:") else socket.gethostname()

    def connection(self) -> Connection:
        """Return a connection for :meth:`post`, of one thread."""
        return Connection(self.server, TIMEOUT_S)

    def post(self, path: str, body: bytes, connection: Connection | None = None) -> bytes:
        """Send a message to the RMS; return its answer.

        Args:
            connection: one that is kept, for messages that may arrive twice; None for a new one.

        Raises:
            SupersededError: the job was requeued since this run of it.
            UnreachableError: the RMS is not there, or refuses.
        """
        path = f"/jobs/{self.job}/{path}?run={self.run}"
        over = connection or self.connection()
        try:
            status, answer = over.request("POST", path, body, self.token)
        finally:
            if connection is None:
                over.close()
        if status == SUPERSEDED:
            raise SupersededError(f"the RMS has given up this run of job {self.job}")
        if status != 200:
            raise UnreachableError(f"status {status}")
        return answer


class RmsClient:
    """Rank 0's client of the RMS, for the life of one world.

    Args:
        answered: number of the newest request that has an answer.
        step: steps that earlier worlds have done.
        restarts: whether the job can continue from a checkpoint.
        superseded: called once, on a thread, when the RMS has given up this run of the job.

    Attributes:
        request: the newest resize request without an answer, or None.
        step, steps: progress of the job, for the daemon; set by the loop.
        strategy, launches: of the next resize; number and ranks of each present launch.
    """

    def __init__(
        self,
        manager: Manager,
        answered: int,
        strategy: str,
        launches: tuple[tuple[int, int], ...],
        cooldown_s: float = 0.0,
        step: int = 0,
        restarts: bool = False,
        superseded: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.request: ResizeRequest | None = None
        self.step, self.steps = step, 0
        self.strategy, self.launches = strategy, launches
        self._cooldown_s, self._restarts = cooldown_s, restarts
        self._manager, self._newest, self._superseded = manager, answered, superseded
        self._reports: deque[Report] = deque()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._sender = threading.Thread(target=self._send, name="rms-send", daemon=True)
        self._sender.start()
        threading.Thread(target=self._poll, name="rms-poll", daemon=True).start()

    def report(self, report: Report) -> None:
        """Queue a report, and drop the request that it answers."""
        answers = 0 if isinstance(report, ApplicationResizeRequest) else report.number
        if self.request is not None and self.request.number == answers:
            self.request = None
        self._reports.append(report)
        self._wake.set()

    def close(self) -> None:
        """Send the queued reports, within ``FLUSH_S`` at most, and stop."""
        self._closing.set()
        self._wake.set()
        self._sender.join(FLUSH_S)

    def _send(self) -> None:
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

    def _poll(self) -> None:
        """Poll for resize requests; the daemon delays its answer until it has one, or a timeout."""
        connection = self._manager.connection()
        while not self._closing.is_set():
            poll = Poll(
                self.step,
                self.steps,
                self._newest,
                self.strategy,
                self.launches,
                self._cooldown_s,
                self._restarts,
            )
            try:
                body = self._manager.post("poll", msgspec.json.encode(poll), connection)
                answer = msgspec.json.decode(body, type=PollAnswer)
                if answer.request is not None and answer.request.number > self._newest:
                    self.request, self._newest = answer.request, answer.request.number
                pause = answer.pause_s
            except SupersededError as error:
                self._closing.set()
                self._superseded(str(error))
                break
            except (UnreachableError, msgspec.DecodeError):
                pause = RETRY_S
            if pause:
                connection.close()  # leaves the daemon's connections to other jobs
            self._closing.wait(pause)
        connection.close()
