// The few things of CUDA that the kernels use, on the host: for checking their arithmetic.
//
// Every thread of a block is a fibre that runs until the next barrier; then the others do. They
// take turns upwards or downwards; an answer that depends on which has a barrier missing.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <functional>
#include <vector>

using std::fabs;
using std::fma;

struct Dim {
    int x, y, z;
};
static Dim threadIdx, blockIdx, blockDim, gridDim;

namespace host {

struct Fibre {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(128 << 10);
    Dim thread;
    bool ended;
};
static std::vector<Fibre> fibres;
static ucontext_t scheduler;
static Fibre *running;
static std::function<void()> work;

static void enter() {
    work();
    running->ended = true;
    swapcontext(&running->context, &scheduler);
}

static void barrier() { swapcontext(&running->context, &scheduler); }

static void start(Fibre &fibre, int number) {
    fibre.thread = {number % blockDim.x, number / blockDim.x % blockDim.y,
                    number / (blockDim.x * blockDim.y)};
    fibre.ended = false;
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack.data();
    fibre.context.uc_stack.ss_size = fibre.stack.size();
    fibre.context.uc_link = nullptr;
    makecontext(&fibre.context, enter, 0);
}

// Runs one block, its threads upwards or downwards between barriers.
static void run_block(bool downwards) {
    const int threads = blockDim.x * blockDim.y * blockDim.z;
    if ((int)fibres.size() < threads) fibres.resize(threads);
    for (int n = 0; n < threads; ++n) start(fibres[n], n);
    for (bool more = true; more;) {
        more = false;
        for (int n = 0; n < threads; ++n) {
            Fibre &fibre = fibres[downwards ? threads - 1 - n : n];
            if (fibre.ended) continue;
            running = &fibre;
            threadIdx = fibre.thread;
            swapcontext(&scheduler, &fibre.context);
            more = more || !fibre.ended;
        }
    }
}

static void run_grid(const int *grid, const int *block, bool downwards) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (int z = 0; z < grid[2]; ++z)
        for (int y = 0; y < grid[1]; ++y)
            for (int x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                run_block(downwards);
            }
}

}  // namespace host

#define DEVICE inline
#define COLD static
#define __shared__ static
#define BARRIER() host::barrier()
#define KERNEL(name, ...)                                                                     \
    static void name##_thread(const Job &job);                                               \
    extern "C" void name(const Job *job, const int *grid, const int *block, int downwards) { \
        host::work = [job] { name##_thread(*job); };                                         \
        host::run_grid(grid, block, downwards != 0);                                         \
    }                                                                                        \
    static void name##_thread(const Job &job)
