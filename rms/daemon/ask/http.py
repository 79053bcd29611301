"""HTTP of the daemon: connections, their limits, and endpoints that answer typed messages.

A connection has one request at a time. Pipelined requests are not read: the server answers the
first one and closes the connection. The application closes a connection over TCP after status 401.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any, Literal

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rms.daemon.store.journal import Journal, JournalError, JournalFullError, UnknownJobError
from rms.wire.http import ANSWER_HEADER, HELLO, HELLO_PATH, SCHEME, Session, digest, nonce
from rms.wire.users import ErrorAnswer

# --- connections --------------------------------------------------------------------------------

# Connections that may wait to be accepted, within the system's limit (``somaxconn``). Ten thousand
# ranks may connect at once during a scheduling pass.
BACKLOG = 16_384
REQUEST_S = 30.0  # time for a client to send a whole request, its first or the next
ANSWER_S = 300.0  # time until the client has read the answer; the longest poll is held for seconds
# Limit of request line and headers together, which the parser does not have.
MOST_HEAD_BYTES = 1 << 16
MOST_UNVERIFIED_BYTES = 1 << 14  # the same over TCP until the first verified request
# Limit of headers of a request: a header object takes far more memory than its bytes.
MOST_HEADERS = 64
# Limit of a whole request. It exceeds :data:`MOST_BYTES`, so that a body that is too long gets an
# answer.
MOST_REQUEST_BYTES = 1 << 25


@dataclass
class Peer:
    """The other side of a connection over TCP."""

    session: Session | None = None  # set by a handshake
    # whether a signed request has arrived, or at ``rms web`` one with its token
    verified: bool = False
    endless: bool = False  # its answer is a stream without end, which no timer ends


PEER = "rms.peer"  # key of a connection's :class:`Peer` in the state of its requests


def bounded(
    most: int, request_s: float = REQUEST_S, answer_s: float = ANSWER_S
) -> type[HttpToolsProtocol]:
    """Return the protocol of a server that holds at most this number of connections.

    A new connection beyond that replaces the unverified one that has been idle for longest or, if
    there is none, the verified one. A connection is idle while the server waits for its client, to
    send a request or to read an answer. If none is idle, the new connection is closed. A
    connection over TCP is unverified until it has sent a signed request.
    """
    unverified: dict[HttpToolsProtocol, None] = {}
    verified: dict[HttpToolsProtocol, None] = {}

    class BoundedConnection(HttpToolsProtocol):
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
                raise RefusedError(400, "expected one request at a time, got more")
            self._most = MOST_HEAD_BYTES if self._verified else MOST_UNVERIFIED_BYTES
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            # A chunked body may cost a call per byte.
            if len(self.headers) >= MOST_HEADERS or name.lower() == b"transfer-encoding":
                raise RefusedError(400, "expected fewer headers, and none of chunks")
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

    return BoundedConnection


# --- requests -----------------------------------------------------------------------------------

MOST_BYTES = 1 << 24  # limit of a request's body: a script (4 MiB at most) with an environment
MOST_SENTENCE = 1000  # characters of an error message
# Content type of an answer that is a text, in the format of Prometheus.
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Status of errors without one of their own: 503 if the journal cannot be written now.
STATUSES: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((UnknownJobError,), 404),
    ((JournalError, OSError), 503),
    ((ValueError, OverflowError, RecursionError), 400),
)


class RefusedError(Exception):
    """A request is refused: an HTTP status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


SIGNATURE = "rms.signature"  # key of the :class:`Signature` in the scope of a signed request
_NONCE = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class Signature:
    """A verified signature: the session, which also signs the answer, and the body's digest."""

    session: Session
    digest: str


def is_signed(request: Request, name: str) -> bool:
    """Return whether a request is signed with the token of this name."""
    signature = request.scope.get(SIGNATURE)
    return signature is not None and signature.session.name == name


