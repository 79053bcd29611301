"""A daemon without processes, asked in this process: its routes as an HTTP server calls them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from said import Said

from rms.core.model.cluster import Cluster
from rms.core.model.jobs import NodePower
from rms.daemon.ask.http import PEER, Peer
from rms.daemon.ask.routes import Routes
from rms.daemon.heart import Daemon
from rms.daemon.restart.recover import resume
from rms.daemon.store.context import Settings
from rms.daemon.store.journal import Journal
from rms.launch.base import ManagedProcess, ScriptLaunch, WorldLaunch
from rms.launch.local import LocalLauncher
from rms.wire.http import HELLO, HELLO_PATH, Session, digest, nonce, token_name

USERS_TOKEN = "of the users"
METRICS_TOKEN = "of Prometheus"
SCRIPT = {"text": "#!/bin/sh\ntrue\n", "name": "job", "cwd": "/", "env": {"A": "1"}, "options": {}}


async def answered(
    app: Any,
    method: str,
    path: str,
    body: bytes | None,
    shown: str | None,
    server: tuple[str, int | None] | None,
    state: dict[str, Any] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """Call an ASGI application; return the status, the headers and the body of its answer.

    Args:
        body: None for a client that is gone before it has sent one.
        shown: the header ``Authorization``, if any.
        server: the address at which the request arrives.
    """
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "query_string": query.encode(),
        "raw_path": path.encode(),
        "headers": [(b"authorization", shown.encode())] if shown else [],
        "server": server,
        "state": state or {},
    }
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if body is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    await app(scope, receive, send)
    headers = {key.decode(): value.decode() for key, value in messages[0]["headers"]}
    text = b"".join(message.get("body", b"") for message in messages)
    return messages[0]["status"], headers, text


class Idle(LocalLauncher):
    """Starts nothing: a script counts as started, and runs until the daemon ends."""

    meter_token = "of the meters"

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        return ManagedProcess(0, status_file=self.state / "none")

    def boot_world(self, job: str, launch: WorldLaunch) -> ManagedProcess:
        return ManagedProcess(0, status_file=self.state / "none")

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        return []


@dataclass
class Routed:
    """A daemon of two nodes, ``n1`` and ``n2``.

    Attributes:
        clock: its time in seconds, which stands still unless it is set.
        stopped: an entry for each request to stop.
        headers: of the last answer.
        proof: of the last handshake.
        messages: the daemon's log.
        loop: of the daemon's life: jobs' events belong to one.
        where: of its addresses, which one is asked where that is not said; a Unix socket's.
    """

    daemon: Daemon
    clock: list[float]
    stopped: list[bool] = field(default_factory=list)
    where: tuple[str, int | None] | None = ("socket", None)
    headers: dict[str, str] = field(default_factory=dict)
    proof: str = ""
    messages: list[str] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        token: str | None = None,
        over_tcp: bool = False,
        shown: str = "",
        peer: Peer | None = None,
    ) -> tuple[int, bytes]:
        """Send a request that shows a token, or this as ``Authorization``; return status, body.

        Over TCP it is signed with the token, after a handshake.

        Args:
            peer: the other side of a connection over TCP that is kept; one of its own if None.
        """
        server = ("127.0.0.1", 80) if over_tcp else self.where
        if token is not None and (server is None or server[1] is not None):
            peer = Peer()
            session = self.session(token, token_name(path), peer, over_tcp=over_tcp)
            shown = session.sign_request(method, path, digest(body))
        elif token is not None:
            shown = f"Bearer {token}"
        stop = self.stopped.append
        routes = Routes(self.daemon, lambda: stop(True), USERS_TOKEN, ["socket"], METRICS_TOKEN)
        state = {} if peer is None else {PEER: peer}
        work = answered(routes.app(), method, path, body, shown, server, state)
        status, self.headers, text = self.loop.run_until_complete(work)
        return status, text

    def session(self, token: str, name: str, peer: Peer, *, over_tcp: bool = True) -> Session:
        """Return a client's session after a handshake, whether or not the daemon has the token."""
        client = nonce()
        shown = f"{HELLO} {name} {client}"
        assert self.request("GET", HELLO_PATH, shown=shown, over_tcp=over_tcp, peer=peer)[0] == 200
        server, _, self.proof = self.headers[HELLO.lower()].partition(" ")
        address = ("127.0.0.1", 80) if over_tcp else self.where or ("", 0)
        return Session.derive(token, name, address, client, server)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        over_tcp: bool = False,
    ) -> tuple[int, Any]:
        """Send JSON, or bytes as they are; return status and what the answer's JSON says."""
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        status, answer = self.request(method, path, data, token=token, over_tcp=over_tcp)
        return status, json.loads(answer)

    def submit(self, **options: object) -> str:
        """Hand in a script; return the id of its first job."""
        status, answer = self.ask("POST", "/jobs", SCRIPT | {"options": options})
        assert status == 200, answer
        ids: list[str] = answer["ids"]
        return ids[0]

    def submit_here(self) -> str:
        """Hand in a script at the Unix socket, wherever else is asked."""
        where, self.where = self.where, ("socket", None)
        try:
            return self.submit()
        finally:
            self.where = where

    def token(self, job: str) -> str:
        """Return what a job shows."""
        return self.daemon.context.private.token(job)


@contextlib.contextmanager
def routed(folder: Path, cluster: Cluster | None = None, policy: str = "fifo") -> Iterator[Routed]:
    """Open a daemon whose state is in a folder."""
    cluster = cluster or Cluster(
        ("n1", "n2"), (("cpu:0",), ("cpu:1",)), (NodePower(idle_w=5.0, static_w=5.0),) * 2
    )
    messages = Said()
    launcher = Idle(folder, "instance", "unix:none")
    with Journal.open(folder / "journal") as journal:
        clock = [1_000.0]
        settings = Settings(policy=policy, now=lambda: clock[0])
        server = Routed(resume(cluster, journal, launcher, settings), clock, messages=messages)
        try:
            yield server
        finally:
            server.loop.close()
