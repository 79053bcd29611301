"""Speed of the CUDA kernels on the GPU in use, and the search for the best tiles there."""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from mpdata.grid import Geometry, fill_halo
from mpdata.numerics.cuda.device import CupyLauncher, CupyStepper
from mpdata.numerics.cuda.job import macros
from mpdata.numerics.cuda.memory import allocator
from mpdata.numerics.cuda.tuning import best, candidates, keep, key_of
from mpdata.options import Scheme, parse_boundaries

SCHEME = Scheme(2)
KERNELS = {
    "four": ("donor_cell_pass", "pseudo_velocities", "limiter_betas", "limited_update"),
    "fused": ("fused_step",),
}
ITEMS = {"four": 30, "fused": 6}
"""Items a step moves for each cell if every kernel reads and writes each of its arrays once."""

COPY_BYTES = 4 << 30


class Block(NamedTuple):
    """One block with all that a step needs; the halo of psi is filled."""

    geo: Geometry
    psi: Any
    h: Any
    C: list
    allocate: Any


def seconds_of(cupy, work, repeats, rounds=3):
    """Return the device's time of one call, the least of some rounds."""
    work()
    seconds = []
    for _ in range(rounds):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(repeats):
            work()
        stop.record()
        stop.synchronize()
        seconds.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3 / repeats)
    return float(min(seconds))


def copy_gb_s(cupy):
    """Return the rate of a copy within the device; reads and writes count."""
    free = cupy.cuda.Device().mem_info[0]
    a, b = (cupy.zeros(min(COPY_BYTES, free // 4), cupy.uint8) for _ in range(2))
    return 2 * int(a.nbytes) / seconds_of(cupy, lambda: cupy.copyto(b, a), 10) / 1e9


def rough_block(cupy, grid, dtype):
    """Return a rough psi in a steady flow on a periodic grid, with a constant density."""
    geo = Geometry(grid, (0, 0, 0), grid, SCHEME.halo, parse_boundaries("periodic"))
    allocate = allocator(cupy, geo, dtype)
    psi, h, C = allocate(), allocate(), [allocate() for _ in range(3)]
    cupy.random.seed(1)
    for plane in range(geo.shape[0]):
        psi[plane] = 0.5 + cupy.random.random(geo.shape[1:], dtype=cupy.float32)
    h[...] = 1.1
    for array, speed in zip(C, (0.3, -0.25, 0.2), strict=True):
        array[...] = speed
    fill_halo(psi, geo)
    return Block(geo, psi, h, C, allocate)


def stepper_on(block, variant, **options):
    """Return a stepper on a block; options are those of CupyStepper."""
    return CupyStepper(block.geo, SCHEME, block.h, block.allocate, variant, **options)


def step_seconds(cupy, block, out, stepper, repeats=10, rounds=3):
    """Return the time of one step, without the halo."""
    return seconds_of(cupy, lambda: stepper.advance(block.psi, out, block.C), repeats, rounds)


def measure(cupy, grid, copy, tuned):
    """Yield each variant's speed in each precision, beside its limit at ``copy`` GB/s."""
    for dtype, size in (("f8", 8), ("f4", 4)):
        block = rough_block(cupy, grid, dtype)
        out = block.allocate()
        for variant, items in ITEMS.items():
            for graphs in (False, True)[: len(KERNELS[variant])]:
                stepper = stepper_on(block, variant, tuned=tuned, graphs=graphs)
                seconds = step_seconds(cupy, block, out, stepper)
                rate = grid[0] * grid[1] * grid[2] / seconds / 1e9
                moved = rate * items * size
                yield {
                    "variant": variant,
                    "dtype": dtype,
                    "graphs": graphs,
                    "tile": asdict(stepper.tile),
                    "seconds": seconds,
                    "gcells_s": rate,
                    "gb_s": moved,
                    "limit_gcells_s": copy / (items * size),
                    "of_limit": moved / copy,
                    "kernels": {k: stepper.launcher.attributes(k) for k in KERNELS[variant]},
                }
                del stepper
        del block, out
        cupy.get_default_memory_pool().free_all_blocks()


def refusal(dtype, tile):
    """Compile the kernels for a tile, which CuPy keeps on disk; return the error, or None."""
    try:
        CupyLauncher(macros(SCHEME, np.dtype(dtype), (1, 2, 0), unit=False, tile=tile))
    except Exception as error:
        return f"{dtype} {tile}: {error}"
    return None


def tune(cupy, device, grid, tuned):
    """Try the tiles on a grid and keep the best for this device; yield names and figures."""
    pairs = [
        (dtype, tile)
        for dtype in ("f8", "f4")
        for tile in {replace(tile, chunk=0): tile for tile in candidates(dtype)}.values()
    ]
    os.environ["PYTHONSAFEPATH"] = "1"  # workers do not import from the working folder
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1), get_context("spawn")) as pool:
        refused = [error for error in pool.map(refusal, *zip(*pairs, strict=True)) if error]
    yield "compiled", {"tiles": len(pairs) - len(refused), "refused": refused}
    for dtype in ("f8", "f4"):
        block = rough_block(cupy, grid, dtype)
        out, tried = block.allocate(), {}

        def seconds(tile, block=block, out=out, tried=tried):
            """Return the time of one step; None where the device refuses the tile."""
            try:
                stepper = stepper_on(block, "fused", tile=tile)
                tried[str(tile)] = step_seconds(cupy, block, out, stepper, 3, 2)
            except Exception as error:
                tried[str(tile)] = f"{type(error).__name__}: {error}"
                return None
            return tried[str(tile)]

        tile, least_s = best(candidates(dtype), seconds)
        keep(tuned, key_of(device, SCHEME, dtype), tile)
        yield f"fused {dtype}", {"best": asdict(tile), "seconds": least_s, "tried": tried}
        del block, out, seconds
        cupy.get_default_memory_pool().free_all_blocks()