def has_bearer(request: Request, token: str) -> bool:
    """Return whether a request carries a token as a bearer token."""
    header = request.headers.get("authorization", "")
    return bool(token) and compare_digest(header.encode("latin-1"), f"Bearer {token}".encode())


def over_tcp(request: Request) -> bool:
    """Return whether a request came over TCP."""
    return (request.scope.get("server") or ("", 0))[1] is not None


def _verify(request: Request, peer: Peer) -> Signature | None:
    """Return the signature of a request if it is valid for this connection, else None."""
    header = request.headers.get("authorization", "")
    words, session = header.split(" "), peer.session
    if session is None or len(words) != 3 or words[0] != SCHEME:
        return None
    target = request.scope.get("raw_path", b"").decode("latin-1")
    if request.scope["query_string"]:
        target += f"?{request.scope['query_string'].decode('latin-1')}"
    expected = session.sign_request(request.method, target, words[1])
    if not compare_digest(header.encode(), expected.encode()):
        return None
    peer.verified = True
    return Signature(session, words[1])


# --- endpoints ----------------------------------------------------------------------------------

# Whether the journal is flushed before the answer. With ``must`` a full disk gives status 503; with
# ``may``, and for GET, the answer is sent nevertheless.
Flush = Literal["must", "may", "no"]


@dataclass(frozen=True)
class Endpoint:
    """A method of HTTP on a path."""

    method: str
    path: str
    check: Callable[[Request], None]  # raises :class:`RefusedError` if the client has no access
    # returns the answer to a request, and its decoded body if ``body`` is set
    call: Callable[..., Awaitable[object]]
    body: Any = None
    flush: Flush = "must"


Answer = Callable[[Request], Awaitable[Response]]


class Flushes:
    """Flushes the journal in a thread; requests that wait meanwhile share the next flush."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._turn = journal, asyncio.Lock()

    async def __call__(self) -> None:
        """Return when all present entries are on disk, or raise a JournalFullError."""
        journal = self._journal
        if journal.flushing() is None:
            return
        upto = journal.written
        async with self._turn:
            work = None if journal.synced >= upto else journal.flushing()
            if work is not None:
                await asyncio.to_thread(work)


class Application:
    """ASGI 3 application that looks up the endpoint of a path.

    Thousands of polls arrive in a second, so there are no layers of a framework in between.

    Args:
        token: returns the token of a name at an address of this daemon, or "".
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        flush: Callable[[], Awaitable[None]],
        token: Callable[[str, str], str],
    ) -> None:
        self._token = token
        self._fixed: dict[str, dict[str, Answer]] = {}
        self._forms: dict[str, tuple[re.Pattern[str], dict[str, Answer]]] = {}
        for endpoint in endpoints:
            path = endpoint.path
            form = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))
            if form == re.escape(path):
                methods = self._fixed.setdefault(path, {})
            else:
                _, methods = self._forms.setdefault(path, (re.compile(form), {}))
            methods[endpoint.method] = _answering(endpoint, flush)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        methods, scope["path_params"] = self._lookup(scope["path"])
        request, method = Request(scope, receive), scope["method"]
        answer = methods.get("GET" if method == "HEAD" else method)
        if over_tcp(request):
            peer = scope.get("state", {}).get(PEER) or Peer()
            if scope["path"] == HELLO_PATH:
                response = self._hello(request, peer)
                await response(scope, receive, send)
                return
            scope[SIGNATURE] = _verify(request, peer)
        if answer is not None:
            response = await answer(request)
        elif over_tcp(request) and scope[SIGNATURE] is None:
            response = _response(_sentence("expected a signed request, got another one"), 401)
        else:
            got = f"{method} {scope['path']}"
            words = f"expected a path of this daemon (/openapi.json), got {got}"
            response = _response(_sentence(words), 405 if methods else 404, scope.get(SIGNATURE))
        await response(scope, receive, send)

    def _hello(self, request: Request, peer: Peer) -> Response:
        """Begin the session of a connection, without revealing whether the token exists."""
        words = request.headers.get("authorization", "").split(" ")
        if peer.session is not None or len(words) != 3 or not _NONCE.fullmatch(words[2]):
            return _response(_sentence("expected one handshake in a connection, got another"), 401)
        _, name, client = words
        address, server = request.scope.get("server") or ("", 0), nonce()
        token = self._token(name, address[0]) or nonce()
        peer.session = Session.derive(token, name, address, client, server)
        return Response(headers={HELLO: f"{server} {peer.session.proof}"})

    def _lookup(self, path: str) -> tuple[Mapping[str, Answer], dict[str, str]]:
        """Return the answers of a path by method, none for an unknown path, and its parameters."""
        if path in self._fixed:
            return self._fixed[path], {}
        for form, methods in self._forms.values():
            match = form.fullmatch(path)
            if match is not None:
                return methods, match.groupdict()
        return {}, {}


