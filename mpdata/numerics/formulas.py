"""The formulas of MPDATA on values that are already at hand: the one arithmetic of all backends.

NumPy runs this text on arrays (:mod:`mpdata.numerics.reference`), Numba compiles the same text for
single values (:mod:`mpdata.numerics.numba.inlined`), and ``cuda/formulas.cuh`` has the same
operations in the same order. An operation rounds once, :func:`fma` fuses a product and a sum where
the text says so, and no compiler contracts or reorders anything. So the three have the same bits,
and the bits of a cell depend on neither tiles, threads nor ranks.

Notation: psi advected quantity, G density at cells, C face value G u dt/dx, a the axis normal to a
face, e and f the other axes (by their stride, the smaller first), left and right the cells beside a
face, bars averages to the face. A derivative divided by psi is a difference over a sum in the
standard gauge; in the infinite gauge the sums are replaced by those of psi = 1, and V is a flux.

Options are None or 0 (``infinite``: 0 for the infinite gauge), and what a grid or a scheme does not
have is None: Numba leaves out the branches of None when it compiles.

Sources: S84 Smolarkiewicz 1984 (J. Comput. Phys. 54, 325), S06 Smolarkiewicz 2006 (Int. J.
Numer. Meth. Fluids 50, 1123), SG90 Smolarkiewicz & Grabowski 1990 (J. Comput. Phys. 86, 355),
SM98 Smolarkiewicz & Margolin 1998 (J. Comput. Phys. 140, 459), MS98 Margolin & Smolarkiewicz 1998
(SIAM J. Sci. Comput. 20, 907), J15 Jaruga et al. 2015 (Geosci. Model Dev. 8, 1005), W18
Waruszewski et al. 2018 (J. Comput. Phys. 359, 361).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Value = Any
"""A number in Numba, an array in NumPy; of the one type of a run."""

EPSILON = {8: 1e-15, 4: 1e-11}
"""Keeps denominators from zero (S84 section 2; J15 uses the same device), by item size. The
denominators of three ratios are multiplied: in float32 their product must not underflow."""


def epsilon(dtype: npt.DTypeLike) -> Any:
    """Return the number that is added to denominators, in their own type."""
    kind: Any = np.dtype(dtype)
    return kind.type(EPSILON[kind.itemsize])


# --- Operations on arrays; Numba has its own under the same names -----------------------------


def fma(a: Value, b: Value, c: Value) -> Value:
    """Return a b + c, rounded once (NumPy has no such function)."""
    from mpdata.numerics.numba.kernel_cache import kernel

    arrays = np.broadcast_arrays(a, b, c)
    out = np.empty(arrays[0].shape, arrays[0].dtype)
    flat = (out.reshape(-1), *(np.ascontiguousarray(array).reshape(-1) for array in arrays))
    kernel("inlined.fma_of_items", flat)(*flat)
    return out


def real(number: float, like: Value) -> Value:
    """Return a constant in the type of another value."""
    return like.dtype.type(number)


def select(condition: Value, yes: Value, no: Value) -> Value:
    """Return one of two values."""
    return np.where(condition, yes, no)


def largest(a: Value, b: Value) -> Value:
    """Return the larger value; of two zeros the second."""
    return np.where(a > b, a, b)


def least(a: Value, b: Value) -> Value:
    """Return the smaller value; of two zeros the second."""
    return np.where(a < b, a, b)


# --- Donor cell -------------------------------------------------------------------------------


def upwind(left: Value, right: Value, c: Value) -> Value:
    """Return psi of the cell that a face value comes from."""
    return select(c > real(0, c), left, right)


def donor_cell_outflow(
    net: Value, below: Value, here: Value, above: Value, lower: Value, upper: Value
) -> Value:
    """Return the net outflow of a cell and that along a further axis (S84 equation 3; J15 9).

    The first ``net`` is 0. ``lower`` and ``upper`` are the face values.
    """
    net = fma(upper, upwind(here, above, upper), net)
    return fma(-lower, upwind(below, here, lower), net)


def updated(psi: Value, net: Value, r: Value) -> Value:
    """Return psi after a net outflow (S84 equation 2; J15 equation 8); r is 1 / G (None: 1)."""
    if r is None:
        return psi - net
    return fma(-net, r, psi)


# --- Pseudo-velocity --------------------------------------------------------------------------


class Cross(NamedTuple):
    """The neighbours of a face along another axis e.

    ``c_below`` and ``c_above`` are the sums of C over the two faces below and above, normal to e;
    the others are psi of the four cells above and below, left and right of the face.
    """

    c_below: Value
    c_above: Value
    left_below: Value
    right_below: Value
    left_above: Value
    right_above: Value


class Density(NamedTuple):
    """The density at a face: under / over. No division of its own is made for its inverse."""

    over: Value
    under: Value


class Line(NamedTuple):
    """Psi of the cells beyond the two of a face, along its own axis."""

    left: Value
    right: Value


class Corner(NamedTuple):
    """Psi of the eight cells around a face along e and f, on one diagonal and on the other."""

    rising: Value
    falling: Value


class Ends(NamedTuple):
    """The face values of the next faces along the axis of a face."""

    left: Value
    right: Value


class Ratio(NamedTuple):
    """A derivative per psi: top / bottom."""

    top: Value
    bottom: Value


def density_at_face(left: Value, right: Value) -> Density:
    """Return the density at a face, Gbar (J15 equation 10), from 1 / G of its cells."""
    return Density(left * right, (left + right) * real(0.5, left))


def total(e: Cross) -> Value:
    """Return four times Cbar_e, the mean of the four faces normal to e around the face."""
    return e.c_below + e.c_above


def above(e: Cross) -> Value:
    """Return psi of the two cells above."""
    return e.left_above + e.right_above


def below(e: Cross) -> Value:
    """Return psi of the two cells below."""
    return e.left_below + e.right_below


def basic_velocity(
    c: Value, density: Any, left: Value, right: Value, e: Any, f: Any, eps: Value, infinite: Any
) -> Value:
    """Return V = (|C| - C^2 / Gbar) A - C / (2 Gbar) sum_e Cbar_e B_e.

    S84 equations 12 and 13; J15 equations 10 to 12; A and B: SM98 equations 17a and 17b. The
    denominators of the ratios are multiplied, since a division costs more than the products that
    replace it.
    """
    if density is None:
        flow = c
        lead = fma(-c, c, abs(c))
    else:
        flow = c * density.over
        lead = fma(-c, flow, abs(c) * density.under)
    rise = right - left
    if infinite is None:
        a = left + right + eps
        top = lead * rise
        bottom = a
        if e is not None:
            high, low = above(e), below(e)
            along_e = total(e) * (high - low)
            b = high + low + eps
            if f is None:
                cross = along_e
                others = b
            else:
                high, low = above(f), below(f)
                along_f = total(f) * (high - low)
                d = high + low + eps
                cross = fma(along_e, d, along_f * b)
                others = b * d
            top = fma(top, others, real(-0.125, c) * flow * a * cross)
            bottom = a * others
    else:
        top = real(0.5, c) * lead * rise
        bottom = real(1, c)
        if e is not None:
            cross = total(e) * (above(e) - below(e))
            if f is not None:
                cross = fma(total(f), above(f) - below(f), cross)
            top = fma(real(0.5, c) * lead, rise, real(-0.03125, c) * flow * cross)
    if density is None:
        return top / bottom
    return top / (density.under * bottom)


def per_density(value: Value, density: Any) -> Value:
    """Return a value over the density at a face."""
    if density is None:
        return value
    return value * (density.over / density.under)


def per_psi(upper: Value, lower: Value, cells: int, eps: Value, infinite: Any) -> Ratio:
    """Return (upper - lower) over their sum, a sum over ``cells`` cells."""
    if infinite is None:
        return Ratio(upper - lower, upper + lower + eps)
    return Ratio(upper - lower, real(cells, upper))


def mixed(e: Cross, eps: Value, infinite: Any) -> Ratio:
    """Return psi_ae per psi: one diagonal less the other, around the face."""
    rising, falling = e.right_above + e.left_below, e.left_above + e.right_below
    return per_psi(rising, falling, 4, eps, infinite)


def third_order(
    v: Value, c: Value, density: Any, left: Value, right: Value, e: Any, f: Any, line: Line,
    corner: Any, eps: Value, infinite: Any,
) -> Value:  # fmt: skip
    """Return v and the third-order terms (MS98; W18, for constant G and C).

    (3 C |C| / G - 2 C^3 / G^2 - C) / 6 psi_aa + sum_e Cbar_e (|C| - 2 C^2 / G) / (2 G) psi_ae
    - 2/3 C Cbar_e Cbar_f / G^2 psi_ef, all per psi. They are what is left of the exact
    solution's third derivatives, -(c.grad)^3 psi / 6, after the second-order fluxes have been
    taken of psi after the donor-cell pass; psi_aae is wholly in the flux along a. Here u = C / G,
    and two ratios at a time share a division.
    """
    u = per_density(c, density)
    size = abs(u)
    # The four cells in a row: the outer ones less the inner ones is twice the derivative.
    along = per_psi(line.left + line.right, left + right, 4, eps, infinite)
    curve = c * fma(size, fma(real(-2, c), size, real(3, c)), real(-1, c)) * along.top
    if e is None:
        terms = curve / along.bottom
    else:
        share = real(3, c) * size * fma(real(-2, c), size, real(1, c))
        mixed_e = mixed(e, eps, infinite)
        mean_e = total(e) * real(0.25, c)
        if f is None:
            slope = share * (mean_e * mixed_e.top)
            terms = fma(curve, mixed_e.bottom, slope * along.bottom)
            terms = terms / (along.bottom * mixed_e.bottom)
        else:
            mixed_f = mixed(f, eps, infinite)
            mean_f = total(f) * real(0.25, c)
            across = per_psi(corner.rising, corner.falling, 8, eps, infinite)
            twist = per_density(real(-2, c) * u, density) * mean_e * mean_f * across.top
            terms = fma(curve, across.bottom, twist * along.bottom)
            terms = terms / (along.bottom * across.bottom)
            slope = fma(mean_e * mixed_e.top, mixed_f.bottom, mean_f * mixed_f.top * mixed_e.bottom)
            terms = fma(share, slope / (mixed_e.bottom * mixed_f.bottom), terms)
    return fma(terms, real(1 / 3, c), v)


def divergent_flow(
    v: Value, c: Value, density: Any, left: Value, right: Value, e: Any, f: Any, ends: Ends,
    infinite: Any,
) -> Value:  # fmt: skip
    """Return v and the term of a divergent flow, -C / (2 G) div C at the face (SM98 equation 30).

    The divergence is the mean of those of the two cells.
    """
    twice = ends.right - ends.left
    if e is not None:
        twice = twice + (e.c_above - e.c_below)
    if f is not None:
        twice = twice + (f.c_above - f.c_below)
    u = per_density(c, density)
    if infinite is None:
        return fma(real(-0.25, c) * u, twice, v)
    return fma(real(-0.125, c) * u * twice, left + right, v)


def pseudo_velocity(
    c: Value, density: Any, left: Value, right: Value, e: Any, f: Any, line: Any, corner: Any,
    ends: Any, eps: Value, infinite: Any,
) -> Value:  # fmt: skip
    """Return the pseudo-velocity at a face with all its terms.

    Args:
        c, density: the face value and the density at the face (None: 1).
        left, right: psi of its cells.
        e, f: the neighbours along the other axes of the grid (:class:`Cross`, or None).
        line, corner: what the third-order terms look at (or None).
        ends: what the term of a divergent flow looks at (or None).
        eps: what is added to denominators.
        infinite: the gauge.
    """
    v = basic_velocity(c, density, left, right, e, f, eps, infinite)
    if line is not None:
        v = third_order(v, c, density, left, right, e, f, line, corner, eps, infinite)
    if ends is not None:
        v = divergent_flow(v, c, density, left, right, e, f, ends, infinite)
    return v


# --- Corrective fluxes ------------------------------------------------------------------------


def advective_flux(left: Value, right: Value, v: Value, infinite: Any) -> Value:
    """Return what a pseudo-velocity carries through a face: upwind, or itself (S06)."""
    if infinite is None:
        return v * upwind(left, right, v)
    return v


def outflow(net: Value, lower: Value, upper: Value) -> Value:
    """Return the net outflow of a cell and that along a further axis, from the fluxes there.

    The first ``net`` is 0: so it is never -0, and the sign of a flux of 0 changes no bit.
    """
    return net - lower + upper


def into(entering: Value, leaving: Value) -> Value:
    """Return what flows into a cell along an axis."""
    zero = real(0, entering)
    return largest(entering, zero) - least(leaving, zero)


def out_of(entering: Value, leaving: Value) -> Value:
    """Return what flows out of a cell along an axis."""
    zero = real(0, entering)
    return largest(leaving, zero) - least(entering, zero)


def betas(
    high: Value, low: Value, psi: Value, inflow: Value, outflow: Value, r: Value, eps: Value
) -> tuple[Value, Value]:
    """Return how much of its inflow and outflow a cell can take, at most 1 (SG90 16, 17).

    ``high`` and ``low`` are the extrema over the cell and its six neighbours of both psi before
    the step and the present iterate (SG90 equation 15; J15 section 2.5). Both share a division.
    """
    inflow = inflow + eps
    outflow = outflow + eps
    both = inflow * outflow
    if r is not None:
        both = both * r
    one = real(1, psi)
    share = one / both
    return least(one, (high - psi) * outflow * share), least(one, (psi - low) * inflow * share)


def allowed(
    flux: Value, up_left: Value, down_left: Value, up_right: Value, down_right: Value
) -> Value:
    """Return which part of a flux makes no new extremum (SG90 equation 18).

    What the cell it leaves can lose and the one it enters take. The flux decides the direction, so
    psi may have either sign.
    """
    forward, backward = least(down_left, up_right), least(up_left, down_right)
    return select(flux > real(0, flux), forward, backward)
