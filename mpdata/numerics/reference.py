"""MPDATA in NumPy, to be read: which cells and faces each formula looks at.

The formulas, their notation and their sources are those of :mod:`mpdata.numerics.formulas`, on
arrays of the shape of :class:`~mpdata.grid.Geometry`. ``axes`` are the axes of more than one cell
by their stride, the contiguous one first: fluxes are added in that order. ``r`` is 1 / G, and
``depth`` says how far around the interior a result is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.grid import Geometry
from mpdata.numerics import formulas
from mpdata.numerics.formulas import Corner, Cross, Ends, Line, epsilon

Array = npt.NDArray[Any]
Faces = Sequence[Array]


def donor_cell(
    out: Array, psi: Array, C: Faces, r: Array, geo: Geometry, axes: Sequence[int], depth: int
) -> None:
    """Set ``out`` to psi advected by one donor-cell pass."""
    here = geo.cells(depth)
    net = np.zeros_like(psi[here])
    for a in axes:
        above, below = geo.cells(depth, (a, 1)), geo.cells(depth, (a, -1))
        net = formulas.donor_cell_outflow(
            net, psi[below], psi[here], psi[above], C[a][here], C[a][above]
        )
    out[here] = formulas.updated(psi[here], net, r[here])


@dataclass(frozen=True)
class Terms:
    """What the pseudo-velocity of one corrective pass is made of.

    Attributes:
        infinite_gauge: derivatives are not divided by psi; V is the corrective flux itself.
        third_order, divergent_flow: further terms. Both belong to the first corrective pass:
            with the velocities of a further pass they are of fourth order.
    """

    infinite_gauge: bool = False
    third_order: bool = False
    divergent_flow: bool = False

    @property
    def infinite(self) -> int | None:
        """The gauge as formulas are given it."""
        return 0 if self.infinite_gauge else None


class AtFace:
    """The faces normal to ``a`` to a depth around a block, and how to look around from them."""

    def __init__(self, geo: Geometry, a: int, depth: int) -> None:
        self.geo, self.a, self.depth = geo, a, depth

    def right(self, array: Array, *shifts: tuple[int, int]) -> Array:
        """Return the cells right of the faces, or face values at them, moved by shifts."""
        where = [slice(part.start, part.stop) for part in self.geo.cells(self.depth, extra=self.a)]
        for axis, by in shifts:
            where[axis] = slice(where[axis].start + by, where[axis].stop + by)
        return array[tuple(where)]

    def left(self, array: Array, *shifts: tuple[int, int]) -> Array:
        """Return the cells left of the faces, or the face values before, moved by shifts."""
        return self.right(array, (self.a, -1), *shifts)

    def pair(self, array: Array, *shifts: tuple[int, int]) -> Array:
        """Return left plus right."""
        total: Array = self.left(array, *shifts) + self.right(array, *shifts)
        return total

    def cross(self, C: Array, psi: Array, e: int) -> Cross:
        """Return the neighbours along another axis."""
        below, above = (e, -1), (e, 1)
        return Cross(
            self.pair(C),
            self.pair(C, above),
            self.left(psi, below),
            self.right(psi, below),
            self.left(psi, above),
            self.right(psi, above),
        )

    def corner(self, psi: Array, e: int, f: int) -> Corner:
        """Return the sums of the eight cells around the faces along two other axes."""
        rising = self.pair(psi, (e, 1), (f, 1)) + self.pair(psi, (e, -1), (f, -1))
        falling = self.pair(psi, (e, 1), (f, -1)) + self.pair(psi, (e, -1), (f, 1))
        return Corner(rising, falling)


def pseudo_velocity(
    out: Array,
    a: int,
    psi: Array,
    C: Faces,
    r: Array,
    geo: Geometry,
    axes: Sequence[int],
    depth: int,
    terms: Terms,
) -> None:
    """Set ``out`` to the pseudo-velocity normal to axis ``a``, with what ``terms`` add."""
    at = AtFace(geo, a, depth)
    others = [e for e in axes if e != a]
    crosses = [at.cross(C[e], psi, e) for e in others]
    line = corner = ends = None
    if terms.third_order:
        line = Line(at.left(psi, (a, -1)), at.right(psi, (a, 1)))
        corner = at.corner(psi, *others) if len(others) == 2 else None
    if terms.divergent_flow:
        ends = Ends(at.left(C[a]), at.right(C[a], (a, 1)))
    out[geo.cells(depth, extra=a)] = formulas.pseudo_velocity(
        at.right(C[a]),
        formulas.density_at_face(at.left(r), at.right(r)),
        at.left(psi),
        at.right(psi),
        crosses[0] if others else None,
        crosses[1] if len(others) == 2 else None,
        line,
        corner,
        ends,
        epsilon(psi.dtype),
        terms.infinite,
    )


def betas(
    up: Array,
    down: Array,
    before: Array,
    psi: Array,
    V: Faces,
    r: Array,
    geo: Geometry,
    axes: Sequence[int],
    depth: int,
    terms: Terms,
) -> None:
    """Set how much of its inflow and outflow each cell can take."""
    here = geo.cells(depth)
    high = formulas.largest(before[here], psi[here])
    low = formulas.least(before[here], psi[here])
    inflow, outflow = np.zeros_like(high), np.zeros_like(high)
    for a in axes:
        above, below = geo.cells(depth, (a, 1)), geo.cells(depth, (a, -1))
        for cells in (above, below):
            high = formulas.largest(high, formulas.largest(before[cells], psi[cells]))
            low = formulas.least(low, formulas.least(before[cells], psi[cells]))
        entering = formulas.advective_flux(psi[below], psi[here], V[a][here], terms.infinite)
        leaving = formulas.advective_flux(psi[here], psi[above], V[a][above], terms.infinite)
        inflow += formulas.into(entering, leaving)
        outflow += formulas.out_of(entering, leaving)
    up[here], down[here] = formulas.betas(
        high, low, psi[here], inflow, outflow, r[here], epsilon(psi.dtype)
    )


def share(betas: Sequence[Array], flux: Array, left: Any, right: Any) -> Array:
    """Return which part of fluxes the limiter lets through between cells ``left`` and ``right``."""
    up, down = betas
    part: Array = formulas.allowed(flux, up[left], down[left], up[right], down[right])
    return part


def correct(
    out: Array,
    psi: Array,
    V: Faces,
    r: Array,
    geo: Geometry,
    axes: Sequence[int],
    depth: int,
    terms: Terms,
    betas: Sequence[Array],
) -> None:
    """Set ``out`` to psi after the corrective fluxes, limited if there are betas."""
    here = geo.cells(depth)
    net = np.zeros_like(psi[here])
    for a in axes:
        above, below = geo.cells(depth, (a, 1)), geo.cells(depth, (a, -1))
        entering = formulas.advective_flux(psi[below], psi[here], V[a][here], terms.infinite)
        leaving = formulas.advective_flux(psi[here], psi[above], V[a][above], terms.infinite)
        if betas:
            entering = entering * share(betas, entering, below, here)
            leaving = leaving * share(betas, leaving, here, above)
        net = formulas.outflow(net, entering, leaving)
    out[here] = formulas.updated(psi[here], net, r[here])


def limit_velocity(
    V: Array, a: int, psi: Array, betas: Sequence[Array], geo: Geometry, depth: int, terms: Terms
) -> None:
    """Limit a pseudo-velocity in place: a further pass takes it for its flow."""
    right, left = geo.cells(depth, extra=a), geo.cells(depth, (a, -1), extra=a)
    flux = formulas.advective_flux(psi[left], psi[right], V[right], terms.infinite)
    V[right] *= share(betas, flux, left, right)
