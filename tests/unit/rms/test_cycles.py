"""Cycles of objects that nothing else holds: all are found in the end, and nobody waits before."""

from __future__ import annotations

import gc
import weakref

import pytest

from rms.daemon import serve as module
from rms.daemon.serve import ALL_S, EVERY_S, Collector, gc_paused


class Itself:
    def __init__(self) -> None:
        self.own = self


def gone() -> weakref.ref[Itself]:
    """Return what tells whether an object of a cycle, which nothing holds, is there yet."""
    return weakref.ref(Itself())


def test_all_are_looked_through_once_in_a_while() -> None:
    with gc_paused(0.0) as collector:
        assert not gc.isenabled()
        one = gone()
        lists: list[list[int]] = [[] for _ in range(100_000)]
        collector.tick(EVERY_S)
        collector.tick(ALL_S - 1.0)
        assert one() is not None and lists
        collector.tick(ALL_S + EVERY_S)
        assert one() is None
    assert gc.isenabled()


def test_all_are_looked_through_when_there_are_many_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 1_000)
    monkeypatch.setattr(module, "GROWN", 1.01)
    with gc_paused(0.0) as collector:
        one = gone()
        more = [[n] for n in range(1_000_000)]
        collector.tick(EVERY_S - 1.0)  # it is not seen all the time how many there are
        assert one() is not None
        collector.tick(EVERY_S)
        assert one() is None
        two = gone()
        collector.tick(2.0 * EVERY_S)  # they are as many as at the last look
        assert two() is not None and more


def test_it_is_as_before_where_nothing_was_looked_through() -> None:
    gc.disable()
    try:
        with gc_paused(0.0) as collector:
            assert isinstance(collector, Collector)
        assert not gc.isenabled()
    finally:
        gc.enable()
