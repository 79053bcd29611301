// Four kernels, to be read (an own split): donor cell, pseudo-velocities, betas, limited update.
//
// Each is one loop over cells; what one kernel leaves in memory the next one reads. They serve all
// options, any number of axes, and a third pass.
#pragma once

DEVICE long long step_along(const Job &job, int axis) { return axis == 0 ? 1 : job.stride[axis]; }

// psi after one donor-cell pass at the cell `at`.
DEVICE real donor_cell(const Job &job, const real *psi, long long at) {
    const real here = load(psi + at);
    real net = 0;
#pragma unroll
    for (int a = 0; a < AXES; ++a) {
        const long long s = step_along(job, a);
        net = donor_cell_outflow(net, load(psi + at - s), here, load(psi + at + s),
                                 load(job.c[a] + at), load(job.c[a] + at + s));
    }
    return updated(here, net, inverse_density(job, at));
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
        const real left_below = left(job.psi, -s), right_below = right(job.psi, -s);
        const real left_above = left(job.psi, s), right_above = right(job.psi, s);
        const real c_below = pair(job.c[e]), c_above = pair(job.c[e], s);
        return {c_below + c_above,        c_above - c_below,        left_below + right_below,
                left_above + right_above, right_above + left_below, left_above + right_below};
    }
};

// The pseudo-velocity through the lower face along A of the cell `at`.
template <int A>
DEVICE real velocity(const Job &job, long long at) {
    constexpr int E = A == 0 ? 1 : 0, F = A == 2 ? 1 : 2;
    const AtFace<A> face(job, at);
    const real *psi = job.psi;
    const real c = face.right(job.c[A]);
    const Density density =
        density_at_face(inverse_density(job, at - face.along), inverse_density(job, at));
    const real left = face.left(psi), right = face.right(psi);
    Cross e = {}, f = {};
    if (AXES > 1) e = face.cross(E);
    if (AXES > 2) f = face.cross(F);
    real v = basic_velocity<AXES - 1>(c, density, left, right, e, f);
    if (THIRD_ORDER && job.extra) {
        const real outer = face.left(psi, -face.along) + face.right(psi, face.along);
        real rising = 0, falling = 0;
        if (AXES > 2) {
            const long long se = step_along(job, E), sf = step_along(job, F);
            rising = face.pair(psi, se + sf) + face.pair(psi, -se - sf);
            falling = face.pair(psi, se - sf) + face.pair(psi, sf - se);
        }
        v = third_order<AXES - 1>(v, c, density, left, right, e, f, outer, rising, falling);
    }
    if (DIVERGENT && job.extra)
        v = divergent_flow<AXES - 1>(v, c, density, left, right, face.left(job.c[A]),
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
    return allowed(flux, load(job.up + at - s), load(job.down + at - s), load(job.up + at),
                   load(job.down + at));
}

DEVICE real limited_flux(const Job &job, int a, long long at) {
    const real flux = flux_through(job, a, at);
    return LIMITED ? flux * share_of(job, a, at, flux) : flux;
}

// psi after the corrective fluxes.
DEVICE real corrected(const Job &job, long long at) {
    real net = 0;
#pragma unroll
    for (int a = 0; a < AXES; ++a)
        net = outflow(net, limited_flux(job, a, at),
                      limited_flux(job, a, at + step_along(job, a)));
    return updated(load(job.psi + at), net, inverse_density(job, at));
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
        cell.betas(here, inverse_density(job, at), job.up[at], job.down[at]);
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
