"""Which GPU each rank of a node gets, by arithmetic alone."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mpdata.parallel.devices import assign, name_of


@given(st.integers(1, 16), st.integers(1, 8))
def test_ranks_that_see_the_same_take_turns(ranks: int, gpus: int) -> None:
    names = [f"gpu {n}" for n in range(gpus)]
    assert assign([names] * ranks) == [rank % gpus for rank in range(ranks)]


@given(st.permutations(range(8)), st.integers(1, 8))
def test_ranks_that_see_one_each_take_it(order: list[int], ranks: int) -> None:
    assert assign([[f"gpu {order[rank]}"] for rank in range(ranks)]) == [0] * ranks


@given(st.lists(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), min_size=1))
def test_every_rank_takes_one_that_it_sees_and_the_least_taken(visible: list[list[str]]) -> None:
    taken: Counter[str] = Counter()
    for names, at in zip(visible, assign(visible), strict=True):
        assert taken[names[at]] == min(taken[name] for name in names)
        taken[names[at]] += 1


def test_parts_of_a_gpu_and_gpus_with_one_identifier_are_told_apart() -> None:
    known = [
        {"uuid": b"\x01\x02", "pciBusID": 1},
        {"uuid": b"\x01\x03", "pciBusID": 1},
        {"uuid": b"", "pciBusID": 2},
        {"uuid": b"", "pciBusID": 3},
    ]
    assert len({name_of(properties) for properties in known}) == len(known)
