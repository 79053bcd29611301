"""How fast each variant is on the GPU in use, and which tiles are best there (``scripts/gpu``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from mpdata.grid import Geometry, fill_halo
from mpdata.numerics.cuda.device import CupyLauncher, CupyStepper
from mpdata.numerics.cuda.job import GpuTile, macros
from mpdata.numerics.cuda.memory import allocator
from mpdata.numerics.cuda.stepper import Triple
from mpdata.numerics.cuda.tuning import TILES, best, keep, key_of
from mpdata.options import Scheme, parse_boundaries

Array = Any

PAPER: Triple = (2048, 1024, 64)
SCHEME = Scheme(2)
ITEMS = {"four": 30, "fused": 6}
"""Items a step moves for each cell if every kernel reads and writes each array once."""

KERNELS = {
    "four": ("donor_cell_pass", "pseudo_velocities", "limiter_betas", "limited_update"),
    "fused": ("fused_step",),
}
NOMINAL_GB_S = 3000.0
COPY_BYTES = 4 << 30


@dataclass(frozen=True)
class Block:
    """One block with all it needs for a step; psi's halo is filled."""

    geo: Geometry
    scheme: Scheme
    psi: Array
    h: Array
    C: list[Array]
    allocate: Callable[[], Array]

    @property
    def inside(self) -> Array:
        """The interior of psi."""
        return self.psi[self.geo.cells(0)]


def seconds_of(cupy: Any, work: Callable[[], object], repeats: int, rounds: int = 3) -> float:
    """Return the device's time of one call, the least of some rounds."""
    work()
    taken = []
    for _ in range(rounds):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(repeats):
            work()
        stop.record()
        stop.synchronize()
        taken.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3 / repeats)
    return float(min(taken))


def copy_gb_s(cupy: Any) -> float:
    """Return what a copy within the device moves, counting reads and writes."""
    free = cupy.cuda.Device().mem_info[0]
    a, b = (cupy.zeros(min(COPY_BYTES, free // 4), cupy.uint8) for _ in range(2))
    return 2 * int(a.nbytes) / seconds_of(cupy, lambda: cupy.copyto(b, a), 10) / 1e9


def rough_block(cupy: Any, grid: Triple, dtype: str) -> Block:
    """Return a rough psi in a steady flow on a periodic grid; h is given, though constant."""
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
    return Block(geo, SCHEME, psi, h, C, allocate)


def stepper_on(
    block: Block, variant: str, tuned: Path, tile: GpuTile | None = None, *, graphs: bool = False
) -> CupyStepper:
    """Return a stepper on a block, with the tile that is kept for this device if none is given."""
    given = (block.geo, block.scheme, block.h, block.allocate, variant, tile)
    return CupyStepper(*given, graphs=graphs, tuned=tuned)


def step_seconds(
    cupy: Any, block: Block, out: Array, stepper: CupyStepper, repeats: int = 10, rounds: int = 3
) -> float:
    """Return the time of one step, without the halo."""
    return seconds_of(cupy, lambda: stepper.advance(block.psi, out, block.C), repeats, rounds)


def measure(cupy: Any, grid: Triple, copy: float, tuned: Path) -> Iterator[dict[str, Any]]:
    """Yield each variant's speed in each precision, beside its limit at ``copy`` GB/s."""
    for dtype, size in (("f8", 8), ("f4", 4)):
        block = rough_block(cupy, grid, dtype)
        out = block.allocate()
        for variant, items in ITEMS.items():
            for graphs in (False, True)[: len(KERNELS[variant])]:
                stepper = stepper_on(block, variant, tuned, graphs=graphs)
                taken = step_seconds(cupy, block, out, stepper)
                rate = grid[0] * grid[1] * grid[2] / taken / 1e9
                moved = rate * items * size
                yield {
                    "variant": variant,
                    "dtype": dtype,
                    "graphs": graphs,
                    "tile": asdict(stepper.tile),
                    "seconds": taken,
                    "gcells_s": rate,
                    "gb_s": moved,
                    "limit_gcells_s": copy / (items * size),
                    "of_limit": moved / copy,
                    "of_nominal": moved / NOMINAL_GB_S,
                    "kernels": {name: attributes(stepper, name) for name in KERNELS[variant]},
                }
                del stepper
        del block, out
        cupy.get_default_memory_pool().free_all_blocks()


def attributes(stepper: CupyStepper, kernel: str) -> dict[str, int]:
    """Return what the compiler made of a kernel: registers, local and shared memory."""
    launcher = stepper.launcher
    return launcher.attributes(kernel) if isinstance(launcher, CupyLauncher) else {}


def compile_one(asked: tuple[str, GpuTile]) -> str | None:
    """Compile the kernels for one tile, which CuPy keeps on disk; return why it cannot be."""
    dtype, tile = asked
    try:
        CupyLauncher(macros(SCHEME, np.dtype(dtype), (1, 2, 0), unit=False, tile=tile))
    except Exception as error:
        return f"{dtype} {tile}: {error}"
    return None


def tune(
    cupy: Any, name: str, grid: Triple, tuned: Path, tiles: Sequence[GpuTile] = TILES
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Try the tiles on a grid and keep the best for this device; yield what was found."""
    shapes = {replace(tile, chunk=0): tile for tile in tiles}
    asked = [(dtype, tile) for dtype in ("f8", "f4") for tile in shapes.values()]
    workers = min(8, os.cpu_count() or 1)
    os.environ["PYTHONSAFEPATH"] = "1"  # workers do not import from the working folder
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        refused = [said for said in pool.map(compile_one, asked) if said]
    yield "compiled", {"tiles": len(asked) - len(refused), "refused": refused}
    for dtype in ("f8", "f4"):
        block = rough_block(cupy, grid, dtype)
        trial = Trial(cupy, block, tuned)
        tile, taken = best(tiles, trial)
        keep(tuned, key_of(name, block.scheme, dtype), tile)
        yield f"fused {dtype}", {"best": asdict(tile), "seconds": taken, "tried": trial.tried}
        del block, trial
        cupy.get_default_memory_pool().free_all_blocks()


class Trial:
    """Measures a step with a tile; None where the device refuses it."""

    def __init__(self, cupy: Any, block: Block, tuned: Path) -> None:
        self.cupy, self.block, self.tuned = cupy, block, tuned
        self.out = block.allocate()
        self.tried: dict[str, float | str] = {}

    def __call__(self, tile: GpuTile) -> float | None:
        """Return the time of one step."""
        try:
            stepper = stepper_on(self.block, "fused", self.tuned, tile)
            taken = step_seconds(self.cupy, self.block, self.out, stepper, 3, 2)
        except Exception as error:
            self.tried[str(tile)] = f"{type(error).__name__}: {error}"
            return None
        self.tried[str(tile)] = taken
        return taken
