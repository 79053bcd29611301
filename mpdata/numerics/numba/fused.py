"""Two passes over a block in three axes, without third-order terms, in one sweep over memory.

One pass over memory does a whole step: planes of the slowest axis s are taken one after the
other; in each, tiles of rows of the middle axis m; in those, rows of the contiguous axis c. Every
row goes through all stages at once, each stage one row and one plane behind the one it needs: the
donor cell, the faces of the pseudo-velocity, the betas, the limited update. What a stage leaves
for later lies in a few planes of one tile that stay in the second-level cache. The formulas are
those of :mod:`mpdata.numerics.numba.formulas`. The CUDA kernel of ``stream.cuh`` serves the same
options.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from mpdata.numerics.numba.arguments import SEGMENT
from mpdata.numerics.numba.formulas import (
    ONE,
    Array,
    advective_flux,
    allowed,
    betas,
    contiguous_face,
    donor_cell,
    entry,
    inline,
    middle_face,
    slow_face,
)

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
def slow_row(
    F: Array, f: Any, P: Array, b0: Any, b1: Any, W: Any,
    cc: Array, cm: Array, cs: Array, r: Array, x0: Any, n: Any, sm: Any, ss: Any, terms: Any,
    soon: Any, cut: int | None,
) -> None:
    """Faces along s between the planes b0 and b1."""
    zero = P.dtype.type(0)
    part = taken(n, cut)
    for first in range(u(0), n, part):
        ahead(cs, soon, first + ss, part)
        if r is not None:
            ahead(r, soon, first, part)
        for t in range(part):
            q = first + t
            y, z = b1 + q, b0 + q
            v = slow_face(
                P, y, z, y, z, W, cc, cm, cs, r, x0 + q, sm, ss,
                terms.eps, terms.infinite, None, terms.divergent,
            )
            F[f + q] = v if terms.infinite is not None else advective_flux(v, P[z], P[y], zero)


@inline
def plane_row(
    Fc: Array, Fm: Array, f: Any, P: Array, b0: Any, b1: Any, b2: Any, W: Any,
    cc: Array, cm: Array, cs: Array, r: Array, x0: Any, n: Any, sm: Any, ss: Any, terms: Any,
    soon: Any, cut: int | None,
) -> None:
    """Faces along m and c below the cells of a row in plane b1, between the planes b0 and b2."""
    zero, bare = P.dtype.type(0), terms.infinite is not None
    part = taken(n, cut)
    for first in range(u(0), n, part):
        ahead(cc, soon, first, part)
        ahead(cm, soon, first, part)
        for t in range(part):
            q = first + t
            x, y, up, down = x0 + q, b1 + q, b2 + q, b0 + q
            v = middle_face(
                P, y, up, down, W, cc, cm, cs, r, x, sm, ss,
                terms.eps, terms.infinite, None, terms.divergent,
            )
            Fm[f + q] = v if bare else advective_flux(v, P[y - W], P[y], zero)
            v = contiguous_face(
                P, y, up, down, W, cc, cm, cs, r, x, sm, ss,
                terms.eps, terms.infinite, None, terms.divergent,
            )
            Fc[f + q] = v if bare else advective_flux(v, P[y - ONE], P[y], zero)


@inline
def betas_row(
    U: Array, D: Array, o: Any, psi: Array, x0: Any, sm: Any, ss: Any,
    P: Array, b0: Any, b1: Any, b2: Any, W: Any,
    Fc: Array, Fm: Array, f0: Any, f1: Any, Fs: Array, g0: Any, g1: Any,
    r: Array, n: Any, eps: Any,
    soon: Any, cut: int | None,
) -> None:
    """Both betas of the limiter."""
    part = taken(n, cut)
    for first in range(u(0), n, part):
        for t in range(part):
            q = first + t
            U[o + q], D[o + q] = betas(
                psi, x0 + q, sm, ss, P, b1 + q, W, b2 + q, b0 + q, Fc, f0 + q, Fm, f0 + q, f1 + q,
                Fs, g0 + q, g1 + q, r, eps, None,
            )


@inline
def mid_row(
    G: Array, Fm: Array, f1: Any, W: Any, U: Array, D: Array, d1: Any, n: Any, limiter: Any
) -> None:
    """Set G to the limited fluxes through the faces above a row."""
    for q in range(n):
        f = Fm[f1 + q]
        G[q] = f * allowed(f, U, D, d1 + q, d1 + q + W, limiter)


@inline
def update_row(
    out: Array, o: Any, Q: Array, qo: Any, G: Array, P: Array, p1: Any, W: Any,
    Fc: Array, Fm: Array, f0: Any, f1: Any, Fs: Array, g: Any, U: Array, D: Array, d0: Any,
    d1: Any, r: Array, x0: Any, n: Any, ss: Any, limiter: Any,
    soon: Any, cut: int | None,
) -> None:
    """Finish the row of the plane before in ``out``; begin the one of this plane in Q.

    G holds the limited fluxes from the row below and is given those to the row above.
    """
    part = taken(n, cut)
    for first in range(u(0), n, part):
        ahead(out, soon, first, part)
        for t in range(part):
            q = first + t
            d = d1 + q
            here = P[p1 + q]
            f = Fc[f0 + q + ONE]
            total = f * allowed(f, U, D, d, d + ONE, limiter)
            f = Fc[f0 + q]
            total -= f * allowed(f, U, D, d - ONE, d, limiter)
            f = Fm[f1 + q]
            f = f * allowed(f, U, D, d, d + W, limiter)
            total += f - G[q]
            G[q] = f
            f = Fs[g + q]
            f = f * allowed(f, U, D, d0 + q, d, limiter)
            if r is None:
                out[o + q] = Q[qo + q] - f
                Q[qo + q] = here - (total - f)
            else:
                x = x0 + q
                out[o + q] = Q[qo + q] - f * r[x - ss]
                Q[qo + q] = here - (total - f) * r[x]


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
    k = 1 + e
    plane = u(height + 2 * k) * W
    line = u(64 // P.itemsize)
    wraps = lead == u(0)
    cells = u(extents[2])
    for begin in range(0, extents[1], height):
        rows = min(height, extents[1] - begin)
        for q in range(G.size):
            G[q] = 0
        for i in range(first - k, last + 2):
            # Stages of this round: psi after the donor cell in plane i, the rest in plane j.
            # Slots of the planes of P by their distance from i.
            j = i - 1
            p_up = line + u((i + 48) % 3) * plane
            p_mid = line + u((i + 47) % 3) * plane
            p_low = line + u((i + 46) % 3) * plane
            f_up = line + u((i + 16) & 1) * plane
            f_mid = line + u((j + 16) & 1) * plane
            source, kind_s = inside(i, extents[0], kinds[0], kinds[1])
            for w in range(-k, rows + 2 + e):
                # The stages take turns to ask for what the donor cell will read two rows on.
                coming = w + 2 < rows + k and i < last + k
                x = base + u(i) * ss + u(begin + w + 2) * sm - lead
                if cut is None and coming:
                    ask_for_row(psi, cc, cm, cs, r, x, count, line, ss)
                soon = (x, cut is not None and coming, line)
                if w < rows + k and i < last + k:
                    to = p_up + u(w + k) * W
                    row, kind_m = inside(begin + w, extents[1], kinds[2], kinds[3])
                    fixed = fixed_axis(kind_s, kind_m, rank)
                    x = base + u(source) * ss + u(row) * sm - lead
                    if fixed >= 0:
                        for q in range(count):
                            P[to + q] = values[fixed]
                    else:
                        donor_row(P, to, psi, x, count, cc, cm, cs, r, sm, ss, soon, cut)
                    if wraps:
                        wrap_row(P, to, cells, u(k), u(k))
                    decides = fixed < 0 or rank[2] < rank[fixed]
                    fill_ends(P, to, extents, kinds, values, tile, decides)
                v = w - 1
                at = u(v + k) * W
                x = base + u(i) * ss + u(begin + v) * sm - lead
                if v >= -e:
                    if first - e <= i and i <= last + e and v < rows + e:
                        slow_row(
                            Fs, f_up + at, P, p_mid + at, p_up + at, W, cc, cm, cs, r, x,
                            count, sm, ss, terms, soon, cut,
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
                            out, x - ss if j > first else x, Q, at, G, P, p_mid + at, W,
                            Fc, Fm, f0, f1, Fs, f_mid + at, U, D, f_up + at, f_mid + at,
                            r, x, cells, ss, limiter, soon, cut,
                        )
