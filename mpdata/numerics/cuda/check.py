"""Random blocks on which the kernels are held against the reference, on host or device.

For tests and ``scripts/gpu``. Blocks lie in memory as the application's do: the paper's order N, L,
M, axes of one cell first, rows of 128 bytes with the first interior cell aligned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.grid import Geometry, fill_edge, wrap_axis
from mpdata.numerics.cuda.stepper import Triple, address
from mpdata.numerics.step import ReferenceStepper, Stepper
from mpdata.options import Boundaries, Scheme

Array = Any
ALIGNMENT_BYTES = 128


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


def allocator(xp: Any, geo: Geometry, dtype: npt.DTypeLike) -> Callable[[], Array]:
    """Return what allocates zeroed arrays of a block in the array module ``xp``."""
    order = sorted((0, 2, 1), key=lambda axis: geo.grid[axis] > 1)
    size = np.dtype(dtype).itemsize
    step = ALIGNMENT_BYTES // size
    row = geo.shape[order[-1]]
    storage = (*(geo.shape[axis] for axis in order[:-1]), -(-row // step) * step)
    lead = geo.halo * size if order[-1] in geo.active else 0

    def allocate() -> Array:
        raw = xp.zeros(prod(storage) * size + ALIGNMENT_BYTES, np.uint8)
        shift = -(address(raw) + lead) % ALIGNMENT_BYTES
        items = raw[shift : shift + prod(storage) * size].view(np.dtype(dtype))
        rows = items.reshape(storage)[:, :, :row]
        return rows.transpose([order.index(axis) for axis in range(3)])

    return allocate


def random_block(
    xp: Any,
    grid: Triple,
    scheme: Scheme,
    boundaries: Boundaries,
    dtype: npt.DTypeLike,
    *,
    unit: bool = False,
    seed: int = 0,
) -> Block:
    """Return a block of a whole grid with rough fields, stable for a few steps.

    ``unit``: the density is 1 everywhere. psi is of both signs where the scheme allows it.
    """
    rng = np.random.default_rng(seed)
    geo = Geometry(grid, (0, 0, 0), grid, scheme.halo, boundaries)
    allocate = allocator(xp, geo, dtype)

    def rough(low: float, high: float) -> Array:
        array = allocate()
        array[...] = xp.asarray(rng.uniform(low, high, geo.shape).astype(dtype))
        return array

    # At most a quarter leaves through each of six faces, half of that on average.
    C = [rough(-0.12, 0.12) for _ in range(3)]
    psi = rough(-0.7, 0.9) if scheme.infinite_gauge else rough(0.5, 2.0)
    h = rough(0.8, 1.2)
    if unit:
        h[...] = 1
    block = Block(geo, scheme, psi, h, C, allocate)
    fill(block.psi, geo)
    return block


def fill(psi: Array, geo: Geometry) -> None:
    """Fill the halo of a block that is the whole grid."""
    for axis in reversed(geo.active):
        if geo.boundaries[axis].kind == "periodic":
            wrap_axis(psi, geo, axis)
        fill_edge(psi, geo, axis)


def cut(block: Block, start: Triple, stop: Triple) -> Block:
    """Return a part of a whole grid's block, halo and all, as another rank would hold it."""
    geo = replace(block.geo, start=start, stop=stop)
    part = tuple(
        slice(a, a + n) if axis in geo.active else slice(0, 1)
        for axis, (a, n) in enumerate(zip(start, geo.shape, strict=True))
    )
    allocate = allocator(_module_of(block.psi), geo, block.psi.dtype)

    def copied(array: Array) -> Array:
        target = allocate()
        target[...] = array[part]
        return target

    C = [copied(c) for c in block.C]
    return Block(geo, block.scheme, copied(block.psi), copied(block.h), C, allocate)


def reference(block: Block) -> Stepper:
    """Return the formulas in NumPy on a block (of NumPy arrays)."""
    return ReferenceStepper(block.geo, block.scheme, block.h, block.allocate)


def after(block: Block, stepper: Stepper, steps: int = 2) -> Array:
    """Return the interior of psi after some steps of a whole grid's block, which stays as it is."""
    psi, out = block.allocate(), block.allocate()
    psi[...] = block.psi
    for _ in range(steps):
        fill(psi, block.geo)
        stepper.advance(psi, out, block.C)
        psi, out = out, psi
    return psi[block.geo.cells(0)]


def difference(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Return the largest difference over the largest value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _module_of(array: Array) -> Any:
    if isinstance(array, np.ndarray):
        return np
    from mpdata.numerics.cuda.device import load_cupy

    return load_cupy()
