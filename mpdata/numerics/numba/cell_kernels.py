"""Kernels of one pass: loops over cells that read and write whole arrays.

The donor cell serves any number of axes, the others one or two: x and, if there is another, z. An
axis of one cell has the stride None. :mod:`mpdata.numerics.numba.fused_kernel` has the same
formulas in one sweep over memory, for corrective passes in three axes. Arguments: see
kernel_arguments.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpdata.numerics.formulas import Cross, Ends, Line
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
from mpdata.numerics.numba.kernel_arguments import ON

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
    return strides.base + along(plane, strides.dz) + along(row, strides.dy) + u(item)


@optional
def item_of(A: Any, i: Any) -> Any:
    """Return an item of an array that may be left out."""
    return A[i]


# --- Donor cell -------------------------------------------------------------------------------


@inline
def outflow_along(net: Any, C: Array, psi: Array, i: Any, s: Any) -> Any:
    """Return a net outflow and that along a further axis."""
    if s is None:
        return net
    return donor_cell_outflow(net, psi[i - s], psi[i], psi[i + s], C[i], C[i + s])


@inline
def donor_cell(
    psi: Array, i: Any, cx: Array, cy: Array, cz: Array, dy: Any, dz: Any, r: Any
) -> Any:
    """Return psi of a cell after one donor-cell pass."""
    net = psi.dtype.type(0)
    net = outflow_along(net, cx, psi, i, ONE)
    net = outflow_along(net, cy, psi, i, dy)
    net = outflow_along(net, cz, psi, i, dz)
    return updated(psi[i], net, item_of(r, i))


@entry
def donor_cell_pass(out: Array, psi: Array, C: Any, r: Array, strides: Any, region: Any) -> None:
    """Set ``out`` to psi after a donor-cell pass."""
    cx, cy, cz = C
    for plane in range(region.plane, region.planes):
        for row in range(region.row, region.rows):
            start = first_item(strides, plane, row, region.item)
            for q in range(u(region.items - region.item)):
                i = start + q
                out[i] = donor_cell(psi, i, cx, cy, cz, strides.dy, strides.dz, r)


# --- Faces ------------------------------------------------------------------------------------


@optional
def cross_of(C: Array, P: Array, i0: Any, i: Any, s: Any) -> Any:
    """Return the neighbours of the face between cells i0 and i along an axis."""
    return Cross(C[i0] + C[i], C[i0 + s] + C[i + s], P[i0 - s], P[i - s], P[i0 + s], P[i + s])


@optional
def line_of(P: Array, left: Any, right: Any, third: Any) -> Any:
    """Return psi of the cells beyond those of a face, for third-order terms."""
    return Line(P[left], P[right])


@optional
def ends_of(C: Array, i0: Any, i: Any, a: Any, divergent: Any) -> Any:
    """Return the face values of the faces before and behind, for divergent flows."""
    return Ends(C[i0], C[i + a])


@inline
def held(v: Any, left: Any, right: Any, terms: Any) -> Any:
    """Return what a face holds: a flux, or a velocity for a further pass."""
    if terms.holds_velocity is None:
        return advective_flux(left, right, v, terms.infinite)
    return v


@inline
def flux_of(value: Any, left: Any, right: Any, holds_velocity: Any) -> Any:
    """Return the flux of what a face holds."""
    if holds_velocity is None:
        return value
    return advective_flux(left, right, value, None)


@entry
def face_pass(
    V: Array, P: Array, Ca: Array, Ce: Array, r: Array, a: Any, e: Any, strides: Any, region: Any,
    terms: Any,
) -> None:
    """Set V to what the faces along an axis hold.

    Ca are the face values along it, ``a`` is its stride; Ce and ``e`` are those of the other axis.
    """
    for plane in range(region.plane, region.planes):
        start = first_item(strides, plane, 0, region.item)
        for q in range(u(region.items - region.item)):
            i = start + q
            i0 = i - a
            v = pseudo_velocity(
                Ca[i], density_at_face(item_of(r, i0), item_of(r, i)), P[i0], P[i],
                cross_of(Ce, P, i0, i, e), None, line_of(P, i0 - a, i + a, terms.third), None,
                ends_of(Ca, i0, i, a, terms.divergent), terms.eps, terms.infinite,
            )
            V[i] = held(v, P[i0], P[i], terms)


# --- Limiter and update -----------------------------------------------------------------------


@inline
def higher(high: Any, A: Array, i: Any, step: Any) -> Any:
    """Return the larger of a value and an array's beside an item."""
    if step is None:
        return high
    return largest(high, largest(A[i - step], A[i + step]))


