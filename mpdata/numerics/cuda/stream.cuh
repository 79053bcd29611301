// Two passes with less memory traffic: a block streams along z, and all in between stays on chip.
//
// A block owns TILE_X x TILE_Y columns, one a thread; the outer REACH columns on each side serve
// their neighbours only (where tiles overlap, extrema, velocities and betas are recomputed).
// Plane after plane arrives; what a plane needs of those below it is carried in registers, what a
// column needs of those beside it passes through shared memory. Traffic per cell and step: 6 items
// (psi, three face values, h, out).
//
// Instructions limit the speed, not memory: on an NVIDIA H200 (2048 x 1024 x 64 cells, two passes,
// limiter, density; `scripts/gpu`) this kernel moves 16 % of what a copy moves in float64 and 18 % in
// float32. A variant with four barriers a plane and 80 bytes of spilled registers issued an
// instruction in 39 % of the slots (Nsight Compute; float64) and took 1.2 times as long. Hence:
// - two barriers a plane, so that warps wait less for each other;
// - sums that several faces share are computed once and carried, 1 / density passes by shared memory;
// - tiles that leave a thread registers: 512 threads in float64 (32 bytes spilled), 640 in float32.
#pragma once

#if AXES == 3

// Threads of a block, and the blocks that should fit on a multiprocessor: bounds for the registers.
#define TILE_THREADS TILE_X * TILE_Y, TILE_BLOCKS

constexpr int REACH = LIMITED ? 2 : 1;
// A row more below and above, so that the outer columns may look at neighbours that are not there;
// no cell that is written depends on what they compute from them.
constexpr int TILE_CELLS = TILE_X * (TILE_Y + 2);

// The columns around a thread's own: elements of shared memory.
struct Column {
    const real *at;
    DEVICE real operator()(int x, int y) const { return at[x + y * TILE_X]; }
};

// The same of one plane of an input array. The address of the tile's corner is the same for all
// threads; the column's distance from it, in bytes, fits in 32 bits.
struct Input {
    const real *corner;
    long long dy;
    unsigned column;
    DEVICE real operator()(int x, int y) const {
        return load((const real *)((const char *)(corner + y * dy) + column) + x);
    }
    DEVICE real operator()() const { return (*this)(0, 0); }
    DEVICE Input moved(long long by) const { return {corner + by, dy, column}; }
};

// psi* at a cell outside the domain: rare, and kept out of the way of the registers.
COLD real psi_beyond(const Job &job, int x, int y, int z) {
    return filled(job, x, y, z,
                  [&](long long at) { return donor_cell(job, job.before, at); });
}

// Sum and difference of the flow through two faces along another axis, below and above.
struct Faces {
    real total, divergence;
};
DEVICE Faces faces(real below, real above) { return {below + above, above - below}; }

// One plane of a column, as far as the planes around it need it.
struct Plane {
    real high, low;     // of psi before the step and of psi*, over the cell and its six neighbours
    real star;          // psi after the donor-cell pass
    real sum_x, sum_y;  // star and that of the column to the west, to the south
    real cx, cx_east, cy, cy_north, cz;
    real cz_sum_x, cz_sum_y;  // cz and that of the column to the west, to the south
    real r;                   // 1 / density
    real flux_x, flux_y, flux_z;  // through the lower faces
    real up, down;                // betas
    real limited_x, limited_y, limited_z;  // limited fluxes
};

