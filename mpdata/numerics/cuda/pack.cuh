// Halo messages: one box of cells from one array into another, such as a contiguous buffer.
#pragma once

// Axes here are in the order of the job's strides, the box' first cell at the pointers.
KERNEL(copy_box, CELL_THREADS) {
    each_cell(job, [&](int x, int y, int z) {
        const long long from = x * job.stride[0] + y * job.stride[1] + z * job.stride[2];
        const long long to = x * job.out_stride[0] + y * job.out_stride[1] + z * job.out_stride[2];
        job.out[to] = load(job.psi + from);
    });
}
