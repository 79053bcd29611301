"""Connections of clients: no more than there are files for, none silent or endless."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

BACKLOG = 16_384
"""Connections that may wait to be accepted, where the system allows so many (somaxconn): as ten
thousand ranks that come at once while the daemon decides."""

REQUEST_S = 30.0
"""How long a connection may take for a whole request, its first or its next."""

ANSWER_S = 300.0
"""How long a request may take until its answer is read; the longest poll is held for seconds."""

MOST_HEAD_BYTES = 1 << 16
"""No request's line and headers together are longer: the parser itself has no limit."""

MOST_REQUEST_BYTES = 1 << 25
"""No request is longer, whatever it consists of; one that is too long for its endpoint is shorter,
and gets an answer."""


def bounded(
    most: int, request_s: float = REQUEST_S, answer_s: float = ANSWER_S
) -> type[HttpToolsProtocol]:
    """Return the protocol of a server that holds no more connections than this.

    One more takes the place of the one that has been silent for longest. Only where all of them
    wait for answers it is closed itself, and its client may come again.
    """
    silent: dict[HttpToolsProtocol, None] = {}

    class Connection(HttpToolsProtocol):
        """One that is closed where it has not said or read what is due."""

        _timer: asyncio.TimerHandle | None = None
        _came, _most = 0, MOST_HEAD_BYTES

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait(request_s)
            if len(self.connections) > most:
                next(iter(silent)).transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._came += len(data)
            super().data_received(data)
            if self._came > self._most:
                self.transport.abort()

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self._most = MOST_REQUEST_BYTES

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._came, self._most = 0, MOST_HEAD_BYTES
            if self.cycle is not None and not self.cycle.response_complete:
                self._wait(answer_s)
                silent.pop(self, None)

        def on_response_complete(self) -> None:
            if self.pipeline:  # it has asked already
                self._wait(answer_s)
                silent.pop(self, None)
            else:
                self._wait(request_s)
            super().on_response_complete()

        def _wait(self, for_s: float) -> None:
            self._stop()
            silent[self] = None
            self._timer = self.loop.call_later(for_s, self.transport.abort)

        def _stop(self) -> None:
            silent.pop(self, None)
            if self._timer is not None:
                self._timer.cancel()

    return Connection
