"""Computations with kernels for one core, all cores and a GPU: python jobs/kernels.py NAME

matmul   product of two matrices, 1024 x 1024, single precision (rows block by block)
add      sum of two matrices, 1024 x 1024, single precision (rows block by block)
cg       conjugate gradients, a 27-point Poisson matrix on 50^3 points, to a residual of 1e-6
heat     a plate with a hot edge, 1024 x 1024, 200 steps (Jacobi)
hashes   the least of 2^24 hashes
mpdata   50 steps of mpdata's case sphere, 59^3 cells

All but the last are those of Süß et al. (VarySched, sections 4.5 and 6.2). --instances says how
many run side by side, --size how large they are. Each leaves in its data how far it is, and may be
moved after every step.
"""

import argparse
import asyncio
import statistics
import time

import numba
import numpy as np

from rms.kernels import Affinity, Kernel, KernelCollection, Resource, place

ONE = {"nogil": True, "cache": True, "fastmath": True}
ALL = {**ONE, "parallel": True}

# --- kernels for one core and for all of them: the same loops, compiled twice ----------------


def multiply(a, b, c, first, last):
    for i in numba.prange(first, last):
        for k in range(a.shape[1]):
            for j in range(b.shape[1]):
                c[i, j] += a[i, k] * b[k, j]


def plus(a, b, c, first, last):
    for i in numba.prange(first, last):
        for j in range(a.shape[1]):
            c[i, j] = a[i, j] + b[i, j]


def jacobi(old, new):
    for i in numba.prange(1, old.shape[0] - 1):
        for j in range(1, old.shape[1] - 1):
            new[i, j] = 0.25 * (old[i - 1, j] + old[i + 1, j] + old[i, j - 1] + old[i, j + 1])


def poisson(x, y):
    for i in numba.prange(1, x.shape[0] - 1):
        for j in range(1, x.shape[1] - 1):
            for k in range(1, x.shape[2] - 1):
                around = 0.0
                for di in range(-1, 2):
                    for dj in range(-1, 2):
                        for dk in range(-1, 2):
                            around += x[i + di, j + dj, k + dk]
                y[i, j, k] = 27.0 * x[i, j, k] - around


def hashed(first, found):
    """Fill in hashes (splitmix64) of consecutive numbers."""
    for n in numba.prange(found.size):
        z = np.uint64(first + n) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found[n] = z ^ (z >> np.uint64(31))


CPU = {each.__name__: each for each in (multiply, plus, jacobi, poisson, hashed)}
COMPILED = {
    Resource.CORE: {name: numba.njit(**ONE)(each) for name, each in CPU.items()},
    Resource.CORES: {name: numba.njit(**ALL)(each) for name, each in CPU.items()},
}

# --- and for a GPU, by CuPy's arrays -------------------------------------------------------------


def multiply_gpu(a, b, c, first, last):
    c[first:last] = a[first:last] @ b


def plus_gpu(a, b, c, first, last):
    c[first:last] = a[first:last] + b[first:last]


def jacobi_gpu(old, new):
    new[1:-1, 1:-1] = 0.25 * (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:])


def poisson_gpu(x, y):
    around = x[:-2] + x[1:-1] + x[2:]
    around = around[:, :-2] + around[:, 1:-1] + around[:, 2:]
    around = around[:, :, :-2] + around[:, :, 1:-1] + around[:, :, 2:]
    y[1:-1, 1:-1, 1:-1] = 27.0 * x[1:-1, 1:-1, 1:-1] - around


