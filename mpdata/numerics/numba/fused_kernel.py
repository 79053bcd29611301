"""Two passes over a block in three axes in one sweep over memory.

One pass over memory does a whole step: planes of the slowest axis s are taken one after the
other; in each, tiles of rows of the middle axis m; in those, rows of the contiguous axis c. Every
row goes through all stages at once, each stage one row and one plane behind the one it needs: the
donor cell, the faces of the pseudo-velocity, the betas, the limited update. Third-order terms look
a plane further: with them all stages but the first are one more plane behind. What a stage leaves
for later lies in a few planes of one tile that stay in the second-level cache. The formulas are
those of :mod:`mpdata.numerics.formulas`. The CUDA kernel of ``stream.cuh`` serves the same options
but the third order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from mpdata.numerics.formulas import Corner, Cross
from mpdata.numerics.numba.cell_kernels import ONE, donor_cell, ends_of, item_of, line_of, share_of
from mpdata.numerics.numba.inlined import (
    Array,
    advective_flux,
    betas,
    density_at_face,
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
from mpdata.numerics.numba.kernel_arguments import SEGMENT

u = np.uint64


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
def ask_for_row(
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
def taken(n: Any, cut: int | None) -> Any:
    """Return the items of a row of n that a stage takes at once."""
    return n if cut is None else u(SEGMENT)


@inline
def ahead(A: Array, soon: Any, first: Any, n: Any) -> None:
    """Ask for n items from the first of a row that will be read soon, if any is to be asked for.

    Args:
        A: the array.
        soon: where the row begins, whether to ask, items of a cache line.
        first, n: items of the row.
    """
    begin, wanted, line = soon
    if wanted:
        for q in range(u(0), n, line):
            prefetch(A, begin + first + q)


@inline
def donor_row(
    P: Array, to: Any, psi: Array, x0: Any, n: Any, cc: Array, cm: Array, cs: Array, r: Array,
    sm: Any, ss: Any, soon: Any, cut: int | None,
) -> None:
    """Psi after the donor cell."""
    part = taken(n, cut)
    for first in range(u(0), n, part):
        ahead(psi, soon, first + ss, part)
        for t in range(part):
            q = first + t
            P[to + q] = donor_cell(psi, x0 + q, cc, cm, cs, sm, ss, r)


@inline
def cross(
    C: Array, w: Any, x: Any, s: Any, P: Array, left_below: Any, right_below: Any,
    left_above: Any, right_above: Any,
) -> Any:
    """Return the neighbours of a face along an axis of stride s: C's by cell, psi's one by one."""
    c_below, c_above = C[w] + C[x], C[w + s] + C[x + s]
    return Cross(c_below, c_above, P[left_below], P[right_below], P[left_above], P[right_above])


@optional
def corner(
    P: Array, above_above: Any, above_below: Any, below_above: Any, below_below: Any, z: Any,
    third: Any,
) -> Any:
    """Return psi of the eight cells around a face along e and f.

    Four are given by their right cell, from which the left one is ``z`` items away.
    """
    return Corner(
        (P[above_above - z] + P[above_above]) + (P[below_below - z] + P[below_below]),
        (P[above_below - z] + P[above_below]) + (P[below_above - z] + P[below_above]),
    )


@inline
def flux(
    P: Array, z: Any, y: Any, C: Array, w: Any, x: Any, e: Any, f: Any, line: Any, corner: Any,
    r: Array, terms: Any,
) -> Any:
    """Return the corrective flux through a face.

    ``w`` and ``x`` are its left and its right cell in whole arrays, z and y those in P.
    """
    left, right = P[z], P[y]
    v = pseudo_velocity(
        C[x], density_at_face(item_of(r, w), item_of(r, x)), left, right, e, f, line, corner,
        ends_of(C, w, x, x - w, terms.divergent), terms.eps, terms.infinite,
    )
    return advective_flux(left, right, v, terms.infinite)


@inline
def slow_row(
    F: Array, f: Any, P: Array, below: Any, b0: Any, b1: Any, above: Any, W: Any,
    cc: Array, cm: Array, cs: Array, r: Array, x0: Any, n: Any, sm: Any, ss: Any, terms: Any,
    soon: Any, cut: int | None,
) -> None:
    """Set F to the fluxes through the faces along s between the planes b0 and b1.

    ``below`` and ``above`` are the planes beyond them, for third-order terms.
    """
    part = taken(n, cut)
    for first in range(u(0), n, part):
        ahead(cs, soon, first + ss, part)
        if r is not None:
            ahead(r, soon, first, part)
        for t in range(part):
            q = first + t
            x, y, z = x0 + q, b1 + q, b0 + q
            w = x - ss
            along_c = cross(cc, w, x, ONE, P, z - ONE, y - ONE, z + ONE, y + ONE)
            along_m = cross(cm, w, x, sm, P, z - W, y - W, z + W, y + W)
            line = line_of(P, below + q, above + q, terms.third)
            around = corner(
                P, y + ONE + W, y + ONE - W, y - ONE + W, y - ONE - W, b1 - b0, terms.third
            )
            F[f + q] = flux(P, z, y, cs, w, x, along_c, along_m, line, around, r, terms)


@inline
def plane_row(
    Fc: Array, Fm: Array, f: Any, P: Array, b0: Any, b1: Any, b2: Any, W: Any,
    cc: Array, cm: Array, cs: Array, r: Array, x0: Any, n: Any, sm: Any, ss: Any, terms: Any,
    soon: Any, cut: int | None,
) -> None:
    """Set Fm and Fc to the fluxes through the faces below the cells of a row in plane b1.

    The planes below and above it are b0 and b2.
    """
    part = taken(n, cut)
    for first in range(u(0), n, part):
        ahead(cc, soon, first, part)
        ahead(cm, soon, first, part)
        for t in range(part):
            q = first + t
            x, y, up, down = x0 + q, b1 + q, b2 + q, b0 + q
            w, z = x - sm, y - W
            along_c = cross(cc, w, x, ONE, P, z - ONE, y - ONE, z + ONE, y + ONE)
            along_s = cross(cs, w, x, ss, P, down - W, down, up - W, up)
            line = line_of(P, z - W, y + W, terms.third)
            around = corner(P, up + ONE, down + ONE, up - ONE, down - ONE, W, terms.third)
            Fm[f + q] = flux(P, z, y, cm, w, x, along_c, along_s, line, around, r, terms)
            w, z = x - ONE, y - ONE
            along_m = cross(cm, w, x, sm, P, z - W, y - W, z + W, y + W)
            along_s = cross(cs, w, x, ss, P, down - ONE, down, up - ONE, up)
            line = line_of(P, z - ONE, y + ONE, terms.third)
            around = corner(P, up + W, down + W, up - W, down - W, ONE, terms.third)
            Fc[f + q] = flux(P, z, y, cc, w, x, along_m, along_s, line, around, r, terms)


@inline
def bounds(
    high: Any, low: Any, A: Array, c: Any, m0: Any, m1: Any, s0: Any, s1: Any
) -> tuple[Any, Any]:
    """Return the bounds of two values and an array's around item c: m0, m1, s0, s1 beside it."""
    a, b = A[c - ONE], A[c + ONE]
    high, low = largest(high, largest(a, b)), least(low, least(a, b))
    a, b = A[m0], A[m1]
    high, low = largest(high, largest(a, b)), least(low, least(a, b))
    a, b = A[s0], A[s1]
    return largest(high, largest(a, b)), least(low, least(a, b))


