"""The arguments of kernels: a block's flat memory, grouped. No Numba here: see kernel_cache.py.

Kernels name the axes of a block by their stride: x is the contiguous one, y the middle one, z the
slowest one. A plane is one of constant z, a row one of constant y and z.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpdata.grid import Geometry
from mpdata.numerics.formulas import epsilon
from mpdata.options import Scheme

Array = npt.NDArray[Any]

LINE_BYTES = 64

SEGMENT = 32
"""Items that a stage of the fused sweep computes between two groups of prefetches, where rows are
multiples of it.

A constant: the loop over them is unrolled and has no remainder. A core drops prefetches while some
twenty lines are on their way: of those for a whole row at once most were lost.
"""


class FaceArrays(NamedTuple):
    """Face values normal to the axes x, y and z."""

    x: Any
    y: Any
    z: Any


class Strides(NamedTuple):
    """Index of the interior's first cell, and items from a row and from a plane to the next.

    Unsigned: signed indices cost a test for negative values. An axis of one cell has None.
    """

    base: Any
    dy: Any
    dz: Any


class Region(NamedTuple):
    """First and last + 1 of planes, rows and items, counted from the interior's first cell."""

    plane: int
    planes: int
    row: int
    rows: int
    item: int
    items: int


ON = 0
"""An option that is compiled into a kernel."""

OFF = None
"""An option that is left out: Numba drops the branches of None."""


def flag(on: bool) -> int | None:
    """Return the argument of a kernel for an option."""
    return ON if on else OFF


class KernelTerms(NamedTuple):
    """The terms of the velocities at faces; options are flags.

    Attributes:
        eps: added to denominators.
        infinite, third, divergent: see :class:`mpdata.options.Scheme`.
        holds_velocity: faces hold velocities and not fluxes: they are the flow of a further pass.
    """

    eps: Any
    infinite: Any
    third: Any
    divergent: Any
    holds_velocity: Any


def terms_of(
    scheme: Scheme,
    dtype: npt.DTypeLike,
    divergent: bool,
    *,
    third: bool = False,
    holds_velocity: bool = False,
) -> KernelTerms:
    """Return the terms of a corrective pass."""
    options = (scheme.infinite_gauge, third, divergent, holds_velocity)
    return KernelTerms(epsilon(dtype), *map(flag, options))


class Edges(NamedTuple):
    """What lies outside the domain, of the axes z, y, x: all but extents for both ends of an axis.

    Attributes:
        extents: the interior's cells.
        kinds: 0 no edge here, 1 nearest cell, 2 fixed value.
        values: beyond each edge.
        rank: where two fixed edges meet the lowest decides.
    """

    extents: Any
    kinds: Any
    values: Any
    rank: Any


class CpuTile(NamedTuple):
    """The rows that a sweep takes at once.

    Attributes:
        lead: items that are computed before the interior's first; 0 where the ends of the row
            are copied from one another: the axis is periodic and whole.
        count: items of a row that are computed.
        pitch: items from one row of a buffer to the next.
        height: rows of the result.
        segmented: whether rows are computed in segments (0) or whole (None).
        around_x, around_y: items and rows around the interior that a further pass needs.
    """

    lead: Any
    count: Any
    pitch: Any
    height: int
    segmented: int | None
    around_x: Any
    around_y: int


class Buffers(NamedTuple):
    """Rolling planes of a tile.

    Psi, fluxes through faces, velocities (None: no further pass needs them), betas, the result
    under way.
    """

    P: Any
    Fx: Any
    Fy: Any
    Fz: Any
    Vx: Any
    Vy: Any
    Vz: Any
    U: Any
    D: Any
    Q: Any
    G: Any


@dataclass(frozen=True)
class BlockMemory:
    """How a block's arrays lie in memory.

    Attributes:
        geometry: the block.
        axes: its axes x, y and z; without some of them a plane is a row, or all is one row (None).
        strides: of the kernels.
    """

    geometry: Geometry
    axes: tuple[int, int | None, int | None]
    strides: Strides

    @staticmethod
    def of(geometry: Geometry, array: Array) -> BlockMemory:
        """Return the memory of a block's arrays, of which this is one.

        Raises:
            ValueError: no active axis is contiguous.
        """
        items = [stride // array.itemsize for stride in array.strides]
        order = sorted(geometry.active, key=lambda axis: items[axis])
        if items[order[0]] != 1:
            raise ValueError(f"expected arrays with an axis of stride 1, got strides {items}")
        slowest = order[-1] if len(order) > 1 else None
        middle = order[1] if len(order) == 3 else None
        base = sum(geometry.halo * items[axis] for axis in geometry.active)
        dy, dz = (None if axis is None else np.uint64(items[axis]) for axis in (middle, slowest))
        strides = Strides(np.uint64(base), dy, dz)
        return BlockMemory(geometry, (order[0], middle, slowest), strides)

    def flow(self, C: list[Array], none: Array) -> FaceArrays:
        """Return the memory of face values; ``none`` stands for an axis that there is not."""
        return FaceArrays(*(flat(none if axis is None else C[axis]) for axis in self.axes))

    def cells(self, axis: int | None) -> int:
        """Return the interior's cells along an axis."""
        return 1 if axis is None else self.geometry.interior[axis]


def flat(array: Array) -> Array:
    """Return a block array's memory as one row that starts at its first element."""
    items = 1 + sum(
        (n - 1) * (s // array.itemsize) for n, s in zip(array.shape, array.strides, strict=True)
    )
    return np.lib.stride_tricks.as_strided(array, (items,), (array.itemsize,))


def aligned(items: int, dtype: np.dtype[Any]) -> Array:
    """Return zeros that start at a cache line."""
    extra = LINE_BYTES // dtype.itemsize
    raw = np.zeros(items + extra, dtype)
    start = -(raw.ctypes.data // dtype.itemsize) % extra
    return raw[start : start + items]