def _answering(endpoint: Endpoint, flush: Callable[[], Awaitable[None]]) -> Answer:
    decoder = None if endpoint.body is None else msgspec.json.Decoder(endpoint.body)
    must = endpoint.flush == "must" and endpoint.method != "GET"
    may_fail = () if must else (JournalFullError,)

    async def answer(request: Request) -> Response:
        try:
            endpoint.check(request)
            body = () if decoder is None else (decoder.decode(await _body(request) or b"{}"),)
            result, status = await endpoint.call(request, *body), 200
            if endpoint.flush != "no":
                with contextlib.suppress(*may_fail):
                    await flush()
            return _response(result, status, request.scope.get(SIGNATURE))
        except Exception as error:
            result, status = _refusal(error, signed=request.scope.get(SIGNATURE) is not None)
        return _response(result, status, request.scope.get(SIGNATURE))

    return answer


def _refusal(error: Exception, *, signed: bool) -> tuple[ErrorAnswer, int]:
    """Return the answer to an error; raise one of the daemon itself, unless that is signed."""
    if isinstance(error, RefusedError):
        return _sentence(str(error)), error.status
    if isinstance(error, RecursionError):
        return _sentence("expected JSON that is nested less deeply, got more"), 400
    if isinstance(error, ClientDisconnect):
        return _sentence("expected a whole request, got a part of one"), 400
    if isinstance(error, MemoryError):
        return _sentence(str(error) or "the daemon has no memory left for this now"), 503
    for kinds, status in STATUSES:
        if isinstance(error, kinds):
            return _sentence(str(error)), status
    if signed:
        return _sentence("Internal Server Error"), 500
    raise error


def _sentence(text: str) -> ErrorAnswer:
    whole = text if len(text) <= MOST_SENTENCE else f"{text[:MOST_SENTENCE]}..."
    return ErrorAnswer(whole.encode("utf-8", "backslashreplace").decode())


async def _body(request: Request) -> bytes:
    """Return the body of a request; refuse one that is too long or does not fit its signature."""
    parts, length = list[bytes](), 0
    async for part in request.stream():
        length += len(part)
        if length > MOST_BYTES:
            raise RefusedError(413, f"expected a request of at most {MOST_BYTES} bytes, got more")
        parts.append(part)
    body, signature = b"".join(parts), request.scope.get(SIGNATURE)
    if signature is not None and digest(body) != signature.digest:
        raise RefusedError(401, "expected the signed body, got another one")
    return body


def _response(answer: object, status: int, signature: Signature | None = None) -> Response:
    body = answer.encode() if isinstance(answer, str) else msgspec.json.encode(answer)
    kind = METRICS_TYPE if isinstance(answer, str) else "application/json"
    headers = dict[str, str]()
    if status == 401:
        headers |= {"WWW-Authenticate": SCHEME, "Connection": "close"}
    if signature is not None:
        headers[ANSWER_HEADER] = signature.session.sign_answer(status, body)
    return Response(body, status, headers, kind)
