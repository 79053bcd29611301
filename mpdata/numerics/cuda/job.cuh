// What one launch works on, and how psi is looked up beyond the edges of the domain.
//
// Axes here are those of memory: 0 (x) contiguous, 1 (y), 2 (z) slowest. Pointers are to the first
// interior cell, so coordinates of the halo are negative. Options are macros: REAL, EPSILON, AXES,
// FILL_0 to FILL_2 (the grid's axes in their own order), LIMITER, GAUGE, THIRD_ORDER, DIVERGENT,
// UNIT_DENSITY, CELL_THREADS, TILE_X, TILE_Y, TILE_BLOCKS.
#pragma once

typedef REAL real;

constexpr bool LIMITED = LIMITER;
constexpr bool INFINITE_GAUGE = GAUGE;

// Mirrored field by field in job.py.
struct Job {
    const real *before;  // psi before the step, its halo filled
    const real *psi;     // what this pass starts from
    real *out;
    const real *h;
    const real *c[3];    // face values normal to each axis
    real *v[3];          // pseudo-velocities
    real *kept[3];       // limited ones, for a further pass (or null)
    real *up, *down;     // the betas
    long long stride[3];      // of all arrays
    int first[3], count[3];   // the cells that are wanted
    int low[3], high[3];      // first and last cell of the domain, far away where it is not cut
    int fixed[3][2];          // whether psi below and above is `value`, or else the nearest cell's
    real value[3][2];
    int chunk;                // planes that a streaming block works on
    int extra;                // whether THIRD_ORDER and DIVERGENT terms are due (first pass only)
};

// All inputs of a kernel are left alone while it runs, so they may come by the read-only cache.
DEVICE real load(const real *address) {
#ifdef ON_HOST
    return *address;
#else
    return __ldg(address);
#endif
}

// By comparing, as NumPy and Numba do: of two zeros the second.
DEVICE real largest(real a, real b) { return a > b ? a : b; }
DEVICE real least(real a, real b) { return a < b ? a : b; }

DEVICE long long offset(const Job &job, int x, int y, int z) {
    return x + y * job.stride[1] + z * job.stride[2];
}

// 1 / density of a cell.
DEVICE real inverse_density(const Job &job, long long at) {
    return UNIT_DENSITY ? real(1) : real(1) / load(job.h + at);
}

// Whether psi of a cell is set by the boundary and not by the scheme.
DEVICE bool beyond(const Job &job, int x, int y, int z) {
    bool is = x < job.low[0] || x > job.high[0];
    if (AXES > 1) is = is || y < job.low[1] || y > job.high[1];
    if (AXES > 2) is = is || z < job.low[2] || z > job.high[2];
    return is;
}

// psi of a cell after the edges have been filled: `value` of the nearest cell of the domain, unless
// an axis along which the cell lies outside has a fixed one. The reference fills axis by axis from
// the last to the first, each over the one before, so the first axis with a fixed value wins.
template <class Value>
DEVICE real filled(const Job &job, int x, int y, int z, Value value) {
    int at[3] = {x, y, z};
    constexpr int order[3] = {FILL_0, FILL_1, FILL_2};
#pragma unroll
    for (int n = 0; n < AXES; ++n) {
        const int axis = order[n];
        const bool below = at[axis] < job.low[axis], above = at[axis] > job.high[axis];
        if (below || above) {
            if (job.fixed[axis][above]) return job.value[axis][above];
            at[axis] = below ? job.low[axis] : job.high[axis];
        }
    }
    return value(offset(job, at[0], at[1], at[2]));
}

// Calls body(x, y, z) for every cell of the job, spread over all threads.
template <class Body>
DEVICE void each_cell(const Job &job, Body body) {
    for (int z = blockIdx.z * blockDim.z + threadIdx.z; z < job.count[2];
         z += gridDim.z * blockDim.z)
        for (int y = blockIdx.y * blockDim.y + threadIdx.y; y < job.count[1];
             y += gridDim.y * blockDim.y)
            for (int x = blockIdx.x * blockDim.x + threadIdx.x; x < job.count[0];
                 x += gridDim.x * blockDim.x)
                body(job.first[0] + x, job.first[1] + y, job.first[2] + z);
}
