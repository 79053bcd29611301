"""Connections of clients: bounds of their number, and of requests, bytes and time of each.

A connection has one request at a time. Pipelined requests are not read: the first is answered and
the connection closed. So is, by the application, a connection over TCP after an answer of 401.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rms.wire.signing import Session

BACKLOG = 16_384
"""Connections that may wait to be accepted, where the system allows so many (somaxconn): as ten
thousand ranks that come at once while the daemon decides."""

REQUEST_S = 30.0
"""How long a connection may take for a whole request, its first or its next."""

ANSWER_S = 300.0
"""How long a request may take until its answer is read; the longest poll is held for seconds."""

MOST_HEAD_BYTES = 1 << 16
"""No request's line and headers together are longer: the parser itself has no limit."""

MOST_UNVERIFIED_BYTES = 1 << 14
"""The same over TCP until the first verified request."""

MOST_HEADERS = 64
"""Headers of a request: a header object takes far more memory than its bytes."""

MOST_REQUEST_BYTES = 1 << 25
"""No request is longer, whatever it consists of; one that is too long for its endpoint is shorter,
and gets an answer."""


class RefusedRequestError(Exception):
    """A request that is refused before it is read completely."""


@dataclass
class Peer:
    """The other side of a connection over TCP.

    Attributes:
        session: set by a handshake.
        verified: whether a signed request has arrived, or at ``rms web`` one with its token.
        endless: its answer is a stream without end, which no timer ends.
    """

    session: Session | None = None
    verified: bool = False
    endless: bool = False


PEER = "rms.peer"
"""Key of a connection's :class:`Peer` in the state of its requests."""


def bounded(
    most: int, request_s: float = REQUEST_S, answer_s: float = ANSWER_S
) -> type[HttpToolsProtocol]:
    """Return the protocol of a server that holds no more connections than this.

    A new connection beyond that replaces the unverified one that has been idle for longest or, if
    there is none, the verified one. A connection is idle while the server waits for its client, to
    send a request or to read an answer. If none is idle, the new connection is closed. A
    connection over TCP is unverified until it has sent a signed request.

    Args:
        most: number of connections.
        request_s: time for a whole request, the first or the next.
        answer_s: time for the daemon to answer and the client to read.
    """
    unverified: dict[HttpToolsProtocol, None] = {}
    verified: dict[HttpToolsProtocol, None] = {}

    class Connection(HttpToolsProtocol):
        """Closes the connection when the client is too slow or sends too much."""

        _timer: asyncio.TimerHandle | None = None
        _received, _most = 0, MOST_UNVERIFIED_BYTES

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.set_write_buffer_limits(0)  # writing is paused until the client has read all
            self._peer = Peer()
            self.app_state = {**self.app_state, PEER: self._peer}
            self._await_request()
            if len(self.connections) > most:
                oldest = next(iter(unverified), self)
                if oldest is self:
                    oldest = next(iter(verified), self)
                oldest.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._received += len(data)
            super().data_received(data)
            if self._received > self._most:
                self.transport.abort()

        def on_message_begin(self) -> None:
            if self._answering:
                raise RefusedRequestError
            self._most = MOST_HEAD_BYTES if self._verified else MOST_UNVERIFIED_BYTES
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            # A chunked body may cost a call for each byte.
            if len(self.headers) >= MOST_HEADERS or name.lower() == b"transfer-encoding":
                raise RefusedRequestError
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self._most = MOST_REQUEST_BYTES

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._received, self._most = 0, MOST_UNVERIFIED_BYTES
            if self._answering and not self.flow.write_paused:
                self._stop()
                self._start(answer_s)

        def on_response_complete(self) -> None:
            if not self.flow.write_paused:
                self._await_request()
            super().on_response_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._set_idle()

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._answering:
                self._set_busy()
            elif not self.transport.is_closing():
                self._await_request()

        def send_400_response(self, msg: str) -> None:
            if self._answering and not self.cycle.more_body:
                self.cycle.keep_alive = False
                self.flow.pause_reading()
            else:
                super().send_400_response(msg)

        @property
        def _answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        @property
        def _verified(self) -> bool:
            return self._peer.verified or (self.server is not None and self.server[1] is None)

        def _await_request(self) -> None:
            self._stop()
            self._start(request_s)
            self._set_idle()

        def _set_idle(self) -> None:
            (verified if self._verified else unverified)[self] = None

        def _set_busy(self) -> None:
            unverified.pop(self, None)
            verified.pop(self, None)

        def _start(self, for_s: float) -> None:
            self._timer = self.loop.call_later(for_s, self._end)

        def _end(self) -> None:
            if not self._peer.endless:
                self.transport.abort()

        def _stop(self) -> None:
            self._set_busy()
            if self._timer is not None:
                self._timer.cancel()

    return Connection
