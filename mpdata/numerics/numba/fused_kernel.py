"""Two passes over a block in three axes in one sweep over memory, three passes in two sweeps.

A sweep goes through tiles of rows; in a tile, through planes; in a plane, through rows (axes: see
kernel_arguments.py). Every row goes through all stages at once, each stage one row and one plane
behind the one it needs: the donor cell, the faces of the pseudo-velocity, the betas, the limited
update. Third-order terms look a plane further: with them all stages but the first are one more
plane behind. Results that a later stage needs lie in a few planes of one tile that stay in the
second-level cache.

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
    """Prefetch the cache line of one item."""

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
    psi: Array, now: Any, cx: Array, cy: Array, cz: Array, r: Array, i: Any, n: Any, line: Any,
    further: Any,
) -> None:
    """Prefetch the items of a row that no earlier stage or plane has read.

    psi and cz are read ``further`` items on: those of the next plane in the donor cell.
    """
    for q in range(u(0), n, line):
        if now is not None:
            prefetch(now, i + q)
        prefetch(psi, i + further + q)
        prefetch(cz, i + further + q)
        prefetch(cx, i + q)
        prefetch(cy, i + q)
        if r is not None:
            prefetch(r, i + q)


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
    P: Array, to: Any, psi: Array, start: Any, n: Any, cx: Array, cy: Array, cz: Array, r: Array,
    dy: Any, dz: Any, prefetch_from: Any, segmented: int | None,
) -> None:
    """Set a row of P to psi after the donor cell."""
    part = segment_length(n, segmented)
    for first in range(u(0), n, part):
        prefetch_segment(psi, prefetch_from, first + dz, part)
        for t in range(part):
            q = first + t
            P[to + q] = donor_cell(psi, start + q, cx, cy, cz, dy, dz, r)


@inline
def cross(
    C: Array, i0: Any, i: Any, step: Any, P: Array, left_below: Any, right_below: Any,
    left_above: Any, right_above: Any,
) -> Any:
    """Return the neighbours of a face along an axis: C by its stride, psi one by one."""
    c_below, c_above = C[i0] + C[i], C[i0 + step] + C[i + step]
    return Cross(c_below, c_above, P[left_below], P[right_below], P[left_above], P[right_above])


@optional
def corner(
    P: Array, above_above: Any, above_below: Any, below_above: Any, below_below: Any, step: Any,
    third: Any,
) -> Any:
    """Return psi of the eight cells around a face along e and f.

    The arguments are their four right cells; the left ones are ``step`` items away.
    """
    return Corner(
        (P[above_above - step] + P[above_above]) + (P[below_below - step] + P[below_below]),
        (P[above_below - step] + P[above_below]) + (P[below_above - step] + P[below_above]),
    )


@inline
def copy_row(
    P: Array, to: Any, now: Array, start: Any, n: Any, psi: Array, prefetch_from: Any,
    segmented: int | None,
) -> None:
    """Set a row of P to psi after earlier passes; prefetch it and psi before the step."""
    part = segment_length(n, segmented)
    for first in range(u(0), n, part):
        prefetch_segment(now, prefetch_from, first, part)
        prefetch_segment(psi, prefetch_from, first, part)
        for t in range(part):
            q = first + t
            P[to + q] = now[start + q]


@inline
def hold(V: Any, at: Any, value: Any) -> None:
    """Set an item of an array, unless that is left out."""
    if V is not None:
        V[at] = value


@inline
def face(
    P: Array, p0: Any, p: Any, C: Array, i0: Any, i: Any, e: Any, f: Any, line: Any, corner: Any,
    r: Array, terms: Any,
) -> Any:
    """Return the pseudo-velocity at a face and its flux.

    ``w`` and ``x`` are its left and its right cell in whole arrays, z and y those in P.
    """
    left, right = P[p0], P[p]
    v = pseudo_velocity(
        C[i], density_at_face(item_of(r, i0), item_of(r, i)), left, right, e, f, line, corner,
        ends_of(C, i0, i, i - i0, terms.divergent), terms.eps, terms.infinite,
    )
    return v, advective_flux(left, right, v, terms.infinite)


@inline
def slow_row(
    F: Array, V: Any, f: Any, P: Array, below: Any, b0: Any, b1: Any, above: Any, W: Any,
    cx: Array, cy: Array, cz: Array, r: Array, start: Any, n: Any, dy: Any, dz: Any, terms: Any,
    prefetch_from: Any, further: Any, segmented: int | None,
) -> None:
    """Set F to the fluxes through the z faces between the planes b0 and b1, V to velocities.

    ``below`` and ``above`` are the planes beyond them, for third-order terms.
    """
    part = segment_length(n, segmented)
    for first in range(u(0), n, part):
        prefetch_segment(cz, prefetch_from, first + further, part)
        if r is not None:
            prefetch_segment(r, prefetch_from, first, part)
        for t in range(part):
            q = first + t
            i, p, p0 = start + q, b1 + q, b0 + q
            i0 = i - dz
            along_x = cross(cx, i0, i, ONE, P, p0 - ONE, p - ONE, p0 + ONE, p + ONE)
            along_y = cross(cy, i0, i, dy, P, p0 - W, p - W, p0 + W, p + W)
            line = line_of(P, below + q, above + q, terms.third)
            around = corner(
                P, p + ONE + W, p + ONE - W, p - ONE + W, p - ONE - W, b1 - b0, terms.third
            )
            v, F[f + q] = face(P, p0, p, cz, i0, i, along_x, along_y, line, around, r, terms)
            hold(V, f + q, v)


@inline
def plane_row(
    Fx: Array, Fy: Array, Vx: Any, Vy: Any, f: Any, P: Array, b0: Any, b1: Any, b2: Any, W: Any,
    cx: Array, cy: Array, cz: Array, r: Array, start: Any, n: Any, dy: Any, dz: Any, terms: Any,
    prefetch_from: Any, segmented: int | None,
) -> None:
    """Set Fy and Fx to the fluxes through the faces below the cells of a row in plane b1.

    Vy and Vx are set to the velocities. The planes below and above it are b0 and b2.
    """
    part = segment_length(n, segmented)
    for first in range(u(0), n, part):
        prefetch_segment(cx, prefetch_from, first, part)
        prefetch_segment(cy, prefetch_from, first, part)
        for t in range(part):
            q = first + t
            i, p, up, down = start + q, b1 + q, b2 + q, b0 + q
            i0, p0 = i - dy, p - W
            along_x = cross(cx, i0, i, ONE, P, p0 - ONE, p - ONE, p0 + ONE, p + ONE)
            along_z = cross(cz, i0, i, dz, P, down - W, down, up - W, up)
            line = line_of(P, p0 - W, p + W, terms.third)
            around = corner(P, up + ONE, down + ONE, up - ONE, down - ONE, W, terms.third)
            v, Fy[f + q] = face(P, p0, p, cy, i0, i, along_x, along_z, line, around, r, terms)
            hold(Vy, f + q, v)
            i0, p0 = i - ONE, p - ONE
            along_y = cross(cy, i0, i, dy, P, p0 - W, p - W, p0 + W, p + W)
            along_z = cross(cz, i0, i, dz, P, down - ONE, down, up - ONE, up)
            line = line_of(P, p0 - ONE, p + ONE, terms.third)
            around = corner(P, up + W, down + W, up - W, down - W, ONE, terms.third)
            v, Fx[f + q] = face(P, p0, p, cx, i0, i, along_y, along_z, line, around, r, terms)
            hold(Vx, f + q, v)


@inline
def bounds(
    high: Any, low: Any, A: Array, at: Any, y0: Any, y1: Any, z0: Any, z1: Any
) -> tuple[Any, Any]:
    """Return the bounds of two values and an array's around an item: y0, y1, z0, z1 beside it."""
    a, b = A[at - ONE], A[at + ONE]
    high, low = largest(high, largest(a, b)), least(low, least(a, b))
    a, b = A[y0], A[y1]
    high, low = largest(high, largest(a, b)), least(low, least(a, b))
    a, b = A[z0], A[z1]
    return largest(high, largest(a, b)), least(low, least(a, b))


