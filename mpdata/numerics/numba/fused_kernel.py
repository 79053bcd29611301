"""Two passes over a block in three axes in one sweep over memory, three passes in two sweeps.

A sweep goes through tiles of rows of the middle axis m; in a tile, through planes of the slowest
axis s; in a plane, through rows of the contiguous axis c. Every row goes through all stages at
once, each stage one row and one plane behind the one it needs: the donor cell, the faces of the
pseudo-velocity, the betas, the limited update. Third-order terms look a plane further: with them
all stages but the first are one more plane behind. Results that a later stage needs lie in a few
planes of one tile that stay in the second-level cache.

Of three passes the first sweep computes two and keeps psi and its limited velocities, also around
the interior; the second sweep computes the third pass of them, and its first stage is a copy.

The formulas are those of :mod:`mpdata.numerics.formulas`. The CUDA kernel of ``stream.cuh`` serves
two passes without third-order terms.
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
    """Ask for the cache line of one item, to be read prefetch_from."""

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
def prefetch_row(
    psi: Array, now: Any, cc: Array, cm: Array, cs: Array, r: Array, x: Any, n: Any, line: Any,
    further: Any,
) -> None:
    """Prefetch the items of a row that no earlier stage or plane has read.

    psi and cs are read ``further`` items on: those of the next plane in the donor cell.
    """
    for q in range(u(0), n, line):
        if now is not None:
            prefetch(now, x + q)
        prefetch(psi, x + further + q)
        prefetch(cs, x + further + q)
        prefetch(cc, x + q)
        prefetch(cm, x + q)
        if r is not None:
            prefetch(r, x + q)


@inline
def segment_length(n: Any, segmented: int | None) -> Any:
    """Return the items of a row of n between two groups of prefetches."""
    return n if segmented is None else u(SEGMENT)


@inline
def prefetch_segment(A: Array, prefetch_from: Any, first: Any, n: Any) -> None:
    """Prefetch n items of the next row.

    Args:
        A: the array.
        prefetch_from: start of that row, whether there is one, items of a cache line.
        first, n: items of the row.
    """
    begin, enabled, line = prefetch_from
    if enabled:
        for q in range(u(0), n, line):
            prefetch(A, begin + first + q)


@inline
def donor_row(
    P: Array, to: Any, psi: Array, x0: Any, n: Any, cc: Array, cm: Array, cs: Array, r: Array,
    sm: Any, ss: Any, prefetch_from: Any, segmented: int | None,
) -> None:
    """Psi after the donor cell."""
    part = segment_length(n, segmented)
    for first in range(u(0), n, part):
        prefetch_segment(psi, prefetch_from, first + ss, part)
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
def copy_row(P: Array, to: Any, now: Array, x: Any, n: Any, prefetch_from: Any,
    psi: Array, segmented: int | None,
) -> None:
    """Psi after earlier passes."""
    part = segment_length(n, segmented)
    for first in range(u(0), n, part):
        prefetch_segment(now, prefetch_from, first, part)
        prefetch_segment(psi, prefetch_from, first, part)
        for t in range(part):
            q = first + t
            P[to + q] = now[x + q]


@inline
def hold(V: Any, at: Any, value: Any) -> None:
    """Set an item of an array that may be left out."""
    if V is not None:
        V[at] = value


@inline
def face(
    P: Array, z: Any, y: Any, C: Array, w: Any, x: Any, e: Any, f: Any, line: Any, corner: Any,
    r: Array, terms: Any,
) -> Any:
    """Return the pseudo-velocity at a face and its flux.

    ``w`` and ``x`` are its left and its right cell in whole arrays, z and y those in P.
    """
    left, right = P[z], P[y]
    v = pseudo_velocity(
        C[x], density_at_face(item_of(r, w), item_of(r, x)), left, right, e, f, line, corner,
        ends_of(C, w, x, x - w, terms.divergent), terms.eps, terms.infinite,
    )
    return v, advective_flux(left, right, v, terms.infinite)


@inline
def slow_row(
    F: Array, V: Any, f: Any, P: Array, below: Any, b0: Any, b1: Any, above: Any, W: Any,
    cc: Array, cm: Array, cs: Array, r: Array, x0: Any, n: Any, sm: Any, ss: Any, terms: Any,
    prefetch_from: Any, further: Any, segmented: int | None,
) -> None:
    """Set F to the fluxes through the faces along s between the planes b0 and b1, V to velocities.

    ``below`` and ``above`` are the planes beyond them, for third-order terms.
    """
    part = segment_length(n, segmented)
    for first in range(u(0), n, part):
        prefetch_segment(cs, prefetch_from, first + further, part)
        if r is not None:
            prefetch_segment(r, prefetch_from, first, part)
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
            v, F[f + q] = face(P, z, y, cs, w, x, along_c, along_m, line, around, r, terms)
            hold(V, f + q, v)


@inline
def plane_row(
    Fc: Array, Fm: Array, Vc: Any, Vm: Any, f: Any, P: Array, b0: Any, b1: Any, b2: Any, W: Any,
    cc: Array, cm: Array, cs: Array, r: Array, x0: Any, n: Any, sm: Any, ss: Any, terms: Any,
    prefetch_from: Any, segmented: int | None,
) -> None:
    """Set Fm and Fc to the fluxes through the faces below the cells of a row in plane b1.

    Vm and Vc are set to the velocities. The planes below and above it are b0 and b2.
    """
    part = segment_length(n, segmented)
    for first in range(u(0), n, part):
        prefetch_segment(cc, prefetch_from, first, part)
        prefetch_segment(cm, prefetch_from, first, part)
        for t in range(part):
            q = first + t
            x, y, up, down = x0 + q, b1 + q, b2 + q, b0 + q
            w, z = x - sm, y - W
            along_c = cross(cc, w, x, ONE, P, z - ONE, y - ONE, z + ONE, y + ONE)
            along_s = cross(cs, w, x, ss, P, down - W, down, up - W, up)
            line = line_of(P, z - W, y + W, terms.third)
            around = corner(P, up + ONE, down + ONE, up - ONE, down - ONE, W, terms.third)
            v, Fm[f + q] = face(P, z, y, cm, w, x, along_c, along_s, line, around, r, terms)
            hold(Vm, f + q, v)
            w, z = x - ONE, y - ONE
            along_m = cross(cm, w, x, sm, P, z - W, y - W, z + W, y + W)
            along_s = cross(cs, w, x, ss, P, down - ONE, down, up - ONE, up)
            line = line_of(P, z - ONE, y + ONE, terms.third)
            around = corner(P, up + W, down + W, up - W, down - W, ONE, terms.third)
            v, Fc[f + q] = face(P, z, y, cc, w, x, along_m, along_s, line, around, r, terms)
            hold(Vc, f + q, v)


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
    r: Array, n: Any, eps: Any, segmented: int | None,
) -> None:
    """Set both betas of the limiter."""
    part = segment_length(n, segmented)
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
    """Return the part of a flux between two cells that the limiter lets through, and the share."""
    share = share_of(f, U, D, w, x, limiter)
    return f * share, share


@inline
def keep_velocity(K: Any, x: Any, V: Any, at: Any, share: Any) -> None:
    """Keep the limited velocity of a face for a further pass, if there is one."""
    if K is not None:
        K[x] = V[at] * share


@inline
def mid_row(
    G: Array, Fm: Array, Vm: Any, f1: Any, W: Any, U: Array, D: Array, d1: Any, km: Any, z0: Any,
    n: Any, limiter: Any,
) -> None:
    """Set G to the limited fluxes through the faces above a row; km keeps velocities from z0."""
    for q in range(n):
        G[q], share = limited(Fm[f1 + q], U, D, d1 + q, d1 + q + W, limiter)
        keep_velocity(km, z0 + q, Vm, f1 + q, share)


@inline
def update_row(
    out: Array, o: Any, Q: Array, qo: Any, G: Array, P: Array, p0: Any, W: Any,
    Fc: Array, Fm: Array, f0: Any, f1: Any, Fs: Array, g: Any, U: Array, D: Array, d0: Any,
    d1: Any, r: Array, Vc: Any, Vm: Any, Vs: Any, kc: Any, km: Any, ks: Any, x0: Any, z0: Any,
    n: Any, sm: Any, ss: Any, limiter: Any, prefetch_from: Any, segmented: int | None,
) -> None:
    """Finish the row of the plane before, p0, in ``out``; begin the one of this plane in Q.

    Q is the net outflow without the flux through the upper face along s. G holds the limited
    fluxes from the row below and is given those to the row above. kc, km and ks keep the limited
    velocities from item z0 on.
    """
    part = segment_length(n, segmented)
    for first in range(u(0), n, part):
        prefetch_segment(out, prefetch_from, first, part)
        for t in range(part):
            q = first + t
            x, z, d = x0 + q, z0 + q, d1 + q
            net = Fc.dtype.type(0)
            lower, share = limited(Fc[f0 + q], U, D, d - ONE, d, limiter)
            keep_velocity(kc, z, Vc, f0 + q, share)
            upper, share = limited(Fc[f0 + q + ONE], U, D, d, d + ONE, limiter)
            net = outflow(net, lower, upper)
            upper, share = limited(Fm[f1 + q], U, D, d, d + W, limiter)
            keep_velocity(km, z + sm, Vm, f1 + q, share)
            net = outflow(net, G[q], upper)
            G[q] = upper
            between, share = limited(Fs[g + q], U, D, d0 + q, d, limiter)
            keep_velocity(ks, z, Vs, g + q, share)
            before = item_of(r, x - ss)
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
def wrap_kept(K: Any, x: Any, n: Any, wraps: Any) -> None:
    """Copy a kept velocity beyond the ends of a row from its other end, where it wraps."""
    if K is not None:
        if wraps:
            wrap_row(K, x, n, ONE, ONE)


@inline
def inside(at: int, cells: int, low: int, high: int) -> tuple[int, int]:
    """Return the index that psi is taken from at index ``at``, and the kind of edge passed.

    ``low`` and ``high`` are the kinds of the edges (see arguments.py).
    """
    if low > 0 and at < 0:
        return 0, low
    if high > 0 and at >= cells:
        return cells - 1, high
    return at, 0


@inline
def fill_ends(
    P: Array, to: Any, extents: Array, kinds: Array, values: Array, tile: Any, fixed: bool
) -> None:
    """Set psi of a row beyond the edges of the contiguous axis.

    ``fixed``: whether a fixed value of this axis counts there.
    """
    start = to + tile.lead
    stop = start + u(extents[2])
    low, high = kinds[4], kinds[5]
    if low == 1 or (low == 2 and fixed):
        edge = values[2] if low == 2 else P[start]
        for q in range(to, start):
            P[q] = edge
    if high == 1 or (high == 2 and fixed):
        edge = values[2] if high == 2 else P[stop - ONE]
        for q in range(stop, to + tile.count):
            P[q] = edge


@inline
def fixed_axis(kind_s: int, kind_m: int, rank: Array) -> int:
    """Return which of the axes s (0) and m (1) gives a row its fixed value, -1 for none."""
    if kind_s == 2 and (kind_m != 2 or rank[0] < rank[1]):
        return 0
    return 1 if kind_m == 2 else -1


@entry
def sweep(
    out: Array, psi: Array, now: Any, C: Any, kept: Any, r: Array, strides: Any, edges: Any,
    tile: Any, buffers: Any, limiter: Any, terms: Any, first: int, last: int,
) -> None:
    """Set ``out`` to psi after two passes or after a further one, in planes from first to last.

    Args:
        out, psi, C, r: flat memory; psi's halo is filled.
        now: psi after the earlier passes, or None: the first pass is the donor cell.
        kept: memory for the limited velocities, or three times None.
        strides, edges, tile, buffers, limiter, terms: see kernel_arguments.py.
        first, last: planes.
    """
    # Once: a member of a tuple is counted as held wherever it is asked for.
    cc, cm, cs = C
    kc, km, ks = kept
    P, Fc, Fm, Fs, Vc, Vm, Vs, U, D, Q, G = buffers
    extents, kinds, values, rank = edges
    base, sm, ss = strides
    lead, count, W, height, segmented, around_c, around_m = tile
    e = 0 if limiter is None else 1
    t = 0 if terms.third is None else 1
    k = 1 + e + t
    slots = 3 + t
    plane = u(height + 2 * k) * W
    line = u(64 // P.itemsize)
    wraps = lead == u(0)
    cells = u(extents[2])
    wanted = cells + u(2) * around_c
    further = ss if now is None else u(0)
    end = extents[1] + around_m
    for begin in range(-around_m, end, height):
        rows = min(height, end - begin)
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
            source, kind_s = inside(i, extents[0], kinds[0], kinds[1])
            for w in range(-k, rows + 2 + e):
                # The stages take turns to prefetch what the first will read two rows on.
                reads_ahead = w + 2 < rows + k and i < last + k
                x = base + u(i) * ss + u(begin + w + 2) * sm - lead
                if segmented is None and reads_ahead:
                    prefetch_row(psi, now, cc, cm, cs, r, x, count, line, further)
                prefetch_from = (x, segmented is not None and reads_ahead, line)
                if w < rows + k and i < last + k:
                    to = p_new + u(w + k) * W
                    row, kind_m = inside(begin + w, extents[1], kinds[2], kinds[3])
                    fixed = fixed_axis(kind_s, kind_m, rank)
                    x = base + u(source) * ss + u(row) * sm - lead
                    if fixed >= 0:
                        for q in range(count):
                            P[to + q] = values[fixed]
                    elif now is not None:
                        copy_row(P, to, now, x, count, prefetch_from, psi, segmented)
                    else:
                        donor_row(
                            P, to, psi, x, count, cc, cm, cs, r, sm, ss, prefetch_from, segmented
                        )
                    if wraps:
                        wrap_row(P, to, cells, u(k), u(k))
                    decides = fixed < 0 or rank[2] < rank[fixed]
                    fill_ends(P, to, extents, kinds, values, tile, decides)
                v = w - 1
                at = u(v + k) * W
                x = base + u(g) * ss + u(begin + v) * sm - lead
                if v >= -e:
                    if first - e <= g and g <= last + e and v < rows + e:
                        slow_row(
                            Fs, Vs, f_up + at, P, p_low + at, p_mid + at, p_up + at, p_new + at, W,
                            cc, cm, cs, r, x, count, sm, ss, terms, prefetch_from, further,
                            segmented,
                        )
                    if first - e <= j and j < last + e and v < rows + e + 1:
                        f0 = line + u((v + 8) & 3) * W
                        plane_row(
                            Fc, Fm, Vc, Vm, f0, P, p_low + at, p_mid + at, p_up + at, W,
                            cc, cm, cs, r, x - ss, count, sm, ss, terms, prefetch_from, segmented,
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
                            r, count, terms.eps, segmented,
                        )
                        if wraps:
                            wrap_row(U, f_mid + at, cells, ONE, ONE)
                            wrap_row(D, f_mid + at, cells, ONE, ONE)
                v = w - 2 - e
                if v >= -1 and v < rows and first <= j and j <= last:
                    skip = lead - around_c
                    at = u(v + k) * W + skip
                    f0 = line + u((v + 8) & 3) * W + skip
                    f1 = line + u((v + 9) & 3) * W + skip
                    x = base + u(j) * ss + u(begin + v) * sm - around_c
                    prefetch_from = (x - ss + sm + sm, segmented is not None, line)
                    if segmented is None:
                        for q in range(u(0), wanted + line, line):
                            prefetch(out, x - ss + sm + sm + q)
                    # Of the last plane only fluxes along s count: its velocities go to a plane
                    # that nothing reads.
                    kept_plane = j if j < last else extents[0] + 2 + e
                    z = base + u(kept_plane) * ss + u(begin + v) * sm - around_c
                    if v < 0:
                        mid_row(
                            G, Fm, Vm, f1, W, U, D, f_mid + at, km, z + sm, wanted, limiter
                        )
                    else:
                        # The first plane finishes nothing: the next one writes this row again.
                        o = x - ss if j > first else x
                        update_row(
                            out, o, Q, at, G, P, p_low + at, W, Fc, Fm, f0, f1, Fs, f_mid + at,
                            U, D, f_up + at, f_mid + at, r, Vc, Vm, Vs, kc, km, ks, x, z, wanted,
                            sm, ss, limiter, prefetch_from, segmented,
                        )
                        wrap_kept(kc, z, wanted, wraps)
                        wrap_kept(ks, z, wanted, wraps)
                    wrap_kept(km, z + sm, wanted, wraps)
