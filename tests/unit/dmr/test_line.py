"""The line between two worlds: words arrive whole, in order, within deadlines, or not at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from dmr.wire.channel import (
    LOOPBACK,
    Accepted,
    Door,
    Line,
    LineError,
    LostError,
    Refused,
    Settled,
    call,
)


@pytest.fixture
def lines() -> Iterator[tuple[Line, Line]]:
    door = Door(LOOPBACK)
    found: list[Line] = []
    thread = threading.Thread(target=lambda: found.append(door.wait(5)))
    thread.start()
    with call(door.address, 5) as caller:
        thread.join()
        door.close()
        with found[0] as answerer:
            yield caller, answerer


def test_words_arrive_in_order(lines: tuple[Line, Line]) -> None:
    one, other = lines
    said = [Accepted(True), Refused("because " * 10_000), Settled()]
    for message in said[:1]:
        one.send(message)
    thread = threading.Thread(target=lambda: [one.send(message) for message in said[1:]])
    thread.start()
    assert [other.receive(5) for _ in said] == said
    thread.join()


def test_silence_is_told_apart_from_a_death(lines: tuple[Line, Line]) -> None:
    one, other = lines
    with pytest.raises(LineError, match="did not answer within") as silent:
        one.receive(0.05)
    assert not isinstance(silent.value, LostError) and not one.lost
    other.send(Settled())
    other.close()
    assert one.receive(5) == Settled()
    with pytest.raises(LostError):
        one.receive(5)
    assert one.lost


def test_who_does_not_know_the_word_is_not_heard() -> None:
    door = Door(LOOPBACK)
    host, port, word = door.address.rsplit(":", 2)
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"x" * len(word))
        with pytest.raises(LineError, match="nobody called"):
            door.wait(0.2)
    door.close()


def test_nobody_at_home() -> None:
    door = Door(LOOPBACK)
    door.close()
    with pytest.raises(LostError, match="gone"):
        call(door.address, 1)