@inline
def lower(low: Any, A: Array, i: Any, step: Any) -> Any:
    """Return the smaller of a value and an array's beside an item."""
    if step is None:
        return low
    return least(low, least(A[i - step], A[i + step]))


@inline
def flows(
    inflow: Any, outflow: Any, V: Array, P: Array, i: Any, step: Any, holds_velocity: Any
) -> Any:
    """Return what flows into and out of a cell, and that along a further axis."""
    if step is None:
        return inflow, outflow
    entering = flux_of(V[i], P[i - step], P[i], holds_velocity)
    leaving = flux_of(V[i + step], P[i], P[i + step], holds_velocity)
    return inflow + into(entering, leaving), outflow + out_of(entering, leaving)


@entry
def betas_pass(
    U: Array, D: Array, psi: Array, P: Array, V: Any, r: Array, strides: Any, region: Any,
    eps: Any, holds_velocity: Any,
) -> None:
    """Set both betas of the limiter."""
    dz, zero = strides.dz, P.dtype.type(0)
    vx, _, vz = V
    for plane in range(region.plane, region.planes):
        start = first_item(strides, plane, 0, region.item)
        for q in range(u(region.items - region.item)):
            i = start + q
            high, low = largest(psi[i], P[i]), least(psi[i], P[i])
            high = higher(higher(high, P, i, ONE), P, i, dz)
            high = higher(higher(high, psi, i, ONE), psi, i, dz)
            low = lower(lower(low, P, i, ONE), P, i, dz)
            low = lower(lower(low, psi, i, ONE), psi, i, dz)
            enters, leaves = flows(zero, zero, vx, P, i, ONE, holds_velocity)
            enters, leaves = flows(enters, leaves, vz, P, i, dz, holds_velocity)
            U[i], D[i] = betas(high, low, P[i], enters, leaves, item_of(r, i), eps)


@inline
def share_of(flux: Any, U: Array, D: Array, i0: Any, i: Any, limiter: Any) -> Any:
    """Return the part of a flux that the limiter lets through between cells i0 and i."""
    if limiter is None:
        return U.dtype.type(1)
    return allowed(flux, U[i0], D[i0], U[i], D[i])


@inline
def limited_flux(
    V: Array, P: Array, i0: Any, i: Any, U: Array, D: Array, limiter: Any, holds_velocity: Any
) -> Any:
    """Return the flux between cells i0 and i that the limiter lets through."""
    flux = flux_of(V[i], P[i0], P[i], holds_velocity)
    return flux * share_of(flux, U, D, i0, i, limiter)


@inline
def limited_outflow(
    net: Any, V: Array, P: Array, i: Any, step: Any, U: Array, D: Array, limiter: Any,
    holds_velocity: Any,
) -> Any:
    """Return a net outflow and that of the limited fluxes along a further axis."""
    if step is None:
        return net
    below = limited_flux(V, P, i - step, i, U, D, limiter, holds_velocity)
    return outflow(net, below, limited_flux(V, P, i, i + step, U, D, limiter, holds_velocity))


@entry
def correct_pass(
    out: Array, P: Array, V: Any, U: Array, D: Array, r: Array, strides: Any, region: Any,
    limiter: Any, holds_velocity: Any,
) -> None:
    """Set ``out`` to P after the limited corrective fluxes."""
    vx, _, vz = V
    for plane in range(region.plane, region.planes):
        start = first_item(strides, plane, 0, region.item)
        for q in range(u(region.items - region.item)):
            i = start + q
            net = P.dtype.type(0)
            net = limited_outflow(net, vx, P, i, ONE, U, D, limiter, holds_velocity)
            net = limited_outflow(net, vz, P, i, strides.dz, U, D, limiter, holds_velocity)
            out[i] = updated(P[i], net, item_of(r, i))


@entry
def limit_pass(
    V: Array, P: Array, U: Array, D: Array, a: Any, strides: Any, region: Any
) -> None:
    """Limit the velocities along one axis in place: a further pass takes them for its flow."""
    for plane in range(region.plane, region.planes):
        start = first_item(strides, plane, 0, region.item)
        for q in range(u(region.items - region.item)):
            i = start + q
            i0 = i - a
            V[i] = V[i] * share_of(advective_flux(P[i0], P[i], V[i], None), U, D, i0, i, ON)