@inline
def betas_row(
    U: Array, D: Array, o: Any, psi: Array, start: Any, dy: Any, dz: Any,
    P: Array, b0: Any, b1: Any, b2: Any, W: Any,
    Fx: Array, Fy: Array, f0: Any, f1: Any, Fz: Array, g0: Any, g1: Any,
    r: Array, n: Any, eps: Any, segmented: int | None,
) -> None:
    """Set both betas of the limiter."""
    part = segment_length(n, segmented)
    for first in range(u(0), n, part):
        for t in range(part):
            q = first + t
            i, p, up, down = start + q, b1 + q, b2 + q, b0 + q
            here, before = P[p], psi[i]
            high, low = largest(before, here), least(before, here)
            high, low = bounds(high, low, P, p, p - W, p + W, down, up)
            high, low = bounds(high, low, psi, i, i - dy, i + dy, i - dz, i + dz)
            enters, leaves = Fx[f0 + q], Fx[f0 + q + ONE]
            gain, loss = into(enters, leaves), out_of(enters, leaves)
            enters, leaves = Fy[f0 + q], Fy[f1 + q]
            gain, loss = gain + into(enters, leaves), loss + out_of(enters, leaves)
            enters, leaves = Fz[g0 + q], Fz[g1 + q]
            gain, loss = gain + into(enters, leaves), loss + out_of(enters, leaves)
            U[o + q], D[o + q] = betas(high, low, here, gain, loss, item_of(r, i), eps)


