"""A new world sent its token to any process at the old one's port, and trusted the replies."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from dmr.wire.channel import LOOPBACK, ChannelError, ControlChannel, Listener, Refused, connect

DEADLINE_S = 60.0
NONCE, PROOF = 16, 32
MESSAGE = Refused("one message")


@contextlib.contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join(DEADLINE_S)


def test_a_listener_without_the_token_is_refused_and_does_not_learn_it() -> None:
    with socket.create_server((LOOPBACK, 0)) as listening:
        received: list[bytes] = []
        token = os.urandom(16).hex()

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.settimeout(DEADLINE_S)
                client.sendall(os.urandom(NONCE))
                received.append(client.recv(1 << 10))
                client.sendall(os.urandom(PROOF))

        with in_thread(serve), pytest.raises(ChannelError, match="got another process"):
            connect(f"{LOOPBACK}:{listening.getsockname()[1]}:{token}", DEADLINE_S)
        assert len(received[0]) == NONCE + PROOF and token.encode() not in received[0]


def test_proofs_relayed_from_another_port_are_refused() -> None:
    listener = Listener(LOOPBACK)
    _, port, token = listener.address.rsplit(":", 2)
    accepted: list[ControlChannel] = []

    with socket.create_server((LOOPBACK, 0)) as listening:

        def relay() -> None:
            client, _ = listening.accept()
            with client, socket.create_connection((LOOPBACK, int(port)), DEADLINE_S) as server:
                client.sendall(server.recv(NONCE))
                server.sendall(client.recv(NONCE + PROOF))
                client.sendall(server.recv(PROOF))

        with in_thread(lambda: accepted.append(listener.accept(DEADLINE_S))):
            with in_thread(relay), pytest.raises(ChannelError):
                connect(f"{LOOPBACK}:{listening.getsockname()[1]}:{token}", DEADLINE_S)
            caller = connect(listener.address, DEADLINE_S)  # else nothing is accepted
    with caller, accepted[0] as other:
        caller.send(MESSAGE)
        assert other.receive(DEADLINE_S) == MESSAGE
    listener.close()


def test_silent_and_malformed_connections_delay_no_other() -> None:
    listener = Listener(LOOPBACK)
    port = int(listener.address.rsplit(":", 2)[1])
    accepted: list[ControlChannel] = []
    with contextlib.ExitStack() as stack:
        for n in range(80):  # each silent one took 5 s
            stranger = stack.enter_context(socket.create_connection((LOOPBACK, port), DEADLINE_S))
            stranger.sendall(b"x" * (n % 3) * 30)
        with in_thread(lambda: accepted.append(listener.accept(DEADLINE_S))):
            caller = stack.enter_context(connect(listener.address, DEADLINE_S))
        caller.send(MESSAGE)
        assert stack.enter_context(accepted[0]).receive(DEADLINE_S) == MESSAGE
    listener.close()
