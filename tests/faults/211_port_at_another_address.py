"""A process at the daemon's port of another address (::1 of localhost) could relay messages."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

import pytest
from daemon import LocalRms

from dmr.wire.channel import ChannelError, Listener, connect
from rms.wire.http import UnreachableError, request

DEADLINE_S = 120.0
OTHER = "127.0.0.2"


@contextlib.contextmanager
def relaying(port: int) -> Iterator[list[bytes]]:
    """Relay the port of another address, both ways; yield the data that clients send."""
    received: list[bytes] = []

    def passed(one: socket.socket, other: socket.socket, kept: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            while part := one.recv(1 << 16):
                kept.append(part)
                other.sendall(part)
            other.shutdown(socket.SHUT_WR)

    def serve(listening: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            contextlib.closing(listening.accept()[0]) as client,
            socket.create_connection(("127.0.0.1", port), DEADLINE_S) as daemon,
        ):
            back = threading.Thread(target=passed, args=(daemon, client, []))
            back.start()
            passed(client, daemon, received)
            back.join(DEADLINE_S)

    with socket.create_server((OTHER, port)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        yield received
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(DEADLINE_S)


def test_a_client_sends_only_a_handshake_there() -> None:
    with contextlib.closing(LocalRms(1, "--listen", "tcp:127.0.0.1:0")) as rms:
        (port,) = re.findall(r"serving at http://127.0.0.1:(\d+)", rms.said())
        token = (rms.state / "token").read_text()
        with (
            relaying(int(port)) as received,
            pytest.raises(UnreachableError, match="has this token"),
        ):
            request(f"http://{OTHER}:{port}", "POST", "/cancel", b'{"id":"1"}', token=token)
        assert len(received) == 1 and received[0].startswith(b"GET /hello")
        assert request(f"http://127.0.0.1:{port}", "GET", "/jobs", token=token)[0] == 200


def test_the_control_channel_is_not_opened_there() -> None:
    listener = Listener("127.0.0.1")
    _, port, token = listener.address.rsplit(":", 2)

    def accept() -> None:
        with contextlib.suppress(ChannelError):
            listener.accept(DEADLINE_S).close()

    accepting = threading.Thread(target=accept)
    accepting.start()
    with (
        relaying(int(port)) as received,
        pytest.raises(ChannelError, match=r"gone|another process"),
    ):
        connect(f"{OTHER}:{port}:{token}", DEADLINE_S)
    assert received and token.encode() not in b"".join(received)
    connect(listener.address, DEADLINE_S).close()
    accepting.join(DEADLINE_S)
    listener.close()
