"""Server of the live page, on this machine only, between browsers and the daemon's socket.

It has no state but the newest replay of the jobs without resizes: it queries the daemon for every
update. A page that has lost its connection sends the number of its newest journal entry as
``Last-Event-ID``. ``/read`` is the page for browsers without JavaScript: HTML that stands still.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from rms import plots
from rms.client.connection import ServerError, ask
from rms.daemon.ask.http import PEER, Peer
from rms.web.views import Content, PageQuery, PageState, content, filled, query, stood_still, when
from rms.wire.live import LIVE_PATH, Live
from rms.wire.terminal import clock
from rms.wire.users import (
    Gain,
    HoursGain,
    JobIds,
    JobSelection,
    NodeNames,
    NodePattern,
    PolicyName,
    ResizeAnswer,
    ResizeCommand,
)

HOLD_S = 1.0
"""Interval of updates without an event: steps, power, the time."""

PAUSE_S = 0.2
"""Shortest time between two updates."""

SEARCH_PAUSE_S = 2.0
"""The same for a search, which goes through all jobs."""

AGAIN_S = 0.5
"""Time until the next query if the daemon does not answer."""

Kind = TypeVar("Kind")

REPLAY_S = 15.0
"""Shortest time between two replays of the jobs without resizes."""

NEWEST = 12
"""Number of events on a page without JavaScript."""

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

STATIC = Path(__file__).parent / "static"
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
"""Actions of the page: the daemon's path, the type of the request and of the answer."""


