"""A new world reported step 0 until its first step, so a resized job seemed to begin anew."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from dmr.application import Run
from dmr.loop.session import _rms_client
from dmr.plan import Plan
from dmr.state.progress import Progress
from rms.wire.messages import Poll, PollAnswer

DEADLINE_S = 30.0


class Manager:
    """Keeps the messages of a client."""

    def __init__(self) -> None:
        self.polls: list[Poll] = []

    def connection(self) -> Any:
        return SimpleNamespace(close=lambda: None)

    def post(self, path: str, body: bytes, connection: Any = None) -> bytes:
        if path == "poll":
            self.polls.append(msgspec.json.decode(body, type=Poll))
        return msgspec.json.encode(PollAnswer(None, 1.0))


def test_its_first_poll_has_the_steps_of_the_worlds_before() -> None:
    manager = Manager()
    run = SimpleNamespace(
        runtime=SimpleNamespace(manager=manager),
        progress=Progress(step=40, answered_request=2),
        world=SimpleNamespace(rank=0),
        internal=SimpleNamespace(rms=None),
    )
    with _rms_client(cast("Run", run), Plan()):
        end = time.monotonic() + DEADLINE_S
        while not manager.polls and time.monotonic() < end:
            time.sleep(0.01)
    assert (manager.polls[0].step, manager.polls[0].known) == (40, 2)