@inline
def betas_row(
    U: Array, D: Array, o: Any, psi: Array, x0: Any, sm: Any, ss: Any,
    P: Array, b0: Any, b1: Any, b2: Any, W: Any,
    Fc: Array, Fm: Array, f0: Any, f1: Any, Fs: Array, g0: Any, g1: Any,
    r: Array, n: Any, eps: Any,
    soon: Any, cut: int | None,
) -> None:
    """Set both betas of the limiter."""
    part = taken(n, cut)
    for first in range(u(0), n, part):
        for t in range(part):
            q = first + t
            x, y, up, down = x0 + q, b1 + q, b2 + q, b0 + q
            here, before = P[y], psi[x]
            high, low = largest(before, here), least(before, here)
            high, low = bounds(high, low, P, y, y - W, y + W, down, up)
            high, low = bounds(high, low, psi, x, x - sm, x + sm, x - ss, x + ss)
            enters, leaves = Fc[f0 + q], Fc[f0 + q + ONE]
            gain, loss = into(enters, leaves), out_of(enters, leaves)
            enters, leaves = Fm[f0 + q], Fm[f1 + q]
            gain, loss = gain + into(enters, leaves), loss + out_of(enters, leaves)
            enters, leaves = Fs[g0 + q], Fs[g1 + q]
            gain, loss = gain + into(enters, leaves), loss + out_of(enters, leaves)
            U[o + q], D[o + q] = betas(high, low, here, gain, loss, item_of(r, x), eps)


@inline
def limited(f: Any, U: Array, D: Array, w: Any, x: Any, limiter: Any) -> Any:
    """Return what the limiter lets through of a flux between two cells."""
    return f * share_of(f, U, D, w, x, limiter)


