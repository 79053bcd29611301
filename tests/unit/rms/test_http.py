"""One request to the daemon: answers arrive whole, or the server counts as not reached."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from rms.wire.http import UnreachableError, request


class Peer(threading.Thread):
    """Takes one connection, keeps what it is asked and answers these bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.answer, self.asked = b"", b""

    def run(self) -> None:
        connection, _ = self.listener.accept()
        with connection:
            while b"\r\n\r\n" not in self.asked or not self.asked.endswith(b"body"):
                self.asked += connection.recv(1000)
            connection.sendall(self.answer)


@pytest.fixture
def peer() -> Iterator[Peer]:
    found = Peer()
    yield found
    found.join(10.0)
    found.listener.close()


def ask(peer: Peer, answer: bytes) -> tuple[int, bytes]:
    peer.answer = answer
    peer.start()
    return request(peer.url, "POST", "/jobs", b"body", token="secret")


def test_what_is_asked_and_answered(peer: Peer) -> None:
    found = ask(peer, b"HTTP/1.1 403 Forbidden\r\nserver: x\r\nContent-Length: 4\r\n\r\n[no]more")
    assert found == (403, b"[no]")
    head, _, body = peer.asked.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert (lines[0], body) == (b"POST /jobs HTTP/1.1", b"body")
    assert {b"Content-Length: 4", b"Connection: close", b"Authorization: Bearer secret"} < {*lines}


def test_an_answer_of_no_stated_length_ends_with_the_connection(peer: Peer) -> None:
    assert ask(peer, b"HTTP/1.0 200 OK\r\n\r\n{}") == (200, b"{}")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", "it broke off"),
        (b"HTTP/1.1 200 OK\r\nserver: x\r\n", "it broke off"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}", "it broke off after 2 of 10 bytes"),
        (b"220 mail ready\r\n", "does not speak HTTP"),
        (b"HTTP/1.1\r\n", "does not speak HTTP"),
    ],
)
def test_what_is_no_whole_answer(peer: Peer, answer: bytes, expected: str) -> None:
    with pytest.raises(UnreachableError, match=expected):
        ask(peer, answer)


@pytest.mark.parametrize("server", ["unix:/no/such/socket", "http://127.0.0.1:1"])
def test_nobody_there(server: str) -> None:
    with pytest.raises(UnreachableError, match="no answer from"):
        request(server, "GET", "/jobs")


@pytest.mark.parametrize("server", ["", "https://host:1", "http://host", "host:1", "http://h:x"])
def test_an_address_of_another_form(server: str) -> None:
    with pytest.raises(ValueError, match="expected unix:PATH or http://HOST:PORT"):
        request(server, "GET", "/jobs")
