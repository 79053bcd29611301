// Four kernels, to be read (an own split): donor cell, pseudo-velocities, betas, limited update.
//
// Each is one loop over cells; what one kernel leaves in memory the next one reads. They serve all
// options, any number of axes, and a third pass.
#pragma once

DEVICE long long step_along(const Job &job, int axis) { return axis == 0 ? 1 : job.stride[axis]; }

// psi after one donor-cell pass at the cell `at` (S84 equation 2; J15 equation 8).
DEVICE real donor_cell(const Job &job, const real *psi, long long at) {
    const real here = load(psi + at);
    real outflow = 0;
#pragma unroll
    for (int a = 0; a < AXES; ++a) {
        const long long s = step_along(job, a);
        const real leaving = donor_cell_flux(here, load(psi + at + s), load(job.c[a] + at + s));
        const real entering = donor_cell_flux(load(psi + at - s), here, load(job.c[a] + at));
        outflow += leaving - entering;
    }
    return here - outflow / density_at(job, at);
}

// Around a face normal to axis A: values of an array at the two cells (or of face values at the two
// faces) beside it, moved by some offset.
template <int A>
struct AtFace {
    const Job &job;
    const long long at, along;

    DEVICE AtFace(const Job &job_, long long at_)
        : job(job_), at(at_), along(step_along(job_, A)) {}
    DEVICE real left(const real *array, long long by = 0) const {
        return load(array + at - along + by);
    }
    DEVICE real right(const real *array, long long by = 0) const { return load(array + at + by); }
    DEVICE real pair(const real *array, long long by = 0) const {
        return left(array, by) + right(array, by);
    }
    DEVICE Cross cross(int e) const {
        const long long s = step_along(job, e);
        return {pair(job.c[e]), pair(job.c[e], s), pair(job.psi, s), pair(job.psi, -s)};
    }
};

// The third-order terms (MS98; W18; reference.py says what they are).
template <int A>
DEVICE real third_order(const AtFace<A> &face, real c, real density) {
    constexpr int OTHERS[2] = {A == 0 ? 1 : 0, A == 2 ? 1 : 2};
    const real *psi = face.job.psi;
    const real outer = face.left(psi, -face.along) + face.right(psi, face.along);
    const real along = 2 * per_psi(outer, face.pair(psi), 4);
    const real size = fabs(c);
    real v = (3 * c * size / density - 2 * c * c * c / (density * density) - c) / 6 * along;
#pragma unroll
    for (int n = 0; n < AXES - 1; ++n) {
        const int e = OTHERS[n];
        const long long s = step_along(face.job, e);
        const real rising = face.right(psi, s) + face.left(psi, -s);
        const real falling = face.left(psi, s) + face.right(psi, -s);
        const real mixed = 2 * per_psi(rising, falling, 4);
        v += face.cross(e).mean() * (size - 2 * c * c / density) / (2 * density) * mixed;
    }
    if (AXES > 2) {
        const long long e = step_along(face.job, OTHERS[0]), f = step_along(face.job, OTHERS[1]);
        const real rising = face.pair(psi, e + f) + face.pair(psi, -e - f);
        const real falling = face.pair(psi, e - f) + face.pair(psi, f - e);
        const real means = face.cross(OTHERS[0]).mean() * face.cross(OTHERS[1]).mean();
        v -= 2 * c * means / (3 * density * density) * per_psi(rising, falling, 8);
    }
    return v;
}

// The pseudo-velocity through the lower face along A of the cell `at`.
template <int A>
DEVICE real velocity(const Job &job, long long at) {
    constexpr int E = A == 0 ? 1 : 0, F = A == 2 ? 1 : 2;
    const AtFace<A> face(job, at);
    const real c = face.right(job.c[A]);
    const real density = mean_density(density_at(job, at - face.along), density_at(job, at));
    const real left = face.left(job.psi), right = face.right(job.psi);
    Cross e = {}, f = {};
    if (AXES > 1) e = face.cross(E);
    if (AXES > 2) f = face.cross(F);
    real v = pseudo_velocity<AXES - 1>(c, density, left, right, e, f);
    if (THIRD_ORDER && job.extra) v += third_order(face, c, density);
    if (DIVERGENT && job.extra)
        v += divergent_flow(c, density, left, right, face.left(job.c[A]),
                            face.right(job.c[A], face.along), e, f);
    return v;
}

