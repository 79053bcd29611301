"""The page's server: on this machine alone, between a browser and the daemon's socket.

It keeps nothing: what a page shows is asked of the daemon anew each time, and a page that has lost
its connection says by ``Last-Event-ID`` which entry of the journal it has heard of last.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from rms import drawings
from rms.client.connection import ServerError, ask
from rms.daemon.ask.http import PEER, Peer
from rms.web.content import Asked, Sent, query
from rms.web.views import content
from rms.wire.live import LIVE_PATH, Live
from rms.wire.users import (
    JobIds,
    JobSelection,
    NodeNames,
    NodePattern,
    PolicyName,
    ResizeAnswer,
    ResizeCommand,
)

HOLD_S = 1.0
"""How often a page is told of what is no event: steps, power, the time."""

PAUSE_S = 0.2
"""From one update to the next at least."""

SEARCH_PAUSE_S = 2.0
"""The same of a search, which goes through all jobs."""

AGAIN_S = 0.5
"""How long after it did not answer the daemon is asked again."""

MOST_PAGES = 16
MOST_BYTES = 1 << 16

HOSTS = ("127.0.0.1", "localhost", "[::1]")

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}

ACTIONS: Mapping[str, tuple[str, Any, Any]] = {
    "cancel": ("/cancel", JobSelection, JobIds),
    "resize": ("/resize", ResizeCommand, ResizeAnswer),
    "hold": ("/hold", JobSelection, JobIds),
    "release": ("/release", JobSelection, JobIds),
    "requeue": ("/requeue", JobSelection, JobIds),
    "drain": ("/drain", NodePattern, NodeNames),
    "resume": ("/resume", NodePattern, NodeNames),
    "policy": ("/policy", PolicyName, PolicyName),
}
"""What can be done: the daemon's path, what is sent there, what it answers."""


@dataclass
class Bridge:
    """Between pages and a daemon.

    Args:
        server: the daemon's address.
        token: what a page shows.
    """

    server: str
    token: str
    pages: int = 0
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(MOST_PAGES + 4, "daemon")
    )

    def app(self) -> Starlette:
        """Return the application."""
        files = [
            Route(path, partial(_file, _static(name), kind)) for path, (name, kind) in FILES.items()
        ]
        style = Route("/drawings.css", partial(_file, drawings.STYLE.encode(), "text/css"))
        own = [
            Route("/stream", self._checked(self.stream)),
            Route("/do/{what}", self._checked(self.act), methods=["POST"]),
        ]
        return Starlette(routes=[*files, style, *own])

    def _checked(
        self, call: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers those alone who show the token, at an address of this machine."""

        async def answer(request: Request) -> Response:
            host = request.headers.get("host", "").rpartition(":")[0]
            given = request.headers.get("authorization", "").encode()
            if host not in HOSTS or not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
                return _said(401, "expected the address that rms web has printed, with its token")
            _peer(request).verified = True
            try:
                return await call(request)
            except (ValueError, msgspec.MsgspecError) as error:
                return _said(400, str(error))

        return answer

    async def _ask(self, *words: Any) -> Any:
        """Ask the daemon, on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, partial(ask, *words))

    async def stream(self, request: Request) -> Response:
        """Send what a view shows, and what changes of it, as server-sent events."""
        asked = Asked.parse(request.query_params)
        last = request.headers.get("last-event-id", "-1")
        if not last.lstrip("-").isdigit() or len(last) > 18:
            raise ValueError(f"expected the number of an entry as Last-Event-ID, got {last[:60]!r}")
        if self.pages >= MOST_PAGES:
            return _said(503, f"expected at most {MOST_PAGES} open pages, got more")
        _peer(request).endless = True
        return StreamingResponse(
            self._events(asked, int(last)), media_type="text/event-stream", headers=HEADERS
        )

    async def _events(self, asked: Asked, last: int) -> AsyncIterator[bytes]:
        """Yield events until the page goes away; the last of an update has its number."""
        sent, after, hold_s, now_s = Sent(), last, 0.0, 0.0
        self.pages += 1
        try:
            while True:
                try:
                    body = query(asked, after, hold_s, now_s)
                    live: Live = await self._ask(Live, self.server, "POST", LIVE_PATH, body)
                except ServerError as error:
                    yield _event(msgspec.json.encode({"lost": str(error)}))
                    hold_s = 0.0
                    await asyncio.sleep(AGAIN_S)
                    continue
                if live.seq < after:  # another journal: all in it is new
                    yield _event(msgspec.json.encode({"another": True}))
                    after, hold_s = 0, 0.0
                    continue
                after = live.seq
                messages = list(sent.update(content(asked, live), _news(live)))
                for message in messages[:-1]:
                    yield _event(message)
                yield _event(messages[-1], live.seq)
                hold_s, now_s = HOLD_S, live.now_s
                await asyncio.sleep(SEARCH_PAUSE_S if asked.find else PAUSE_S)
        finally:
            self.pages -= 1

    async def act(self, request: Request) -> Response:
        """Do something on the user's behalf, as the commands do."""
        what = request.path_params["what"]
        if what not in ACTIONS:
            raise ValueError(f"expected one of {', '.join(ACTIONS)}, got {what[:60]!r}")
        path, kind, answer = ACTIONS[what]
        body = await request.body()
        if len(body) > MOST_BYTES:
            raise ValueError(f"expected at most {MOST_BYTES} bytes, got {len(body)}")
        try:
            found = await self._ask(
                answer, self.server, "POST", path, msgspec.json.decode(body, type=kind)
            )
        except ServerError as error:
            return _said(409, str(error))
        return Response(msgspec.json.encode(found), 200, HEADERS, "application/json")


def _static(name: str) -> bytes:
    return (Path(__file__).parent / "static" / name).read_bytes()


async def _file(data: bytes, kind: str, request: Request) -> Response:
    return Response(data, 200, HEADERS, kind)


def _peer(request: Request) -> Peer:
    found: Peer | None = request.scope.get("state", {}).get(PEER)
    return found or Peer()


def _said(status: int, sentence: str) -> Response:
    headers = {**HEADERS, "Connection": "close"} if status == 401 else HEADERS
    return Response(msgspec.json.encode({"error": sentence}), status, headers, "application/json")


def _news(live: Live) -> dict[str, Any]:
    """Return what has happened, as a page tells it."""
    told = [
        {
            "n": each.seq,
            "at": drawings.clock(each.at_s) if each.at_s else "",
            "say": each.words[:300],
        }
        for each in live.news
    ]
    found: dict[str, Any] = {"seq": live.seq}
    if told:
        found["news"] = told
    if live.missed:
        found["missed"] = live.missed
    return found


def _event(data: bytes, number: int | None = None) -> bytes:
    head = b"" if number is None else f"id: {number}\n".encode()
    return head + b"data: " + data + b"\n\n"
