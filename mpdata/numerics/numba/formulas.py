"""The formulas of :mod:`mpdata.numerics.reference`, a cell or a face each, to be compiled.

The equations are cited there. Loops over cells and the fused sweep are made of them.

Arrays come as flat memory (see arguments.py). The axes of a block are c, contiguous, m and s; d
and e are the axes beside that of a face. ``r`` is 1 / density, None where that is 1. Options are
None or 0: Numba drops the branches of None when it compiles. A product and a sum may become one
instruction (``contract``); nothing else is reordered, so a cell's bits depend on neither how the
grid is cut nor on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core.compiler import Compiler

Array = Any
u = np.uint64
ONE = np.uint64(1)


class NoAlias(Compiler):
    """Tells LLVM that array arguments do not overlap, which saves checks at every row."""

    def define_pipelines(self) -> Any:
        """Return the usual pipelines, with the flag where this Numba has it."""
        if hasattr(self.state.flags, "noalias"):
            self.state.flags.noalias = True
        return super().define_pipelines()


OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "fastmath": {"contract"},
    "pipeline_class": NoAlias,
}


def entry(function: Any) -> Any:
    """Compile a kernel; machine_code.py keeps it on disk."""
    njit: Any = numba.njit
    return njit(**OPTIONS)(function)


def inline(function: Any) -> Any:
    """Compile into whatever calls it: loops are too short for calls with many arguments."""
    njit: Any = numba.njit
    return njit(forceinline=True, **OPTIONS)(function)


def inline_rounded(function: Any) -> Any:
    """Compile as :func:`inline` does, its operands rounded: none is a product left open."""
    njit: Any = numba.njit
    return njit(forceinline=True, **{**OPTIONS, "fastmath": False})(function)


# Arguments a line each would make half of this file signatures.
# fmt: off
@inline_rounded
def product(a: Any, b: Any) -> Any:
    """Return a * b, rounded."""
    return a * b


@inline
def two_products(a: Any, b: Any, c: Any, d: Any, swap: Any) -> Any:
    """Return a b + c d, the first product not rounded before the sum (``swap``: the second).

    Without a word on it the compiler decides, by the order of all that stands around.
    """
    return a * b + product(c, d) if swap is None else product(a, b) + c * d


@inline_rounded
def difference(a: Any, b: Any) -> Any:
    """Return a - b of fluxes that are rounded first, as those that two rows or planes share."""
    return a - b


@inline
def donor_cell_flux(C: Array, x: Any, left: Any, right: Any) -> Any:
    """Return the upwind flux through a face (S84 equation 3; J15 equation 9)."""
    c = C[x]
    return c * (left if c > C.dtype.type(0) else right)


@inline
def donor_cell(
    psi: Array, x: Any, cc: Array, cm: Array, cs: Array, sm: Any, ss: Any, r: Array
) -> Any:
    """Return psi of a cell after one donor-cell pass (S84 equation 2; J15 equation 8)."""
    here = psi[x]
    total = donor_cell_flux(cc, x + ONE, here, psi[x + ONE])
    total -= donor_cell_flux(cc, x, psi[x - ONE], here)
    total += donor_cell_flux(cm, x + sm, here, psi[x + sm])
    total -= donor_cell_flux(cm, x, psi[x - sm], here)
    total += donor_cell_flux(cs, x + ss, here, psi[x + ss])
    total -= donor_cell_flux(cs, x, psi[x - ss], here)
    return here - total if r is None else here - total * r[x]


@inline
def antidiffusive_velocity(
    P: Array, y: Any, z: Any, kd: Any, yp: Any, zp: Any, ym: Any, zm: Any,
    c: Any, md: Any, me: Any, rl: Any, rr: Any, eps: Any, infinite: Any, swap: Any,
) -> Any:
    """Return the pseudo-velocity at the face between cells z and y (J15 equations 10 to 12).

    Args:
        P: psi after the pass before; y right of the face, z left, ``kd`` to their neighbours
            along d; yp, zp, ym, zm their neighbours along e.
        c, md, me: face value; sums of the four face values around, normal to d and e.
        rl, rr: 1 / density left and right (None: 1).
        swap: of the two cross terms in the infinite gauge that of e comes first.
    """
    number = P.dtype.type
    left, right = P[z], P[y]
    up_d, down_d = P[z + kd] + P[y + kd], P[z - kd] + P[y - kd]
    up_e, down_e = P[zp] + P[yp], P[zm] + P[ym]
    if rl is not None:
        # 1 / density at the face is over / under; kept apart, it costs no division of its own.
        over, under = rl * rr, rl + rr
        over = over + over
    if infinite is None:
        a, b_d, b_e = left + right + eps, up_d + down_d + eps, up_e + down_e + eps
        both = b_d * b_e
        cross = two_products(md * (up_d - down_d), b_e, me * (up_e - down_e), b_d, None) * a
        if rl is None:
            along = (abs(c) - c * c) * (right - left) * both
            return (along - c * number(0.125) * cross) / (a * both)
        weighted = c * over
        along = (abs(c) * under - c * weighted) * (right - left) * both
        return (along - weighted * number(0.125) * cross) / (under * a * both)
    cross = two_products(md, up_d - down_d, me, up_e - down_e, swap) * number(0.25)
    if rl is None:
        return (abs(c) - c * c) * (right - left) * number(0.5) - c * number(0.125) * cross
    slow = over / under
    along = (abs(c) - c * c * slow) * (right - left) * number(0.5)
    return along - c * number(0.125) * slow * cross


@inline
def face_slowness(P: Array, rl: Any, rr: Any) -> Any:
    """Return 1 / density at a face."""
    if rl is None:
        return P.dtype.type(1)
    over, under = rl * rr, rl + rr
    over = over + over
    return over / under


@inline
def third_order(
    v: Any, P: Array, y: Any, z: Any, kd: Any, yp: Any, zp: Any, ym: Any, zm: Any, yy: Any,
    zz: Any, c: Any, md: Any, me: Any, slow: Any, eps: Any, infinite: Any, swap: Any,
) -> Any:
    """Return v and the third-order terms (MS98; W18); yy and zz are the next cells in line."""
    number = P.dtype.type
    square = c * c
    mean_d, mean_e = md * number(0.25), me * number(0.25)
    outer, inner = P[zz] + P[yy], P[z] + P[y]
    rise_d, fall_d = P[y + kd] + P[z - kd], P[z + kd] + P[y - kd]
    rise_e, fall_e = P[yp] + P[zm], P[zp] + P[ym]
    rise = P[yp + kd] + P[zp + kd] + P[ym - kd] + P[zm - kd]
    fall = P[yp - kd] + P[zp - kd] + P[ym + kd] + P[zm + kd]
    if infinite is None:
        along = number(2) * (outer - inner) / (outer + inner + eps)
        mixed_d = number(2) * (rise_d - fall_d) / (rise_d + fall_d + eps)
        mixed_e = number(2) * (rise_e - fall_e) / (rise_e + fall_e + eps)
        corner = (rise - fall) / (rise + fall + eps)
    else:
        along = (outer - inner) * number(0.5)
        mixed_d = (rise_d - fall_d) * number(0.5)
        mixed_e = (rise_e - fall_e) * number(0.5)
        corner = (rise - fall) * number(0.125)
    cube = number(3) * c * abs(c) * slow - number(2) * c * square * slow * slow - c
    v += cube / number(6) * along
    share = (abs(c) - number(2) * square * slow) * slow * number(0.5)
    v += share * two_products(mean_d, mixed_d, mean_e, mixed_e, swap)
    v -= number(2) / number(3) * c * mean_d * mean_e * slow * slow * corner
    return v


@inline
def divergent_flow(
    v: Any, P: Array, y: Any, z: Any, c: Any, spread: Any, slow: Any, infinite: Any
) -> Any:
    """Return v and the term of a divergent flow (SM98 equation 30).

    ``spread`` is the sum of the divergences of both cells.
    """
    number = P.dtype.type
    extra = c * spread * slow * number(0.25)
    if infinite is None:
        return v - extra
    return v - extra * (P[z] + P[y]) * number(0.5)


@inline
def pseudo_velocity(
    P: Array, y: Any, z: Any, kd: Any, yp: Any, zp: Any, ym: Any, zm: Any, yy: Any, zz: Any,
    c: Any, md: Any, me: Any, rl: Any, rr: Any, spread: Any, eps: Any,
    infinite: Any, third: Any, divergent: Any, swap: Any,
) -> Any:
    """Return the pseudo-velocity at the face between cells z and y with all its terms."""
    v = antidiffusive_velocity(
        P, y, z, kd, yp, zp, ym, zm, c, md, me, rl, rr, eps, infinite, swap
    )
    if third is not None:
        slow = face_slowness(P, rl, rr)
        v = third_order(
            v, P, y, z, kd, yp, zp, ym, zm, yy, zz, c, md, me, slow, eps, infinite, swap
        )
    if divergent is not None:
        v = divergent_flow(v, P, y, z, c, spread, face_slowness(P, rl, rr), infinite)
    return v


@inline
def slow_face(
    P: Array, y: Any, z: Any, yy: Any, zz: Any, W: Any,
    cc: Array, cm: Array, cs: Array, r: Array, x: Any, sm: Any, ss: Any, eps: Any,
    infinite: Any, third: Any, divergent: Any,
) -> Any:
    """Return the pseudo-velocity at the face along s below cell x.

    P holds the cells above and below the face at y and z, the next at yy and zz, rows W apart.
    """
    w = x - ss
    c = cs[x]
    md = (cm[x] + cm[x + sm]) + (cm[w] + cm[w + sm])
    me = (cc[x] + cc[x + ONE]) + (cc[w] + cc[w + ONE])
    spread = P.dtype.type(0)
    if divergent is not None:
        spread = (cs[x + ss] - cs[w]) + (cm[x + sm] - cm[x]) + (cm[w + sm] - cm[w])
        spread += (cc[x + ONE] - cc[x]) + (cc[w + ONE] - cc[w])
    rl = None if r is None else r[w]
    rr = None if r is None else r[x]
    return pseudo_velocity(
        P, y, z, W, y + ONE, z + ONE, y - ONE, z - ONE, yy, zz,
        c, md, me, rl, rr, spread, eps, infinite, third, divergent, None,
    )


@inline
def middle_face(
    P: Array, y: Any, up: Any, down: Any, W: Any,
    cc: Array, cm: Array, cs: Array, r: Array, x: Any, sm: Any, ss: Any, eps: Any,
    infinite: Any, third: Any, divergent: Any,
) -> Any:
    """Return the pseudo-velocity at the face along m below cell x.

    P holds that cell at y, those in the planes above and below at up and down, rows W apart.
    """
    w = x - sm
    md = (cc[x] + cc[x + ONE]) + (cc[w] + cc[w + ONE])
    me = (cs[x] + cs[x + ss]) + (cs[w] + cs[w + ss])
    spread = P.dtype.type(0)
    if divergent is not None:
        spread = (cm[x + sm] - cm[w]) + (cc[x + ONE] - cc[x]) + (cc[w + ONE] - cc[w])
        spread += (cs[x + ss] - cs[x]) + (cs[w + ss] - cs[w])
    rl = None if r is None else r[w]
    rr = None if r is None else r[x]
    return pseudo_velocity(
        P, y, y - W, ONE, up, up - W, down, down - W, y + W, y - W - W,
        cm[x], md, me, rl, rr, spread, eps, infinite, third, divergent, None,
    )


@inline
def contiguous_face(
    P: Array, y: Any, up: Any, down: Any, W: Any,
    cc: Array, cm: Array, cs: Array, r: Array, x: Any, sm: Any, ss: Any, eps: Any,
    infinite: Any, third: Any, divergent: Any,
) -> Any:
    """Return the same at the face along c."""
    w = x - ONE
    md = (cm[x] + cm[x + sm]) + (cm[w] + cm[w + sm])
    me = (cs[x] + cs[x + ss]) + (cs[w] + cs[w + ss])
    spread = P.dtype.type(0)
    if divergent is not None:
        spread = (cc[x + ONE] - cc[w]) + (cm[x + sm] - cm[x]) + (cm[w + sm] - cm[w])
        spread += (cs[x + ss] - cs[x]) + (cs[w + ss] - cs[w])
    rl = None if r is None else r[w]
    rr = None if r is None else r[x]
    # The last argument swaps products where there are third-order terms.
    return pseudo_velocity(
        P, y, y - ONE, W, up, up - ONE, down, down - ONE, y + ONE, y - ONE - ONE,
        cc[x], md, me, rl, rr, spread, eps, infinite, third, divergent, third,
    )


@inline
def advective_flux(v: Any, left: Any, right: Any, zero: Any) -> Any:
    """Return what a pseudo-velocity carries through a face (S06)."""
    return v * (left if v > zero else right)


@inline
def flux_of(f: Any, left: Any, right: Any, zero: Any, keep: Any) -> Any:
    """Return the flux of what a face holds: itself, or a velocity that is kept."""
    return f if keep is None else advective_flux(f, left, right, zero)


@inline
def betas(
    psi: Array, x: Any, sm: Any, ss: Any, P: Array, y: Any, km: Any, yp: Any, ym: Any,
    Fc: Array, c0: Any, Fm: Array, m0: Any, m1: Any, Fs: Array, s0: Any, s1: Any,
    r: Array, eps: Any, keep: Any,
) -> Any:
    """Return both betas of the limiter, at most 1 (SG90 equations 15 to 17).

    Args:
        psi: before the step, at ``x`` with strides sm and ss.
        P: psi now, at y; km to the next row, yp and ym in the planes above and below.
        Fc, Fm, Fs: what the faces hold, at c0 and the next, at m0 and m1, at s0 and s1.
    """
    zero, one = P.dtype.type(0), P.dtype.type(1)
    here = P[y]
    pc, nc, pm, nm, ps, ns = P[y - ONE], P[y + ONE], P[y - km], P[y + km], P[ym], P[yp]
    high = max(max(max(here, pc), max(nc, pm)), max(max(nm, ps), ns))
    low = min(min(min(here, pc), min(nc, pm)), min(min(nm, ps), ns))
    e, f, g = psi[x], psi[x - ONE], psi[x + ONE]
    high, low = max(max(high, e), max(f, g)), min(min(low, e), min(f, g))
    e, f, g = psi[x - sm], psi[x + sm], psi[x - ss]
    high, low = max(max(high, e), max(f, g)), min(min(low, e), min(f, g))
    e = psi[x + ss]
    high, low = max(high, e), min(low, e)
    enter = flux_of(Fc[c0], pc, here, zero, keep)
    leave = flux_of(Fc[c0 + ONE], here, nc, zero, keep)
    inflow = max(enter, zero) - min(leave, zero)
    outflow = max(leave, zero) - min(enter, zero)
    enter = flux_of(Fm[m0], pm, here, zero, keep)
    leave = flux_of(Fm[m1], here, nm, zero, keep)
    inflow += max(enter, zero) - min(leave, zero)
    outflow += max(leave, zero) - min(enter, zero)
    enter = flux_of(Fs[s0], ps, here, zero, keep)
    leave = flux_of(Fs[s1], here, ns, zero, keep)
    inflow += max(enter, zero) - min(leave, zero)
    outflow += max(leave, zero) - min(enter, zero)
    inflow += eps
    outflow += eps
    # One division for both.
    if r is None:
        share = one / (inflow * outflow)
    else:
        share = one / (inflow * outflow * r[x])
    return min(one, (high - here) * outflow * share), min(one, (here - low) * inflow * share)


@inline
def allowed(f: Any, U: Array, D: Array, left: Any, right: Any, limiter: Any) -> Any:
    """Return how much of a flux both its cells allow (SG90 equation 18)."""
    if limiter is None:
        return U.dtype.type(1)
    forward, backward = min(D[left], U[right]), min(U[left], D[right])
    return forward if f > U.dtype.type(0) else backward


@inline
def limited_flux(
    F: Array, f: Any, P: Array, left: Any, right: Any, U: Array, D: Array, limiter: Any, keep: Any
) -> Any:
    """Return what the limiter lets through the face that holds F[f], between two cells."""
    flux = flux_of(F[f], P[left], P[right], P.dtype.type(0), keep)
    return flux * allowed(flux, U, D, left, right, limiter)


@inline
def correct(
    P: Array, x: Any, sm: Any, ss: Any, vc: Array, vm: Array, vs: Array, U: Array, D: Array,
    r: Array, limiter: Any, keep: Any,
) -> Any:
    """Return psi of a cell after the limited corrective fluxes (J15 equation 8)."""
    here = P[x]
    total = limited_flux(vc, x + ONE, P, x, x + ONE, U, D, limiter, keep)
    total -= limited_flux(vc, x, P, x - ONE, x, U, D, limiter, keep)
    above = limited_flux(vm, x + sm, P, x, x + sm, U, D, limiter, keep)
    total += difference(above, limited_flux(vm, x, P, x - sm, x, U, D, limiter, keep))
    above = limited_flux(vs, x + ss, P, x, x + ss, U, D, limiter, keep)
    total = difference(total, limited_flux(vs, x, P, x - ss, x, U, D, limiter, keep))
    if r is None:
        return difference(here - total, above)
    return (here - total * r[x]) - above * r[x]
