"""Which rank owns which cells, and which go where: pure index arithmetic, no communication.

A global array of ``shape`` is cut along its ``split`` axes into a process grid. Every rank
owns one box of cells (its interior) and keeps it in a padded block: interior, halo, and
padding that aligns the rows (Iserte & Rojek, figure 1).

Of the equations of their section 4 three are here: 7 (blocks of a process grid, but balanced: not
all but the last are ceil(cells / parts) thick), and of 10 and 12 the rounding of a row to the
alignment and the bytes for the shift. Not here are 8, 9, 11 and 13: no size is rounded to a CUDA
block, and a rank has one GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

ALIGNMENT_BYTES = 128
"""Rows start their interior on a multiple of this (the paper's A, one GPU memory transaction)."""

Halo = tuple[tuple[int, int], ...]
"""Halo cells below and above, for every axis."""

Indices = npt.NDArray[np.int64]

Index = TypeVar("Index", int, Indices)


@dataclass(frozen=True)
class Box:
    """A half-open block of global indices, ``start <= index < stop`` on every axis."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each axis (0 where the box is empty)."""
        return tuple(max(0, b - a) for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Number of cells."""
        return prod(self.shape)

    def intersect(self, other: Box) -> Box:
        """Return the cells in both boxes (of size 0 where they do not meet)."""
        return Box(
            tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True)),
            tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True)),
        )

    def slices(self, origin: Sequence[int] = ()) -> tuple[slice, ...]:
        """Return the slices of these cells in an array whose first element is ``origin``.

        Args:
            origin: global indices, by default 0 along every axis.
        """
        first = origin or (0,) * len(self.start)
        return tuple(
            slice(a - o, b - o) for a, b, o in zip(self.start, self.stop, first, strict=True)
        )

    def cut(self, axis: int, start: int, stop: int) -> Box:
        """Return the box with another extent along one axis."""
        return Box(
            (*self.start[:axis], start, *self.start[axis + 1 :]),
            (*self.stop[:axis], stop, *self.stop[axis + 1 :]),
        )

    def layers(self, axis: int, cells: int) -> Iterator[Box]:
        """Cut the box along an axis, into boxes of so many cells there; the last may have fewer."""
        for at in range(self.start[axis], self.stop[axis], cells):
            yield self.cut(axis, at, min(at + cells, self.stop[axis]))


def common_edges(one: Halo, other: Halo) -> Halo:
    """Return the halo that two blocks both have; () where one has none."""
    return tuple(
        (min(low, low_2), min(high, high_2))
        for (low, high), (low_2, high_2) in zip(one, other, strict=False)
    )


def split_range(cells: int, parts: int, index: int) -> tuple[int, int]:
    """Return the half-open range of part ``index`` when ``cells`` are dealt to ``parts``.

    The first ``cells % parts`` parts hold one cell more, so that the thickest is the paper's
    ceil(cells / parts) (equation 7) and no part differs from another by more than one cell.
    """
    base, extra = divmod(cells, parts)
    start = index * base + min(index, extra)
    return start, start + base + (index < extra)


class GridError(ValueError):
    """No process grid of this many ranks fits the array."""


def choose_grid(size: int, extents: Sequence[int], thinnest: Sequence[int]) -> tuple[int, ...]:
    """Return the process grid of ``size`` ranks over the split axes.

    Of two axes: columns number floor(sqrt(size)) where that divides size (Iserte & Rojek, section
    4), else the nearest divisor of size for which every block is at least ``thinnest`` cells thick.
    Of more: the most even factors that fit, the largest along axis 0, as MPI_Dims_create has
    them.

    Args:
        size: number of ranks, at least 1.
        extents: cells along the split axes (rows split axis 0, columns axis 1).
        thinnest: least thickness of a block along the split axes where they are cut.

    Raises:
        GridError: no factorisation fits; the message names the largest number that does.
    """
    if size < 1:
        raise GridError(f"expected at least 1 rank, got {size}")
    for grid in _candidates(size, len(extents)):
        if _fits(grid, extents, thinnest):
            return grid
    most = min(size, prod(max(1, n // max(1, t)) for n, t in zip(extents, thinnest, strict=True)))
    while not any(_fits(grid, extents, thinnest) for grid in _candidates(most, len(extents))):
        most -= 1
    cells = " x ".join(str(n) for n in extents)
    raise GridError(
        f"cannot cut {cells} cells into {size} blocks at least "
        f"{' x '.join(str(t) for t in thinnest)} cells thick where cut; "
        f"expected fewer, such as {most} ranks, got {size}"
    )


def _candidates(size: int, axes: int) -> list[tuple[int, ...]]:
    """Return the factorisations of ``size``, the paper's first: the most even one, more rows first.

    "Otherwise the number of rows is greater" (section 4).
    """
    grids = _factors(size, axes)
    return sorted(grids, key=lambda grid: (max(grid) - min(grid), [-parts for parts in grid]))


def _factors(size: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write ``size`` as a product of so many factors, order counting."""
    if axes == 1:
        yield (size,)
        return
    for first in range(1, size + 1):
        if size % first == 0:
            for rest in _factors(size // first, axes - 1):
                yield (first, *rest)


def _fits(grid: Sequence[int], extents: Sequence[int], thinnest: Sequence[int]) -> bool:
    return all(
        parts == 1 or cells // parts >= max(1, least)
        for parts, cells, least in zip(grid, extents, thinnest, strict=True)
    )


@dataclass(frozen=True)
class Decomposition:
    """A global array cut into one box a rank.

    Ranks run down the first split axis first: rank = row + rows * column, so that top and
    bottom neighbours differ by 1 and left and right ones by the number of rows (section 4).

    Attributes:
        row_major: the last split axis first instead, as MPI_Cart_create and mpi4py-fft have it.
        copies: of an array that no axis cuts, the number of ranks, which all have the whole.
        receivers: of such an array, the ranks it is sent to (one of each node); None for all.
        bounds: where the parts of the split axes begin, and their ends; None for an even split.
    """

    shape: tuple[int, ...]
    split: tuple[int, ...]
    grid: tuple[int, ...]
    row_major: bool = False
    copies: int = 1
    bounds: tuple[tuple[int, ...], ...] | None = None
    receivers: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(self.grid) * self.copies

    def part(self, at: int, index: int) -> tuple[int, int]:
        """Return the half-open range of part ``index`` of the split axis number ``at``."""
        if self.bounds is not None:
            return self.bounds[at][index], self.bounds[at][index + 1]
        return split_range(self.shape[self.split[at]], self.grid[at], index)

    def part_with(self, at: int, cells: npt.ArrayLike) -> Indices:
        """Return which parts of the split axis number ``at`` hold cells."""
        index = np.asarray(cells, np.int64)
        if self.bounds is not None:
            return np.searchsorted(self.bounds[at], index, side="right") - 1
        base, extra = divmod(self.shape[self.split[at]], self.grid[at])  # as split_range
        long = extra * (base + 1)
        rest = extra + (index - long) // max(1, base)
        return np.where(index < long, index // (base + 1), rest)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the place of ``rank`` in the process grid."""
        place = []
        for parts in reversed(self.grid) if self.row_major else self.grid:
            rank, at = divmod(rank, parts)
            place.append(at)
        return tuple(reversed(place) if self.row_major else place)

    def rank_at(self, place: Sequence[Index]) -> Index:
        """Return the rank at a place in the process grid, or the ranks at many."""
        rank: Any = 0
        slowest_first = 1 if self.row_major else -1
        for parts, at in list(zip(self.grid, place, strict=True))[::slowest_first]:
            rank = rank * parts + at
        ranks: Index = rank
        return ranks

    def box(self, rank: int) -> Box:
        """Return the interior of ``rank`` in global indices."""
        start, stop = [0] * len(self.shape), list(self.shape)
        for at, (axis, index) in enumerate(zip(self.split, self.coordinates(rank), strict=True)):
            start[axis], stop[axis] = self.part(at, index)
        return Box(tuple(start), tuple(stop))

    def widened(self, box: Box, edges: Halo) -> Box:
        """Return a box with cells beyond the edges of the array, where it lies at them."""
        if not edges:
            return box
        ends = zip(box.start, box.stop, self.shape, edges, strict=True)
        start, stop = zip(
            *((a - low * (a == 0), b + high * (b == cells)) for a, b, cells, (low, high) in ends),
            strict=True,
        )
        return Box(start, stop)

    def parts_along(self, axis: int) -> int:
        """Return into how many parts ``axis`` is cut (1 for an axis that is not split)."""
        return self.grid[self.split.index(axis)] if axis in self.split else 1

    def neighbour(self, rank: int, axis: int, direction: int, *, periodic: bool) -> int | None:
        """Return the rank next to ``rank`` along ``axis`` (direction -1 or +1), or None.

        On a periodic axis cut into one part the neighbour is the rank itself.
        """
        if axis not in self.split:
            return rank if periodic else None
        place = list(self.coordinates(rank))
        at = self.split.index(axis)
        place[at] += direction
        if not 0 <= place[at] < self.grid[at]:
            if not periodic:
                return None
            place[at] %= self.grid[at]
        return self.rank_at(place)


@dataclass(frozen=True)
class MemoryLayout:
    """How one block lies in memory.

    ``order`` lists the axes from the slowest to the contiguous one. Each axis has its interior
    and its halo; rows (the contiguous axis) are padded to a multiple of ``alignment`` bytes and
    the whole is shifted so that the first interior element of every row is aligned.
    """

    interior: tuple[int, ...]
    halo: Halo
    itemsize: int
    order: tuple[int, ...]
    alignment: int = ALIGNMENT_BYTES

    @property
    def padded(self) -> tuple[int, ...]:
        """Cells along the axes with the halo, in axis order (without the padding of rows)."""
        return tuple(n + lo + hi for n, (lo, hi) in zip(self.interior, self.halo, strict=True))

    @property
    def row_items(self) -> int:
        """Items from one row to the next: equation 10's rounding of the padded row to A."""
        step = max(1, self.alignment // self.itemsize)
        return -(-self.padded[self.order[-1]] // step) * step

    @property
    def storage(self) -> tuple[int, ...]:
        """Extents of the C-contiguous storage, slowest axis first, rows with their padding."""
        return (*(self.padded[a] for a in self.order[:-1]), self.row_items)

    @property
    def allocation_bytes(self) -> int:
        """Bytes to allocate: equation 12's size with its A bytes for the alignment shift."""
        return prod(self.storage) * self.itemsize + self.alignment

    def shift_bytes(self, address: int) -> int:
        """Return how far into an allocation at ``address`` the storage starts."""
        lead = self.halo[self.order[-1]][0] * self.itemsize
        return -(address + lead) % self.alignment

    def interior_slices(self) -> tuple[slice, ...]:
        """Return the slices of the interior in the padded block."""
        return tuple(slice(lo, lo + n) for n, (lo, _) in zip(self.interior, self.halo, strict=True))


def memory_order(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the axes from slowest to contiguous: the paper's N, L, M for three axes.

    Axes of one cell go first, so that the contiguous axis is never one of them and a 2D or 1D
    grid wastes no memory on padding.
    """
    paper = (0, *range(2, len(shape)), 1) if len(shape) > 1 else (0,)
    return tuple(sorted(paper, key=lambda axis: shape[axis] > 1))


# --- which cells go where when a world is replaced ----------------------------------------------
#
# Old and new interiors are intersected for any two process grids. Only interiors are moved
# (and the halo at the edge of the domain, where both sides state it); other halos are refilled
# by the application's own exchange afterwards.


@dataclass(frozen=True)
class Transfer:
    """A box of cells that moves between ``peer`` (a rank of the other world) and this rank."""

    peer: int
    box: Box


def transfers(
    mine: Decomposition, rank: int, other: Decomposition, *, sending: bool = True
) -> list[Transfer]:
    """Return what ``rank`` of ``mine`` shares with the ranks of ``other``, by rising peer.

    Called with (old, rank, new) it lists what to send, with (new, rank, old) what to receive:
    the two sides agree without a message. Costs as many steps as there are overlaps, not as there
    are ranks. Of an array that every rank has the whole of, a new rank gets it from one old one;
    where the new decomposition has ``receivers``, these alone get it.
    """
    if mine.shape != other.shape or mine.split != other.split:
        raise ValueError(
            f"expected two decompositions of one array, got {mine.shape} split along "
            f"{mine.split} and {other.shape} split along {other.split}"
        )
    box = mine.box(rank)
    if not box.size:
        return []
    if not mine.split:
        old, new = (mine, other) if sending else (other, mine)
        return [Transfer(peer, box) for peer in _replicas(rank, old, new, sending=sending)]
    touched = []
    for at, axis in enumerate(other.split):
        first, last = other.part_with(at, [box.start[axis], box.stop[axis] - 1]).tolist()
        touched.append(range(first, last + 1))
    peers = sorted(other.rank_at(place) for place in product(*touched))
    shared = [Transfer(peer, box.intersect(other.box(peer))) for peer in peers]
    return [one for one in shared if one.box.size] if other.bounds else shared


def _replicas(rank: int, old: Decomposition, new: Decomposition, *, sending: bool) -> Sequence[int]:
    """Return the ranks that get the whole array from this one, or the rank that sends it here."""
    if new.receivers is None:
        return range(rank, new.copies, old.copies) if sending else [rank % old.copies]
    # Old ranks that are far apart, so that they lie on as many nodes as can be.
    senders = [at * old.copies // len(new.receivers) for at in range(len(new.receivers))]
    pairs = list(zip(senders, new.receivers, strict=True))
    if sending:
        return [receiver for sender, receiver in pairs if sender == rank]
    return [sender for sender, receiver in pairs if receiver == rank]


def chunks(box: Box, itemsize: int, limit_bytes: int) -> Iterator[Box]:
    """Cut a box into boxes of at most ``limit_bytes`` (or single cells), in index order."""
    if box.size * itemsize <= limit_bytes or box.size <= 1:
        yield box
        return
    axis = next(a for a, n in enumerate(box.shape) if n > 1)
    layer_bytes = box.size // box.shape[axis] * itemsize
    for piece in box.layers(axis, max(1, limit_bytes // max(1, layer_bytes))):
        yield from chunks(piece, itemsize, limit_bytes)
