"""A connection that is kept between requests."""

from __future__ import annotations

import socket
import threading

import pytest

from rms.wire.http import Connection, UnreachableError

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


def test_a_kept_connection_is_opened_again_where_the_server_has_closed_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(DEADLINE_S)
        port = listening.getsockname()[1]
        server = threading.Thread(target=serve, args=(listening, 3, 2))
        server.start()
        connection = Connection(f"http://127.0.0.1:{port}", DEADLINE_S)
        answers = [connection.request("GET", "/") for _ in range(6)]
        server.join(DEADLINE_S)
    assert answers == [(200, b"{}")] * 6  # over three connections
    with pytest.raises(UnreachableError, match="no answer from http"):
        connection.request("GET", "/")
    connection.close()


def test_an_address_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="expected unix:PATH or http://HOST:PORT, got 'x'"):
        Connection("x")
