"""Whether a second copy fits, and what to do if it does not: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmr.resize.strategy import GIB, MemoryUse, free_on_host, held_on_host, merge_instead, shortage

sizes = st.integers(0, 100)
uses = st.lists(st.builds(MemoryUse, st.sampled_from("abc"), sizes, sizes), max_size=8)


@given(uses)
def test_a_copy_fits_where_all_it_holds_at_a_place_is_free(found: list[MemoryUse]) -> None:
    fits = all(
        sum(r.held for r in found if r.place == place)
        <= min(r.free for r in found if r.place == place)
        for place in {r.place for r in found}
    )
    assert (shortage(found) is None) == fits


def test_the_place_and_both_amounts_are_named() -> None:
    found = [
        MemoryUse("node n1", GIB, 9 * GIB),
        *[MemoryUse("GPU 0 of node n1", 3 * GIB, 5 * GIB)] * 2,
    ]
    assert shortage(found) == (
        "a second copy of this world needs 6 GiB on GPU 0 of node n1, where 5 GiB are free"
    )


@pytest.mark.parametrize(
    ("strategy", "ranks", "supports_merge", "best"),
    [
        ("warm", 0, True, "merge"),
        ("spawn", 9, True, "merge"),
        ("spawn", 5, True, "merge"),
        ("spawn", 2, True, "merge"),
        ("spawn", 3, True, "spawn"),  # no whole launches
        ("warm", 9, False, "warm"),  # ranks cannot stay
        ("restart", 9, True, "restart"),  # all that works here
    ],
)
def test_merge_where_ranks_can_stay(
    strategy: str, ranks: int, supports_merge: bool, best: str
) -> None:
    assert merge_instead(strategy, ranks, [(0, 2), (1, 3)], supports_merge=supports_merge) == best


def test_what_this_process_holds_and_what_is_left() -> None:
    held, free = held_on_host(), free_on_host()
    if held is not None and free is not None:
        assert 2**20 < held < 2**40 and 0 < free < 2**50
