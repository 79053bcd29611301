"""State that differs from rank to rank: merged and split again, or said why not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmr.errors import described
from dmr.state.progress import PerRank, merge_all, pack
from dmr.state.values import State, ValuesError


def dealt(whole: list[int], ranks: int) -> list[list[int]]:
    return [whole[rank::ranks] for rank in range(ranks)]


def joined(parts: list[list[int]]) -> list[int]:
    return [one for part in parts for one in part]


@given(st.lists(st.lists(st.integers()), min_size=1, max_size=5), st.integers(1, 6))
def test_nothing_is_lost_or_doubled(values: list[list[int]], ranks: int) -> None:
    specs = {"mine": PerRank([], joined, dealt)}
    packed = [pack(specs, State(mine=value)) for value in values]
    merged = merge_all(specs, packed)["mine"]
    parts = [specs["mine"].part("mine", merged, rank, ranks) for rank in range(ranks)]
    assert sorted(joined(parts)) == sorted(joined(values))


def test_what_cannot_be_merged_or_split_is_said() -> None:
    short = PerRank(1, lambda values: 1 // 0, lambda whole, ranks: [whole])
    with pytest.raises(ValuesError, match=r"run.state\['n'\] cannot be merged: ZeroDivisionError"):
        merge_all({"n": short}, [pack({"n": short}, State(n=1))])
    with pytest.raises(ValuesError, match=r"expected the split .* to give 3 values, got 1"):
        short.part("n", 1, 0, 3)
    with pytest.raises(ValuesError, match="cannot be pickled"):
        pack({"n": short}, State(n=lambda: 0))


def test_an_exception_without_words_names_its_line() -> None:
    try:
        assert 2 * 2 == 5
    except AssertionError as error:
        error.args = ()
        assert described(error).endswith("assert 2 * 2 == 5") and "test_per_rank.py" in described(
            error
        )
