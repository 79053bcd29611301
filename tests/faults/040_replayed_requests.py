"""A signed request over TCP could be sent again at any time by a process that recorded it."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from daemon import LocalRms

from rms.wire.http import Connection, UnreachableError, request

DEADLINE_S = 120.0
BODY = (
    b'{"text":"#!/bin/sh\\ntrue\\n","name":"x","cwd":"/","env":{},"options":{"output":"/dev/null"}}'
)


@pytest.fixture(scope="module")
def daemon() -> Iterator[tuple[LocalRms, int, str]]:
    with contextlib.closing(LocalRms(1, "--listen", "tcp:127.0.0.1:0")) as rms:
        (port,) = re.findall(r"serving at http://127.0.0.1:(\d+)", rms.said())
        yield rms, int(port), (rms.state / "token").read_text()


class Recorded(Connection):
    """A connection that records what it sends, and can change it."""

    def __init__(self, port: int) -> None:
        super().__init__(f"http://127.0.0.1:{port}", DEADLINE_S)
        self.sent: list[bytes] = []
        usual = self._connection.send

        def send(data: object) -> None:
            assert isinstance(data, bytes)
            self.sent.append(data)
            usual(self.changed(data))

        self._connection.send = send  # type: ignore[method-assign]

    def changed(self, data: bytes) -> bytes:
        return data


def jobs(port: int, token: str) -> int:
    status, response = request(f"http://127.0.0.1:{port}", "GET", "/jobs", token=token)
    assert status == 200
    return response.count(b'"id":')


def answered(port: int, *messages: bytes) -> bytes:
    """Send messages over a new connection, one after the other; return all responses."""
    received = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as stranger,
    ):
        for message in messages:
            stranger.sendall(message)
            received += stranger.recv(1 << 16)
        stranger.shutdown(socket.SHUT_WR)
        while part := stranger.recv(1 << 16):
            received += part
    return received


def test_a_recorded_connection_is_refused_as_a_whole_and_in_part(
    daemon: tuple[LocalRms, int, str],
) -> None:
    _, port, token = daemon
    before = jobs(port, token)
    connection = Recorded(port)
    assert connection.request("POST", "/jobs", BODY, token)[0] == 200
    hello, submission = connection.sent[0], b"".join(connection.sent[1:])
    assert token.encode() not in hello + submission and b"#!/bin/sh" not in hello
    connection._connection.sock.sendall(submission)  # once more over the same connection
    response = connection._connection.sock.recv(1 << 16)
    assert response.startswith(b"HTTP/1.1 401") and b"connection: close" in response.lower()
    connection.close()
    for messages in ([submission], [hello, submission], [hello, hello], [submission, hello]):
        response = answered(port, *messages)
        assert (
            response.count(b"HTTP/1.1 200") <= (messages[0] == hello)
            and b"HTTP/1.1 401" in response
        )
    assert jobs(port, token) == before + 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"POST /jobs", b"POST /hold"),
        (b"/jobs HTTP", b"/jobs?x HTTP"),
        (b"RMS-HMAC ", b"RMS-HMAC 0"),
        (b'"cwd":"/"', b'"cwd":"."'),
        (b"Content-Length: %d" % len(BODY), b"Content-Length: 2"),
    ],
)
def test_a_request_that_is_changed_or_cut_on_the_way_is_refused(
    daemon: tuple[LocalRms, int, str], old: bytes, new: bytes
) -> None:
    _, port, token = daemon
    before = jobs(port, token)
    connection = Recorded(port)
    connection.changed = lambda data: data.replace(old, new)  # type: ignore[method-assign]
    with contextlib.suppress(UnreachableError):  # a refusal is signed if the request's header is
        assert connection.request("POST", "/jobs", BODY, token)[0] == 401
    assert old in b"".join(connection.sent) and jobs(port, token) == before
    connection.close()


def test_a_request_that_overtakes_another_is_refused(daemon: tuple[LocalRms, int, str]) -> None:
    _, port, token = daemon
    with contextlib.closing(Recorded(port)) as connection:
        assert connection.request("GET", "/nodes", token=token)[0] == 200
        session = connection._session
        assert session is not None
        session.number += 1
        with pytest.raises(UnreachableError, match="signed"):
            connection.request("GET", "/nodes", token=token)


@pytest.mark.parametrize("what", ["status", "cut", "repeated"])
def test_an_answer_that_is_changed_cut_or_repeated_is_refused(
    daemon: tuple[LocalRms, int, str], what: str
) -> None:
    _, port, token = daemon
    with contextlib.closing(Recorded(port)) as connection:
        usual, answers = connection._connection.getresponse, list[Any]()

        def getresponse() -> Any:
            answer = usual()
            content = answer.read()
            answers.append(answer)
            if what == "status":
                answer.status = 404
            cut = content[:-1] if what == "cut" else content
            answer.read = lambda: cut  # type: ignore[method-assign,assignment]
            return answers[0]

        assert connection.request("GET", "/nodes", token=token)[0] == 200
        if what == "repeated":
            connection._connection.getresponse = getresponse  # type: ignore[method-assign]
            assert connection.request("GET", "/nodes", token=token)[0] == 200
        connection._connection.getresponse = getresponse  # type: ignore[method-assign]
        with pytest.raises(UnreachableError, match="expected an answer signed"):
            connection.request("GET", "/nodes", token=token)