KERNEL(fused_step, TILE_THREADS) {
    // Shared memory is written between one barrier and the next, and read only after that one: star,
    // inverse and beta before the first barrier of a round, side and limited before the second. So
    // two barriers a plane suffice. Of star and inverse two planes are read, hence two are kept.
    __shared__ real star[2][TILE_CELLS], inverse[UNIT_DENSITY ? 1 : 2][TILE_CELLS];
    __shared__ real beta[2][TILE_CELLS], side[2][TILE_CELLS], limited[2][TILE_CELLS];
    const int tx = threadIdx.x, ty = threadIdx.y, here = (ty + 1) * TILE_X + tx;
    const int corner_x = job.first[0] + blockIdx.x * (TILE_X - 2 * REACH) - REACH;
    const int corner_y = job.first[1] + blockIdx.y * (TILE_Y - 2 * REACH) - REACH;
    const int end_x = job.first[0] + job.count[0], end_y = job.first[1] + job.count[1];
    const int end_z = job.first[2] + job.count[2];
    const int z0 = job.first[2] + blockIdx.z * job.chunk;
    const int z1 = z0 + job.chunk < end_z ? z0 + job.chunk : end_z;
    const bool writes = tx >= REACH && tx < TILE_X - REACH && ty >= REACH && ty < TILE_Y - REACH &&
                        corner_x + tx < end_x && corner_y + ty < end_y;
    // Of the outer rows no fluxes and no betas are needed: whole warps where tiles are as wide.
    const bool flows = ty >= 1, balances = ty >= 1 && ty < TILE_Y - 1;
    // Columns past the last one that is needed repeat it, so that none reads outside the arrays.
    const int x = corner_x + tx < end_x + REACH ? corner_x + tx : end_x + REACH - 1;
    const int y = corner_y + ty < end_y + REACH ? corner_y + ty : end_y + REACH - 1;
    const bool aside = x < job.low[0] || x > job.high[0] || y < job.low[1] || y > job.high[1];

    const long long dy = job.stride[1], dz = job.stride[2];
    const unsigned column =
        ((x - corner_x) + (y - corner_y) * (unsigned)dy) * (unsigned)sizeof(real);
    const long long first = offset(job, corner_x, corner_y, z0 - REACH);
    Input psi = {job.before + first, dy, column}, h = {job.h + first, dy, column};
    Input c0 = {job.c[0] + first, dy, column}, c1 = {job.c[1] + first, dy, column};
    Input c2 = {job.c[2] + first, dy, column};
    const auto density = [&] { return UNIT_DENSITY ? real(1) : h(); };
    // The plane that is done while plane z is the newest.
    real *done = job.out + first - (LIMITED ? 3 : 2) * dz;
    const auto write = [&](real value) { *(real *)((char *)done + column) = value; };

    // Loads are issued a plane ahead. q is the newest plane; k, j, i are one, two, three below it.
    Plane k = {}, j = {}, i = {};
    real psi_k = psi.moved(-dz)(), psi_q = psi(), psi_above = psi.moved(dz)();
    real cz_q = c2(), cz_above = c2.moved(dz)();
    real cx_q = c0(), cy_q = c1(), density_q = density();

    // Unrolled, the loop needs more registers than there are.
#pragma unroll 1
    for (int z = z0 - REACH; z <= z1 + REACH; ++z) {
        // Of the newest plane psi*, and the extrema of psi.
        Plane q;
        {
            const real west = psi(-1, 0), east = psi(1, 0), south = psi(0, -1), north = psi(0, 1);
            q.cx = cx_q, q.cx_east = c0(1, 0);
            q.cy = cy_q, q.cy_north = c1(0, 1);
            q.cz = cz_q;
            q.r = UNIT_DENSITY ? real(1) : real(1) / density_q;
            if (!UNIT_DENSITY) inverse[z & 1][here] = q.r;
            if (aside || z < job.low[2] || z > job.high[2]) {
                q.star = psi_beyond(job, x, y, z);
            } else {
                real net = donor_cell_outflow(0, west, psi_q, east, q.cx, q.cx_east);
                net = donor_cell_outflow(net, south, psi_q, north, q.cy, q.cy_north);
                net = donor_cell_outflow(net, psi_k, psi_q, psi_above, q.cz, cz_above);
                q.star = updated(psi_q, net, q.r);
            }
            star[z & 1][here] = q.star;
            if (LIMITED) {
                Balance around = {psi_q, psi_q, 0, 0};
                around.bound(west), around.bound(east), around.bound(south), around.bound(north);
                around.bound(psi_k), around.bound(psi_above), around.bound(q.star);
                q.high = around.high, q.low = around.low;
            }
        }
        const Input c0_k = c0.moved(-dz), c1_k = c1.moved(-dz), c2_q = c2;
        // Past the last plane nothing is needed: it is loaded again.
        const long long on = z + 1 < z1 + REACH ? dz : 0;
        psi = psi.moved(on), c0 = c0.moved(on), c1 = c1.moved(on), c2 = c2.moved(on);
        if (!UNIT_DENSITY) h = h.moved(on);
        const real cz_next = cz_above;
        psi_k = psi_q, psi_q = psi_above, psi_above = psi.moved(dz)();
        cz_above = c2.moved(dz)(), cx_q = c0(), cy_q = c1(), density_q = density();

        // Of plane j the betas, of plane i the outflow but that through the upper face; without
        // limiter, plane j is done.
        real net;
        if (LIMITED) {
            if (balances) {
                Balance cell = {j.high, j.low, 0, 0};
                cell.flow(j.flux_x, side[0][here + 1]);
                cell.flow(j.flux_y, side[1][here + TILE_X]);
                cell.flow(j.flux_z, k.flux_z);
                cell.betas(j.star, j.r, j.up, j.down);
                beta[0][here] = j.up, beta[1][here] = j.down;
            }
            net = outflow(0, i.limited_x, limited[0][here + 1]);
            net = outflow(net, i.limited_y, limited[1][here + TILE_X]) - i.limited_z;
        } else if (writes && z > z0 + 1) {
            net = outflow(0, j.flux_x, side[0][here + 1]);
            net = outflow(net, j.flux_y, side[1][here + TILE_X]);
            write(updated(j.star, outflow(net, j.flux_z, k.flux_z), j.r));
        }
        BARRIER();

        // Pseudo-velocities and their fluxes: plane k's lower x and y faces, the z face up to q.
        if (flows) {
            const Column sq = {star[z & 1] + here}, sk = {star[(z + 1) & 1] + here};
            const real q_west = sq(-1, 0), q_east = sq(1, 0), q_south = sq(0, -1), q_north = sq(0, 1);
            const real west = sk(-1, 0), east = sk(1, 0), south = sk(0, -1), north = sk(0, 1);
            const real corner = sk(-1, -1);
            q.sum_x = q_west + q.star, q.sum_y = q_south + q.star;
            q.cz_sum_x = c2_q(-1, 0) + q.cz, q.cz_sum_y = c2_q(0, -1) + q.cz;
            if (LIMITED) {
                Balance cell = {k.high, k.low, 0, 0};
                cell.bound(west), cell.bound(east), cell.bound(south), cell.bound(north);
                cell.bound(j.star), cell.bound(q.star);
                k.high = cell.high, k.low = cell.low;
            }
            const auto r = [&](int dx, int by) {
                return UNIT_DENSITY ? real(1) : inverse[(z + 1) & 1][here + dx + by * TILE_X];
            };

            Density at_face = density_at_face(r(-1, 0), k.r);
            Faces y_faces = faces(c1_k(-1, 0) + k.cy, c1_k(-1, 1) + k.cy_north);
            Faces z_faces = faces(k.cz_sum_x, q.cz_sum_x);
            Cross e = {y_faces.total, y_faces.divergence, corner + south, sk(-1, 1) + north, 0, 0};
            Cross f = {z_faces.total, z_faces.divergence, j.sum_x, q.sum_x, 0, 0};
            real v = basic_velocity<2>(k.cx, at_face, west, k.star, e, f);
            if (DIVERGENT)
                v = divergent_flow<2>(v, k.cx, at_face, west, k.star, c0_k(-1, 0), k.cx_east, e, f);
            k.flux_x = advective_flux(west, k.star, v);

            at_face = density_at_face(r(0, -1), k.r);
            Faces x_faces = faces(c0_k(0, -1) + k.cx, c0_k(1, -1) + k.cx_east);
            z_faces = faces(k.cz_sum_y, q.cz_sum_y);
            e = {x_faces.total, x_faces.divergence, corner + west, sk(1, -1) + east, 0, 0};
            f = {z_faces.total, z_faces.divergence, j.sum_y, q.sum_y, 0, 0};
            v = basic_velocity<2>(k.cy, at_face, south, k.star, e, f);
            if (DIVERGENT)
                v = divergent_flow<2>(v, k.cy, at_face, south, k.star, c1_k(0, -1), k.cy_north, e, f);
            k.flux_y = advective_flux(south, k.star, v);

            at_face = density_at_face(k.r, q.r);
            x_faces = faces(k.cx + q.cx, k.cx_east + q.cx_east);
            y_faces = faces(k.cy + q.cy, k.cy_north + q.cy_north);
            e = {x_faces.total, x_faces.divergence, west + q_west, east + q_east, 0, 0};
            f = {y_faces.total, y_faces.divergence, south + q_south, north + q_north, 0, 0};
            v = basic_velocity<2>(q.cz, at_face, k.star, q.star, e, f);
            if (DIVERGENT)
                v = divergent_flow<2>(v, q.cz, at_face, k.star, q.star, k.cz, cz_next, e, f);
            q.flux_z = advective_flux(k.star, q.star, v);
            side[0][here] = k.flux_x, side[1][here] = k.flux_y;
        }

        // The limited fluxes of plane j; then plane i is done.
        if (LIMITED) {
            if (balances) {
                const Column up = {beta[0] + here}, down = {beta[1] + here};
                const auto limit = [&](real flux, real up_left, real down_left) {
                    return flux * allowed(flux, up_left, down_left, j.up, j.down);
                };
                j.limited_x = limit(j.flux_x, up(-1, 0), down(-1, 0));
                j.limited_y = limit(j.flux_y, up(0, -1), down(0, -1));
                j.limited_z = limit(j.flux_z, i.up, i.down);
                limited[0][here] = j.limited_x, limited[1][here] = j.limited_y;
            }
            if (writes && z > z0 + 2) write(updated(i.star, net + j.limited_z, i.r));
        }
        BARRIER();
        cz_q = cz_next;
        done += dz;
        i = j, j = k, k = q;
    }
}

#endif
