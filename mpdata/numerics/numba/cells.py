"""A pass of a step each: loops over cells that read and write whole arrays.

They serve all options and any number of axes. :mod:`mpdata.numerics.numba.fused` has the same
formulas in one sweep over memory, for the options that are worth it. Arguments: see arguments.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpdata.numerics.numba.formulas import (
    ONE,
    Array,
    advective_flux,
    allowed,
    betas,
    contiguous_face,
    correct,
    donor_cell,
    entry,
    inline,
    middle_face,
    slow_face,
)

u = np.uint64


# fmt: off
@inline
def first_item(strides: Any, plane: int, row: int, item: int) -> Any:
    """Return the index of a cell, counted from the interior's first."""
    return strides.base + u(plane) * strides.s + u(row) * strides.m + u(item)


@entry
def donor_cell_pass(out: Array, psi: Array, C: Any, r: Array, strides: Any, region: Any) -> None:
    """Set ``out`` to psi after a donor-cell pass."""
    cc, cm, cs = C
    for plane in range(region.plane, region.planes):
        for row in range(region.row, region.rows):
            start = first_item(strides, plane, row, region.item)
            for q in range(u(region.items - region.item)):
                x = start + q
                out[x] = donor_cell(psi, x, cc, cm, cs, strides.m, strides.s, r)


@entry
def slow_face_pass(
    V: Array, P: Array, C: Any, r: Array, strides: Any, region: Any, terms: Any
) -> None:
    """Set V to what the faces along s hold: a flux, or a velocity where that is kept."""
    sm, ss, zero = strides.m, strides.s, P.dtype.type(0)
    bare = terms.infinite is not None or terms.keep is not None
    cc, cm, cs = C
    for plane in range(region.plane, region.planes):
        for row in range(region.row, region.rows):
            start = first_item(strides, plane, row, region.item)
            for q in range(u(region.items - region.item)):
                y = start + q
                z = y - ss
                v = slow_face(
                    P, y, z, y + ss, z - ss, sm, cc, cm, cs, r, y, sm, ss,
                    terms.eps, terms.infinite, terms.third, terms.divergent,
                )
                V[y] = v if bare else advective_flux(v, P[z], P[y], zero)


@entry
def plane_face_pass(
    Vc: Array, Vm: Array, P: Array, C: Any, r: Array, strides: Any, region: Any, terms: Any
) -> None:
    """Set Vc and Vm to what the faces along c and m hold."""
    sm, ss, zero = strides.m, strides.s, P.dtype.type(0)
    bare = terms.infinite is not None or terms.keep is not None
    cc, cm, cs = C
    for plane in range(region.plane, region.planes):
        for row in range(region.row, region.rows):
            start = first_item(strides, plane, row, region.item)
            for q in range(u(region.items - region.item)):
                y = start + q
                v = middle_face(
                    P, y, y + ss, y - ss, sm, cc, cm, cs, r, y, sm, ss,
                    terms.eps, terms.infinite, terms.third, terms.divergent,
                )
                if sm > u(0):
                    Vm[y] = v if bare else advective_flux(v, P[y - sm], P[y], zero)
                v = contiguous_face(
                    P, y, y + ss, y - ss, sm, cc, cm, cs, r, y, sm, ss,
                    terms.eps, terms.infinite, terms.third, terms.divergent,
                )
                Vc[y] = v if bare else advective_flux(v, P[y - ONE], P[y], zero)


@entry
def betas_pass(
    U: Array, D: Array, psi: Array, P: Array, V: Any, r: Array, strides: Any, region: Any,
    eps: Any, keep: Any,
) -> None:
    """Set both betas of the limiter."""
    sm, ss = strides.m, strides.s
    vc, vm, vs = V
    for plane in range(region.plane, region.planes):
        for row in range(region.row, region.rows):
            start = first_item(strides, plane, row, region.item)
            for q in range(u(region.items - region.item)):
                x = start + q
                U[x], D[x] = betas(
                    psi, x, sm, ss, P, x, sm, x + ss, x - ss,
                    vc, x, vm, x, x + sm, vs, x, x + ss, r, eps, keep,
                )


@entry
def correct_pass(
    out: Array, P: Array, V: Any, U: Array, D: Array, r: Array, strides: Any, region: Any,
    limiter: Any, keep: Any,
) -> None:
    """Set ``out`` to P after the limited corrective fluxes."""
    vc, vm, vs = V
    for plane in range(region.plane, region.planes):
        for row in range(region.row, region.rows):
            start = first_item(strides, plane, row, region.item)
            for q in range(u(region.items - region.item)):
                x = start + q
                out[x] = correct(
                    P, x, strides.m, strides.s, vc, vm, vs, U, D, r, limiter, keep
                )


@entry
def limit_pass(
    V: Array, P: Array, U: Array, D: Array, step: Any, strides: Any, region: Any
) -> None:
    """Limit the velocities along one axis in place (SG90 equation 18)."""
    zero = P.dtype.type(0)
    for plane in range(region.plane, region.planes):
        for row in range(region.row, region.rows):
            start = first_item(strides, plane, row, region.item)
            for q in range(u(region.items - region.item)):
                x = start + q
                w = x - step
                v = V[x]
                flux = advective_flux(v, P[w], P[x], zero)
                V[x] = v * allowed(flux, U, D, w, x, 0)
