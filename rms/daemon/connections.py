"""Connections of clients: no more than there are files for, none silent for long."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 30.0
"""How long a connection may take for a whole request, its first or its next."""

ANSWER_S = 300.0
"""How long a request may take until its answer is read; the longest poll is held for seconds."""


def bounded(
    most: int, request_s: float = REQUEST_S, answer_s: float = ANSWER_S
) -> type[H11Protocol]:
    """Return the protocol of a server that holds no more connections than this.

    One more takes the place of the one that has been silent for longest. Only where all of them
    wait for answers it is closed itself, and its client may come again.
    """
    silent: dict[H11Protocol, None] = {}

    class Connection(H11Protocol):
        """One that is closed where it has not said or read what is due."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait(request_s)
            if len(self.connections) > most:
                next(iter(silent)).transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            if self in silent and self.cycle is not None and not self.cycle.more_body:
                self._wait(answer_s)
                silent.pop(self, None)

        def on_response_complete(self) -> None:
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
