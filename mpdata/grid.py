"""Index arithmetic of one block, shared by every array of it.

All arrays of a block, cells and faces alike, have one shape: along an axis of n > 1 cells
``halo`` cells below, n inside, ``halo`` + 1 above; along an axis of one cell just that cell.
Face i lies between cells i-1 and i and is kept at the index of cell i, so the faces of cell p
along an axis are p and p + 1, and one more row above holds the last face.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.options import Boundaries

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Geometry:
    """One block of the grid.

    Attributes:
        grid: cells of the whole grid (N, M, L).
        start, stop: the block's interior in global cell indices.
        halo: cells of psi around the block.
        boundaries: what lies outside the grid.
    """

    grid: tuple[int, int, int]
    start: tuple[int, int, int]
    stop: tuple[int, int, int]
    halo: int
    boundaries: Boundaries

    @property
    def active(self) -> tuple[int, ...]:
        """The axes along which anything moves: those of more than one cell."""
        return tuple(axis for axis in range(3) if self.grid[axis] > 1)

    @property
    def interior(self) -> tuple[int, int, int]:
        """Cells inside the block."""
        n, m, el = (b - a for a, b in zip(self.start, self.stop, strict=True))
        return n, m, el

    @property
    def shape(self) -> tuple[int, int, int]:
        """Extents of every array of the block."""
        n, m, el = (
            cells + 2 * self.halo + 1 if axis in self.active else 1
            for axis, cells in enumerate(self.interior)
        )
        return n, m, el

    def touches(self, axis: int) -> tuple[bool, bool]:
        """Return whether the lower and the upper side of the block are edges of the domain."""
        if self.boundaries[axis].kind == "periodic" or axis not in self.active:
            return False, False
        return self.start[axis] == 0, self.stop[axis] == self.grid[axis]

    def cells(
        self,
        depth: int,
        shift: tuple[int, int] | None = None,
        extra: int | None = None,
        shift2: tuple[int, int] | None = None,
    ) -> tuple[slice, slice, slice]:
        """Return the slices of the interior widened by ``depth`` cells on every side.

        Args:
            depth: cells added on each side of each active axis.
            shift: (axis, cells) to move the region along one axis.
            extra: axis along which one more layer is taken above (for faces).
            shift2: a second shift.
        """
        bounds = [[0, 1], [0, 1], [0, 1]]
        for axis in self.active:
            bounds[axis] = [self.halo - depth, self.halo + self.interior[axis] + depth]
        for moved in (shift, shift2):
            if moved is not None:
                bounds[moved[0]][0] += moved[1]
                bounds[moved[0]][1] += moved[1]
        if extra is not None:
            bounds[extra][1] += 1
        i, j, k = (slice(low, high) for low, high in bounds)
        return i, j, k

    def global_cells(self, *, extends: bool = False) -> tuple[Index, Index, Index]:
        """Return the global cell index of every layer along each axis, halo included.

        Periodic axes wrap; on others the index outside is the nearest cell's, or the true one
        where ``extends`` says that the case is defined there.
        """
        i, j, k = (self._global(axis, self.grid[axis] - 1, extends=extends) for axis in range(3))
        return i, j, k

    def global_faces(self, normal: int, *, extends: bool) -> tuple[Index, Index, Index]:
        """Return the global indices of the faces normal to ``normal``, as for the cells."""
        i, j, k = (
            self._global(axis, self.grid[axis] - (axis != normal), extends=extends)
            for axis in range(3)
        )
        return i, j, k

    def _global(self, axis: int, last: int, *, extends: bool) -> Index:
        if axis not in self.active:
            return np.zeros(1, np.int64)
        low = self.start[axis] - self.halo
        index = np.arange(low, low + self.shape[axis], dtype=np.int64)
        kind = self.boundaries[axis].kind
        if kind == "periodic":
            return index % self.grid[axis]
        if extends and kind != "wall":
            return index
        return index.clip(0, last)


@dataclass(frozen=True)
class LayerCopy:
    """Layers along one axis of a block's arrays that are set.

    Attributes:
        to: the layers.
        of: the layers they are copied from (one stands for all), or None.
        value: what they are set to if there is no ``of``.
    """

    to: slice
    of: slice | None
    value: float = 0.0


def edge_copies(geometry: Geometry, axis: int) -> Iterator[LayerCopy]:
    """Yield what sets psi beyond the edges of the domain along an axis: the one boundary fill.

    From the nearest cell or the fixed value; nothing where the block touches no edge.
    """
    low, high = geometry.touches(axis)
    boundary, halo = geometry.boundaries[axis], geometry.halo
    last = halo + geometry.interior[axis]
    sides = ((low, slice(0, halo), halo), (high, slice(last, last + halo + 1), last - 1))
    for touched, outside, nearest in sides:
        if touched and boundary.kind == "fixed":
            yield LayerCopy(outside, None, boundary.value)
        elif touched:
            yield LayerCopy(outside, slice(nearest, nearest + 1))


def wrap_copies(geometry: Geometry, axis: int) -> Iterator[LayerCopy]:
    """Yield what fills the halo of a periodic axis that the block spans whole.

    Of any halo and any extent: each layer once, neighbouring layers together.
    """
    halo, cells = geometry.halo, geometry.interior[axis]
    run: list[int] = []  # first layer, the one it comes from, number of layers

    for layer in (*range(halo), *range(halo + cells, 2 * halo + cells)):
        of = halo + (layer - halo) % cells
        if run and (layer, of) == (run[0] + run[2], run[1] + run[2]):
            run[2] += 1
            continue
        if run:
            yield _copy(*run)
        run = [layer, of, 1]
    if run:
        yield _copy(*run)


def _copy(to: int, of: int, layers: int) -> LayerCopy:
    return LayerCopy(slice(to, to + layers), slice(of, of + layers))


def copy_layers(array: Any, axis: int, copies: Iterable[LayerCopy]) -> None:
    """Carry out copies along an axis, in place, in an array of any array module."""
    layers = array.swapaxes(0, axis)
    for copy in copies:
        layers[copy.to] = copy.value if copy.of is None else layers[copy.of]


def fill_edges(array: Any, geometry: Geometry) -> None:
    """Set psi outside the domain from the nearest cell or the fixed value (in place).

    Done before the first and again before every further pass, axis by axis from the last to
    the first, so that corners do not depend on how the grid is cut.
    """
    for axis in (2, 1, 0):
        copy_layers(array, axis, edge_copies(geometry, axis))


def fill_halo(array: Any, geometry: Geometry) -> None:
    """Fill the halo of a block that is the whole grid (in place)."""
    for axis in reversed(geometry.active):
        if geometry.boundaries[axis].kind == "periodic":
            copy_layers(array, axis, wrap_copies(geometry, axis))
        copy_layers(array, axis, edge_copies(geometry, axis))
