"""MPDATA as in the literature, one function a formula, written to be read (NumPy).

Notation: psi advected quantity, G density ``h`` at cells, C face value G u dt/dx, a an axis,
e the other axes, l and r the cells left and right of a face, bars averages to the place needed.
Sources: S84 Smolarkiewicz 1984 (J. Comput. Phys. 54, 325), S06 Smolarkiewicz 2006 (Int. J.
Numer. Meth. Fluids 50, 1123), SG90 Smolarkiewicz & Grabowski 1990 (J. Comput. Phys. 86, 355),
J15 Jaruga et al. 2015 (Geosci. Model Dev. 8, 1005). Arrays have the shape of
:class:`~mpdata.geometry.Geometry`; ``ring`` says how far around the interior a result is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.geometry import Geometry

Array = npt.NDArray[Any]
Faces = Sequence[Array]

EPSILON = 1e-15
"""Keeps denominators from zero (S84 section 2; J15 uses the same device)."""


def donor_cell_flux(left: Array, right: Array, C: Array) -> Array:
    """Return the upwind flux through a face (S84 equation 3; J15 equation 9)."""
    flux: Array = np.maximum(C, 0) * left + np.minimum(C, 0) * right
    return flux


def donor_cell(out: Array, psi: Array, C: Faces, h: Array, geo: Geometry, ring: int) -> None:
    """Set ``out`` to psi advected by one donor-cell pass (S84 equation 2; J15 equation 8)."""
    here = geo.cells(ring)
    outflow = np.zeros_like(psi[here])
    for a in geo.active:
        above, below = geo.cells(ring, (a, 1)), geo.cells(ring, (a, -1))
        outflow += donor_cell_flux(psi[here], psi[above], C[a][above]) - donor_cell_flux(
            psi[below], psi[here], C[a][here]
        )
    out[here] = psi[here] - outflow / h[here]


def antidiffusive_velocity(
    out: Array, a: int, psi: Array, C: Faces, h: Array, geo: Geometry, ring: int
) -> None:
    """Set ``out`` to the pseudo-velocity normal to axis ``a`` (S84 equations 12, 13).

    V = (|C| - C^2 / Gbar) A - C / (2 Gbar) sum_e Cbar_e B_e, with the density at the face and
    one cross term for each other axis (J15 equations 10 to 12).
    """
    right = geo.cells(ring, extra=a)
    left = geo.cells(ring, (a, -1), extra=a)
    c = C[a][right]
    density = (h[left] + h[right]) / 2
    eps = psi.dtype.type(EPSILON)
    gradient = (psi[right] - psi[left]) / (psi[right] + psi[left] + eps)
    out[right] = (np.abs(c) - c * c / density) * gradient
    cross = np.zeros_like(c)
    for e in geo.active:
        if e != a:
            upper = psi[geo.cells(ring, (e, 1), a)] + psi[geo.cells(ring, (a, -1), a, (e, 1))]
            lower = psi[geo.cells(ring, (e, -1), a)] + psi[geo.cells(ring, (a, -1), a, (e, -1))]
            mean = (
                C[e][right]
                + C[e][geo.cells(ring, (e, 1), a)]
                + C[e][left]
                + C[e][geo.cells(ring, (a, -1), a, (e, 1))]
            ) / 4
            cross += mean * ((upper - lower) / (upper + lower + eps))
    out[right] -= c / (2 * density) * cross


def betas(
    up: Array, down: Array, before: Array, psi: Array, V: Faces, h: Array, geo: Geometry, ring: int
) -> None:
    """Set how much of its inflow and outflow each cell can take (SG90 equations 16, 17).

    The bounds are the extrema over the cell and its six neighbours of both the field ``before``
    the step and the present iterate (SG90 equation 15; J15 section 2.5).
    """
    here = geo.cells(ring)
    highest = np.maximum(before[here], psi[here])
    lowest = np.minimum(before[here], psi[here])
    inflow, outflow = np.zeros_like(highest), np.zeros_like(highest)
    for a in geo.active:
        above, below = geo.cells(ring, (a, 1)), geo.cells(ring, (a, -1))
        for cells in (above, below):
            highest = np.maximum(highest, np.maximum(before[cells], psi[cells]))
            lowest = np.minimum(lowest, np.minimum(before[cells], psi[cells]))
        entering = donor_cell_flux(psi[below], psi[here], V[a][here])
        leaving = donor_cell_flux(psi[here], psi[above], V[a][above])
        inflow += np.maximum(entering, 0) - np.minimum(leaving, 0)
        outflow += np.maximum(leaving, 0) - np.minimum(entering, 0)
    eps = psi.dtype.type(EPSILON)
    up[here] = (highest - psi[here]) * h[here] / (inflow + eps)
    down[here] = (psi[here] - lowest) * h[here] / (outflow + eps)


def limit(V: Array, a: int, psi: Array, up: Array, down: Array, geo: Geometry, ring: int) -> None:
    """Limit the pseudo-velocity so that no new extremum arises (SG90 equation 18), in place.

    What flows to the right is bounded by what the left cell can lose and the right one take.
    The flux decides the direction, so psi may have either sign.
    """
    right = geo.cells(ring, extra=a)
    left = geo.cells(ring, (a, -1), extra=a)
    flux = donor_cell_flux(psi[left], psi[right], V[right])
    forward = np.minimum(1, np.minimum(down[left], up[right]))
    backward = np.minimum(1, np.minimum(up[left], down[right]))
    V[right] *= np.where(flux > 0, forward, backward)
