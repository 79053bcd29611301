"""How requests are answered: who may ask, what is sent and returned, a status for each error."""

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

from rms.daemon.journal import Journal, JournalError, JournalFullError
from rms.wire.signing import ANSWER_HEADER, answer_signature, digest, verified
from rms.wire.users import ErrorAnswer

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
"""Where a request's scope holds its :class:`Seal`."""


@dataclass(frozen=True)
class Seal:
    """What the answer to a signed request is signed by, and the digest of what was sent."""

    token: str
    nonce: str
    digest: str


def check_token(request: Request, token: str, whose: str) -> None:
    """Let those in who show a token, or sign by it; a request is sealed then.

    Raises:
        RefusedError: anybody else.
    """
    given = request.headers.get("authorization", "")
    if token and compare_digest(given.encode("latin-1"), f"Bearer {token}".encode()):
        return
    scope = request.scope
    target = scope.get("raw_path", b"").decode("latin-1")
    if scope["query_string"]:
        target += f"?{scope['query_string'].decode('latin-1')}"
    found = verified(token, request.method, target, given) if token else None
    if found is None:
        raise RefusedError(401, f"expected {whose}")
    request.scope[SEAL] = Seal(token, *found)


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
    """

    def __init__(self, endpoints: Sequence[Endpoint], flush: Callable[[], Awaitable[None]]) -> None:
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
        method = scope["method"]
        answer = methods.get("GET" if method == "HEAD" else method)
        if answer is None:
            got = f"{method} {scope['path']}"
            words = f"expected a path of this daemon (/openapi.json), got {got}"
            response = _response(_sentence(words), 405 if methods else 404)
        else:
            response = await answer(Request(scope, receive))
        await response(scope, receive, send)

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
            found, status = await endpoint.call(request, *sent), 200
            if endpoint.flush != "no":
                with contextlib.suppress(*may_fail):
                    await flush()
        except Exception as error:
            found, status = _refusal(error)
        return _response(found, status, request.scope.get(SEAL))

    return answer


def _refusal(error: Exception) -> tuple[ErrorAnswer, int]:
    """Return what is answered on an error, and its status; raise what is a fault of ours."""
    if isinstance(error, RefusedError):
        return _sentence(str(error)), error.status
    if isinstance(error, RecursionError):
        return _sentence("expected JSON that is nested less deeply, got more"), 400
    if isinstance(error, ClientDisconnect):
        return _sentence("expected a whole request, got a part of one"), 400
    for kinds, status in STATUSES:
        if isinstance(error, kinds):
            return _sentence(str(error)), status
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
    kind, headers = PLAIN if isinstance(answer, str) else "application/json", {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if seal is not None:
        headers[ANSWER_HEADER] = answer_signature(seal.token, seal.nonce, status, body)
    return Response(body, status, headers, kind)
