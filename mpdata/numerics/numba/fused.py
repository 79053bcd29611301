"""The formulas of :mod:`mpdata.numerics.reference` fused into one sweep over a block (Numba).

One pass over memory does a whole step: planes of the slowest axis s are taken one after the
other; in each, tiles of rows of the middle axis m; in those, rows of the contiguous axis c. Every
row goes through all stages at once, each stage one row and one plane behind the one it needs: the
donor cell, the faces of the pseudo-velocity, the betas, the limited update. What a stage leaves
for later lies in a few planes of one tile that stay in the second-level cache.

Arrays come as flat memory, indices are unsigned (signed ones cost a test for negative values),
``sm`` and ``ss`` are strides in items. An axis of one cell has stride 0 and face values of 0.
Options are None or 0: Numba drops the branches of None when it compiles. One result at a time
without reassociation, so a cell's bits depend neither on tiles nor on how the grid is cut.
All this is one file because Numba's cache looks at the file of the called function only.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler import Compiler
from numba.extending import intrinsic

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
    # a * b + c in one instruction; nothing is reordered.
    "fastmath": {"contract"},
    "pipeline_class": NoAlias,
}


def entry(function: Any) -> Any:
    """Compile with a cache on disk, or without one where no folder for it can be written."""
    njit: Any = numba.njit
    try:
        return njit(cache=True, **OPTIONS)(function)
    except RuntimeError:
        return njit(**OPTIONS)(function)


def inline(function: Any) -> Any:
    """Compile into whatever calls it: rows are too short for calls with many arguments."""
    njit: Any = numba.njit
    return njit(forceinline=True, **OPTIONS)(function)


@intrinsic
def prefetch(context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of one item, to be read soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        line = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [line.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [line, word(0), word(2), word(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


# Arguments a line each would make half of this file signatures.
# fmt: off
@inline
def donor_row(
    P: Array, o: Any, psi: Array, cc: Array, cm: Array, cs: Array, r: Array, p: Any, n: Any,
    sm: Any, ss: Any,
) -> None:
    """One donor-cell pass."""
    zero = P.dtype.type(0)
    for q in range(n):
        x = p + q
        here = psi[x]
        c, other = cc[x + ONE], psi[x + ONE]
        total = c * (here if c > zero else other)
        c, other = cc[x], psi[x - ONE]
        total -= c * (other if c > zero else here)
        c, other = cm[x + sm], psi[x + sm]
        total += c * (here if c > zero else other)
        c, other = cm[x], psi[x - sm]
        total -= c * (other if c > zero else here)
        c, other = cs[x + ss], psi[x + ss]
        total += c * (here if c > zero else other)
        c, other = cs[x], psi[x - ss]
        total -= c * (other if c > zero else here)
        P[o + q] = here - total if r is None else here - total * r[x]


@inline
def velocity(
    P: Array, y: Any, z: Any, kd: Any, yp: Any, zp: Any, ym: Any, zm: Any, yy: Any, zz: Any,
    c: Any, md: Any, me: Any, rl: Any, rr: Any, spread: Any, eps: Any,
    infinite: Any, third: Any, divergent: Any,
) -> Any:
    """Return the pseudo-velocity at the face between cells z and y.

    Args:
        P: psi after the donor cell; y right of the face, z left, ``kd`` to their neighbours
            along d; yp, zp, ym, zm their neighbours along e; yy, zz the next cells in line.
        c, md, me: face value; sums of the four face values around, normal to d and e.
        rl, rr: 1 / density left and right (None: 1).
        spread: sum of the divergences of both cells.
    """
    number = P.dtype.type
    left, right = P[z], P[y]
    up_d, down_d = P[z + kd] + P[y + kd], P[z - kd] + P[y - kd]
    up_e, down_e = P[zp] + P[yp], P[zm] + P[ym]
    square = c * c
    if rl is not None:
        # 1 / density at the face is over / under; kept apart, it costs no division of its own.
        over, under = rl * rr, rl + rr
        over = over + over
    if infinite is None:
        a, b_d, b_e = left + right + eps, up_d + down_d + eps, up_e + down_e + eps
        both = b_d * b_e
        cross = (md * (up_d - down_d) * b_e + me * (up_e - down_e) * b_d) * a
        if rl is None:
            along = (abs(c) - square) * (right - left) * both
            v = (along - c * number(0.125) * cross) / (a * both)
        else:
            weighted = c * over
            along = (abs(c) * under - c * weighted) * (right - left) * both
            v = (along - weighted * number(0.125) * cross) / (under * a * both)
    else:
        cross = (md * (up_d - down_d) + me * (up_e - down_e)) * number(0.25)
        if rl is None:
            v = (abs(c) - square) * (right - left) * number(0.5) - c * number(0.125) * cross
        else:
            slow = over / under
            along = (abs(c) - square * slow) * (right - left) * number(0.5)
            v = along - c * number(0.125) * slow * cross
    if third is not None or divergent is not None:
        slow = number(1) if rl is None else over / under
        if third is not None:
            mean_d, mean_e = md * number(0.25), me * number(0.25)
            outer, inner = P[zz] + P[yy], left + right
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
            v += share * (mean_d * mixed_d + mean_e * mixed_e)
            v -= number(2) / number(3) * c * mean_d * mean_e * slow * slow * corner
        if divergent is not None:
            extra = c * spread * slow * number(0.25)
            v -= extra if infinite is None else extra * (left + right) * number(0.5)
    return v


@inline
def slow_row(
    F: Array, f: Any, P: Array, bm: Any, b0: Any, b1: Any, b2: Any, W: Any,
    cc: Array, cm: Array, cs: Array, r: Array, x0: Any, n: Any, sm: Any, ss: Any, eps: Any,
    infinite: Any, third: Any, divergent: Any, keep: Any,
) -> None:
    """Faces along s between the planes b0 and b1; bm and b2 are the next ones."""
    zero = P.dtype.type(0)
    bare = keep is not None or infinite is not None
    for q in range(n):
        x, y, z = x0 + q, b1 + q, b0 + q
        w = x - ss
        c = cs[x]
        md = (cm[x] + cm[x + sm]) + (cm[w] + cm[w + sm])
        me = (cc[x] + cc[x + ONE]) + (cc[w] + cc[w + ONE])
        spread = zero
        if divergent is not None:
            spread = (cs[x + ss] - cs[w]) + (cm[x + sm] - cm[x]) + (cm[w + sm] - cm[w])
            spread += (cc[x + ONE] - cc[x]) + (cc[w + ONE] - cc[w])
        rl = None if r is None else r[w]
        rr = None if r is None else r[x]
        v = velocity(
            P, y, z, W, y + ONE, z + ONE, y - ONE, z - ONE, b2 + q, bm + q,
            c, md, me, rl, rr, spread, eps, infinite, third, divergent,
        )
        left, right = P[z], P[y]
        F[f + q] = v if bare else v * (left if v > zero else right)


@inline
def plane_row(
    Fc: Array, Fm: Array, f: Any, P: Array, b0: Any, b1: Any, b2: Any, W: Any,
    cc: Array, cm: Array, cs: Array, r: Array, x0: Any, n: Any, sm: Any, ss: Any, eps: Any,
    infinite: Any, third: Any, divergent: Any, keep: Any,
) -> None:
    """Faces along m and c below the cells of a row in plane b1, between the planes b0 and b2."""
    zero = P.dtype.type(0)
    bare = keep is not None or infinite is not None
    for q in range(n):
        x, y = x0 + q, b1 + q
        up, down = b2 + q, b0 + q
        sum_c, sum_m, sum_s = cc[x] + cc[x + ONE], cm[x] + cm[x + sm], cs[x] + cs[x + ss]
        rr = None if r is None else r[x]
        w = x - sm
        spread = zero
        if divergent is not None:
            spread = (cm[x + sm] - cm[w]) + (cc[x + ONE] - cc[x]) + (cc[w + ONE] - cc[w])
            spread += (cs[x + ss] - cs[x]) + (cs[w + ss] - cs[w])
        md = sum_c + (cc[w] + cc[w + ONE])
        me = sum_s + (cs[w] + cs[w + ss])
        rl = None if r is None else r[w]
        v = velocity(
            P, y, y - W, ONE, up, up - W, down, down - W, y + W, y - W - W,
            cm[x], md, me, rl, rr, spread, eps, infinite, third, divergent,
        )
        left, right = P[y - W], P[y]
        Fm[f + q] = v if bare else v * (left if v > zero else right)
        w = x - ONE
        if divergent is not None:
            spread = (cc[x + ONE] - cc[w]) + (cm[x + sm] - cm[x]) + (cm[w + sm] - cm[w])
            spread += (cs[x + ss] - cs[x]) + (cs[w + ss] - cs[w])
        md = sum_m + (cm[w] + cm[w + sm])
        me = sum_s + (cs[w] + cs[w + ss])
        rl = None if r is None else r[w]
        v = velocity(
            P, y, y - ONE, W, up, up - ONE, down, down - ONE, y + ONE, y - ONE - ONE,
            cc[x], md, me, rl, rr, spread, eps, infinite, third, divergent,
        )
        left, right = P[y - ONE], P[y]
        Fc[f + q] = v if bare else v * (left if v > zero else right)


@inline
def carried(f: Any, left: Any, right: Any, zero: Any, infinite: Any, keep: Any) -> Any:
    """Return the flux of what the faces hold: itself, or a velocity that is kept."""
    if keep is None or infinite is not None:
        return f
    return f * (left if f > zero else right)


@inline
def betas_row(
    U: Array, D: Array, o: Any, psi: Array, x0: Any, sm: Any, ss: Any,
    P: Array, b0: Any, b1: Any, b2: Any, W: Any,
    Fc: Array, Fm: Array, f0: Any, f1: Any, Fs: Array, g0: Any, g1: Any,
    r: Array, n: Any, eps: Any, infinite: Any, keep: Any,
) -> None:
    """Both betas of the limiter, at most 1."""
    zero, one = P.dtype.type(0), P.dtype.type(1)
    for q in range(n):
        x, y = x0 + q, b1 + q
        here = P[y]
        pc, nc, pm, nm, ps, ns = P[y - ONE], P[y + ONE], P[y - W], P[y + W], P[b0 + q], P[b2 + q]
        high = max(max(max(here, pc), max(nc, pm)), max(max(nm, ps), ns))
        low = min(min(min(here, pc), min(nc, pm)), min(min(nm, ps), ns))
        e, f, g = psi[x], psi[x - ONE], psi[x + ONE]
        high, low = max(max(high, e), max(f, g)), min(min(low, e), min(f, g))
        e, f, g = psi[x - sm], psi[x + sm], psi[x - ss]
        high, low = max(max(high, e), max(f, g)), min(min(low, e), min(f, g))
        e = psi[x + ss]
        high, low = max(high, e), min(low, e)
        enter = carried(Fc[f0 + q], pc, here, zero, infinite, keep)
        leave = carried(Fc[f0 + q + ONE], here, nc, zero, infinite, keep)
        inflow = max(enter, zero) - min(leave, zero)
        outflow = max(leave, zero) - min(enter, zero)
        enter = carried(Fm[f0 + q], pm, here, zero, infinite, keep)
        leave = carried(Fm[f1 + q], here, nm, zero, infinite, keep)
        inflow += max(enter, zero) - min(leave, zero)
        outflow += max(leave, zero) - min(enter, zero)
        enter = carried(Fs[g0 + q], ps, here, zero, infinite, keep)
        leave = carried(Fs[g1 + q], here, ns, zero, infinite, keep)
        inflow += max(enter, zero) - min(leave, zero)
        outflow += max(leave, zero) - min(enter, zero)
        inflow += eps
        outflow += eps
        # One division for both.
        if r is None:
            share = one / (inflow * outflow)
        else:
            share = one / (inflow * outflow * r[x])
        U[o + q] = min(one, (high - here) * outflow * share)
        D[o + q] = min(one, (here - low) * inflow * share)


@inline
def share(f: Any, U: Array, D: Array, left: Any, right: Any, limiter: Any) -> Any:
    """Return how much of a flux both its cells allow."""
    if limiter is None:
        return U.dtype.type(1)
    forward, backward = min(D[left], U[right]), min(U[left], D[right])
    return forward if f > U.dtype.type(0) else backward


@inline
def mid_row(
    G: Array, Fm: Array, f1: Any, P: Array, p1: Any, W: Any, U: Array, D: Array, d1: Any, n: Any,
    infinite: Any, keep: Any, limiter: Any,
) -> None:
    """Set G to the limited fluxes through the faces above a row."""
    zero = P.dtype.type(0)
    for q in range(n):
        f = carried(Fm[f1 + q], P[p1 + q], P[p1 + q + W], zero, infinite, keep)
        G[q] = f * share(f, U, D, d1 + q, d1 + q + W, limiter)


@inline
def update_row(
    out: Array, o: Any, Q: Array, qo: Any, G: Array, P: Array, p0: Any, p1: Any, W: Any,
    Fc: Array, Fm: Array, f0: Any, f1: Any, Fs: Array, g: Any, U: Array, D: Array, d0: Any,
    d1: Any, r: Array, x0: Any, n: Any, ss: Any, infinite: Any, keep: Any, limiter: Any,
) -> None:
    """Finish the row of the plane before in ``out``; begin the one of this plane in Q.

    G holds the limited fluxes from the row below and is given those to the row above.
    """
    zero = P.dtype.type(0)
    for q in range(n):
        y, d = p1 + q, d1 + q
        here = P[y]
        f = carried(Fc[f0 + q + ONE], here, P[y + ONE], zero, infinite, keep)
        total = f * share(f, U, D, d, d + ONE, limiter)
        f = carried(Fc[f0 + q], P[y - ONE], here, zero, infinite, keep)
        total -= f * share(f, U, D, d - ONE, d, limiter)
        f = carried(Fm[f1 + q], here, P[y + W], zero, infinite, keep)
        f = f * share(f, U, D, d, d + W, limiter)
        total += f - G[q]
        G[q] = f
        f = carried(Fs[g + q], P[p0 + q], here, zero, infinite, keep)
        f = f * share(f, U, D, d0 + q, d, limiter)
        if r is None:
            out[o + q] = Q[qo + q] - f
            Q[qo + q] = here - (total - f)
        else:
            x = x0 + q
            out[o + q] = Q[qo + q] - f * r[x - ss]
            Q[qo + q] = here - (total - f) * r[x]


@inline
def keep_row(
    V: Array, x0: Any, F: Array, f0: Any, P: Array, left: Any, right: Any, U: Array, D: Array,
    before: Any, behind: Any, n: Any, infinite: Any, keep: Any, limiter: Any,
) -> None:
    """Store the limited velocities through a row of faces."""
    zero = P.dtype.type(0)
    for q in range(n):
        v = F[f0 + q]
        f = carried(v, P[left + q], P[right + q], zero, infinite, keep)
        V[x0 + q] = v * share(f, U, D, before + q, behind + q, limiter)


@inline
def ahead_row(
    psi: Array, cc: Array, cm: Array, cs: Array, r: Array, x: Any, n: Any, line: Any, ss: Any
) -> None:
    """Ask for what the donor cell will read for the first time."""
    for q in range(u(0), n, line):
        prefetch(psi, x + ss + q)
        prefetch(cs, x + ss + q)
        prefetch(cc, x + q)
        prefetch(cm, x + q)
        if r is not None:
            prefetch(r, x + q)


@inline
def wrap_row(A: Array, o: Any, cells: Any, below: Any, above: Any) -> None:
    """Copy what lies beyond the ends of a row from its other end."""
    for q in range(above):
        A[o + cells + q] = A[o + q]
    for q in range(below):
        A[o - ONE - q] = A[o + cells - ONE - q]


@inline
def inside(at: int, cells: int, low: int, high: int) -> tuple[int, int]:
    """Return the index that psi is taken from at index ``at``, and the kind of edge passed.

    ``low`` and ``high`` are the kinds of the edges: 0 none here, 1 nearest cell, 2 fixed value.
    """
    if low > 0 and at < 0:
        return 0, low
    if high > 0 and at >= cells:
        return cells - 1, high
    return at, 0


@inline
def fill_items(
    P: Array, to: Any, lead: Any, cells: Any, count: Any, low: int, high: int, value: Any,
    fixed: bool,
) -> None:
    """Set psi of a row beyond the edges of the contiguous axis."""
    start, stop = to + lead, to + lead + cells
    if low == 1 or (low == 2 and fixed):
        edge = value if low == 2 else P[start]
        for q in range(to, start):
            P[q] = edge
    if high == 1 or (high == 2 and fixed):
        edge = value if high == 2 else P[stop - ONE]
        for q in range(stop, to + count):
            P[q] = edge


@entry
def upwind_step(
    out: Array, psi: Array, cc: Array, cm: Array, cs: Array, r: Array, base: Any,
    n: Any, rows: int, sm: Any, ss: Any, first: int, last: int,
) -> None:
    """One donor-cell pass from psi to out on the interior of the planes first to last."""
    for plane in range(first, last):
        for row in range(rows):
            x = base + u(plane) * ss + u(row) * sm
            donor_row(out, x, psi, cc, cm, cs, r, x, n, sm, ss)


@entry
def sweep(
    out: Array, psi: Array, given: Array, cc: Array, cm: Array, cs: Array, r: Array,
    base: Any, sm: Any, ss: Any, extents: Any, kinds: Any, values: Any, rank: Any,
    first: int, last: int, row0: int, row1: int, ring: int, lead: Any, count: Any, height: int,
    P: Array, Fc: Array, Fm: Array, Fs: Array, U: Array, D: Array, Q: Array, G: Array, W: Any,
    Vc: Array, Vm: Array, Vs: Array, eps: Any,
    limiter: Any, infinite: Any, third: Any, divergent: Any,
) -> None:
    """Donor cell and one corrective pass (or, with ``given`` psi after a pass, that alone).

    Args:
        out: the result, in the planes first to last, the rows row0 to row1 and the items -ring
            to cells + ring, counted from the interior's first cell at ``base``.
        psi: before the step.
        given: psi after the pass before (None: the donor cell is computed).
        extents, kinds, values, rank: for the axes s, m, c the interior's cells, the kinds of
            edge below and above (see :func:`inside`), the value beyond, and which axis decides
            where two are left (the lowest).
        lead: items computed before the interior's first; 0: the contiguous axis is periodic and
            whole, and what lies beyond its ends is copied instead.
        count: items of a row that the stages compute.
        height: rows of a tile.
        P to G: rolling buffers with rows of ``W`` items.
        Vc, Vm, Vs: where to put the limited velocities (None: faces hold fluxes).
    """
    e = 0 if limiter is None else 1
    d = 0 if third is None else 1
    k = 1 + e + d
    a = 1 if sm > u(0) else 0
    more = 0 if Vc is None else 1
    Wn = W * u(a)
    depth = 3 + d
    plane = u(height + 2 * k * a) * W
    line = u(64 // P.itemsize)
    wraps = lead == u(0)
    skip = lead - u(ring)
    cells = u(extents[2])
    wide = cells + u(2 * ring)
    for tile in range(row0, row1, height):
        rows = min(height, row1 - tile)
        for q in range(G.size):
            G[q] = 0
        for i in range(first - k, last + 2 + d):
            # Stages of this round: psi after the donor cell in plane i, faces along s below
            # plane js, the rest in plane j. Slots of the planes of P by their distance from i.
            js = i - d
            j = js - 1
            now = line + u((i + 16 * depth) % depth) * plane
            back1 = line + u((i + 16 * depth - 1) % depth) * plane
            back2 = line + u((i + 16 * depth - 2) % depth) * plane
            back3 = line + u((i + 16 * depth - 3) % depth) * plane
            p_up, p_mid, p_low = (back1, back2, back3) if d > 0 else (now, back1, back2)
            f_up = line + u((js + 16) & 1) * plane
            f_mid = line + u((j + 16) & 1) * plane
            source, kind_s = inside(i, extents[0], kinds[0], kinds[1])
            for w in range(-k * a, rows + (2 + e) * a + more):
                if w < rows + k * a and i < last + k:
                    to = now + u(w + k * a) * W
                    row, kind_m = inside(tile + w, extents[1], kinds[2], kinds[3])
                    fixed = 1 if kind_m == 2 else -1
                    if kind_s == 2 and (fixed < 0 or rank[0] < rank[1]):
                        fixed = 0
                    x = base + u(source) * ss + u(row) * sm - lead
                    if fixed >= 0:
                        for q in range(count):
                            P[to + q] = values[fixed]
                    elif given is None:
                        if w + 2 < rows + k * a:
                            ahead_row(psi, cc, cm, cs, r, x + sm + sm, count, line, ss)
                        donor_row(P, to, psi, cc, cm, cs, r, x, count, sm, ss)
                    else:
                        for q in range(count):
                            P[to + q] = given[x + q]
                    if wraps:
                        wrap_row(P, to, cells, u(k), u(k))
                    decides = fixed < 0 or rank[2] < rank[fixed]
                    fill_items(P, to, lead, cells, count, kinds[4], kinds[5], values[2], decides)
                v = w - a
                at = u(v + k * a) * W
                x = base + u(js) * ss + u(tile + v) * sm - lead
                if v >= -e * a:
                    if first - e <= js and js <= last + e and v < rows + e * a:
                        slow_row(
                            Fs, f_up + at, P, p_low + at, p_mid + at, p_up + at, now + at, Wn,
                            cc, cm, cs, r, x, count, sm, ss, eps, infinite, third, divergent, Vc,
                        )
                    if first - e <= j and j < last + e and v < rows + (e + 1) * a:
                        plane_row(
                            Fc, Fm, line + u((v + 8) & 3) * W, P, p_low + at, p_mid + at,
                            p_up + at, Wn, cc, cm, cs, r, x - ss, count, sm, ss, eps,
                            infinite, third, divergent, Vc,
                        )
                        if wraps:
                            wrap_row(Fc, line + u((v + 8) & 3) * W, cells, u(0), ONE)
                v = w - 2 * a
                if limiter is not None:
                    if -a <= v and v < rows + a and first - 1 <= j and j < last + 1:
                        at = u(v + k * a) * W
                        x = base + u(j) * ss + u(tile + v) * sm - lead
                        betas_row(
                            U, D, f_mid + at, psi, x, sm, ss, P, p_low + at, p_mid + at,
                            p_up + at, Wn, Fc, Fm, line + u((v + 8) & 3) * W,
                            line + u((v + 8 + a) & 3) * W, Fs, f_mid + at, f_up + at,
                            r, count, eps, infinite, Vc,
                        )
                        if wraps:
                            wrap_row(U, f_mid + at, cells, ONE, ONE)
                            wrap_row(D, f_mid + at, cells, ONE, ONE)
                v = w - (2 + e) * a
                if -a <= v and v <= rows and first <= j and j <= last:
                    at = u(v + k * a) * W + skip
                    f0 = line + u((v + 8) & 3) * W + skip
                    f1 = line + u((v + 8 + a) & 3) * W + skip
                    x = base + u(j) * ss + u(tile + v) * sm - u(ring)
                    if v < rows:
                        for q in range(u(0), wide + line, line):
                            prefetch(out, x - ss + sm + sm + q)
                    if v < 0:
                        mid_row(
                            G, Fm, f1, P, p_mid + at, Wn, U, D, f_mid + at, wide,
                            infinite, Vc, limiter,
                        )
                    elif v < rows:
                        # The first plane begins nothing: what it writes is written again.
                        update_row(
                            out, x - ss if j > first else x, Q, at, G, P, p_low + at,
                            p_mid + at, Wn, Fc, Fm, f0, f1, Fs, f_mid + at, U, D, f_up + at,
                            f_mid + at, r, x, wide, ss, infinite, Vc, limiter,
                        )
                    if Vc is not None and v >= 0:
                        here, own = p_mid + at, f_mid + at
                        if v < rows:
                            keep_row(
                                Vs, x, Fs, own, P, p_low + at, here, U, D, f_up + at, own,
                                wide, infinite, Vc, limiter,
                            )
                        if v < rows and j < last:
                            keep_row(
                                Vc, x, Fc, f0, P, here - ONE, here, U, D, own - ONE, own,
                                wide + ONE, infinite, Vc, limiter,
                            )
                        if a > 0 and j < last:
                            keep_row(
                                Vm, x, Fm, f0, P, here - Wn, here, U, D, own - Wn, own,
                                wide, infinite, Vc, limiter,
                            )
