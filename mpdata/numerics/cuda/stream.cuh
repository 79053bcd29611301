// Two passes with less memory traffic: a block streams along z, and all in between stays on chip.
//
// A block owns TILE_X x TILE_Y columns, one a thread; the outer REACH columns on each side serve
// their neighbours only (where tiles overlap, extrema, velocities and betas are recomputed).
// Plane after plane arrives; what a plane needs of the one below it is carried in registers, what
// a column needs of those beside it passes through shared memory. Traffic per cell and step: 6
// items (psi, three face values, h, out).
#pragma once

#if AXES == 3

// Threads of a block, and the blocks that should fit on a multiprocessor: bounds for the registers.
#define TILE_THREADS TILE_X * TILE_Y, TILE_BLOCKS

constexpr int REACH = LIMITED ? 2 : 1;
constexpr int PLANES_A_ROUND = TILE_UNROLL;  // a name, since macros in pragmas stay as they are
// A row more below and above, so that the outer columns may look at neighbours that are not there;
// what they make of them is used by nobody.
constexpr int TILE_CELLS = TILE_X * (TILE_Y + 2);

// The cells of one plane in reach of a column, of an array or of shared memory.
struct Column {
    const real *at;
    long long dy;
    DEVICE real operator()(int x, int y) const { return at[x + y * dy]; }
};

// The same of an input array.
struct Input {
    const real *at;
    long long dy;
    DEVICE real operator()(int x, int y) const { return load(at + x + y * dy); }
};

// psi* at a cell outside the domain: rare, and kept out of the way of the registers.
COLD real psi_beyond(const Job &job, int x, int y, int z) {
    return filled(job, x, y, z,
                  [&](long long at) { return donor_cell(job, job.before, at); });
}

// What arrives from memory for a column with each plane q: psi one plane ahead, as the donor cell's
// upper neighbour, and so the face above.
struct Arrival {
    real psi_above, cx, cy, cz_above, r;

    DEVICE void fetch(const Job &job, long long at) {
        const long long above = at + job.stride[2];
        psi_above = load(job.before + above);
        cx = load(job.c[0] + at);
        cy = load(job.c[1] + at);
        cz_above = load(job.c[2] + above);
        r = inverse_density(job, at);
    }
};

// One plane of a column, as far as the planes around it need it.
struct Plane {
    real psi;                 // before the step
    real high, low;           // of psi before the step, over the cell and its six neighbours
    real star;                // psi after the donor-cell pass
    real west, east, south, north;  // star of the columns beside it
    real cx, cx_east, cy, cy_north, cz, cz_west, cz_south;
    real r;                   // 1 / density
    real flux_z;              // through the lower face
    real up, down;            // betas
    real net;                 // outflow of limited fluxes, but that through the upper face
};

DEVICE real star_of(const Plane &q, const Arrival &in, real below, const Input &psi) {
    real net = donor_cell_outflow(0, psi(-1, 0), q.psi, psi(1, 0), q.cx, q.cx_east);
    net = donor_cell_outflow(net, psi(0, -1), q.psi, psi(0, 1), q.cy, q.cy_north);
    net = donor_cell_outflow(net, below, q.psi, in.psi_above, q.cz, in.cz_above);
    return updated(q.psi, net, q.r);
}

