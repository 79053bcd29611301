"""Clients without the token that read no answer kept the page of ``rms web`` closed for ever."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from processes import until

from rms.cli.client import web
from rms.daemon.ask.http import bounded

DEADLINE_S = 120.0
MOST, ANSWER_S, REQUEST_S = 3, 2.0, 8.0
SCRIPT = b"GET /page.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[uvicorn.Server, str]]:
    """Run ``rms web`` with few connections and short times; its daemon is absent."""
    servers: list[uvicorn.Server] = []

    class Server(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            servers.append(self)

    def few(most: int, **options: Any) -> Any:
        return partial(bounded, MOST, request_s=REQUEST_S, answer_s=ANSWER_S)(**options)

    monkeypatch.setattr("rms.cli.client.ask", lambda *_: None)
    monkeypatch.setattr("rms.daemon.ask.http.bounded", few)
    monkeypatch.setattr(uvicorn, "Server", Server)
    file = tmp_path / "web.json"
    given = Namespace(server=f"unix:{tmp_path / 'none'}", port=0, json=str(file))
    thread = threading.Thread(target=web, args=(given,))
    thread.start()
    try:
        until(lambda: servers and servers[0].started)
        yield servers[0], json.loads(file.read_text())["address"]
    finally:
        servers[0].should_exit = servers[0].force_exit = True
        thread.join(DEADLINE_S)


def has_unread_answers(server: uvicorn.Server, client: socket.socket) -> bool:
    """Send a request unless one is being answered; return whether its answer has to wait.

    That is also so where the server has closed the connection.
    """
    address = client.getsockname()
    for each in list(server.server_state.connections):
        if each.client == address:
            if each.cycle is None or each.cycle.response_complete:
                with contextlib.suppress(ConnectionError):
                    client.sendall(SCRIPT)
                return False
            return bool(each.flow.write_paused)
    return True


def test_the_page_is_answered_beside_answers_that_nobody_reads(
    page: tuple[uvicorn.Server, str],
) -> None:
    server, address = page
    where = ("127.0.0.1", urlsplit(address).port or 0)
    with contextlib.ExitStack() as stack:
        for _ in range(MOST):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
            client.connect(where)
            until(lambda client=client: has_unread_answers(server, client))
        with socket.create_connection(where, DEADLINE_S) as late:
            late.sendall(SCRIPT)
            assert late.recv(1 << 12).startswith(b"HTTP/1.1 200 OK")
        until(lambda: not server.server_state.connections)


def test_a_stream_that_shows_the_token_lasts(page: tuple[uvicorn.Server, str]) -> None:
    _, address = page
    parts = urlsplit(address)
    token = parts.fragment.removeprefix("token=")
    with socket.create_connection(("127.0.0.1", parts.port or 0), DEADLINE_S) as client:
        head = f"GET /stream HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: Bearer {token}\r\n\r\n"
        client.sendall(head.encode())
        end, received = time.monotonic() + 2.0 * ANSWER_S, b""
        while time.monotonic() < end:
            part = client.recv(1 << 16)
            assert part, received
            received += part
        assert received.startswith(b"HTTP/1.1 200 OK") and b"lost" in received
