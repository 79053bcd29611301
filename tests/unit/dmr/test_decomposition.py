"""Who owns which cells, and how a block lies in memory."""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil, isqrt, prod

import numpy as np
import numpy.typing as npt
import pytest
from decompositions import decompositions, everything, halos
from hypothesis import assume, given
from hypothesis import strategies as st

import dmr
from dmr.data.decomposition import (
    ALIGNMENT_BYTES,
    Box,
    Decomposition,
    GridError,
    MemoryLayout,
    choose_grid,
    memory_order,
    split_range,
)
from dmr.data.field import Field, FieldSpec
from dmr.errors import UsageError
from dmr.world import decompositions_for

Extents = tuple[int, ...]
ResizeRequest = tuple[int, Extents, Extents]

CELLS, PARTS = st.integers(1, 60), st.integers(1, 70)
DTYPES = st.sampled_from(["i1", "f2", "f4", "i8", "f8", "c16"])


@given(CELLS, PARTS)
def test_ranges_deal_every_cell_once_and_in_order(cells: int, parts: int) -> None:
    dealt = [c for index in range(parts) for c in range(*split_range(cells, parts, index))]
    assert dealt == list(range(cells))


@given(CELLS, PARTS)
def test_thicker_parts_come_first_and_differ_by_one_cell_at_most(cells: int, parts: int) -> None:
    ranges = [split_range(cells, parts, index) for index in range(parts)]
    sizes = [stop - start for start, stop in ranges]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    assert sizes[0] == ceil(cells / parts)


@given(CELLS, PARTS)
def test_a_cell_is_in_the_part_whose_range_holds_it(cells: int, parts: int) -> None:
    owner = {c: p for p in range(parts) for c in range(*split_range(cells, parts, p))}
    ranks = dmr.rank_of(Decomposition((cells,), (0,), (parts,)), range(cells))
    assert ranks.tolist() == [owner[c] for c in range(cells)]


@given(decompositions())
def test_boxes_own_every_cell_exactly_once(decomposition: Decomposition) -> None:
    owners = np.zeros(decomposition.shape, int)
    for rank in range(decomposition.size):
        owners[decomposition.box(rank).slices()] += 1
    assert (owners == 1).all()


@given(decompositions())
def test_only_split_axes_are_cut(decomposition: Decomposition) -> None:
    whole = everything(decomposition.shape)
    for axis in set(range(len(decomposition.shape))) - set(decomposition.split):
        assert decomposition.parts_along(axis) == 1
        for rank in range(decomposition.size):
            box = decomposition.box(rank)
            assert (box.start[axis], box.stop[axis]) == (whole.start[axis], whole.stop[axis])


@given(decompositions())
def test_rank_at_inverts_coordinates(decomposition: Decomposition) -> None:
    ranks = range(decomposition.size)
    assert [decomposition.rank_at(decomposition.coordinates(rank)) for rank in ranks] == list(ranks)
    assert len({decomposition.coordinates(rank) for rank in ranks}) == decomposition.size


def test_ranks_run_down_the_rows_first() -> None:
    decomposition = Decomposition((8, 8), (0, 1), (4, 2))
    assert [decomposition.rank_at((row, 0)) for row in range(4)] == [0, 1, 2, 3]
    assert decomposition.rank_at((0, 1)) == 4


@given(decompositions(), st.booleans(), st.data())
def test_neighbours_are_symmetric(
    decomposition: Decomposition, periodic: bool, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(decomposition.shape) - 1))
    for rank in range(decomposition.size):
        above = decomposition.neighbour(rank, axis, 1, periodic=periodic)
        if above is not None:
            assert decomposition.neighbour(above, axis, -1, periodic=periodic) == rank


@given(decompositions(), st.sampled_from([-1, 1]), st.data())
def test_neighbours_hold_the_adjacent_part(
    decomposition: Decomposition, direction: int, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(decomposition.shape) - 1))
    place = decomposition.split.index(axis) if axis in decomposition.split else None
    for rank in range(decomposition.size):
        there = list(decomposition.coordinates(rank))
        last = 0
        at = direction
        if place is not None:
            there[place] += direction
            at, last = there[place], decomposition.grid[place] - 1
            there[place] %= decomposition.grid[place]
        around = decomposition.neighbour(rank, axis, direction, periodic=True)
        bounded = decomposition.neighbour(rank, axis, direction, periodic=False)
        assert around is not None
        assert decomposition.coordinates(around) == tuple(there)
        assert bounded == (around if 0 <= at <= last else None)


def test_box_of_nothing_has_no_cells() -> None:
    apart = Box((0, 0), (2, 5)).intersect(Box((4, 1), (6, 3)))
    assert (apart.size, apart.shape[0]) == (0, 0)


