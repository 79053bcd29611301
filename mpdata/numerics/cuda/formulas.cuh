// The formulas of formulas.py, where the equations are cited: the same operations in the same order.
//
// Fused multiply-adds are written out and the compiler makes no others, so every kernel, the same
// source on the host, NumPy and Numba round alike.
#pragma once

// psi of the cell that a face value comes from.
DEVICE real upwind(real left, real right, real c) { return c > 0 ? left : right; }

// The net outflow of a cell and that along a further axis (S84 equation 3; J15 equation 9). The
// first `net` is 0; `lower` and `upper` are the face values.
DEVICE real donor_cell_outflow(real net, real below, real here, real above, real lower,
                               real upper) {
    net = fma(upper, upwind(here, above, upper), net);
    return fma(-lower, upwind(below, here, lower), net);
}

// psi after a net outflow (S84 equation 2; J15 equation 8); r is 1 / G.
DEVICE real updated(real psi, real net, real r) {
    return UNIT_DENSITY ? psi - net : fma(-net, r, psi);
}

// The neighbours of a face along another axis: sum and difference of C over the two faces below and
// the two above, sums of psi over the two cells (left and right of the face) below and above, and
// over the diagonals.
struct Cross {
    real total, divergence, below, above, rising, falling;
};

// The density at a face, under / over (J15 equation 10), from 1 / G of its cells.
struct Density {
    real over, under;

    DEVICE real inverse() const { return UNIT_DENSITY ? real(1) : over / under; }
};
DEVICE Density density_at_face(real left, real right) {
    if (UNIT_DENSITY) return {real(1), real(1)};
    return {left * right, (left + right) * real(0.5)};
}

// V = (|C| - C^2 / Gbar) A - C / (2 Gbar) sum_e Cbar_e B_e (S84 equations 12, 13; J15 equations 10
// to 12; A and B: SM98 equations 17a, 17b). The denominators of the ratios are multiplied, since a
// division costs more than the products that replace it.
template <int OTHERS>
DEVICE real basic_velocity(real c, Density density, real left, real right, Cross e, Cross f) {
    const real flow = c * density.over;
    const real lead = fma(-c, flow, fabs(c) * density.under);
    const real rise = right - left;
    if (INFINITE_GAUGE) {
        real top = real(0.5) * lead * rise;
        if (OTHERS > 0) {
            real cross = e.total * (e.above - e.below);
            if (OTHERS > 1) cross = fma(f.total, f.above - f.below, cross);
            top = fma(real(0.5) * lead, rise, real(-0.03125) * flow * cross);
        }
        return top / density.under;
    }
    const real a = left + right + real(EPSILON);
    real top = lead * rise, bottom = a;
    if (OTHERS > 0) {
        const real along_e = e.total * (e.above - e.below);
        const real b = e.above + e.below + real(EPSILON);
        real cross = along_e, others = b;
        if (OTHERS > 1) {
            const real along_f = f.total * (f.above - f.below);
            const real d = f.above + f.below + real(EPSILON);
            cross = fma(along_e, d, along_f * b);
            others = b * d;
        }
        top = fma(top, others, real(-0.125) * flow * a * cross);
        bottom = a * others;
    }
    return top / (density.under * bottom);
}

// A derivative per psi, (upper - lower) over their sum, a sum over `cells` cells.
struct Ratio {
    real top, bottom;
};
DEVICE Ratio per_psi(real upper, real lower, int cells) {
    return {upper - lower, INFINITE_GAUGE ? real(cells) : upper + lower + real(EPSILON)};
}

// v and the third-order terms (MS98; W18). `outer` is the sum of psi of the cells beyond the two of
// the face along its axis, `rising` and `falling` those of the eight cells around it along e and f.
template <int OTHERS>
DEVICE real third_order(real v, real c, Density density, real left, real right, Cross e, Cross f,
                        real outer, real rising, real falling) {
    const real u = c * density.inverse(), size = fabs(u);
    const Ratio along = per_psi(outer, left + right, 4);
    const real curve = c * fma(size, fma(real(-2), size, real(3)), real(-1)) * along.top;
    real terms;
    if (OTHERS == 0) {
        terms = curve / along.bottom;
    } else {
        const real share = real(3) * size * fma(real(-2), size, real(1));
        const Ratio mixed_e = per_psi(e.rising, e.falling, 4);
        const real mean_e = e.total * real(0.25);
        if (OTHERS == 1) {
            const real slope = share * (mean_e * mixed_e.top);
            terms = fma(curve, mixed_e.bottom, slope * along.bottom);
            terms = terms / (along.bottom * mixed_e.bottom);
        } else {
            const Ratio mixed_f = per_psi(f.rising, f.falling, 4);
            const real mean_f = f.total * real(0.25);
            const Ratio across = per_psi(rising, falling, 8);
            const real twist = real(-2) * u * density.inverse() * mean_e * mean_f * across.top;
            terms = fma(curve, across.bottom, twist * along.bottom);
            terms = terms / (along.bottom * across.bottom);
            const real slope =
                fma(mean_e * mixed_e.top, mixed_f.bottom, mean_f * mixed_f.top * mixed_e.bottom);
            terms = fma(share, slope / (mixed_e.bottom * mixed_f.bottom), terms);
        }
    }
    return fma(terms, real(1.0 / 3), v);
}

// v and the term of a divergent flow, - C / (2 G) div C at the face (SM98 equation 30): div C is the
// mean of those of its two cells, `c_left` and `c_right` the faces beyond them.
template <int OTHERS>
DEVICE real divergent_flow(real v, real c, Density density, real left, real right, real c_left,
                           real c_right, Cross e, Cross f) {
    real twice = c_right - c_left;
    if (OTHERS > 0) twice = twice + e.divergence;
    if (OTHERS > 1) twice = twice + f.divergence;
    const real u = c * density.inverse();
    if (INFINITE_GAUGE) return fma(real(-0.125) * u * twice, left + right, v);
    return fma(real(-0.25) * u, twice, v);
}

// What a pseudo-velocity carries through a face: upwind, or itself in the infinite gauge (S06).
DEVICE real advective_flux(real left, real right, real v) {
    return INFINITE_GAUGE ? v : v * upwind(left, right, v);
}

// The net outflow of a cell and that along a further axis, from the fluxes there. The first `net`
// is 0: so it is never -0, and the sign of a flux of 0 changes no bit.
DEVICE real outflow(real net, real lower, real upper) { return net - lower + upper; }

// The bounds of a cell and what flows through its faces, from which its betas follow.
struct Balance {
    real high, low, inflow, outflow;

    DEVICE void bound(real value) {
        high = largest(high, value);
        low = least(low, value);
    }
    DEVICE void flow(real entering, real leaving) {
        inflow += largest(entering, real(0)) - least(leaving, real(0));
        outflow += largest(leaving, real(0)) - least(entering, real(0));
    }
    // How much of its inflow and outflow the cell can take, at most 1 (SG90 equations 16, 17).
    DEVICE void betas(real psi, real r, real &up, real &down) const {
        const real in = inflow + real(EPSILON), out = outflow + real(EPSILON);
        const real share = real(1) / (UNIT_DENSITY ? in * out : in * out * r);
        up = least(real(1), (high - psi) * out * share);
        down = least(real(1), (psi - low) * in * share);
    }
};

// Which part of a flux makes no new extremum (SG90 equation 18): what the cell it leaves can lose
// and the one it enters take. The flux decides the direction, so psi may have either sign.
DEVICE real allowed(real flux, real up_left, real down_left, real up_right, real down_right) {
    return flux > 0 ? least(down_left, up_right) : least(up_left, down_right);
}
