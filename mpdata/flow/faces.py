"""The flow on one block: face values and density, evaluated, scaled, closed and checked.

Everything is evaluated in float64, a slab of the block at a time, and kept in the field's own
type only: no whole array of float64 is ever held beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.cases.setup import Setup, open_mesh
from mpdata.errors import InputError
from mpdata.grid import Geometry
from mpdata.options import LATITUDE

Array = Any
Region = tuple[slice, slice, slice]

ROUND_OFF = 1e-12
"""A sum of outgoing Courant numbers may pass 1 by this much: equality is allowed, and sums of
face values that add up to 1 on paper round either way."""

SLAB_CELLS = 1 << 19
"""Cells that are evaluated at once, few enough to stay in a cache; one layer of axis 0 at least."""


@dataclass(frozen=True)
class MaxCourant:
    """The largest sum of outgoing |c| over h of a block, and the global cell where it is.

    Attributes:
        time: when that is, in steps, for a flow that changes in time.
    """

    value: float
    cell: tuple[int, int, int]
    time: float | None = None


@dataclass(frozen=True)
class Flow:
    """Face values (of an inactive axis an empty array) and density of one block, arrays of xp."""

    C: list[Array]
    h: Array
    xp: Any = np

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(held_bytes(array) for array in (self.h, *self.C))


def held_bytes(array: Array) -> int:
    """Return the bytes of memory that an array, maybe a view of padded rows, keeps alive."""
    owner = array if array.base is None else array.base
    return int(owner.nbytes)


def max_courant(setup: Setup, geo: Geometry) -> MaxCourant:
    """Return the largest outgoing sum of an unscaled case on a block's interior; nothing is kept.

    Raises:
        InputError: on this rank alone, for what the case finds wrong, unequal first and last
            faces of a periodic axis, or face values over h that are not finite.
    """
    check_periodic_faces(setup, geo)
    best: MaxCourant | None = None
    for region in slabs(geo.cells(0)):
        pairs = []
        for axis in geo.active:
            values = _face_values(setup, geo, axis, _widened(region, axis))
            layers = values.swapaxes(0, axis)
            pairs.append((layers[:-1].swapaxes(0, axis), layers[1:].swapaxes(0, axis)))
        density = _density_values(setup, geo, region)
        best = _larger(best, _slab_max(pairs, density, region, geo))
    if best is None:
        raise RuntimeError("expected a block of at least one cell")
    if not isfinite(best.value):
        raise InputError(
            f"expected finite face values divided by h, got a sum of {best.value} in cell "
            f"{best.cell}"
        )
    return best


def held_max_courant(flow: Flow, geo: Geometry) -> MaxCourant:
    """Return the same of the values that a block holds (local, in their own type's rounding)."""
    best: MaxCourant | None = None
    for region in slabs(geo.cells(0)):
        pairs = []
        for axis in geo.active:
            c, above = flow.C[axis], _shifted(region, axis)
            below = on_host(flow.xp, c[region]).astype(np.float64)
            pairs.append((below, on_host(flow.xp, c[above])))
        best = _larger(best, _slab_max(pairs, on_host(flow.xp, flow.h[region]), region, geo))
    if best is None:
        raise RuntimeError("expected a block of at least one cell")
    return best


def scale_for(setup: Setup, highest: MaxCourant) -> float:
    """Return the factor on face values that the case wants, from the whole grid's maximum."""
    if setup.courant is None or highest.value == 0:
        return 1.0
    scale = setup.courant / highest.value
    if setup.duration is None:
        return scale
    # A rate: the scale is dt, shortened so that whole steps make up the duration.
    return setup.duration / ceil(setup.duration / scale)


def steps_for(setup: Setup, scale: float) -> int:
    """Return the steps of a case whose face values are scaled by ``scale``."""
    if setup.steps is not None:
        return setup.steps
    return round((setup.duration or 0.0) / scale)


def make_flow(
    setup: Setup, geo: Geometry, dtype: npt.DTypeLike, allocate: Callable[[], Array], xp: Any = np
) -> Flow:
    """Return the block's density, converted once, and room for its face values (local).

    ``allocate`` returns an array of the block in the array module ``xp``.
    """
    h = allocate()
    for region in slabs(_whole(geo)):
        _put(xp, h, region, _density_values(setup, geo, region))
    C = [allocate() if axis in geo.active else np.empty(0, dtype) for axis in range(3)]
    return Flow(C, h, xp)


def fill_faces(
    C: list[Array], setup: Setup, geo: Geometry, scale: float = 1.0, xp: Any = np
) -> None:
    """Set a block's face values, halo included, to the scaled case's, converted once (local)."""
    for axis in geo.active:
        for region in slabs(_whole(geo)):
            _put(xp, C[axis], region, _face_values(setup, geo, axis, region) * scale)


def on_host(xp: Any, array: Array) -> npt.NDArray[Any]:
    """Return an array of the module ``xp`` in host memory (itself where it is there already)."""
    values: npt.NDArray[Any] = xp.asnumpy(array) if hasattr(xp, "asnumpy") else array
    return values


def _put(xp: Any, target: Array, region: Region, values: npt.NDArray[Any]) -> None:
    """Assign host values to a region, rounded here: a device array takes none but its own kind."""
    target[region] = xp.asarray(np.asarray(values, target.dtype))


def unstable(highest: MaxCourant, scale: float, allowance: float = ROUND_OFF) -> str | None:
    """Return a sentence if the scaled flow breaks the stability limit."""
    largest = highest.value * scale
    if largest <= 1 + allowance:
        return None
    when = "" if highest.time is None else f" at time {highest.time:g}"
    return (
        f"unstable: expected outgoing |c| / h of at most 1 in every cell, got "
        f"{largest:.6g} in cell {highest.cell}{when}, too much by {largest - 1:.3g}"
    )


def largest(highest: list[MaxCourant]) -> MaxCourant:
    """Return the largest of some, the first of equals; one that is not a number wins."""
    best = highest[0]
    for other in highest[1:]:
        best = _larger(best, other)
    return best


def check_periodic_faces(setup: Setup, geo: Geometry) -> None:
    """Refuse a periodic axis whose first and last face differ on this block's part.

    Raises:
        InputError: they do.
    """
    for axis in geo.active:
        if not geo.boundaries[axis].periodic:
            continue
        cells = [np.arange(a, b) for a, b in zip(geo.start, geo.stop, strict=True)]
        ends = []
        for face in (0, geo.grid[axis]):
            cells[axis] = np.array([face])
            i, j, k = cells
            ends.append(np.asarray(setup.face(axis, *open_mesh(i, j, k)), np.float64))
        gap = np.abs(ends[0] - ends[1]).max()
        if gap > 0:
            raise InputError(
                f"expected c{axis + 1} of the first and the last face to be equal, since axis "
                f"{axis} is periodic; got a difference of {gap:g}"
            )


def slabs(region: Region, cells: int | None = None) -> Iterator[Region]:
    """Cut a region of a block's arrays along axis 0 into slabs of about so many cells."""
    rows, columns, levels = region
    across = (columns.stop - columns.start) * (levels.stop - levels.start)
    thick = max(1, (cells or SLAB_CELLS) // across)
    for low in range(rows.start, rows.stop, thick):
        yield slice(low, min(low + thick, rows.stop)), columns, levels


def _whole(geo: Geometry) -> Region:
    n, m, el = geo.shape
    return slice(0, n), slice(0, m), slice(0, el)


def _widened(region: Region, axis: int) -> Region:
    """Return a region with one layer more along an axis: the upper faces of its last cells."""
    parts = list(region)
    parts[axis] = slice(parts[axis].start, parts[axis].stop + 1)
    return parts[0], parts[1], parts[2]


def _shifted(region: Region, axis: int) -> Region:
    parts = list(region)
    parts[axis] = slice(parts[axis].start + 1, parts[axis].stop + 1)
    return parts[0], parts[1], parts[2]


def _index_of(index: tuple[Array, Array, Array], region: Region) -> tuple[Array, Array, Array]:
    i, j, k = (whole[part] for whole, part in zip(index, region, strict=True))
    return i, j, k


def _density_values(setup: Setup, geo: Geometry, region: Region) -> Array:
    """Return the density on a region of the block's arrays, in float64."""
    index = _index_of(geo.global_cells(), region)
    return _evaluated(setup.density, geo, index, geo.beyond_pole()[region[LATITUDE]])


def _evaluated(
    values: Callable[..., Any], geo: Geometry, index: tuple[Array, Array, Array], beyond: Array
) -> Array:
    """Return values on a mesh of global indices, half a circle away where it is beyond a pole."""
    i, j, k = index
    if not beyond.any():
        return np.asarray(values(*open_mesh(i, j, k)), np.float64)
    result = np.empty((i.size, j.size, k.size))
    result[:, ~beyond] = values(*open_mesh(i, j[~beyond], k))
    result[:, beyond] = values(*open_mesh(geo.half_circle(i), j[beyond], k))
    return result


def _face_values(setup: Setup, geo: Geometry, axis: int, region: Region) -> Array:
    """Return the face values normal to an axis on a region of the block's arrays, in float64.

    Those at and beyond a wall are 0, and so are those at a pole, whose faces have no area. North
    beyond a pole is south there.
    """
    index = _index_of(geo.global_faces(axis, extends=setup.extends), region)
    beyond = geo.beyond_pole(faces=axis == LATITUDE)[region[LATITUDE]]
    values = _evaluated(lambda i, j, k: setup.face(axis, i, j, k), geo, index, beyond)
    values = np.broadcast_to(values, tuple(part.size for part in index))
    kinds = [end.kind for end in geo.boundaries[axis]]
    if not {"wall", "pole"} & set(kinds):
        return values
    values = np.array(values)
    low, cells = geo.start[axis] - geo.halo, geo.grid[axis]
    face = np.arange(low + region[axis].start, low + region[axis].stop)
    layers = values.swapaxes(0, axis)
    if "pole" in kinds:
        values[:, beyond] *= -1.0
    for kind, outside, there in (
        (kinds[0], face <= 0, index[axis] == 0),
        (kinds[1], face >= cells, index[axis] == cells),
    ):
        if kind in ("wall", "pole"):
            layers[outside if kind == "wall" else there] = 0.0
    return values


def _slab_max(
    pairs: list[tuple[Array, Array]], density: Array, region: Region, geo: Geometry
) -> MaxCourant:
    """Return a slab's largest sum of outgoing |c| over h (the donor-cell stability limit).

    ``pairs`` are the face values below and above the slab's cells along each active axis.
    """
    total = np.zeros(tuple(part.stop - part.start for part in region))
    with np.errstate(over="ignore", invalid="ignore"):  # the check of the sum reports it
        for below, above in pairs:
            total += np.maximum(above, 0) - np.minimum(below, 0)
        total /= density
    at = np.unravel_index(int(np.argmax(total)), total.shape)
    inner = geo.cells(0)
    i, j, k = (
        int(a) + part.start - whole.start + first
        for a, part, whole, first in zip(at, region, inner, geo.start, strict=True)
    )
    return MaxCourant(float(total[at]), (i, j, k))


def _larger(one: MaxCourant | None, other: MaxCourant) -> MaxCourant:
    if one is None or (one.value == one.value and not other.value <= one.value):
        return other
    return one