def factorisations(size: int, axes: int) -> list[tuple[int, ...]]:
    if axes == 1:
        return [(size,)]
    return [(rows, size // rows) for rows in range(1, size + 1) if size % rows == 0]


def fits(grid: Extents, extents: Extents, thinnest: Extents) -> bool:
    """Whether every block of every axis that is cut is thick enough, block by block."""
    for parts, cells, least in zip(grid, extents, thinnest, strict=True):
        sizes = np.diff([split_range(cells, parts, index) for index in range(parts)])
        if parts > 1 and sizes.min() < max(1, least):
            return False
    return True


def fitting(size: int, extents: Extents, thinnest: Extents) -> list[Extents]:
    return [g for g in factorisations(size, len(extents)) if fits(g, extents, thinnest)]


@st.composite
def wishes(draw: st.DrawFn) -> ResizeRequest:
    """Return ranks, extents of the split axes, and the thinnest blocks allowed."""
    axes = draw(st.integers(1, 2))
    extents = draw(st.tuples(*[st.integers(1, 30)] * axes))
    thinnest = draw(st.tuples(*[st.integers(0, 5)] * axes))
    return draw(st.integers(1, 40)), extents, thinnest


@given(wishes())
def test_a_grid_is_found_exactly_where_a_factorisation_fits(wish: ResizeRequest) -> None:
    size, extents, thinnest = wish
    possible = fitting(size, extents, thinnest)
    if possible:
        assert choose_grid(size, extents, thinnest) in possible
    else:
        with pytest.raises(GridError):
            choose_grid(size, extents, thinnest)


@given(wishes())
def test_columns_are_the_fitting_divisor_nearest_to_the_root(wish: ResizeRequest) -> None:
    size, extents, thinnest = wish
    columns = [grid[1] for grid in fitting(size, extents, thinnest) if len(grid) == 2]
    assume(columns)
    nearest = min(columns, key=lambda c: (abs(c - isqrt(size)), c))
    assert choose_grid(size, extents, thinnest) == (size // nearest, nearest)


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        (1, (1, 1)),
        (2, (2, 1)),
        (4, (2, 2)),
        (6, (3, 2)),
        (12, (4, 3)),
        (16, (4, 4)),
        (20, (5, 4)),
        (5, (5, 1)),
        (7, (7, 1)),
    ],
)
def test_columns_are_the_root_rounded_down_where_it_divides(
    size: int, grid: tuple[int, int]
) -> None:
    assert choose_grid(size, (1024, 512), (3, 3)) == grid


@given(wishes())
def test_grid_error_names_the_largest_number_below_that_fits(wish: ResizeRequest) -> None:
    size, extents, thinnest = wish
    assume(not fitting(size, extents, thinnest))
    with pytest.raises(GridError) as caught:
        choose_grid(size, extents, thinnest)
    named = re.search(r"(\d+) ranks, got (\d+)", str(caught.value))
    assert named is not None
    largest = max(n for n in range(1, size) if fitting(n, extents, thinnest))
    assert (int(named[1]), int(named[2])) == (largest, size)


@pytest.mark.parametrize(("size", "extents"), [(0, (4, 4)), (-2, (4,)), (28, (3, 3, 3))])
def test_grids_that_make_no_sense_are_refused(size: int, extents: tuple[int, ...]) -> None:
    with pytest.raises(GridError, match=r"expected .* got"):
        choose_grid(size, extents, (1,) * len(extents))


@st.composite
def blocks(draw: st.DrawFn) -> Field:
    """Return a field of one rank with any type, halo and order."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    spec = FieldSpec(
        tuple(shape),
        draw(DTYPES),
        lambda box: 0,
        halo=draw(halos(len(shape))),
        order=tuple(draw(st.permutations(range(len(shape))))),
        split=(0,),
    )
    return Field(spec, spec.decompose((1,)), 0)


def addresses(array: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Return the memory address of every element."""
    found = np.full(array.shape, array.__array_interface__["data"][0], np.int64)
    for axis, stride in enumerate(array.strides):
        steps = np.arange(array.shape[axis]) * stride
        found += steps.reshape([-1 if a == axis else 1 for a in range(array.ndim)])
    return found


@given(blocks())
def test_the_first_interior_element_of_every_row_is_aligned(block: Field) -> None:
    first = addresses(block.interior).take(0, axis=block.memory_layout.order[-1])
    assert (first % ALIGNMENT_BYTES == 0).all()


@given(blocks())
def test_rows_are_a_multiple_of_the_alignment_and_no_longer_than_needed(block: Field) -> None:
    row_bytes = block.memory_layout.row_items * block.memory_layout.itemsize
    needed = (
        block.memory_layout.padded[block.memory_layout.order[-1]] * block.memory_layout.itemsize
    )
    assert row_bytes % ALIGNMENT_BYTES == 0
    assert needed <= row_bytes < needed + ALIGNMENT_BYTES


@given(blocks())
def test_no_two_cells_of_a_padded_block_share_memory(block: Field) -> None:
    starts = np.sort(addresses(block.padded), axis=None)
    assert (np.diff(starts) >= block.memory_layout.itemsize).all()


@given(blocks())
def test_a_block_stays_inside_its_allocation(block: Field) -> None:
    owner = block.storage
    while owner.base is not None:
        owner = owner.base
    assert owner.nbytes == block.memory_layout.allocation_bytes
    low = owner.__array_interface__["data"][0]
    cells = addresses(block.padded)
    assert low <= cells.min()
    assert cells.max() + block.memory_layout.itemsize <= low + owner.nbytes


@given(blocks())
def test_the_interior_lies_inside_its_halo(block: Field) -> None:
    block.padded[...] = 1
    block.interior[...] = 0
    assert block.interior.shape == block.spec.shape
    halo = prod(block.memory_layout.padded) - prod(block.spec.shape)
    assert np.count_nonzero(block.padded) == halo
    below = tuple(slice(low) for low, _ in block.spec.halos)
    assert np.count_nonzero(block.padded[below]) == prod(low for low, _ in block.spec.halos)


def test_padding_of_the_papers_block() -> None:
    # 8-byte values, halo 3: rows of 512 + 6 round up to 528 items of 16 a transaction.
    memory_layout = MemoryLayout((256, 512, 16), ((3, 3), (3, 3), (0, 0)), 8, (0, 2, 1))
    assert memory_layout.storage == (262, 16, 528)
    assert memory_layout.shift_bytes(0) == 128 - 3 * 8


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((5,), (0,)),
        ((5, 6), (0, 1)),
        ((5, 6, 7), (0, 2, 1)),
        ((5, 6, 1), (2, 0, 1)),
        ((5, 1, 7), (1, 0, 2)),
        ((1, 6, 1), (0, 2, 1)),
        ((1, 1, 7), (0, 1, 2)),
        ((3, 4, 5, 6), (0, 2, 3, 1)),
    ],
)
def test_memory_order_is_the_papers_with_single_cells_first(
    shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    assert memory_order(shape) == order


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_the_contiguous_axis_has_more_than_one_cell_where_any_has(shape: list[int]) -> None:
    order = memory_order(shape)
    assert sorted(order) == list(range(len(shape)))
    assert (shape[order[-1]] > 1) == (max(shape) > 1)


@pytest.mark.parametrize(("size", "grid"), [(8, (2, 2, 2)), (12, (3, 2, 2)), (7, (7, 1, 1))])
def test_three_axes_are_cut_as_evenly_as_can_be(size: int, grid: tuple[int, ...]) -> None:
    assert choose_grid(size, (64, 64, 64), (1, 1, 1)) == grid


def test_row_major_ranks_lie_as_those_of_mpi_cart() -> None:
    decomposition = Decomposition((8, 8), (0, 1), (2, 3), row_major=True)
    assert [decomposition.coordinates(rank) for rank in range(4)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
    ]


def rest_to_the_last(cells: int, parts: int) -> list[int]:
    return [cells // parts * part for part in range(parts)] + [cells]


def test_ranges_and_grids_of_the_applications_own() -> None:
    whole = FieldSpec((4,), "f8", lambda box: 0, split=())
    rows = FieldSpec((11, 8), "f8", lambda box: 0, split=(0,), ranges=rest_to_the_last)
    blocks = FieldSpec((8, 8), "f8", lambda box: 0, grid=lambda size: (1, size), row_major=True)
    decompositions = decompositions_for(3, {"whole": whole, "rows": rows, "blocks": blocks})
    assert [decompositions["rows"].box(rank).shape[0] for rank in range(3)] == [3, 3, 5]
    assert [decompositions["blocks"].box(rank).shape for rank in range(3)] == [
        (8, 3),
        (8, 3),
        (8, 2),
    ]
    assert [decompositions["whole"].box(rank).shape for rank in range(3)] == [(4,)] * 3
    for wrong in (
        replace(rows, ranges=lambda cells, parts: [0, cells]),
        replace(rows, ranges=lambda cells, parts: [0, 5, 3, cells]),
        replace(blocks, grid=lambda size: (2, 1)),
        replace(blocks, grid=lambda size: (1, size), halo=4),
        replace(blocks, grid=None, halo=5),
    ):
        with pytest.raises(UsageError, match=r"rang|field "):
            decompositions_for(3, {"wrong": wrong})
