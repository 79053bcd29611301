"""The flow on one block: face values and density, evaluated, scaled, closed and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.cases.setup import Setup, open_mesh
from mpdata.errors import InputError
from mpdata.geometry import Geometry

Array = Any

ROUND_OFF = 1e-12
"""A sum of outgoing Courant numbers may pass 1 by this much: equality is allowed, and sums of
face values that add up to 1 on paper round either way."""


@dataclass(frozen=True)
class Peak:
    """The largest sum of outgoing |c| over h of a block, and the global cell where it is."""

    value: float
    cell: tuple[int, int, int]


@dataclass(frozen=True)
class Flow:
    """Face values (None of an inactive axis is an empty array) and density of one block."""

    C: list[Array]
    h: Array

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self.h.nbytes) + sum(int(c.nbytes) for c in self.C)


@dataclass(frozen=True)
class Sample:
    """The case evaluated on one block in float64, before it is scaled."""

    faces: list[Array]
    density: Array
    peak: Peak


def sample(setup: Setup, geo: Geometry) -> Sample:
    """Evaluate a case on a block (local; raises InputError for what the case finds wrong)."""
    gap = _unequal_periodic_face(setup, geo)
    if gap is not None:
        raise InputError(gap)
    faces = [_faces(setup, geo, axis) for axis in range(3)]
    density = np.broadcast_to(
        np.asarray(setup.density(*open_mesh(*geo.global_cells())), np.float64), geo.shape
    )
    return Sample(faces, density, _peak(faces, density, geo))


def scale_for(setup: Setup, peak: Peak) -> float:
    """Return the factor on face values that the case wants, from the whole grid's peak."""
    if setup.courant is None or peak.value == 0:
        return 1.0
    scale = setup.courant / peak.value
    if setup.duration is None:
        return scale
    # A rate: the scale is dt, shortened so that whole steps make up the duration.
    return setup.duration / ceil(setup.duration / scale)


def steps_for(setup: Setup, scale: float) -> int:
    """Return the steps of a case whose face values are scaled by ``scale``."""
    if setup.steps is not None:
        return setup.steps
    return round((setup.duration or 0.0) / scale)


def scaled(
    raw: Sample, geo: Geometry, scale: float, dtype: npt.DTypeLike, allocate: Callable[[], Array]
) -> Flow:
    """Return the block's flow in its own type and memory order, converted once."""
    C = []
    for axis, values in enumerate(raw.faces):
        target = allocate() if axis in geo.active else np.empty(0, dtype)
        if axis in geo.active:
            target[...] = values * scale
        C.append(target)
    h = allocate()
    h[...] = raw.density
    return Flow(C, h)


def _unequal_periodic_face(setup: Setup, geo: Geometry) -> str | None:
    """Return a sentence if a periodic axis' first and last face differ on this block's part."""
    for axis in geo.active:
        if geo.boundaries[axis].kind != "periodic":
            continue
        cells = [np.arange(a, b) for a, b in zip(geo.start, geo.stop, strict=True)]
        ends = []
        for face in (0, geo.grid[axis]):
            cells[axis] = np.array([face])
            i, j, k = cells
            ends.append(np.asarray(setup.face(axis, *open_mesh(i, j, k)), np.float64))
        gap = np.abs(ends[0] - ends[1]).max()
        if gap > 0:
            return (
                f"expected c{axis + 1} of the first and the last face to be equal, since axis "
                f"{axis + 1} is periodic; got a difference of {gap:g}"
            )
    return None


def _faces(setup: Setup, geo: Geometry, axis: int) -> Array:
    if axis not in geo.active:
        return None
    index = geo.global_faces(axis, extends=setup.extends)
    values = np.asarray(setup.face(axis, *open_mesh(*index)), np.float64)
    values = np.array(np.broadcast_to(values, geo.shape))
    if geo.boundaries[axis].kind == "wall":
        low = geo.start[axis] - geo.halo
        face = np.arange(low, low + geo.shape[axis])
        layers = values.swapaxes(0, axis)
        layers[(face <= 0) | (face >= geo.grid[axis])] = 0.0
    return values


def _peak(faces: list[Array], density: Array, geo: Geometry) -> Peak:
    """Return the block's largest sum of outgoing |c| over h (the donor-cell stability limit)."""
    here = geo.cells(0)
    total = np.zeros(geo.interior)
    for axis in geo.active:
        leaving = np.maximum(faces[axis][geo.cells(0, (axis, 1))], 0)
        total += leaving - np.minimum(faces[axis][here], 0)
    total /= density[here]
    at = np.unravel_index(int(np.argmax(total)), total.shape)
    i, j, k = (int(a) + b for a, b in zip(at, geo.start, strict=True))
    return Peak(float(total[at]), (i, j, k))


def unstable(peak: Peak, scale: float) -> str | None:
    """Return a sentence if the scaled flow breaks the stability limit."""
    largest = peak.value * scale
    if largest <= 1 + ROUND_OFF:
        return None
    return (
        f"unstable: expected outgoing |c| over h of at most 1 in every cell, got "
        f"{largest:.6g} in cell {peak.cell}, too much by {largest - 1:.3g}"
    )