DEVICE real flux_through(const Job &job, int a, long long at) {
    const long long s = step_along(job, a);
    return advective_flux(load(job.psi + at - s), load(job.psi + at), load(job.v[a] + at));
}

// What the limiter lets through the lower face of a cell, as a part of it.
DEVICE real share_of(const Job &job, int a, long long at, real flux) {
    const long long s = step_along(job, a);
    return share(flux, load(job.up + at - s), load(job.down + at - s), load(job.up + at),
                 load(job.down + at));
}

DEVICE real limited_flux(const Job &job, int a, long long at) {
    const real flux = flux_through(job, a, at);
    return LIMITED ? flux * share_of(job, a, at, flux) : flux;
}

// psi after the corrective fluxes.
DEVICE real corrected(const Job &job, long long at) {
    real outflow = 0;
#pragma unroll
    for (int a = 0; a < AXES; ++a)
        outflow += limited_flux(job, a, at + step_along(job, a)) - limited_flux(job, a, at);
    return load(job.psi + at) - outflow / density_at(job, at);
}

KERNEL(donor_cell_pass, CELL_THREADS) {
    each_cell(job, [&](int x, int y, int z) {
        job.out[offset(job, x, y, z)] =
            filled(job, x, y, z, [&](long long at) { return donor_cell(job, job.before, at); });
    });
}

// The job's cells have one more along each axis, for its last face.
KERNEL(pseudo_velocities, CELL_THREADS) {
    each_cell(job, [&](int x, int y, int z) {
        const bool in_x = x < job.first[0] + job.count[0] - 1;
        const bool in_y = AXES < 2 || y < job.first[1] + job.count[1] - 1;
        const bool in_z = AXES < 3 || z < job.first[2] + job.count[2] - 1;
        const long long at = offset(job, x, y, z);
        if (in_y && in_z) job.v[0][at] = velocity<0>(job, at);
        if (AXES > 1 && in_x && in_z) job.v[1][at] = velocity<1 % AXES>(job, at);
        if (AXES > 2 && in_x && in_y) job.v[2][at] = velocity<2 % AXES>(job, at);
    });
}

KERNEL(limiter_betas, CELL_THREADS) {
    each_cell(job, [&](int x, int y, int z) {
        const long long at = offset(job, x, y, z);
        const real here = load(job.psi + at);
        Balance cell = {here, here, 0, 0};
        cell.bound(load(job.before + at));
#pragma unroll
        for (int a = 0; a < AXES; ++a) {
            const long long s = step_along(job, a);
            cell.bound(load(job.before + at + s));
            cell.bound(load(job.before + at - s));
            cell.bound(load(job.psi + at + s));
            cell.bound(load(job.psi + at - s));
            cell.flow(flux_through(job, a, at), flux_through(job, a, at + s));
        }
        const real density = density_at(job, at);
        job.up[at] = cell.up(here, density);
        job.down[at] = cell.down(here, density);
    });
}

// A further pass takes the limited velocities for its flow; it asks for those of the job's cells.
KERNEL(limited_update, CELL_THREADS) {
    each_cell(job, [&](int x, int y, int z) {
        const long long here = offset(job, x, y, z);
        job.out[here] =
            filled(job, x, y, z, [&](long long at) { return corrected(job, at); });
        if (!LIMITED || job.kept[0] == nullptr) return;
#pragma unroll
        for (int a = 0; a < AXES; ++a)
            job.kept[a][here] =
                load(job.v[a] + here) * share_of(job, a, here, flux_through(job, a, here));
    });
}
