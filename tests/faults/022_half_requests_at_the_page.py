"""300 half requests kept the page of ``rms web`` closed for as long as they stayed."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import socket
import time
from pathlib import Path

from daemon import LocalRms
from processes import RMS, started

DEADLINE_S = 120.0
FILES, CONNECTIONS = 80, 120


def page(port: int) -> bytes:
    """Request the page as a browser does; return the response, empty if the server closes."""
    response = b""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        while part := client.recv(1 << 16):
            response += part
    return response


def test_the_page_is_answered_beside_half_requests_and_pipelined_ones(tmp_path: Path) -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))

    with contextlib.closing(LocalRms(1)) as rms, contextlib.ExitStack() as stack:
        command = [*RMS, "web", "--server", rms.server, "--json", str(tmp_path / "web.json")]
        web = stack.enter_context(started(command, preexec_fn=few_files))
        assert web.stdout is not None
        assert re.match(r"http://127.0.0.1:\d+/#token=", web.stdout.readline())
        port = json.loads((tmp_path / "web.json").read_text())["port"]
        for n in range(CONNECTIONS):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE_S))
            with contextlib.suppress(ConnectionError):
                half.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" if n % 2 else b"")
        until_s = time.monotonic() + DEADLINE_S  # the listener has to accept them all first
        while not (response := page(port)) and time.monotonic() < until_s:
            time.sleep(0.1)
        assert response.startswith(b"HTTP/1.1 200"), response
        pipelined = stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE_S))
        answers = b""
        with contextlib.suppress(ConnectionError):
            pipelined.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
            while part := pipelined.recv(1 << 16):
                answers += part
        assert answers.count(b"HTTP/1.1 401") == answers.count(b"HTTP/1.1 ") == 1