@inline
def limited(f: Any, U: Array, D: Array, i0: Any, i: Any, limiter: Any) -> Any:
    """Return the part of a flux between two cells that the limiter lets through, and the share."""
    share = share_of(f, U, D, i0, i, limiter)
    return f * share, share


@inline
def keep_velocity(K: Any, i: Any, V: Any, at: Any, share: Any) -> None:
    """Keep the limited velocity of a face for a further pass, if there is one."""
    if K is not None:
        K[i] = V[at] * share


@inline
def mid_row(
    G: Array, Fy: Array, Vy: Any, f1: Any, W: Any, U: Array, D: Array, d1: Any, ky: Any, k0: Any,
    n: Any, limiter: Any,
) -> None:
    """Set G to the limited fluxes through the faces above a row; ky keeps the velocities."""
    for q in range(n):
        G[q], share = limited(Fy[f1 + q], U, D, d1 + q, d1 + q + W, limiter)
        keep_velocity(ky, k0 + q, Vy, f1 + q, share)


@inline
def update_row(
    out: Array, o: Any, Q: Array, qo: Any, G: Array, P: Array, p0: Any, W: Any,
    Fx: Array, Fy: Array, f0: Any, f1: Any, Fz: Array, g: Any, U: Array, D: Array, d0: Any,
    d1: Any, r: Array, Vx: Any, Vy: Any, Vz: Any, kx: Any, ky: Any, kz: Any, start: Any,
    k0: Any, n: Any, dy: Any, dz: Any, limiter: Any, prefetch_from: Any, segmented: int | None,
) -> None:
    """Finish the row of the plane before, p0, in ``out``; begin the one of this plane in Q.

    Q is the net outflow without the flux through the upper z face. G holds the limited fluxes
    from the row below and is set to those to the row above. kx, ky and kz keep the limited
    velocities.
    """
    part = segment_length(n, segmented)
    for first in range(u(0), n, part):
        prefetch_segment(out, prefetch_from, first, part)
        for t in range(part):
            q = first + t
            i, k, d = start + q, k0 + q, d1 + q
            net = Fx.dtype.type(0)
            lower, share = limited(Fx[f0 + q], U, D, d - ONE, d, limiter)
            keep_velocity(kx, k, Vx, f0 + q, share)
            upper, share = limited(Fx[f0 + q + ONE], U, D, d, d + ONE, limiter)
            net = outflow(net, lower, upper)
            upper, share = limited(Fy[f1 + q], U, D, d, d + W, limiter)
            keep_velocity(ky, k + dy, Vy, f1 + q, share)
            net = outflow(net, G[q], upper)
            G[q] = upper
            between, share = limited(Fz[g + q], U, D, d0 + q, d, limiter)
            keep_velocity(kz, k, Vz, g + q, share)
            before = item_of(r, i - dz)
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
def wrap_kept(K: Any, i: Any, n: Any, wraps: Any) -> None:
    """Copy a kept velocity beyond the ends of a row from its other end, where it wraps."""
    if K is not None:
        if wraps:
            wrap_row(K, i, n, ONE, ONE)


