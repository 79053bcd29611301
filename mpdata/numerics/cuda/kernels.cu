// The translation unit: the same source for NVRTC, for nvcc, and for the host's compiler (tests).
#ifdef ON_HOST
#include "host.hpp"
#else
#define DEVICE __device__ __forceinline__
#define COLD __device__ __noinline__
#define KERNEL(name, ...) \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name(const __grid_constant__ Job job)
#define BARRIER() __syncthreads()
#endif

#include "job.cuh"
#include "formulas.cuh"
#include "four.cuh"
#include "stream.cuh"

#ifdef ON_HOST
extern "C" int job_bytes() { return (int)sizeof(Job); }
#endif
