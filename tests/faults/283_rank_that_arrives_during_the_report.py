"""A program was ended although its missing rank arrived while another rank was to report it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dmr.system import watch as watchdog
from dmr.system.watch import Watch

Places = list[str | None]


@pytest.mark.parametrize(
    ("patient", "second", "ends"),
    [
        (False, None, set()),
        (True, ["a call"] * 3, set()),
        (False, ["a call", "a call", None], {"rank 1 waits in a call for rank 2"}),
    ],
    ids=["left", "entered", "missing"],
)
def test_the_places_are_queried_again(
    monkeypatch: pytest.MonkeyPatch, patient: bool, second: Places | None, ends: set[str]
) -> None:
    monkeypatch.setattr(watchdog, "ABORT_S", 1.0)
    watch, queries, messages = Watch(), list[float](), list[str]()

    def query(*_: Any) -> Places:
        queries.append(time.monotonic())
        first: Places = ["a call", "a call", None]
        return first if len(queries) == 1 or second is None else second

    def end(message: str, *_: Any) -> None:
        messages.append(message)

    monkeypatch.setattr(watch, "_rank", 1, raising=False)
    monkeypatch.setattr(watch, "_query", query)
    monkeypatch.setattr(watch, "_end", end)
    with watch.running(0.5, 60.0, []):
        with watch.within("a call", patient=patient):
            while not queries:
                time.sleep(0.05)
            if second is not None:
                time.sleep(2.5)
        time.sleep(1.5)
    assert {message.partition(",")[0] for message in messages} == ends