@inline
def inside(at: int, cells: int, kinds: Array, low: int) -> tuple[int, int]:
    """Return the index of the cell whose psi holds at ``at``, and the edge passed, -1 for none.

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
def fixed_edge(edge_z: int, edge_y: int, kinds: Array, rank: Array) -> int:
    """Return which of the edges passed along z and y gives a row its fixed value, -1 for none."""
    by_z = edge_z >= 0 and kinds[edge_z] == 2
    by_y = edge_y >= 0 and kinds[edge_y] == 2
    if by_z and not (by_y and rank[edge_y] < rank[edge_z]):
        return edge_z
    return edge_y if by_y else -1


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
    # Once: Numba counts a reference to a member of a tuple at every use.
    cx, cy, cz = C
    kx, ky, kz = kept
    P, Fx, Fy, Fz, Vx, Vy, Vz, U, D, Q, G = buffers
    extents, kinds, values, rank = edges
    base, dy, dz = strides
    lead, count, W, height, segmented, around_x, around_y = tile
    e = 0 if limiter is None else 1
    t = 0 if terms.third is None else 1
    k = 1 + e + t
    slots = 3 + t
    plane = u(height + 2 * k) * W
    line = u(64 // P.itemsize)
    wraps = lead == u(0)
    cells = u(extents[2])
    wanted = cells + u(2) * around_x
    further = dz if now is None else u(0)
    end = extents[1] + around_y
    for begin in range(-around_y, end, height):
        rows = min(height, end - begin)
        for q in range(G.size):
            G[q] = 0
        for i in range(first - k, last + 2 + t):
            # Stages of this round: psi after the donor cell in plane i, z faces between the planes
            # j and g, the rest in plane j.
            g = i - t
            j = g - 1
            p_new = line + u((i + 48) % slots) * plane
            p_up = line + u((g + 48) % slots) * plane
            p_mid = line + u((j + 48) % slots) * plane
            p_low = line + u((j + 47) % slots) * plane
            f_up = line + u((g + 16) & 1) * plane
            f_mid = line + u((j + 16) & 1) * plane
            source, edge_z = inside(i, extents[0], kinds, 0)
            for w in range(-k, rows + 2 + e):
                # The stages take turns to prefetch what the first will read two rows on.
                reads_ahead = w + 2 < rows + k and i < last + k
                start = base + u(i) * dz + u(begin + w + 2) * dy - lead
                if segmented is None and reads_ahead:
                    prefetch_row(psi, now, cx, cy, cz, r, start, count, line, further)
                prefetch_from = (start, segmented is not None and reads_ahead, line)
                if w < rows + k and i < last + k:
                    to = p_new + u(w + k) * W
                    row, edge_y = inside(begin + w, extents[1], kinds, 2)
                    fixed = fixed_edge(edge_z, edge_y, kinds, rank)
                    start = base + u(source) * dz + u(row) * dy - lead
                    if fixed >= 0:
                        for q in range(count):
                            P[to + q] = values[fixed]
                    elif now is not None:
                        copy_row(P, to, now, start, count, psi, prefetch_from, segmented)
                    else:
                        donor_row(
                            P, to, psi, start, count, cx, cy, cz, r, dy, dz, prefetch_from,
                            segmented,
                        )
                    if wraps:
                        wrap_row(P, to, cells, u(k), u(k))
                    decides = fixed < 0 or rank[4] < rank[fixed]
                    fill_ends(P, to, extents, kinds, values, tile, decides)
                v = w - 1
                at = u(v + k) * W
                start = base + u(g) * dz + u(begin + v) * dy - lead
                if v >= -e:
                    if first - e <= g and g <= last + e and v < rows + e:
                        slow_row(
                            Fz, Vz, f_up + at, P, p_low + at, p_mid + at, p_up + at, p_new + at, W,
                            cx, cy, cz, r, start, count, dy, dz, terms, prefetch_from, further,
                            segmented,
                        )
                    if first - e <= j and j < last + e and v < rows + e + 1:
                        f0 = line + u((v + 8) & 3) * W
                        plane_row(
                            Fx, Fy, Vx, Vy, f0, P, p_low + at, p_mid + at, p_up + at, W,
                            cx, cy, cz, r, start - dz, count, dy, dz, terms, prefetch_from,
                            segmented,
                        )
                        if wraps:
                            wrap_row(Fx, f0, cells, u(0), ONE)
                v = w - 2
                if limiter is not None:
                    if v >= -1 and v < rows + 1 and first - 1 <= j and j < last + 1:
                        at = u(v + k) * W
                        start = base + u(j) * dz + u(begin + v) * dy - lead
                        betas_row(
                            U, D, f_mid + at, psi, start, dy, dz, P, p_low + at, p_mid + at,
                            p_up + at, W, Fx, Fy, line + u((v + 8) & 3) * W,
                            line + u((v + 9) & 3) * W, Fz, f_mid + at, f_up + at,
                            r, count, terms.eps, segmented,
                        )
                        if wraps:
                            wrap_row(U, f_mid + at, cells, ONE, ONE)
                            wrap_row(D, f_mid + at, cells, ONE, ONE)
                v = w - 2 - e
                if v >= -1 and v < rows and first <= j and j <= last:
                    skip = lead - around_x
                    at = u(v + k) * W + skip
                    f0 = line + u((v + 8) & 3) * W + skip
                    f1 = line + u((v + 9) & 3) * W + skip
                    start = base + u(j) * dz + u(begin + v) * dy - around_x
                    prefetch_from = (start - dz + dy + dy, segmented is not None, line)
                    if segmented is None:
                        for q in range(u(0), wanted + line, line):
                            prefetch(out, start - dz + dy + dy + q)
                    # Only the z fluxes of the last plane count: its velocities go to a plane that
                    # nothing reads.
                    kept_plane = j if j < last else extents[0] + 2 + e
                    k0 = base + u(kept_plane) * dz + u(begin + v) * dy - around_x
                    if v < 0:
                        mid_row(
                            G, Fy, Vy, f1, W, U, D, f_mid + at, ky, k0 + dy, wanted, limiter
                        )
                    else:
                        # The first plane finishes nothing: the next one writes this row again.
                        o = start - dz if j > first else start
                        update_row(
                            out, o, Q, at, G, P, p_low + at, W, Fx, Fy, f0, f1, Fz, f_mid + at,
                            U, D, f_up + at, f_mid + at, r, Vx, Vy, Vz, kx, ky, kz, start, k0,
                            wanted, dy, dz, limiter, prefetch_from, segmented,
                        )
                        wrap_kept(kx, k0, wanted, wraps)
                        wrap_kept(kz, k0, wanted, wraps)
                    wrap_kept(ky, k0 + dy, wanted, wraps)
