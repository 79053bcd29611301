"""Connections of clients: bounds of their number, and of requests, bytes and time of each.

A connection has one request at a time. Pipelined requests are not read: the first is answered and
the connection closed. So is, by the application, a connection over TCP after an answer of 401.
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

from rms.daemon.store.journal import Journal, JournalError, JournalFullError
from rms.wire.signing import ANSWER_HEADER, HELLO, HELLO_PATH, SCHEME, Session, digest, nonce
from rms.wire.users import ErrorAnswer

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


# FUSED rms.daemon.ask.http: How requests are answered: who may ask, what is sent and returned, a status for each error.

MOST_BYTES = 1 << 24
"""No request is longer: a script (4 MiB at most) with an environment."""

LONGEST_SENTENCE = 1000

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
"""Of an answer that is a text: Prometheus' format."""

STATUSES: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((JournalError, OSError), 503),
    ((ValueError, OverflowError, RecursionError), 400),
)
"""Of errors without a status of their own: nothing can be kept now; what was sent cannot be."""


class RefusedError(Exception):
    """A request that is not fulfilled: an HTTP status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


SEAL = "rms.seal"
"""Key of a signed request's :class:`Seal` in its scope."""

_NONCE = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class Seal:
    """Session of a signed request, which signs its answer, and the digest of its body."""

    session: Session
    digest: str


def is_signed(request: Request, name: str) -> bool:
    """Return whether a request is signed with the token of this name."""
    seal = request.scope.get(SEAL)
    return seal is not None and seal.session.name == name


def shows(request: Request, token: str) -> bool:
    """Return whether a request carries a token as a bearer token."""
    header = request.headers.get("authorization", "")
    return bool(token) and compare_digest(header.encode("latin-1"), f"Bearer {token}".encode())


def over_tcp(request: Request) -> bool:
    """Return whether a request came over TCP."""
    return (request.scope.get("server") or ("", 0))[1] is not None


def _verify(request: Request, peer: Peer) -> Seal | None:
    """Return the seal of a request with a valid signature for this connection, else None."""
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
    return Seal(session, words[1])


Flush = Literal["must", "may", "no"]
"""Whether what was entered is on disk before anybody is answered. Where it ``must`` be and there is
no room for it, the answer is 503; jobs, and those who only look, are answered all the same."""


@dataclass(frozen=True)
class Endpoint:
    """A method of HTTP on a path.

    Attributes:
        check: raises :class:`RefusedError` for those who may not ask.
        call: answers; given the request, and what was sent where there is a ``body``.
        body: the type of what is sent, None where nothing is.
        flush: whether what it has entered is on disk before it answers.
    """

    method: str
    path: str
    check: Callable[[Request], None]
    call: Callable[..., Awaitable[object]]
    body: Any = None
    flush: Flush = "must"


Answer = Callable[[Request], Awaitable[Response]]


class Flushes:
    """Has on disk what was entered, in a thread: those who ask meanwhile share the next flush."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._turn = journal, asyncio.Lock()

    async def __call__(self) -> None:
        """Return when all is on disk that was entered before.

        Raises:
            JournalFullError: there is no room for it.
        """
        journal = self._journal
        if journal.flushing() is None:
            return
        upto = journal.written
        async with self._turn:
            work = None if journal.synced >= upto else journal.flushing()
            if work is not None:
                await asyncio.to_thread(work)


class Application:
    """Answers at endpoints (ASGI 3): the path is looked up, and nothing stands in between.

    Polls come by the thousand a second, so that each layer of a framework would be felt.

    Args:
        flush: has what was entered on disk.
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
        for each in endpoints:
            form = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(each.path))
            if form == re.escape(each.path):
                methods = self._fixed.setdefault(each.path, {})
            else:
                _, methods = self._forms.setdefault(each.path, (re.compile(form), {}))
            methods[each.method] = _answering(each, flush)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        methods, scope["path_params"] = self._found(scope["path"])
        request, method = Request(scope, receive), scope["method"]
        answer = methods.get("GET" if method == "HEAD" else method)
        if over_tcp(request):
            peer = scope.get("state", {}).get(PEER) or Peer()
            if scope["path"] == HELLO_PATH:
                response = self._hello(request, peer)
                await response(scope, receive, send)
                return
            scope[SEAL] = _verify(request, peer)
        if answer is not None:
            response = await answer(request)
        elif over_tcp(request) and scope[SEAL] is None:
            response = _response(_sentence("expected a signed request, got another one"), 401)
        else:
            got = f"{method} {scope['path']}"
            words = f"expected a path of this daemon (/openapi.json), got {got}"
            response = _response(_sentence(words), 405 if methods else 404, scope.get(SEAL))
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

    def _found(self, path: str) -> tuple[Mapping[str, Answer], dict[str, str]]:
        """Return what answers at a path by method, nothing where there is none; its parts."""
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, {}
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
            sent = () if decoder is None else (decoder.decode(await _body(request) or b"{}"),)
            result, status = await endpoint.call(request, *sent), 200
            if endpoint.flush != "no":
                with contextlib.suppress(*may_fail):
                    await flush()
            return _response(result, status, request.scope.get(SEAL))
        except Exception as error:
            result, status = _refusal(error, signed=request.scope.get(SEAL) is not None)
        return _response(result, status, request.scope.get(SEAL))

    return answer


def _refusal(error: Exception, *, signed: bool) -> tuple[ErrorAnswer, int]:
    """Return the error message and status for an exception.

    An internal error is raised for the server to answer, unless the answer has to be signed.
    """
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
    whole = text if len(text) <= LONGEST_SENTENCE else f"{text[:LONGEST_SENTENCE]}..."
    return ErrorAnswer(whole.encode("utf-8", "backslashreplace").decode())


async def _body(request: Request) -> bytes:
    """Return what was sent.

    Raises:
        RefusedError: more than anybody has reason to send, or not what was signed.
    """
    parts, length = list[bytes](), 0
    async for part in request.stream():
        length += len(part)
        if length > MOST_BYTES:
            raise RefusedError(413, f"expected a request of at most {MOST_BYTES} bytes, got more")
        parts.append(part)
    body, seal = b"".join(parts), request.scope.get(SEAL)
    if seal is not None and digest(body) != seal.digest:
        raise RefusedError(401, "expected what was signed, got something else")
    return body


def _response(answer: object, status: int, seal: Seal | None = None) -> Response:
    body = answer.encode() if isinstance(answer, str) else msgspec.json.encode(answer)
    kind = PLAIN if isinstance(answer, str) else "application/json"
    headers = dict[str, str]()
    if status == 401:
        headers |= {"WWW-Authenticate": SCHEME, "Connection": "close"}
    if seal is not None:
        headers[ANSWER_HEADER] = seal.session.sign_answer(status, body)
    return Response(body, status, headers, kind)
