"""One side of a resize: what comes early is kept; a failure is one of all ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from dmr.errors import RolledBackError, TransferError
from dmr.plan import Deadlines
from dmr.resize.side import Side, catch_failure
from dmr.state.values import ValuesError
from dmr.wire.channel import (
    Accepted,
    Acknowledged,
    Arrived,
    Build,
    ChannelError,
    PeerGoneError,
    Refused,
)


class Channel:
    """A control channel whose other end is a list."""

    def __init__(self, *messages: Any) -> None:
        self.incoming, self.sent = deque(messages), []

    @property
    def readable(self) -> bool:
        return bool(self.incoming)

    def receive(self, deadline_s: float) -> Any:
        if not self.incoming or self.incoming[0] is None:
            raise PeerGoneError("the other world is gone")
        return self.incoming.popleft()

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Messages:
    """Rank 0's messages with others, whose reports are given."""

    is_root = True

    def __init__(self, *reports: Any) -> None:
        self.reports, self.sent = list(reports), []

    def collect(self, check: Callable[[float], None]) -> list[Any]:
        check(0.0)
        return self.reports

    def send_all(self, message: Any) -> None:
        self.sent.append(message)


def root(*channels: Channel, reports: tuple[Any, ...] = ()) -> Side:
    side = Side(Messages(*reports), Deadlines())  # type: ignore[arg-type]
    side.channels = list(channels)  # type: ignore[arg-type]
    return side


def test_a_message_that_comes_early_is_not_lost() -> None:
    side = root(Channel(Accepted(True), Arrived(1.0)), Channel(Accepted(False)))
    side.check_other_world()
    side.check_other_world()
    assert [answer.on_host for answer in side.expect(Accepted)] == [True, False]
    side.channels[1].incoming.append(Arrived(2.0))  # type: ignore[attr-defined]
    assert [answer.move_s for answer in side.expect(Arrived)] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("incoming", "why"),
    [
        (Refused("no room"), "no room"),
        (Build(), "expected Acknowledged, got Build"),
        (None, "the other world is gone"),
    ],
)
def test_an_answer_that_is_none_is_an_error(incoming: Any, why: str) -> None:
    with pytest.raises(ChannelError, match=why):
        root(Channel(incoming)).expect(Acknowledged)


@pytest.mark.parametrize("incoming", [Refused("out of memory"), None])
def test_a_wait_for_fields_ends_with_the_other_world(incoming: Any) -> None:
    with pytest.raises(RolledBackError, match=r"out of memory|the other world is gone"):
        root(Channel(incoming)).check_alive(0.0)
    root(Channel(Arrived(1.0))).check_alive(0.0)
    with pytest.raises(RolledBackError, match="nothing moved for 10 s"):
        root(Channel()).check_alive(10.1)


def test_what_all_ranks_report_is_concluded_on_all() -> None:
    side = root(Channel(), reports=((None, 2), (None, 3)))
    assert side.report_and_decide(None, 1, sum) == 6
    assert side.messages.sent == [(None, 6)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("problem", "reports", "fails"),
    [
        ("first", ((None, 2),), None),
        (None, (("second", 2), (None, 3)), None),
        (None, ((None, 2),), ChannelError("third")),
    ],
)
def test_a_failure_is_everybody_s(
    problem: str | None, reports: tuple[Any, ...], fails: Exception | None
) -> None:
    def work(parts: list[int]) -> None:
        if fails is not None:
            raise fails

    channel = Channel()
    side = root(channel, reports=reports)
    side.phase = "moving"
    with pytest.raises(RolledBackError) as error:
        side.report_and_decide(problem, 1, work)
    why = str(error.value)
    assert why in {f"{which} (while moving)" for which in ("first", "second", "third")}
    assert side.messages.sent == [(why, None)]  # type: ignore[attr-defined]
    assert [refused.why for refused in channel.sent] == [why]


def test_only_what_leaves_no_rank_in_a_collective_is_a_reason_to_roll_back() -> None:
    def failing(error: Exception) -> Callable[[], None]:
        def work() -> None:
            raise error

        return work

    for error in (TransferError("t"), ValuesError("v"), RolledBackError("r"), MemoryError("m")):
        problem, result = catch_failure(failing(error))
        assert problem is not None and problem.endswith(str(error)) and result is None
    assert catch_failure(failing(MemoryError()))[0] == "out of memory"
    with pytest.raises(KeyError):
        catch_failure(failing(KeyError("k")))
