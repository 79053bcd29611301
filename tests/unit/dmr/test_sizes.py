"""Sizes that a job may have, and whose cell is whose: pure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmr.data.decomposition import Decomposition
from dmr.data.particles import Items, ListSpec, OwnerError, rank_of
from dmr.errors import UsageError
from dmr.plan import check_plan, check_size, fitting, parse_resizes

counts = st.integers(1, 50)


@given(asked=counts, least=counts, more=st.none() | counts, data=st.data())
def test_a_request_leads_to_a_size_within_the_limits(
    asked: int, least: int, more: int | None, data: st.DataObject
) -> None:
    most = None if more is None else least + more
    inside = st.integers(least, most or least + 60)
    sizes = data.draw(st.lists(inside, max_size=4))
    check_plan((least, most), sizes)
    found = fitting(asked, (least, most), sizes)
    check_size(found, (least, most))
    if sizes:
        assert found in sizes
        assert found <= max(asked, least) or found == min(sizes)
    elif least <= asked <= (most or asked):
        assert found == asked


def test_what_no_size_fits_is_refused() -> None:
    for limits, sizes in (((0, 3), ()), ((4, 3), ()), ((1, 3), (4,)), ((2, None), (1,))):
        with pytest.raises(UsageError, match="expected"):
            check_plan(limits, sizes)
    with pytest.raises(UsageError, match="expected a resize to 2 to 3 ranks, got 4"):
        check_size(4, (2, 3))


def test_scripts_are_read() -> None:
    assert parse_resizes("") == ({}, {})
    assert parse_resizes("3:2, 10:1@numpy,11:5") == ({3: 2, 10: 1, 11: 5}, {10: "numpy"})
    for wrong in ("3", "3:0", "3:2@", "3:2,3:4", "4:2,3:1", "x:1"):
        with pytest.raises(ValueError, match="expected"):
            parse_resizes(wrong)


@given(
    shape=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    grid=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    split=st.sampled_from([(0, 1), (1, 0), (0,), (1,)]),
)
def test_every_cell_belongs_to_the_rank_whose_box_it_is_in(
    shape: tuple[int, int], grid: tuple[int, int], split: tuple[int, ...]
) -> None:
    decomposition = Decomposition(shape, split, grid[: len(split)])
    cells = np.indices(shape)
    owners = rank_of(decomposition, *(cells[axis] for axis in split))
    for rank in range(decomposition.size):
        inside = decomposition.box(rank).slices()
        assert (owners[inside] == rank).all()
        assert (owners == rank).sum() == decomposition.box(rank).size


def items_of(owner: object) -> Items:
    decomposition = Decomposition((4,), (0,), (2,))
    spec = ListSpec((4,), "f8", lambda box: [1.0, 2.0], owner=owner)  # type: ignore[arg-type]
    found = Items(spec, decomposition, 0)
    found.initialise()
    return found


def test_wrong_owners_are_said() -> None:
    three = Decomposition((4,), (0,), (3,))
    for owner in (
        lambda items, decomposition: [0],
        lambda items, decomposition: [0, 3],
        lambda items, decomposition: [0, -1],
        lambda items, decomposition: [0.0, 1.0],
        lambda items, decomposition: items["no such"],
    ):
        with pytest.raises(OwnerError):
            items_of(owner).parts(three)
    parts = items_of(lambda items, decomposition: [2, 0]).parts(three)
    assert {rank: list(part) for rank, part in parts.items()} == {0: [2.0], 2: [1.0]}


def test_lists_want_an_owner_and_items_of_their_shape() -> None:
    with pytest.raises(ValueError, match="expected a function that says who owns an item"):
        ListSpec((4,), "f8", lambda box: [])
    found = items_of(lambda items, decomposition: [0, 0])
    with pytest.raises(ValueError, match="expected items of shape"):
        found.items = np.zeros((3, 2))
