"""A connection that is kept between requests."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from pathlib import Path

import pytest

from rms.wire.http import Connection, UnreachableError, request

DEADLINE_S = 120.0
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def serve(listening: socket.socket, connections: int, requests: int) -> None:
    """Answer so many requests over each of so many connections."""
    for _ in range(connections):
        with listening.accept()[0] as accepted, accepted.makefile("rb") as sent:
            for _ in range(requests):
                while sent.readline() not in (b"\r\n", b""):
                    pass
                accepted.sendall(ANSWER)


def test_a_kept_connection_is_opened_again_where_the_server_has_closed_it(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        listening.settimeout(DEADLINE_S)
        server = threading.Thread(target=serve, args=(listening, 3, 2))
        server.start()
        connection = Connection(f"unix:{path}", DEADLINE_S)
        answers = [connection.request("GET", "/") for _ in range(6)]
        server.join(DEADLINE_S)
    assert answers == [(200, b"{}")] * 6  # over three connections
    with pytest.raises(UnreachableError, match="no answer from unix"):
        connection.request("GET", "/")
    connection.close()


@pytest.mark.skipif(sys.platform != "linux", reason="a full queue refuses on Linux only")
def test_a_daemon_with_more_to_accept_than_it_can_hold_is_tried_again(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as others:
        listening.bind(path)
        listening.listen(0)
        listening.settimeout(DEADLINE_S)
        waiting = 0
        while True:  # fill what it can hold
            other = others.enter_context(socket.socket(socket.AF_UNIX))
            other.setblocking(False)
            try:
                other.connect(path)
            except BlockingIOError:
                break
            waiting += 1
        with pytest.raises(UnreachableError, match="no answer from unix"):
            request(f"unix:{path}", "GET", "/", timeout_s=0.1)

        def accept() -> None:
            for _ in range(waiting):
                listening.accept()[0].close()
            serve(listening, 1, 1)

        server = threading.Timer(0.2, accept)
        server.start()
        assert request(f"unix:{path}", "GET", "/", timeout_s=DEADLINE_S) == (200, b"{}")
        server.join(DEADLINE_S)


def test_an_address_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="expected unix:PATH or http://HOST:PORT, got 'x'"):
        Connection("x")
