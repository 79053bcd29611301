// The formulas of reference.py, where the equations are cited, on values that are already at hand.
//
// Fused multiply-adds are written out and the compiler makes no others, so every kernel, and the
// same source on the host, rounds alike: the bits of a cell depend on neither tile nor variant.
#pragma once

// The upwind flux through a face (S84 equation 3; J15 equation 9).
DEVICE real donor_cell_flux(real left, real right, real c) { return c * (c > 0 ? left : right); }

// What a pseudo-velocity carries through a face: upwind, or itself in the infinite gauge (S06).
DEVICE real advective_flux(real left, real right, real v) {
    return INFINITE_GAUGE ? v : donor_cell_flux(left, right, v);
}

// What a cross term is made of, beside a face along another axis: the sums of C over the two faces
// below and the two above, and of psi over the two cells above and the two below.
struct Cross {
    real c_below, c_above, upper, lower;

    DEVICE real mean() const { return (c_below + c_above) * real(0.25); }
    DEVICE real divergence() const { return c_above - c_below; }
};

// V = (|C| - C^2 / Gbar) A - C / (2 Gbar) sum_e Cbar_e B_e (S84 equations 12, 13; J15 equations 10
// to 12; A and B: SM98 equations 17a, 17b). The denominators of the ratios are multiplied, since a
// division costs more than the products that replace it.
template <int OTHERS>
DEVICE real pseudo_velocity(real c, real density, real left, real right, Cross e, Cross f) {
    const real lead = fma(-c, c, fabs(c) * density);
    const real rise = right - left;
    if (INFINITE_GAUGE) {
        real cross = 0;
        if (OTHERS > 0) cross = e.mean() * (e.upper - e.lower);
        if (OTHERS > 1) cross = fma(f.mean(), f.upper - f.lower, cross);
        return fma(lead * real(0.5), rise, real(-0.125) * c * cross) / density;
    }
    const real a = left + right + real(EPSILON);
    if (OTHERS == 0) return lead * rise / (density * a);
    const real b = e.upper + e.lower + real(EPSILON);
    const real along_e = e.mean() * (e.upper - e.lower);
    if (OTHERS == 1) {
        const real top = fma(lead * rise, b, real(-0.5) * c * a * along_e);
        return top / (density * a * b);
    }
    const real d = f.upper + f.lower + real(EPSILON);
    const real along_f = f.mean() * (f.upper - f.lower);
    const real cross = fma(along_e, d, along_f * b);
    const real top = fma(lead * rise, b * d, real(-0.5) * c * a * cross);
    return top / (density * a * (b * d));
}

// The term of a divergent flow, - C / (2 G) div C at the face (SM98 equation 30): div C is the
// mean of those of its two cells, `c_left` and `c_right` the faces beyond them.
DEVICE real divergent_flow(real c, real density, real left, real right, real c_left, real c_right,
                           Cross e, Cross f) {
    const real twice = (c_right - c_left) + e.divergence() + f.divergence();
    const real v = -c * twice / (4 * density);
    return INFINITE_GAUGE ? v * ((left + right) * real(0.5)) : v;
}

// The density at a face (J15 equation 10).
DEVICE real mean_density(real left, real right) {
    return UNIT_DENSITY ? real(1) : (left + right) * real(0.5);
}

// (upper - lower) over their sum, a sum over `cells` cells.
DEVICE real per_psi(real upper, real lower, int cells) {
    if (INFINITE_GAUGE) return (upper - lower) / real(cells);
    return (upper - lower) / (upper + lower + real(EPSILON));
}

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
    // How much of its inflow and outflow the cell can take (SG90 equations 16, 17).
    DEVICE real up(real psi, real h) const { return (high - psi) * h / (inflow + real(EPSILON)); }
    DEVICE real down(real psi, real h) const { return (psi - low) * h / (outflow + real(EPSILON)); }
};

// Which part of a flux makes no new extremum (SG90 equation 18): what the cell it leaves can lose
// and the one it enters take. The flux decides the direction, so psi may have either sign.
DEVICE real share(real flux, real up_left, real down_left, real up_right, real down_right) {
    const real most = flux > 0 ? least(down_left, up_right) : least(up_left, down_right);
    return least(real(1), most);
}