KERNEL(fused_step, TILE_THREADS) {
    __shared__ real star[2][TILE_CELLS], side[2][TILE_CELLS], beta[2][TILE_CELLS];
    const int tx = threadIdx.x, ty = threadIdx.y, here = (ty + 1) * TILE_X + tx;
    const int x = job.first[0] + blockIdx.x * (TILE_X - 2 * REACH) + tx - REACH;
    const int y = job.first[1] + blockIdx.y * (TILE_Y - 2 * REACH) + ty - REACH;
    const int end_x = job.first[0] + job.count[0], end_y = job.first[1] + job.count[1];
    const int z0 = job.first[2] + blockIdx.z * job.chunk;
    const int z1 = z0 + job.chunk < job.first[2] + job.count[2] ? z0 + job.chunk
                                                                : job.first[2] + job.count[2];
    const bool writes = tx >= REACH && tx < TILE_X - REACH && ty >= REACH && ty < TILE_Y - REACH &&
                        x < end_x && y < end_y;
    // Columns past the last one that is needed repeat it, so that none reads outside the arrays.
    const int column_x = x < end_x + REACH ? x : end_x + REACH - 1;
    const int column_y = y < end_y + REACH ? y : end_y + REACH - 1;

    const long long dy = job.stride[1], dz = job.stride[2];
    long long at = offset(job, column_x, column_y, z0 - REACH);
    Plane k = {}, j = {};  // the planes one and two below the newest
    Arrival in;
    in.fetch(job, at);
    real psi_here = load(job.before + at);
    real cz_here = load(job.c[2] + at);
    k.psi = load(job.before + at - dz);
    k.cz = load(job.c[2] + at - dz);

    // Unrolled, planes change their names and not their registers.
#pragma unroll PLANES_A_ROUND
    for (int z = z0 - REACH; z < z1 + REACH; ++z, at += dz) {
        // The newest plane: psi*, and the extrema of psi around the cell.
        Plane q;
        q.psi = psi_here, q.cx = in.cx, q.cy = in.cy, q.cz = cz_here, q.r = in.r;
        q.cx_east = load(job.c[0] + at + 1);
        q.cy_north = load(job.c[1] + at + dy);
        const Input psi = {job.before + at, dy};
        if (beyond(job, column_x, column_y, z))
            q.star = psi_beyond(job, column_x, column_y, z);
        else
            q.star = star_of(q, in, k.psi, psi);
        if (LIMITED) {
            Balance around = {q.psi, q.psi, 0, 0};
            around.bound(psi(-1, 0)), around.bound(psi(1, 0));
            around.bound(psi(0, -1)), around.bound(psi(0, 1));
            around.bound(k.psi), around.bound(in.psi_above);
            q.high = around.high, q.low = around.low;
        }
        psi_here = in.psi_above, cz_here = in.cz_above;
        if (z + 1 < z1 + REACH) in.fetch(job, at + dz);
        real *newest = star[z & 1], *older = star[(z + 1) & 1];
        newest[here] = q.star;
        BARRIER();

        // Pseudo-velocities and their fluxes: plane k's lower x and y faces, the z face up to q.
        const Column sq = {newest + here, TILE_X}, sk = {older + here, TILE_X};
        q.west = sq(-1, 0), q.east = sq(1, 0), q.south = sq(0, -1), q.north = sq(0, 1);
        const Input cz = {job.c[2] + at, dy};
        q.cz_west = cz(-1, 0), q.cz_south = cz(0, -1);
        const Input cx_k = {job.c[0] + at - dz, dy}, cy_k = {job.c[1] + at - dz, dy};
        Density density = density_at_face(inverse_density(job, at - dz - 1), k.r);
        Cross e = {cy_k(-1, 0) + k.cy, cy_k(-1, 1) + k.cy_north, sk(-1, -1), k.south, sk(-1, 1),
                   k.north};
        Cross f = {k.cz_west + k.cz, q.cz_west + q.cz, j.west, j.star, q.west, q.star};
        real v = basic_velocity<2>(k.cx, density, k.west, k.star, e, f);
        if (DIVERGENT)
            v = divergent_flow<2>(v, k.cx, density, k.west, k.star, cx_k(-1, 0), k.cx_east, e, f);
        const real flux_x = advective_flux(k.west, k.star, v);

        density = density_at_face(inverse_density(job, at - dz - dy), k.r);
        e = {cx_k(0, -1) + k.cx, cx_k(1, -1) + k.cx_east, sk(-1, -1), k.west, sk(1, -1), k.east};
        f = {k.cz_south + k.cz, q.cz_south + q.cz, j.south, j.star, q.south, q.star};
        v = basic_velocity<2>(k.cy, density, k.south, k.star, e, f);
        if (DIVERGENT)
            v = divergent_flow<2>(v, k.cy, density, k.south, k.star, cy_k(0, -1), k.cy_north, e, f);
        const real flux_y = advective_flux(k.south, k.star, v);

        density = density_at_face(k.r, q.r);
        e = {k.cx + q.cx, k.cx_east + q.cx_east, k.west, q.west, k.east, q.east};
        f = {k.cy + q.cy, k.cy_north + q.cy_north, k.south, q.south, k.north, q.north};
        v = basic_velocity<2>(q.cz, density, k.star, q.star, e, f);
        if (DIVERGENT)
            v = divergent_flow<2>(v, q.cz, density, k.star, q.star, k.cz, cz_here, e, f);
        q.flux_z = advective_flux(k.star, q.star, v);
        side[0][here] = flux_x, side[1][here] = flux_y;
        BARRIER();

        if (!LIMITED) {
            const Column sx = {side[0] + here, TILE_X}, sy = {side[1] + here, TILE_X};
            real net = outflow(outflow(0, flux_x, sx(1, 0)), flux_y, sy(0, 1));
            net = outflow(net, k.flux_z, q.flux_z);
            if (writes && z > z0 && z <= z1) job.out[at - dz] = updated(k.star, net, k.r);
            j = k, k = q;
            continue;
        }

        // The betas of plane k.
        Balance cell = {largest(k.high, k.star), least(k.low, k.star), 0, 0};
        cell.bound(k.west), cell.bound(k.east), cell.bound(k.south), cell.bound(k.north);
        cell.bound(j.star), cell.bound(q.star);
        cell.flow(flux_x, side[0][here + 1]);
        cell.flow(flux_y, side[1][here + TILE_X]);
        cell.flow(k.flux_z, q.flux_z);
        cell.betas(k.star, k.r, k.up, k.down);
        beta[0][here] = k.up, beta[1][here] = k.down;
        BARRIER();

        // The limited fluxes, side by side with those of the columns beyond; then plane j is done.
        const Column up = {beta[0] + here, TILE_X}, down = {beta[1] + here, TILE_X};
        const real limited_x = flux_x * allowed(flux_x, up(-1, 0), down(-1, 0), k.up, k.down);
        const real limited_y = flux_y * allowed(flux_y, up(0, -1), down(0, -1), k.up, k.down);
        const real limited_z = k.flux_z * allowed(k.flux_z, j.up, j.down, k.up, k.down);
        side[0][here] = limited_x, side[1][here] = limited_y;
        BARRIER();
        k.net = outflow(0, limited_x, side[0][here + 1]);
        k.net = outflow(k.net, limited_y, side[1][here + TILE_X]) - limited_z;
        if (writes && z > z0 + 1 && z <= z1 + 1)
            job.out[at - 2 * dz] = updated(j.star, j.net + limited_z, j.r);
        j = k, k = q;
    }
}

#endif