@inline
def mid_row(
    G: Array, Fm: Array, f1: Any, W: Any, U: Array, D: Array, d1: Any, n: Any, limiter: Any
) -> None:
    """Set G to the limited fluxes through the faces above a row."""
    for q in range(n):
        G[q] = limited(Fm[f1 + q], U, D, d1 + q, d1 + q + W, limiter)


@inline
def update_row(
    out: Array, o: Any, Q: Array, qo: Any, G: Array, P: Array, p0: Any, W: Any,
    Fc: Array, Fm: Array, f0: Any, f1: Any, Fs: Array, g: Any, U: Array, D: Array, d0: Any,
    d1: Any, r: Array, x0: Any, n: Any, ss: Any, limiter: Any,
    soon: Any, cut: int | None,
) -> None:
    """Finish the row of the plane before, p0, in ``out``; begin the one of this plane in Q.

    Q is the net outflow without the flux through the upper face along s. G holds the limited
    fluxes from the row below and is given those to the row above.
    """
    part = taken(n, cut)
    for first in range(u(0), n, part):
        ahead(out, soon, first, part)
        for t in range(part):
            q = first + t
            d = d1 + q
            net = Fc.dtype.type(0)
            below = limited(Fc[f0 + q], U, D, d - ONE, d, limiter)
            net = outflow(net, below, limited(Fc[f0 + q + ONE], U, D, d, d + ONE, limiter))
            above = limited(Fm[f1 + q], U, D, d, d + W, limiter)
            net = outflow(net, G[q], above)
            G[q] = above
            between = limited(Fs[g + q], U, D, d0 + q, d, limiter)
            before = item_of(r, x0 + q - ss)
            out[o + q] = updated(P[p0 + q], Q[qo + q] + between, before)
            Q[qo + q] = net - between


@inline
def wrap_row(A: Array, o: Any, cells: Any, below: Any, above: Any) -> None:
    """Copy what lies beyond the ends of a row from its other end."""
    for q in range(above):
        A[o + cells + q] = A[o + q]
    for q in range(below):
        A[o - ONE - q] = A[o + cells - ONE - q]


@inline
def inside(at: int, cells: int, kinds: Array, low: int) -> tuple[int, int]:
    """Return the index that psi is taken from at index ``at``, and the edge passed, -1 for none.

    ``low`` is the lower edge of the axis; the upper one is the next (see kernel_arguments.py).
    """
    if kinds[low] > 0 and at < 0:
        return 0, low
    if kinds[low + 1] > 0 and at >= cells:
        return cells - 1, low + 1
    return at, -1


@inline
def fill_ends(
    P: Array, to: Any, extents: Array, kinds: Array, values: Array, tile: Any, fixed: bool
) -> None:
    """Set psi of a row beyond the edges of the contiguous axis.

    ``fixed``: whether fixed values of this axis count there.
    """
    start = to + tile.lead
    stop = start + u(extents[2])
    low, high = kinds[4], kinds[5]
    if low == 1 or (low == 2 and fixed):
        edge = values[4] if low == 2 else P[start]
        for q in range(to, start):
            P[q] = edge
    if high == 1 or (high == 2 and fixed):
        edge = values[5] if high == 2 else P[stop - ONE]
        for q in range(stop, to + tile.count):
            P[q] = edge


@inline
def fixed_edge(along_s: int, along_m: int, kinds: Array, rank: Array) -> int:
    """Return which of the edges passed along s and m gives a row its fixed value, -1 for none."""
    by_s = along_s >= 0 and kinds[along_s] == 2
    by_m = along_m >= 0 and kinds[along_m] == 2
    if by_s and not (by_m and rank[along_m] < rank[along_s]):
        return along_s
    return along_m if by_m else -1


