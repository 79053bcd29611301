"""The control channel: messages arrive whole, in order, within deadlines, or not at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from dmr.wire.channel import (
    LOOPBACK,
    Accepted,
    ChannelError,
    ControlChannel,
    Listener,
    PeerGoneError,
    Refused,
    TakenOver,
    connect,
)

Pair = tuple[ControlChannel, ControlChannel]


@pytest.fixture
def channels() -> Iterator[Pair]:
    listener = Listener(LOOPBACK)
    found: list[ControlChannel] = []
    thread = threading.Thread(target=lambda: found.append(listener.accept(5)))
    thread.start()
    with connect(listener.address, 5) as caller:
        thread.join()
        listener.close()
        with found[0] as answerer:
            yield caller, answerer


def test_messages_arrive_in_order(channels: Pair) -> None:
    one, other = channels
    said = [Accepted(True), Refused("because " * 10_000), TakenOver()]
    for message in said[:1]:
        one.send(message)
    thread = threading.Thread(target=lambda: [one.send(message) for message in said[1:]])
    thread.start()
    assert [other.receive(5) for _ in said] == said
    thread.join()


def test_silence_is_told_apart_from_a_death(
    channels: tuple[ControlChannel, ControlChannel],
) -> None:
    one, other = channels
    with pytest.raises(ChannelError, match="did not answer within") as silent:
        one.receive(0.05)
    assert not isinstance(silent.value, PeerGoneError)
    other.send(TakenOver())
    other.close()
    assert one.receive(5) == TakenOver()
    with pytest.raises(PeerGoneError):
        one.receive(5)


def test_who_lacks_the_token_is_not_accepted() -> None:
    listener = Listener(LOOPBACK)
    host, port, token = listener.address.rsplit(":", 2)
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"x" * len(token))
        with pytest.raises(ChannelError, match="no connection"):
            listener.accept(0.2)
    listener.close()


def test_no_listener() -> None:
    listener = Listener(LOOPBACK)
    listener.close()
    with pytest.raises(PeerGoneError, match="gone"):
        connect(listener.address, 1)
