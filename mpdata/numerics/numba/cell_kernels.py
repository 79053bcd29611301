"""A pass of a step each: loops over cells that read and write whole arrays.

They serve all options and any number of axes; an axis of one cell has the stride None.
:mod:`mpdata.numerics.numba.fused_kernel` has the same formulas in one sweep over memory, for the
options that are worth it. Arguments: see kernel_arguments.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from mpdata.numerics.formulas import Corner, Cross, Ends, Line
from mpdata.numerics.numba.inlined import (
    Array,
    advective_flux,
    allowed,
    betas,
    density_at_face,
    donor_cell_outflow,
    entry,
    inline,
    into,
    largest,
    least,
    optional,
    out_of,
    outflow,
    pseudo_velocity,
    updated,
)

u = np.uint64
ONE = np.uint64(1)


# fmt: off
@inline
def along(n: Any, stride: Any) -> Any:
    """Return the items of n steps along an axis."""
    return u(0) if stride is None else u(n) * stride


@inline
def first_item(strides: Any, plane: int, row: int, item: int) -> Any:
    """Return the index of a cell, counted from the interior's first."""
    return strides.base + along(plane, strides.s) + along(row, strides.m) + u(item)


@optional
def item_of(A: Any, x: Any) -> Any:
    """Return an item of an array that may be left out."""
    return A[x]


# --- Donor cell -------------------------------------------------------------------------------


@inline
def outflow_along(net: Any, C: Array, psi: Array, x: Any, s: Any) -> Any:
    """Return a net outflow and that along a further axis."""
    if s is None:
        return net
    return donor_cell_outflow(net, psi[x - s], psi[x], psi[x + s], C[x], C[x + s])


@inline
def donor_cell(
    psi: Array, x: Any, cc: Array, cm: Array, cs: Array, sm: Any, ss: Any, r: Any
) -> Any:
    """Return psi of a cell after one donor-cell pass."""
    net = psi.dtype.type(0)
    net = outflow_along(net, cc, psi, x, ONE)
    net = outflow_along(net, cm, psi, x, sm)
    net = outflow_along(net, cs, psi, x, ss)
    return updated(psi[x], net, item_of(r, x))


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


# --- Faces ------------------------------------------------------------------------------------


@optional
def cross_of(C: Array, P: Array, w: Any, x: Any, s: Any) -> Any:
    """Return the neighbours of the face between cells w and x along an axis of stride s."""
    return Cross(C[w] + C[x], C[w + s] + C[x + s], P[w - s], P[x - s], P[w + s], P[x + s])


@optional
def line_of(P: Array, left: Any, right: Any, third: Any) -> Any:
    """Return psi of the cells beyond those of a face, for third-order terms."""
    return Line(P[left], P[right])


@optional
def corner_of(P: Array, w: Any, x: Any, se: Any, sf: Any, third: Any) -> Any:
    """Return psi of the eight cells around a face, on its diagonals, for third-order terms."""
    rising = (P[w + se + sf] + P[x + se + sf]) + (P[w - se - sf] + P[x - se - sf])
    falling = (P[w + se - sf] + P[x + se - sf]) + (P[w - se + sf] + P[x - se + sf])
    return Corner(rising, falling)


@optional
def ends_of(C: Array, w: Any, x: Any, a: Any, divergent: Any) -> Any:
    """Return the face values of the faces before and behind, for divergent flows."""
    return Ends(C[w], C[x + a])


def first_of(e: Any, f: Any) -> Any:
    """Return the first of two axes that the grid has."""
    return f if e is None else e


@overload(first_of, jit_options={"forceinline": True}, strict=False)
def _first_of(e: Any, f: Any) -> Any:
    absent = isinstance(e, types.NoneType)
    return (lambda e, f: f) if absent else (lambda e, f: e)


@optional
def second_of(e: Any, f: Any) -> Any:
    """Return the second of two axes where the grid has both."""
    return f


@inline
def velocity(
    P: Array, Ca: Array, Ce: Array, Cf: Array, r: Any, x: Any, a: Any, se: Any, sf: Any, terms: Any
) -> Any:
    """Return the pseudo-velocity at the face below cell x along an axis of stride ``a``.

    Ca are the face values normal to it; Ce, se and Cf, sf are those of the other axes.
    """
    w = x - a
    e, f = cross_of(Ce, P, w, x, se), cross_of(Cf, P, w, x, sf)
    return pseudo_velocity(
        Ca[x], density_at_face(item_of(r, w), item_of(r, x)), P[w], P[x],
        first_of(e, f), second_of(e, f), line_of(P, w - a, x + a, terms.third),
        corner_of(P, w, x, se, sf, terms.third), ends_of(Ca, w, x, a, terms.divergent),
        terms.eps, terms.infinite,
    )


@inline
def held(v: Any, left: Any, right: Any, terms: Any) -> Any:
    """Return what a face holds: a flux, or a velocity where that is kept."""
    if terms.keep is None:
        return advective_flux(left, right, v, terms.infinite)
    return v


@inline
def flux_of(value: Any, left: Any, right: Any, keep: Any) -> Any:
    """Return the flux of what a face holds."""
    if keep is None:
        return value
    return advective_flux(left, right, value, None)


@entry
def slow_face_pass(
    V: Array, P: Array, C: Any, r: Array, strides: Any, region: Any, terms: Any
) -> None:
    """Set V to what the faces along s hold."""
    sm, ss = strides.m, strides.s
    cc, cm, cs = C
    for plane in range(region.plane, region.planes):
        for row in range(region.row, region.rows):
            start = first_item(strides, plane, row, region.item)
            for q in range(u(region.items - region.item)):
                x = start + q
                v = velocity(P, cs, cc, cm, r, x, ss, ONE, sm, terms)
                V[x] = held(v, P[x - ss], P[x], terms)


