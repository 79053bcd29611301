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

from mpdata.options import LATITUDE, LONGITUDE, Boundaries

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Geometry:
    """One block of the grid.

    Attributes:
        grid: cells of the whole grid (N, M, L).
        start, stop: the block's interior in global cell indices.
        halo: cells of psi around the block.
        boundaries: what lies outside the grid at both ends of each axis.
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
        low, high = (end.kind not in ("periodic", "pole") for end in self.boundaries[axis])
        below, above = self._ends_here(axis)
        return low and below, high and above

    @property
    def poles(self) -> tuple[bool, bool]:
        """Whether the lower and the upper side of the block along the latitude are poles."""
        low, high = (end.kind == "pole" for end in self.boundaries[LATITUDE])
        below, above = self._ends_here(LATITUDE)
        return low and below, high and above

    def _ends_here(self, axis: int) -> tuple[bool, bool]:
        """Return whether the block holds the first and the last cell of an active axis."""
        if axis not in self.active:
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

        Periodic axes wrap. Beyond a pole the latitude's index is mirrored; the cell is half a
        circle away (:meth:`beyond_pole`). At other ends the index outside is the nearest cell's,
        or the true one where ``extends`` says that the case is defined there.
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

    def beyond_pole(self, *, faces: bool = False) -> npt.NDArray[np.bool_]:
        """Return which layers along the latitude, of cells or of its faces, lie beyond a pole."""
        last = self.grid[LATITUDE] - (not faces)
        return self._mirrored(self._layers(LATITUDE), last)[1]

    def half_circle(self, longitude: Index) -> Index:
        """Return the longitudes half a circle away."""
        around = self.grid[LONGITUDE]
        opposite: Index = (longitude + around // 2) % around
        return opposite

    def _layers(self, axis: int) -> Index:
        """Return the index of every layer, as if the grid went on outside."""
        if axis not in self.active:
            return np.zeros(1, np.int64)
        low = self.start[axis] - self.halo
        return np.arange(low, low + self.shape[axis], dtype=np.int64)

    def _global(self, axis: int, last: int, *, extends: bool) -> Index:
        index, pair = self._layers(axis), self.boundaries[axis]
        if axis not in self.active:
            return index
        if pair.periodic:
            return index % self.grid[axis]
        if axis == LATITUDE:
            index, _ = self._mirrored(index, last)
        clipped = index.clip(0, last)
        low, high = (extends and end.kind != "wall" for end in pair)
        index = np.where(index < 0, index if low else clipped, index)
        return np.where(index > last, index if high else clipped, index)

    def _mirrored(self, index: Index, last: int) -> tuple[Index, npt.NDArray[np.bool_]]:
        """Return latitudes mirrored at the poles, and which of them lie beyond one.

        ``last`` is the last index of the grid: of its cells or of its faces.
        """
        cells = self.grid[LATITUDE]
        low, high = (end.kind == "pole" for end in self.boundaries[LATITUDE])
        beyond = np.zeros(index.shape, np.bool_)
        if LATITUDE not in self.active:
            return index, beyond
        while True:
            below, above = (index < 0) & low, (index > last) & high
            if not (below | above).any():
                return index, beyond
            index = np.where(below, last - cells - index, index)
            index = np.where(above, last + cells - index, index)
            beyond ^= below | above


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
    below, above = geometry.boundaries[axis]
    halo = geometry.halo
    last = halo + geometry.interior[axis]
    sides = (
        (low, below, slice(0, halo), halo),
        (high, above, slice(last, last + halo + 1), last - 1),
    )
    for touched, boundary, outside, nearest in sides:
        if touched and boundary.kind == "fixed":
            yield LayerCopy(outside, None, boundary.value)
        elif touched:
            yield LayerCopy(outside, slice(nearest, nearest + 1))


def wrap_copies(geometry: Geometry, axis: int) -> Iterator[LayerCopy]:
    """Yield what fills the halo of a periodic axis that the block spans whole.

    Of any halo and any extent: each layer once, neighbouring layers together.
    """
    halo, cells = geometry.halo, geometry.interior[axis]
    outside = (*range(halo), *range(halo + cells, 2 * halo + cells))
    return _copies((layer, halo + (layer - halo) % cells) for layer in outside)


def _copies(layers: Iterable[tuple[int, int]]) -> Iterator[LayerCopy]:
    """Yield copies of single layers, (to, of), neighbouring layers together."""
    run: list[int] = []  # first layer, the one it comes from, number of layers
    for to, of in layers:
        if run and (to, of) == (run[0] + run[2], run[1] + run[2]):
            run[2] += 1
            continue
        if run:
            yield _copy(*run)
        run = [to, of, 1]
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


def fill_pole(array: Any, geometry: Geometry) -> None:
    """Fill the halo beyond the poles (in place) of a block that spans the longitudes whole.

    From the cells of the same latitude half a circle away, over the whole extent of the longitude:
    done when the halos of all axes have been filled. What a step computes in the halo follows from
    psi, C and h there, as anywhere; so nothing is filled again before further passes.
    """
    if not any(geometry.poles):
        return
    halo, rows, around = geometry.halo, geometry.interior[LATITUDE], geometry.interior[LONGITUDE]
    meridians = range(2 * halo + around)
    opposite = list(_copies((x, halo + (x - halo + around // 2) % around) for x in meridians))
    # A part is no wider than the grid: what it copies is there already.
    for near in range(0, halo, rows):
        far = min(near + rows, halo)
        below = slice(halo - far, halo - near), slice(halo + near, halo + far)
        end = halo + rows
        above = slice(end + near, end + far), slice(end - far, end - near)
        for (outside, inside), pole in zip((below, above), geometry.poles, strict=True):
            for copy in opposite if pole else ():
                array[copy.to, outside] = array[copy.of, inside][:, ::-1]


def fill_halo(array: Any, geometry: Geometry) -> None:
    """Fill the halo of a block that is the whole grid (in place)."""
    for axis in reversed(geometry.active):
        if geometry.boundaries[axis].periodic:
            copy_layers(array, axis, wrap_copies(geometry, axis))
        copy_layers(array, axis, edge_copies(geometry, axis))
    fill_pole(array, geometry)
