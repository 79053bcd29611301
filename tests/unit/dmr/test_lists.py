"""Lists between hundreds of ranks: messages only where something is to be sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_ranks import Network, run_all

import dmr
from dmr.data.particles import Items, ListSpec

RANKS, CELLS = 512, 4096


def by_cell(items: Any, decomposition: Any) -> Any:
    return dmr.rank_of(decomposition, items)


def parts_of(ranks: int, values: Any = ()) -> list[Items]:
    spec = ListSpec((CELLS,), "i8", lambda box: [], owner=by_cell)
    decomposition = spec.decompose((ranks,))
    found = [Items(spec, decomposition, rank) for rank in range(ranks)]
    for rank, part in enumerate(np.array_split(np.asarray(values, "i8"), ranks)):
        found[rank].items = part
    return found


def moved(old: list[Items], new: list[Items]) -> Network:
    network = Network((len(old), len(new)))
    sides = [(old, new[0].decomposition), (new, old[0].decomposition)]
    ends = []
    for side, (parts, other) in enumerate(sides):
        for one, comm in zip(parts, network.comms(side), strict=True):
            way: Any = one.receiving if side else one.sending
            ends.append(way(comm, other, on_host=True))
    *_, intact = run_all(ends)
    assert intact is True
    return network


def test_512_ranks_send_messages_only_where_there_is_something_to_send() -> None:
    old, new = parts_of(RANKS, range(CELLS)), parts_of(RANKS // 4 * 3)
    network = moved(old, new)
    assert [one.items.tolist() for one in new] == [
        list(range(*dmr.split_range(CELLS, len(new), rank))) for rank in range(len(new))
    ]
    # Two receivers at most: a number, a chunk and a hash for each; ten rounds of the barrier.
    assert max(network.sent.values()) <= 2 * 3 + 10
    for one in new:
        one.items = (one.items + 1) % CELLS
    network = Network((len(new), 0))
    run_all([one.migrating(comm) for one, comm in zip(new, network.comms(0), strict=True)])
    assert sorted(np.concatenate([one.items for one in new])) == list(range(CELLS))
    assert all((by_cell(one.items, one.decomposition) == one.rank).all() for one in new)
    assert max(network.sent.values()) <= 2 + 9


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 4), (1, 1)])
def test_ranks_that_stay_keep_their_items_and_take_those_of_others(before: int, after: int) -> None:
    """As in a merge, one communicator has the ranks of both worlds."""
    values = [7, 4095, 0, 2048, 1365, 2730, 1]
    old, new = parts_of(before, values), parts_of(after)
    comms = Network((max(before, after), 0)).comms(0)
    ends: list[Any] = []
    for one, comm in zip(old, comms, strict=False):
        ends.append(one.sending(comm, new[0].decomposition, on_host=True))
    for one, comm in zip(new, comms, strict=False):
        ends.append(one.receiving(comm, old[0].decomposition, on_host=True))
        if one.rank < before:
            one.keep(old[one.rank])
    *_, intact = run_all(ends)
    assert intact is True
    assert [one.items.tolist() for one in new] == [
        [n for n in values if one.box.start[0] <= n < one.box.stop[0]] for one in new
    ]


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, CELLS - 1), max_size=30),
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(0, 3),
    st.integers(1, 1000),
)
def test_every_item_arrives_once_in_order_however_many_lists_follow(
    values: list[int], ranks: int, then: int, lists: int, seed: int
) -> None:
    """Some ranks have nothing to send, or get nothing; several lists go over one communicator."""
    network = Network((ranks, then))
    olds = [parts_of(ranks, values[at:]) for at in range(lists + 1)]
    news = [parts_of(then) for _ in olds]
    comms = [network.comms(side) for side in (0, 1)]

    def chain(side: int, rank: int) -> Any:
        for old, new in zip(olds, news, strict=True):
            if side:
                there = old[0].decomposition
                yield from new[rank].receiving(comms[1][rank], there, on_host=True)
            else:
                there = new[0].decomposition
                yield from old[rank].sending(comms[0][rank], there, on_host=True)

    chains = [chain(side, rank) for side in (0, 1) for rank in range(network.sizes[side])]
    run_all(chains, seed)
    for at, new in enumerate(news):
        for one in new:
            begin, end = one.box.start[0], one.box.stop[0]
            assert one.items.tolist() == [n for n in values[at:] if begin <= n < end]


def test_who_is_not_in_a_run_cannot_migrate() -> None:
    with pytest.raises(RuntimeError, match=r"expected migrate\(\) inside the block"):
        parts_of(2)[0].migrate()