@inline
def middle_face(
    V: Array, P: Array, cc: Array, cm: Array, cs: Array, r: Any, x: Any, sm: Any, ss: Any,
    terms: Any,
) -> None:
    """Set V of a cell to what the face along m holds, if the grid has that axis."""
    if sm is not None:
        v = velocity(P, cm, cc, cs, r, x, sm, ONE, ss, terms)
        V[x] = held(v, P[x - sm], P[x], terms)


@entry
def plane_face_pass(
    Vc: Array, Vm: Array, P: Array, C: Any, r: Array, strides: Any, region: Any, terms: Any
) -> None:
    """Set Vc and Vm to what the faces along c and m hold."""
    sm, ss = strides.m, strides.s
    cc, cm, cs = C
    for plane in range(region.plane, region.planes):
        for row in range(region.row, region.rows):
            start = first_item(strides, plane, row, region.item)
            for q in range(u(region.items - region.item)):
                x = start + q
                middle_face(Vm, P, cc, cm, cs, r, x, sm, ss, terms)
                v = velocity(P, cc, cm, cs, r, x, ONE, sm, ss, terms)
                Vc[x] = held(v, P[x - ONE], P[x], terms)


# --- Limiter and update -----------------------------------------------------------------------


@inline
def higher(high: Any, A: Array, x: Any, s: Any) -> Any:
    """Return the larger of a value and an array's beside an item."""
    if s is None:
        return high
    return largest(high, largest(A[x - s], A[x + s]))


@inline
def lower(low: Any, A: Array, x: Any, s: Any) -> Any:
    """Return the smaller of a value and an array's beside an item."""
    if s is None:
        return low
    return least(low, least(A[x - s], A[x + s]))


@inline
def flows(
    inflow: Any, outflow: Any, V: Array, P: Array, x: Any, s: Any, keep: Any
) -> Any:
    """Return what flows into and out of a cell, and that along a further axis."""
    if s is None:
        return inflow, outflow
    entering = flux_of(V[x], P[x - s], P[x], keep)
    leaving = flux_of(V[x + s], P[x], P[x + s], keep)
    return inflow + into(entering, leaving), outflow + out_of(entering, leaving)


@entry
def betas_pass(
    U: Array, D: Array, psi: Array, P: Array, V: Any, r: Array, strides: Any, region: Any,
    eps: Any, keep: Any,
) -> None:
    """Set both betas of the limiter."""
    sm, ss, zero = strides.m, strides.s, P.dtype.type(0)
    vc, vm, vs = V
    for plane in range(region.plane, region.planes):
        for row in range(region.row, region.rows):
            start = first_item(strides, plane, row, region.item)
            for q in range(u(region.items - region.item)):
                x = start + q
                high, low = largest(psi[x], P[x]), least(psi[x], P[x])
                high = higher(higher(higher(high, P, x, ONE), P, x, sm), P, x, ss)
                high = higher(higher(higher(high, psi, x, ONE), psi, x, sm), psi, x, ss)
                low = lower(lower(lower(low, P, x, ONE), P, x, sm), P, x, ss)
                low = lower(lower(lower(low, psi, x, ONE), psi, x, sm), psi, x, ss)
                enters, leaves = flows(zero, zero, vc, P, x, ONE, keep)
                enters, leaves = flows(enters, leaves, vm, P, x, sm, keep)
                enters, leaves = flows(enters, leaves, vs, P, x, ss, keep)
                U[x], D[x] = betas(high, low, P[x], enters, leaves, item_of(r, x), eps)


@inline
def share_of(flux: Any, U: Array, D: Array, w: Any, x: Any, limiter: Any) -> Any:
    """Return the part of a flux that the limiter lets through between cells w and x."""
    if limiter is None:
        return U.dtype.type(1)
    return allowed(flux, U[w], D[w], U[x], D[x])


@inline
def limited_flux(
    V: Array, P: Array, w: Any, x: Any, U: Array, D: Array, limiter: Any, keep: Any
) -> Any:
    """Return the flux between cells w and x that the limiter lets through."""
    flux = flux_of(V[x], P[w], P[x], keep)
    return flux * share_of(flux, U, D, w, x, limiter)


@inline
def limited_outflow(
    net: Any, V: Array, P: Array, x: Any, s: Any, U: Array, D: Array, limiter: Any, keep: Any
) -> Any:
    """Return a net outflow and that of the limited fluxes along a further axis."""
    if s is None:
        return net
    below = limited_flux(V, P, x - s, x, U, D, limiter, keep)
    return outflow(net, below, limited_flux(V, P, x, x + s, U, D, limiter, keep))


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
                net = P.dtype.type(0)
                net = limited_outflow(net, vc, P, x, ONE, U, D, limiter, keep)
                net = limited_outflow(net, vm, P, x, strides.m, U, D, limiter, keep)
                net = limited_outflow(net, vs, P, x, strides.s, U, D, limiter, keep)
                out[x] = updated(P[x], net, item_of(r, x))


@entry
def limit_pass(
    V: Array, P: Array, U: Array, D: Array, step: Any, strides: Any, region: Any
) -> None:
    """Limit the velocities along one axis in place: a further pass takes them for its flow."""
    for plane in range(region.plane, region.planes):
        for row in range(region.row, region.rows):
            start = first_item(strides, plane, row, region.item)
            for q in range(u(region.items - region.item)):
                x = start + q
                w = x - step
                V[x] = V[x] * share_of(advective_flux(P[w], P[x], V[x], None), U, D, w, x, 0)
