"""Cycles of objects that nothing else holds: those set aside are found in the end."""

from __future__ import annotations

import gc
import weakref

from rms.daemon.cycles import ALL_S, NEW, SET_ASIDE, few_looks


class Itself:
    def __init__(self) -> None:
        self.own = self


def test_what_was_set_aside_is_looked_through_once_in_a_while() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with few_looks(0.0) as cycles:
        held = Itself()
        gone = weakref.ref(held)
        lists: list[list[int]] = []
        while not gc.get_count()[2]:  # the new objects are looked through now and then
            lists.append([])
            assert len(lists) <= 10 * NEW * SET_ASIDE
        cycles.look(1.0)
        assert gc.get_freeze_count() > len(lists) // 2
        del held
        gc.collect()
        assert gone() is not None
        cycles.look(ALL_S)
        assert gone() is None
    assert gc.get_threshold() == before and gc.get_freeze_count() == frozen
