"""Random blocks on which the kernels are held against the reference, on host or device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.grid import Geometry, fill_halo
from mpdata.numerics.cuda.memory import allocator
from mpdata.numerics.cuda.stepper import Triple
from mpdata.numerics.step import ReferenceStepper, Stepper
from mpdata.options import Boundaries, Scheme

Array = Any


@dataclass(frozen=True)
class Block:
    """One block with all that a step needs; the halo of psi is filled."""

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
    fill_halo(block.psi, geo)
    return block


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
        fill_halo(psi, block.geo)
        stepper.advance(psi, out, block.C)
        psi, out = out, psi
    return psi[block.geo.cells(0)]


def _module_of(array: Array) -> Any:
    if isinstance(array, np.ndarray):
        return np
    from mpdata.numerics.cuda.device import load_cupy

    return load_cupy()
