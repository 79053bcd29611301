"""MPDATA as in the literature, one function a formula, written to be read (NumPy).

Notation: psi advected quantity, G density ``h`` at cells, C face value G u dt/dx, a an axis,
e and f the other axes, l and r the cells left and right of a face, bars averages to the place
needed. A derivative divided by psi is written as a difference over a sum in the standard gauge;
in the infinite gauge the sums are replaced by those of psi = 1, and V is a flux.

Sources: S84 Smolarkiewicz 1984 (J. Comput. Phys. 54, 325), S06 Smolarkiewicz 2006 (Int. J.
Numer. Meth. Fluids 50, 1123), SG90 Smolarkiewicz & Grabowski 1990 (J. Comput. Phys. 86, 355),
SM98 Smolarkiewicz & Margolin 1998 (J. Comput. Phys. 140, 459), MS98 Margolin & Smolarkiewicz 1998
(SIAM J. Sci. Comput. 20, 907), J15 Jaruga et al. 2015 (Geosci. Model Dev. 8, 1005), W18
Waruszewski et al. 2018 (J. Comput. Phys. 356, 253). Arrays have the shape of
:class:`~mpdata.grid.Geometry`; ``depth`` says how far around the interior a result is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.grid import Geometry

Array = npt.NDArray[Any]
Faces = Sequence[Array]

EPSILON = {8: 1e-15, 4: 1e-11}
"""Keeps denominators from zero (S84 section 2; J15 uses the same device), by item size. Backends
multiply the three denominators of a face: in float32 their product must not underflow."""


def epsilon(dtype: npt.DTypeLike) -> Any:
    """Return the number that is added to denominators, in their own type."""
    kind: Any = np.dtype(dtype)
    return kind.type(EPSILON[kind.itemsize])


def donor_cell_flux(left: Array, right: Array, C: Array) -> Array:
    """Return the upwind flux through a face (S84 equation 3; J15 equation 9)."""
    flux: Array = np.maximum(C, 0) * left + np.minimum(C, 0) * right
    return flux


def donor_cell(out: Array, psi: Array, C: Faces, h: Array, geo: Geometry, depth: int) -> None:
    """Set ``out`` to psi advected by one donor-cell pass (S84 equation 2; J15 equation 8)."""
    correct(out, psi, C, h, geo, depth, infinite_gauge=False)


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


class Face:
    """The faces normal to ``a`` to a depth around a block, and how to look around from them."""

    def __init__(self, geo: Geometry, a: int, depth: int, gauge: bool, eps: Any) -> None:
        self.geo, self.a, self.depth, self.gauge, self.eps = geo, a, depth, gauge, eps

    def __call__(self, array: Array, *shifts: tuple[int, int]) -> Array:
        """Return the cells right of the faces (those before them: (a, -1)), moved by shifts."""
        where = [slice(part.start, part.stop) for part in self.geo.cells(self.depth, extra=self.a)]
        for axis, by in shifts:
            where[axis] = slice(where[axis].start + by, where[axis].stop + by)
        return array[tuple(where)]

    def pair(self, array: Array, *shifts: tuple[int, int]) -> Array:
        """Return left plus right."""
        total: Array = self(array, (self.a, -1), *shifts) + self(array, *shifts)
        return total

    def per_psi(self, upper: Array, lower: Array, cells: int) -> Array:
        """Return (upper - lower) over their sum, a sum over ``cells`` cells."""
        if self.gauge:
            return (upper - lower) / cells
        quotient: Array = (upper - lower) / (upper + lower + self.eps)
        return quotient

    def mean(self, C: Array, e: int) -> Array:
        """Return Cbar_e: the mean of the four faces normal to e around the face."""
        total: Array = self.pair(C) + self.pair(C, (e, 1))
        return total / 4


def antidiffusive_velocity(
    out: Array, a: int, psi: Array, C: Faces, h: Array, geo: Geometry, depth: int, terms: Terms
) -> None:
    """Set ``out`` to the pseudo-velocity normal to axis ``a`` (S84 equations 12, 13).

    V = (|C| - C^2 / Gbar) A - C / (2 Gbar) sum_e Cbar_e B_e, with the density at the face and
    one cross term for each other axis (J15 equations 10 to 12; A and B: SM98 equations 17a and
    17b), and what ``terms`` add.
    """
    at = Face(geo, a, depth, terms.infinite_gauge, epsilon(psi.dtype))
    others = [e for e in geo.active if e != a]
    c, density = at(C[a]), at.pair(h) / 2
    V = (np.abs(c) - c * c / density) * at.per_psi(at(psi), at(psi, (a, -1)), 2)
    cross = np.zeros_like(c)
    for e in others:
        cross += at.mean(C[e], e) * at.per_psi(at.pair(psi, (e, 1)), at.pair(psi, (e, -1)), 4)
    V -= c / (2 * density) * cross
    if terms.third_order:
        V += third_order(at, psi, C, density, others)
    if terms.divergent_flow:
        V += divergent_flow(at, psi, C, density, others)
    out[geo.cells(depth, extra=a)] = V


def third_order(at: Face, psi: Array, C: Faces, density: Array, others: list[int]) -> Array:
    """Return the third-order terms (MS98; W18, for constant G and C).

    (3 C |C| / G - 2 C^3 / G^2 - C) / 6 psi_aa + sum_e Cbar_e (|C| - 2 C^2 / G) / (2 G) psi_ae
    - 2/3 C Cbar_e Cbar_f / G^2 psi_ef, all per psi. They are what is left of the exact
    solution's third derivatives, -(c.grad)^3 psi / 6, after the second-order fluxes have been
    taken of psi after the donor-cell pass; psi_aae is wholly in the flux along a.
    """
    a, c = at.a, at(C[at.a])
    # The four cells in a row: the outer ones less the inner ones is twice the derivative.
    outer, inner = at(psi, (a, -2)) + at(psi, (a, 1)), at.pair(psi)
    along = 2 * at.per_psi(outer, inner, 4)
    V: Array = (3 * c * np.abs(c) / density - 2 * c**3 / density**2 - c) / 6 * along
    for e in others:
        # On one diagonal less on the other, around the face.
        rising = at(psi, (e, 1)) + at(psi, (a, -1), (e, -1))
        falling = at(psi, (a, -1), (e, 1)) + at(psi, (e, -1))
        mixed = 2 * at.per_psi(rising, falling, 4)
        V += at.mean(C[e], e) * (np.abs(c) - 2 * c * c / density) / (2 * density) * mixed
    if len(others) == 2:
        e, f = others
        rising = at.pair(psi, (e, 1), (f, 1)) + at.pair(psi, (e, -1), (f, -1))
        falling = at.pair(psi, (e, 1), (f, -1)) + at.pair(psi, (e, -1), (f, 1))
        means = at.mean(C[e], e) * at.mean(C[f], f)
        V -= 2 * c * means / (3 * density * density) * at.per_psi(rising, falling, 8)
    return V


def divergent_flow(at: Face, psi: Array, C: Faces, density: Array, others: list[int]) -> Array:
    """Return the term of a divergent flow: -C / (2 G) div C at the face (SM98 equation 30).

    The divergence is the mean of those of the two cells.
    """
    a = at.a
    twice = at(C[a], (a, 1)) - at(C[a], (a, -1))
    for e in others:
        twice = twice + (at.pair(C[e], (e, 1)) - at.pair(C[e]))
    V: Array = -at(C[a]) * twice / (4 * density)
    return V * (at.pair(psi) / 2) if at.gauge else V


def advective_flux(left: Array, right: Array, V: Array, infinite_gauge: bool) -> Array:
    """Return what a pseudo-velocity carries through a face: upwind, or itself (S06)."""
    return V if infinite_gauge else donor_cell_flux(left, right, V)


def correct(
    out: Array, psi: Array, V: Faces, h: Array, geo: Geometry, depth: int, infinite_gauge: bool
) -> None:
    """Set ``out`` to psi after the corrective fluxes of the pseudo-velocities."""
    here = geo.cells(depth)
    outflow = np.zeros_like(psi[here])
    for a in geo.active:
        above, below = geo.cells(depth, (a, 1)), geo.cells(depth, (a, -1))
        outflow += advective_flux(psi[here], psi[above], V[a][above], infinite_gauge)
        outflow -= advective_flux(psi[below], psi[here], V[a][here], infinite_gauge)
    out[here] = psi[here] - outflow / h[here]


def betas(
    up: Array,
    down: Array,
    before: Array,
    psi: Array,
    V: Faces,
    h: Array,
    geo: Geometry,
    depth: int,
    infinite_gauge: bool,
) -> None:
    """Set how much of its inflow and outflow each cell can take (SG90 equations 16, 17).

    The bounds are the extrema over the cell and its six neighbours of both the field ``before``
    the step and the present iterate (SG90 equation 15; J15 section 2.5).
    """
    here = geo.cells(depth)
    highest = np.maximum(before[here], psi[here])
    lowest = np.minimum(before[here], psi[here])
    inflow, outflow = np.zeros_like(highest), np.zeros_like(highest)
    for a in geo.active:
        above, below = geo.cells(depth, (a, 1)), geo.cells(depth, (a, -1))
        for cells in (above, below):
            highest = np.maximum(highest, np.maximum(before[cells], psi[cells]))
            lowest = np.minimum(lowest, np.minimum(before[cells], psi[cells]))
        entering = advective_flux(psi[below], psi[here], V[a][here], infinite_gauge)
        leaving = advective_flux(psi[here], psi[above], V[a][above], infinite_gauge)
        inflow += np.maximum(entering, 0) - np.minimum(leaving, 0)
        outflow += np.maximum(leaving, 0) - np.minimum(entering, 0)
    eps = epsilon(psi.dtype)
    up[here] = (highest - psi[here]) * h[here] / (inflow + eps)
    down[here] = (psi[here] - lowest) * h[here] / (outflow + eps)


def limit(
    V: Array,
    a: int,
    psi: Array,
    up: Array,
    down: Array,
    geo: Geometry,
    depth: int,
    infinite_gauge: bool,
) -> None:
    """Limit the pseudo-velocity so that no new extremum arises (SG90 equation 18), in place.

    What flows to the right is bounded by what the left cell can lose and the right one take.
    The flux decides the direction, so psi may have either sign.
    """
    right = geo.cells(depth, extra=a)
    left = geo.cells(depth, (a, -1), extra=a)
    flux = advective_flux(psi[left], psi[right], V[right], infinite_gauge)
    forward = np.minimum(1, np.minimum(down[left], up[right]))
    backward = np.minimum(1, np.minimum(up[left], down[right]))
    V[right] *= np.where(flux > 0, forward, backward)