@entry
def sweep(
    out: Array, psi: Array, C: Any, r: Array, strides: Any, edges: Any, tile: Any, buffers: Any,
    limiter: Any, terms: Any, first: int, last: int,
) -> None:
    """Set ``out`` to psi after a step, in the interior's planes from first to last.

    Args:
        out, psi, C, r: flat memory; psi's halo is filled.
        strides, edges, tile, buffers, limiter, terms: see arguments.py.
        first, last: planes.
    """
    # Once: a member of a tuple is counted as held wherever it is asked for.
    cc, cm, cs = C
    P, Fc, Fm, Fs, U, D, Q, G = buffers
    extents, kinds, values, rank = edges
    base, sm, ss = strides
    lead, count, W, height, cut = tile
    e = 0 if limiter is None else 1
    t = 0 if terms.third is None else 1
    k = 1 + e + t
    slots = 3 + t
    plane = u(height + 2 * k) * W
    line = u(64 // P.itemsize)
    wraps = lead == u(0)
    cells = u(extents[2])
    for begin in range(0, extents[1], height):
        rows = min(height, extents[1] - begin)
        for q in range(G.size):
            G[q] = 0
        for i in range(first - k, last + 2 + t):
            # Stages of this round: psi after the donor cell in plane i, faces along s between the
            # planes j and g, the rest in plane j.
            g = i - t
            j = g - 1
            p_new = line + u((i + 48) % slots) * plane
            p_up = line + u((g + 48) % slots) * plane
            p_mid = line + u((j + 48) % slots) * plane
            p_low = line + u((j + 47) % slots) * plane
            f_up = line + u((g + 16) & 1) * plane
            f_mid = line + u((j + 16) & 1) * plane
            source, edge_s = inside(i, extents[0], kinds, 0)
            for w in range(-k, rows + 2 + e):
                # The stages take turns to ask for what the donor cell will read two rows on.
                coming = w + 2 < rows + k and i < last + k
                x = base + u(i) * ss + u(begin + w + 2) * sm - lead
                if cut is None and coming:
                    ask_for_row(psi, cc, cm, cs, r, x, count, line, ss)
                soon = (x, cut is not None and coming, line)
                if w < rows + k and i < last + k:
                    to = p_new + u(w + k) * W
                    row, edge_m = inside(begin + w, extents[1], kinds, 2)
                    fixed = fixed_edge(edge_s, edge_m, kinds, rank)
                    x = base + u(source) * ss + u(row) * sm - lead
                    if fixed >= 0:
                        for q in range(count):
                            P[to + q] = values[fixed]
                    else:
                        donor_row(P, to, psi, x, count, cc, cm, cs, r, sm, ss, soon, cut)
                    if wraps:
                        wrap_row(P, to, cells, u(k), u(k))
                    decides = fixed < 0 or rank[4] < rank[fixed]
                    fill_ends(P, to, extents, kinds, values, tile, decides)
                v = w - 1
                at = u(v + k) * W
                x = base + u(g) * ss + u(begin + v) * sm - lead
                if v >= -e:
                    if first - e <= g and g <= last + e and v < rows + e:
                        slow_row(
                            Fs, f_up + at, P, p_low + at, p_mid + at, p_up + at, p_new + at, W,
                            cc, cm, cs, r, x, count, sm, ss, terms, soon, cut,
                        )
                    if first - e <= j and j < last + e and v < rows + e + 1:
                        f0 = line + u((v + 8) & 3) * W
                        plane_row(
                            Fc, Fm, f0, P, p_low + at, p_mid + at, p_up + at, W,
                            cc, cm, cs, r, x - ss, count, sm, ss, terms, soon, cut,
                        )
                        if wraps:
                            wrap_row(Fc, f0, cells, u(0), ONE)
                v = w - 2
                if limiter is not None:
                    if v >= -1 and v < rows + 1 and first - 1 <= j and j < last + 1:
                        at = u(v + k) * W
                        x = base + u(j) * ss + u(begin + v) * sm - lead
                        betas_row(
                            U, D, f_mid + at, psi, x, sm, ss, P, p_low + at, p_mid + at,
                            p_up + at, W, Fc, Fm, line + u((v + 8) & 3) * W,
                            line + u((v + 9) & 3) * W, Fs, f_mid + at, f_up + at,
                            r, count, terms.eps, soon, cut,
                        )
                        if wraps:
                            wrap_row(U, f_mid + at, cells, ONE, ONE)
                            wrap_row(D, f_mid + at, cells, ONE, ONE)
                v = w - 2 - e
                if v >= -1 and v < rows and first <= j and j <= last:
                    at = u(v + k) * W + lead
                    f0 = line + u((v + 8) & 3) * W + lead
                    f1 = line + u((v + 9) & 3) * W + lead
                    x = base + u(j) * ss + u(begin + v) * sm
                    soon = (x - ss + sm + sm, cut is not None, line)
                    if cut is None:
                        for q in range(u(0), cells + line, line):
                            prefetch(out, x - ss + sm + sm + q)
                    if v < 0:
                        mid_row(G, Fm, f1, W, U, D, f_mid + at, cells, limiter)
                    else:
                        # The first plane begins nothing: what it writes is written again.
                        update_row(
                            out, x - ss if j > first else x, Q, at, G, P, p_low + at, W,
                            Fc, Fm, f0, f1, Fs, f_mid + at, U, D, f_up + at, f_mid + at,
                            r, x, cells, ss, limiter, soon, cut,
                        )