@dataclass
class Bridge:
    """The connection of pages, which have a token, to a daemon at an address."""

    server: str
    token: str
    pages: int = 0
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(MOST_PAGES + 4, "daemon")
    )
    gain: Gain | str = ""
    saved: HoursGain | str = ""
    _replay: asyncio.Task[None] | None = None
    _process: asyncio.subprocess.Process | None = None
    _replayed_s: float = -REPLAY_S
    _seq: int = -1

    def app(self) -> Starlette:
        """Return the application."""
        files = [
            Route(path, partial(_file, (STATIC / name).read_bytes(), kind))
            for path, (name, kind) in FILES.items()
        ]
        style = Route("/drawings.css", partial(_file, plots.STYLE.encode(), "text/css"))
        own = [
            Route("/stream", self._checked(self.stream)),
            Route("/read", self.read),
            Route("/do/{what}", self._checked(self.act), methods=["POST"]),
        ]
        return Starlette(routes=[*files, style, *own])

    def close(self) -> None:
        """End a replay that is being computed."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _checked(
        self, call: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that requires the token, and an address of this machine."""

        async def answer(request: Request) -> Response:
            header = request.headers.get("authorization", "").encode()
            expected = f"Bearer {self.token}".encode()
            if not _is_here(request) or not hmac.compare_digest(header, expected):
                return _error(401, "expected the address that rms web has printed, with its token")
            _peer(request).verified = True
            try:
                return await call(request)
            except (ValueError, msgspec.MsgspecError) as error:
                return _error(400, str(error))

        return answer

    async def _ask(self, *words: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.threads, partial(ask, *words))

    async def stream(self, request: Request) -> Response:
        """Send a view, and its changes, as server-sent events."""
        page = PageQuery.parse(request.query_params)
        last = request.headers.get("last-event-id", "-1")
        if not last.lstrip("-").isdigit() or len(last) > 18:
            raise ValueError(f"expected the number of an entry as Last-Event-ID, got {last[:60]!r}")
        if self.pages >= MOST_PAGES:
            return _error(503, f"expected at most {MOST_PAGES} open pages, got more")
        _peer(request).endless = True
        return StreamingResponse(
            self._events(page, int(last)), media_type="text/event-stream", headers=HEADERS
        )

    async def _events(self, page: PageQuery, last: int) -> AsyncIterator[bytes]:
        """Yield events until the page disconnects; the last event of an update has its number."""
        sent, after, hold_s, now_s = PageState(), last, 0.0, 0.0
        self.pages += 1
        try:
            while True:
                try:
                    body = query(page, after, hold_s, now_s)
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
                view = content(page, live, *await self._brought(page, live.seq))
                messages = list(sent.update(view, _news(live)))
                for message in messages[:-1]:
                    yield _event(message)
                yield _event(messages[-1], live.seq)
                hold_s, now_s = HOLD_S, live.now_s
                await asyncio.sleep(SEARCH_PAUSE_S if page.find else PAUSE_S)
        finally:
            self.pages -= 1

    async def _brought(
        self, page: PageQuery, seq: int, *, wait: bool = False
    ) -> tuple[Gain | str, HoursGain | str]:
        """Return what resizes have brought and cheap hours saved; replays begin if there is news.

        Args:
            wait: for the replays; otherwise the newest ones are returned meanwhile.
        """
        if page.view != "malleability":
            return "", ""
        now_s = asyncio.get_running_loop().time()
        due = seq != self._seq and now_s >= self._replayed_s + REPLAY_S
        if self._replay is None and (due or self._seq < 0):
            self._replay, self._seq = asyncio.create_task(self._replayed()), seq
        if wait and self._replay is not None:
            await asyncio.shield(self._replay)
        return self.gain, self.saved

    async def _replayed(self) -> None:
        """Compute what resizes have brought, and what cheap hours have saved."""
        try:
            self.gain = await self._printed(Gain)
            self.saved = await self._printed(HoursGain, "--cost")
        finally:
            self._replayed_s, self._replay = asyncio.get_running_loop().time(), None

    async def _printed(self, kind: type[Kind], *options: str) -> Kind | str:
        """Return what ``rms acct --gain``, a process of its own, prints, or why it does not."""
        words = ["acct", "--gain", *options, "--json", "-", "--server", self.server]
        command, pipe = [sys.executable, "-P", "-m", "rms", *words], asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
            out, error = await self._process.communicate()
        except OSError as wrong:
            return f"There is no replay: {wrong}."
        if self._process.returncode == 0:
            return msgspec.json.decode(out, type=kind)
        reason = error.decode(errors="replace").strip().rpartition("error: ")[2]
        return f"There is no replay: {reason[:300]}."

    async def read(self, request: Request) -> Response:
        """Send a view as HTML that needs no script, to who logs in with the token as password."""
        if not (_is_here(request) and self._has_password(request)):
            answer = _error(401, "expected the token of the printed address as password")
            answer.headers["WWW-Authenticate"] = 'Basic realm="rms web: password = token"'
            return answer
        _peer(request).verified = True
        try:
            page = PageQuery.parse(request.query_params, still=True)
            first: Live = await self._ask(
                Live, self.server, "POST", LIVE_PATH, query(page, -1, 0, 0)
            )
            body = query(page, max(0, first.seq - 10 * NEWEST), 0.0, first.now_s)
            live: Live = await self._ask(Live, self.server, "POST", LIVE_PATH, body)
            view = content(page, live, *await self._brought(page, live.seq, wait=True))
        except (ValueError, msgspec.MsgspecError) as error:
            return _error(400, str(error))
        except ServerError as error:
            return _error(503, str(error))
        return Response(_read(page, view, live), 200, HEADERS, "text/html")

    def _has_password(self, request: Request) -> bool:
        kind, _, words = request.headers.get("authorization", "").partition(" ")
        try:
            password = base64.b64decode(words, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
        return kind.lower() == "basic" and hmac.compare_digest(password, self.token.encode())

    async def act(self, request: Request) -> Response:
        """Carry out an action of the user."""
        what = request.path_params["what"]
        if what not in ACTIONS:
            raise ValueError(f"expected one of {', '.join(ACTIONS)}, got {what[:60]!r}")
        path, kind, answer = ACTIONS[what]
        body = await request.body()
        if len(body) > MOST_BYTES:
            raise ValueError(f"expected at most {MOST_BYTES} bytes, got {len(body)}")
        try:
            message = msgspec.json.decode(body, type=kind)
            result = await self._ask(answer, self.server, "POST", path, message)
        except ServerError as error:
            return _error(409, str(error))
        return Response(msgspec.json.encode(result), 200, HEADERS, "application/json")


async def _file(data: bytes, kind: str, request: Request) -> Response:
    return Response(data, 200, HEADERS, kind)


def _is_here(request: Request) -> bool:
    """Return whether a request names an address of this machine."""
    return request.headers.get("host", "").rpartition(":")[0] in HOSTS


def _read(page: PageQuery, view: Content, live: Live) -> str:
    """Return the whole page of a view, without its script."""
    newest = reversed(live.news[-NEWEST:])
    times = [(when(entry.at_s) if entry.at_s else "<time></time>", entry.words) for entry in newest]
    news = "".join(f"<li>{at}<span>{escape(text[:300])}</span></li>" for at, text in times)
    html = (STATIC / "page.html").read_text()
    html = re.sub(r"<(script|noscript|dialog|button)\b.*?</\1>\s*", "", html, flags=re.DOTALL)
    html = html.replace('href="#view=', 'href="read?view=')
    html = html.replace(
        f'href="read?view={page.view}"', f'href="read?view={page.view}" aria-current="page"'
    )
    html = html.replace(
        ">Not connected<", f">As of {clock(live.now_s, day=True)}; reload for news<"
    )
    html = re.sub(r"(<main[^>]*>)", lambda match: match[1] + filled(view.frame, view), html)
    if news:
        html = re.sub(
            r"(<ol id=\"news\"[^>]*>).*?</ol>", lambda match: f"{match[1]}{news}</ol>", html
        )
    return stood_still(filled(html, view), live.now_s)


def _peer(request: Request) -> Peer:
    peer: Peer | None = request.scope.get("state", {}).get(PEER)
    return peer or Peer()


def _error(status: int, sentence: str) -> Response:
    headers = {**HEADERS, "Connection": "close"} if status == 401 else HEADERS
    return Response(msgspec.json.encode({"error": sentence}), status, headers, "application/json")


def _news(live: Live) -> dict[str, Any]:
    news: dict[str, Any] = {"seq": live.seq, "now": round(live.now_s, 1)}
    if live.news:
        news["news"] = [
            {
                "n": entry.seq,
                "at": clock(entry.at_s, day=True) if entry.at_s else "",
                "at_s": entry.at_s,
                "say": entry.words[:300],
            }
            for entry in live.news
        ]
    if live.missed:
        news["missed"] = live.missed
    return news


def _event(data: bytes, number: int | None = None) -> bytes:
    head = b"" if number is None else f"id: {number}\n".encode()
    return head + b"data: " + data + b"\n\n"
