"""What the CUDA source is given: the job of one launch, and the options as macros."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.grid import Geometry
from mpdata.numerics.formulas import EPSILON
from mpdata.options import Scheme

HERE = Path(__file__).parent
CELL_BLOCK = (64, 4, 1)
"""Threads of a block of the kernels that go cell by cell."""

SHARED_BYTES = 48 << 10
"""Shared memory that a block has on every device."""

FAR = 1 << 30
"""Further away than any cell: where the domain has no edge."""

Macros = dict[str, str]


@dataclass(frozen=True)
class GpuTile:
    """Shape of the streaming kernel's blocks; it decides the speed and no bit of the answer.

    Attributes:
        x, y: columns of a block, those included that only serve their neighbours.
        chunk: planes that a block works on.
        blocks: blocks that should fit on one multiprocessor: a bound on registers.
    """

    x: int = 32
    y: int = 16
    chunk: int = 128
    blocks: int = 1

    def shared_bytes(self, dtype: npt.DTypeLike) -> int:
        """Return the shared memory of a block at most: ten planes (stream.cuh)."""
        return 10 * self.x * (self.y + 2) * np.dtype(dtype).itemsize


def default_tile(dtype: npt.DTypeLike) -> GpuTile:
    """Return the tile of a device that is not tuned: the fastest on an NVIDIA H200.

    float64 has the registers for fewer threads than float32.
    """
    return GpuTile(32, 16, 128) if np.dtype(dtype).itemsize == 8 else GpuTile(32, 20, 256)


def job_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the layout of ``struct Job`` (job.cuh), field by field."""
    real, pointer = np.dtype(dtype), np.dtype(np.uint64)
    fields: list[tuple[Any, ...]] = [(name, pointer) for name in ("before", "psi", "out", "h")]
    fields += [(name, pointer, 3) for name in ("c", "v", "kept")]
    fields += [(name, pointer) for name in ("up", "down")]
    fields += [("stride", np.int64, 3)]
    fields += [(name, np.int32, 3) for name in ("first", "count", "low", "high")]
    fields += [("fixed", np.int32, (3, 2)), ("value", real, (3, 2))]
    fields += [("chunk", np.int32), ("extra", np.int32)]
    return np.dtype(fields, align=True)


def macros(
    scheme: Scheme, dtype: npt.DTypeLike, order: tuple[int, ...], *, unit: bool, tile: GpuTile
) -> Macros:
    """Return the options of kernels.cu.

    Args:
        scheme: passes and options.
        dtype: float32 or float64.
        order: the grid's active axes as they lie in memory, the contiguous one first.
        unit: whether h is 1 in every cell: it is then neither read nor divided by. The bits are
            the same.
        tile: shape of the streaming kernel's blocks.
    """
    real = np.dtype(dtype)
    fill = [order.index(axis) for axis in sorted(order)] + [0, 0, 0]
    return {
        "REAL": {4: "float", 8: "double"}[real.itemsize],
        "EPSILON": repr(EPSILON[real.itemsize]),
        "AXES": str(len(order)),
        **{f"FILL_{n}": str(fill[n]) for n in range(3)},
        "LIMITER": str(int(scheme.limiter)),
        "GAUGE": str(int(scheme.infinite_gauge)),
        "THIRD_ORDER": str(int(scheme.third_order)),
        "DIVERGENT": str(int(scheme.divergent_flow)),
        "UNIT_DENSITY": str(int(unit)),
        "CELL_THREADS": str(CELL_BLOCK[0] * CELL_BLOCK[1] * CELL_BLOCK[2]),
        "TILE_X": str(tile.x),
        "TILE_Y": str(tile.y),
        "TILE_BLOCKS": str(tile.blocks),
    }


def source() -> str:
    """Return kernels.cu with its own headers in it: one text, as NVRTC takes it."""

    def inlined(match: re.Match[str]) -> str:
        # The host's header is for the host's compiler, which finds it by itself.
        name = match[1]
        return match[0] if name == "host.hpp" else _text(name).replace("#pragma once", "")

    return re.sub(r'#include "(.*)"', inlined, _text("kernels.cu"))


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def memory_axes(geometry: Geometry, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the active axes by their strides, the contiguous one first."""
    return tuple(sorted(geometry.active, key=lambda axis: strides[axis]))


def edges(geometry: Geometry, order: tuple[int, ...]) -> dict[str, npt.NDArray[Any]]:
    """Return the job's fields on what lies outside the domain."""
    low, high = np.full(3, -FAR), np.full(3, FAR)
    fixed, value = np.zeros((3, 2), np.int32), np.zeros((3, 2))
    for at, axis in enumerate(order):
        below, above = geometry.touches(axis)
        low[at] = 0 if below else -FAR
        high[at] = geometry.interior[axis] - 1 if above else FAR
        ends = geometry.boundaries[axis]
        fixed[at] = [end.kind == "fixed" for end in ends]
        value[at] = [end.value for end in ends]
    return {"low": low, "high": high, "fixed": fixed, "value": value}