def hashed_gpu(first, found):
    import cupy

    z = (cupy.arange(found.size, dtype=np.uint64) + np.uint64(first)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found[:] = z ^ (z >> np.uint64(31))


GPU = (multiply_gpu, plus_gpu, jacobi_gpu, poisson_gpu, hashed_gpu)
COMPILED[Resource.GPU] = {each.__name__.removesuffix("_gpu"): each for each in GPU}


def mine(name):
    """Return the kernel for where this thread runs, on as many threads as that has cores."""
    where = place()
    if where.resource is Resource.CORES and where.cpus:
        numba.set_num_threads(min(len(where.cpus), numba.config.NUMBA_NUM_THREADS))
    return COMPILED[where.resource][name]


# --- the computations: steps on data, which know where they are ----------------------------------

BLOCK = 64


def matmul(data):
    yield from rows(data, mine("multiply"))


def add(data):
    yield from rows(data, mine("plus"))


def rows(data, kernel):
    while data["at"] < len(data["a"]):
        last = min(data["at"] + BLOCK, len(data["a"]))
        kernel(data["a"], data["b"], data["c"], data["at"], last)
        data["at"] = last
        yield


def heat(data):
    kernel = mine("jacobi")
    while data["at"] < 200:
        kernel(data["old"], data["new"])
        data["old"], data["new"] = data["new"], data["old"]
        data["at"] += 1
        yield


def cg(data):
    kernel = mine("poisson")
    x, r, p, ap = data["x"], data["r"], data["p"], data["ap"]
    while data["rr"] > data["least"]:
        kernel(p, ap)
        step = data["rr"] / float((p * ap).sum())
        x += step * p
        r -= step * ap
        rr = float((r * r).sum())
        p *= rr / data["rr"]
        p += r
        data["rr"] = rr
        data["at"] += 1
        yield


def hashes(data):
    kernel = mine("hashed")
    while data["at"] < data["most"]:
        kernel(data["at"], data["found"])
        data["best"] = min(data["best"], int(data["found"].min()))
        data["at"] += data["found"].size
        yield


def mpdata(data):
    from mpdata.cases import Request, make_setup
    from mpdata.solver import Solver

    where, size = place(), data["size"]
    setup = make_setup("sphere", Request(grid=(size, size, size)))
    backend = "cupy" if where.resource is Resource.GPU else "numba"
    solver = Solver(setup, backend=backend, threads=max(1, len(where.cpus)))
    if data["at"]:
        solver.resume(data["psi"], data["at"])
    try:
        while solver.step < data["steps"]:
            solver.advance(1)
            yield
    finally:  # also where it is stopped at a yield
        data["psi"], data["at"] = solver.psi.copy(), solver.step


def data_of(name, size=None, seed=0):
    rng = np.random.default_rng(seed)
    if name in ("matmul", "add"):
        a, b = rng.random((2, size or 1024, size or 1024), dtype="f4")
        return {"a": a, "b": b, "c": np.zeros_like(a), "at": 0}
    if name == "heat":
        plate = np.zeros((size or 1024, size or 1024), "f4")
        plate[0] = 100.0
        return {"old": plate, "new": plate.copy(), "at": 0}
    if name == "cg":
        x, r = np.zeros((2, *[(size or 50) + 2] * 3))
        r[1:-1, 1:-1, 1:-1] = rng.random([size or 50] * 3)
        rr = float((r * r).sum())
        more = {"p": r.copy(), "ap": np.zeros_like(r), "rr": rr, "least": 1e-12 * rr}
        return {"x": x, "r": r, **more, "at": 0}
    if name == "mpdata":
        return {"psi": None, "size": size or 59, "steps": 50, "at": 0}
    found = np.zeros(1 << 18, "u8")
    return {
        "found": found,
        "best": 1 << 64,
        "most": (seed << 32) + (size or 1 << 24),
        "at": seed << 32,
    }


WORK = {"matmul": matmul, "add": add, "cg": cg, "heat": heat, "hashes": hashes, "mpdata": mpdata}


def collection(name, data, kinds=tuple(Resource)):
    """Return a computation on its data, with its kernels of these kinds; it notes its run time."""

    def kernel(data):
        begun = time.perf_counter()
        yield from WORK[name](data)
        data["seconds"] = time.perf_counter() - begun

    itself = (lambda data: data) if name == "mpdata" else None  # its solver moves its field
    every = (
        Kernel(kernel, Resource.GPU, copy_in=itself),
        Kernel(kernel, Resource.CORES, Affinity.MED, malleable=name != "mpdata"),
        Kernel(kernel, Resource.CORE, Affinity.LOW),
    )
    return KernelCollection(data, *(each for each in every if each.resource in kinds), name=name)


async def all_of(name, instances, size):
    """Run so many at once; return the makespan and each one's seconds on its last device."""
    every = [data_of(name, size, seed) for seed in range(instances)]
    begun = time.perf_counter()
    await asyncio.gather(*(collection(name, data).run_async() for data in every))
    return time.perf_counter() - begun, [data["seconds"] for data in every]


def main():
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    words.add_argument("name", choices=WORK)
    words.add_argument("--instances", type=int, default=1)
    words.add_argument("--size", type=int)
    options = words.parse_args()
    makespan_s, seconds = asyncio.run(all_of(options.name, options.instances, options.size))
    print(f"makespan {makespan_s:.2f} s, median {statistics.median(seconds):.3f} s")


if __name__ == "__main__":
    main()
