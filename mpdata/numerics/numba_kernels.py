"""The formulas of :mod:`mpdata.numerics.reference` as plain Numba loops.

Arrays come as flat memory with strides in items: axis 0 here is the contiguous one, axes 1 and
2 (strides s1, s2) the others that are active; with ``axes`` < 3 the missing ones are never
touched. Results are wanted for ``n0`` items of ``n1`` rows (r1 apart) in the layers ``first`` to
``last`` (r2 apart), the first of them at ``base``. One result at a time, without reassociation,
so a cell's bits do not depend on how the grid is cut. Every kernel releases the GIL, so threads
can share a call by layers. Indices are unsigned: signed ones cost a test for negative values.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

Array = Any


def jit(function: Any) -> Any:
    """Compile with a cache on disk, or without one where no folder for it can be written."""
    njit: Any = numba.njit
    options = {"nogil": True, "error_model": "numpy", "boundscheck": False}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:
        return njit(**options)(function)


@jit
def flux(left: Any, right: Any, c: Any) -> Any:
    """Return the upwind flux through a face."""
    zero = c - c
    return max(c, zero) * left + min(c, zero) * right


@jit
def donor_cell(
    out: Array,
    psi: Array,
    c0: Array,
    c1: Array,
    c2: Array,
    h: Array,
    axes: int,
    s1: Any,
    s2: Any,
    base: Any,
    n0: int,
    n1: int,
    r1: Any,
    r2: Any,
    first: int,
    last: int,
) -> None:
    """One donor-cell pass."""
    one = np.uint64(1)
    for layer in range(first, last):
        for row in range(n1):
            start = base + np.uint64(layer) * r2 + np.uint64(row) * r1
            for item in range(n0):
                p = start + np.uint64(item)
                here = psi[p]
                total = flux(here, psi[p + one], c0[p + one]) - flux(psi[p - one], here, c0[p])
                if axes > 1:
                    total += flux(here, psi[p + s1], c1[p + s1]) - flux(psi[p - s1], here, c1[p])
                if axes > 2:
                    total += flux(here, psi[p + s2], c2[p + s2]) - flux(psi[p - s2], here, c2[p])
                out[p] = here - total / h[p]


@jit
def _cross(psi: Array, ce: Array, p: Any, sa: Any, se: Any, eps: Any) -> Any:
    """Return Cbar_e B_e at the face between p - sa and p."""
    upper = psi[p + se] + psi[p - sa + se]
    lower = psi[p - se] + psi[p - sa - se]
    mean = (ce[p] + ce[p + se] + ce[p - sa] + ce[p - sa + se]) / ce.dtype.type(4)
    return mean * ((upper - lower) / (upper + lower + eps))


@jit
def antidiffusive_velocity(
    out: Array,
    psi: Array,
    ca: Array,
    cd: Array,
    ce: Array,
    h: Array,
    eps: Any,
    axes: int,
    sa: Any,
    sd: Any,
    se: Any,
    base: Any,
    n0: int,
    n1: int,
    r1: Any,
    r2: Any,
    first: int,
    last: int,
) -> None:
    """Pseudo-velocity normal to one axis (stride sa), cross terms along sd and se."""
    half = out.dtype.type(0.5)
    for layer in range(first, last):
        for row in range(n1):
            start = base + np.uint64(layer) * r2 + np.uint64(row) * r1
            for item in range(n0):
                p = start + np.uint64(item)
                c = ca[p]
                left, right = psi[p - sa], psi[p]
                density = (h[p - sa] + h[p]) * half
                v = (abs(c) - c * c / density) * ((right - left) / (right + left + eps))
                if axes > 1:
                    cross = _cross(psi, cd, p, sa, sd, eps)
                    if axes > 2:
                        cross += _cross(psi, ce, p, sa, se, eps)
                    v -= c / (density + density) * cross
                out[p] = v


@jit
def betas(
    up: Array,
    down: Array,
    before: Array,
    psi: Array,
    v0: Array,
    v1: Array,
    v2: Array,
    h: Array,
    eps: Any,
    axes: int,
    s1: Any,
    s2: Any,
    base: Any,
    n0: int,
    n1: int,
    r1: Any,
    r2: Any,
    first: int,
    last: int,
) -> None:
    """Both betas of the limiter."""
    one = np.uint64(1)
    zero = up.dtype.type(0)
    for layer in range(first, last):
        for row in range(n1):
            start = base + np.uint64(layer) * r2 + np.uint64(row) * r1
            for item in range(n0):
                p = start + np.uint64(item)
                here = psi[p]
                high = max(before[p], here)
                low = min(before[p], here)
                high = max(high, max(before[p + one], psi[p + one]))
                low = min(low, min(before[p + one], psi[p + one]))
                high = max(high, max(before[p - one], psi[p - one]))
                low = min(low, min(before[p - one], psi[p - one]))
                enter = flux(psi[p - one], here, v0[p])
                leave = flux(here, psi[p + one], v0[p + one])
                inflow = max(enter, zero) - min(leave, zero)
                outflow = max(leave, zero) - min(enter, zero)
                if axes > 1:
                    high = max(high, max(before[p + s1], psi[p + s1]))
                    low = min(low, min(before[p + s1], psi[p + s1]))
                    high = max(high, max(before[p - s1], psi[p - s1]))
                    low = min(low, min(before[p - s1], psi[p - s1]))
                    enter = flux(psi[p - s1], here, v1[p])
                    leave = flux(here, psi[p + s1], v1[p + s1])
                    inflow += max(enter, zero) - min(leave, zero)
                    outflow += max(leave, zero) - min(enter, zero)
                if axes > 2:
                    high = max(high, max(before[p + s2], psi[p + s2]))
                    low = min(low, min(before[p + s2], psi[p + s2]))
                    high = max(high, max(before[p - s2], psi[p - s2]))
                    low = min(low, min(before[p - s2], psi[p - s2]))
                    enter = flux(psi[p - s2], here, v2[p])
                    leave = flux(here, psi[p + s2], v2[p + s2])
                    inflow += max(enter, zero) - min(leave, zero)
                    outflow += max(leave, zero) - min(enter, zero)
                up[p] = (high - here) * h[p] / (inflow + eps)
                down[p] = (here - low) * h[p] / (outflow + eps)


@jit
def limit(
    v: Array,
    psi: Array,
    up: Array,
    down: Array,
    sa: Any,
    base: Any,
    n0: int,
    n1: int,
    r1: Any,
    r2: Any,
    first: int,
    last: int,
) -> None:
    """Limit the pseudo-velocity normal to the axis of stride sa, in place."""
    one = v.dtype.type(1)
    zero = v.dtype.type(0)
    for layer in range(first, last):
        for row in range(n1):
            start = base + np.uint64(layer) * r2 + np.uint64(row) * r1
            for item in range(n0):
                p = start + np.uint64(item)
                forward = min(one, min(down[p - sa], up[p]))
                backward = min(one, min(up[p - sa], down[p]))
                moved = flux(psi[p - sa], psi[p], v[p])
                v[p] *= forward if moved > zero else backward
