"""The fused sweep over one block: its tiles, their rolling buffers, the domain's edges."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np

from mpdata.grid import LayerCopy, copy_layers
from mpdata.numerics.numba.kernel_arguments import (
    LINE_BYTES,
    SEGMENT,
    Array,
    BlockMemory,
    Buffers,
    CpuTile,
    Edges,
    FaceArrays,
    aligned,
    flag,
    flat,
    terms_of,
)
from mpdata.numerics.step import Layers
from mpdata.options import Scheme

CACHE_BYTES = 3 << 17
"""Limit of the rolling buffers of one tile: they share a second-level cache of a MiB (of 512 KiB
on some machines) with the rows that stream by."""

PSI_PLANES = 3
"""Planes of psi after the donor cell in the rolling buffers; one more with third-order terms."""

OTHER_PLANES = 7
"""Two of fluxes and of each beta, one of the result under way; two more of velocities if kept."""

KINDS = {"periodic": 0, "pole": 0, "open": 1, "wall": 1, "fixed": 2}


class Sweep:
    """One sweep over a block: the first two passes of a step, or the third.

    Args:
        memory: of the block, of three axes.
        scheme: of two or three passes.
        r: 1 / density, or None.
        dtype: of all arrays.
        threads: that may share it, each with buffers of its own.
        further: whether it is the third pass.
    """

    def __init__(
        self,
        memory: BlockMemory,
        scheme: Scheme,
        r: Array | None,
        dtype: np.dtype[Any],
        threads: int,
        *,
        further: bool = False,
    ) -> None:
        self._memory, self._r, self._dtype = memory, r, dtype
        self._strides, self._limiter = memory.strides, flag(scheme.limiter)
        third = scheme.third_order and not further
        divergent = scheme.divergent_flow and not further
        self._keeps = scheme.passes == 3 and not further
        self._around = 1 + scheme.limiter if self._keeps else 0
        self._margin = 1 + scheme.limiter + third
        self._psi_planes = PSI_PLANES + third
        self._tile = self._shape()
        self._buffers = [self._rolling() for _ in range(threads)]
        self._edges = edges_of(memory, dtype)
        self._terms = terms_of(scheme, dtype, divergent, third=third)

    @property
    def arrays(self) -> list[Array]:
        """All scratch."""
        buffers = [buffer for worker in self._buffers for buffer in worker]
        return [buffer for buffer in buffers if buffer is not None]

    def run(
        self,
        psi: Array,
        now: Array | None,
        out: Array,
        C: list[Array],
        kept: list[Array] | None,
        planes: Layers,
        workers: Any,
    ) -> None:
        """Set ``out`` in the planes of the slowest axis from first to last, and around them.

        Args:
            psi: before the step, its halo filled.
            now: psi after two passes, or None: these are computed.
            out: where the result goes.
            C: face values.
            kept: memory for the velocities of a further pass, or None.
            planes: first and last.
            workers: that share the planes.
        """
        none = np.empty(0, self._dtype)
        velocities = FaceArrays(None, None, None)
        if kept is not None:
            velocities = self._memory.flow(kept, none)
        given = (
            flat(out),
            flat(psi),
            None if now is None else flat(now),
            self._memory.flow(C, none),
            velocities,
            None if self._r is None else flat(self._r),
            self._strides,
            self._edges,
            self._tile,
        )

        def arguments(worker: int, first: int, last: int) -> tuple[Any, ...]:
            return (*given, self._buffers[worker], self._limiter, self._terms, first, last)

        first, last = planes
        around = self._around_axis(self._memory.axes[2]) if first < last else 0
        workers.run("fused_kernel.sweep", (first - around, last + around), arguments)
        if kept is not None:
            for array in (out, *kept):
                self._wrap(array)

    def in_cache(self) -> Sweep:
        """Return what does the same arithmetic, in the memory of one plane: for timing only."""
        twin = copy(self)
        twin._strides = self._strides._replace(dz=np.uint64(0))
        return twin

    def _wraps(self, axis: int | None) -> bool:
        """Return whether the block spans an axis whole, and that is periodic."""
        geometry = self._memory.geometry
        if axis is None or not geometry.boundaries[axis].periodic:
            return False
        return geometry.interior[axis] == geometry.grid[axis]

    def _around_axis(self, axis: int | None) -> int:
        """Return the cells beyond each end of an axis that are computed for a further pass."""
        return 0 if self._wraps(axis) else self._around

    def _wrap(self, array: Array) -> None:
        """Fill what a further pass needs around the block along y and z, where these wrap."""
        halo, around = self._memory.geometry.halo, self._around
        for axis in self._memory.axes[1:]:
            if axis is not None and self._wraps(axis):
                end = halo + self._memory.cells(axis)
                below = LayerCopy(slice(halo - around, halo), slice(end - around, end))
                above = LayerCopy(slice(end, end + around), slice(halo, halo + around))
                copy_layers(array, axis, (below, above))

    def _shape(self) -> CpuTile:
        x, y, _ = self._memory.axes
        cells, rows = self._memory.cells(x), self._memory.cells(y)
        line = LINE_BYTES // self._dtype.itemsize
        around_x, around_y = self._around_axis(x), self._around_axis(y)
        lead = 0 if self._wraps(x) else self._margin + around_x
        count = cells + 2 * lead
        if self._memory.strides.dz >= line:
            # Whole vectors: what is read too much lies in the next row or the spare last plane.
            count = -(-count // line) * line
        pitch = (-(-count // line) + 1) * line
        rows += 2 * around_y
        planes = self._psi_planes + OTHER_PLANES + 2 * self._keeps
        fit = CACHE_BYTES // (pitch * self._dtype.itemsize * planes) - 2 * self._margin
        tiles = -(-rows // max(4, fit))
        return CpuTile(
            np.uint64(lead),
            np.uint64(count),
            np.uint64(pitch),
            -(-rows // tiles),
            flag(lead == 0 and cells % SEGMENT == 0),
            np.uint64(around_x),
            around_y,
        )

    def _rolling(self) -> Buffers:
        """Return the buffers of one worker, a line before and one behind each."""
        plane = self._tile.height + 2 * self._margin
        limited = 0 if self._limiter is None else 2 * plane
        faces = (4, 4, 2 * plane)
        velocities = faces if self._keeps else (None, None, None)
        psi = self._psi_planes * plane
        heights = (psi, *faces, *velocities, limited, limited, plane, 1)
        lines, pitch = 2 * LINE_BYTES // self._dtype.itemsize, int(self._tile.pitch)
        return Buffers(
            *(
                None if rows is None else aligned(rows * pitch + lines, self._dtype)
                for rows in heights
            )
        )


class FusedSteps:
    """Two passes in one sweep, three in two (a way of NumbaStepper).

    Args:
        memory: of the block, of three axes.
        scheme: of two or three passes.
        r: 1 / density, or None.
        dtype: of all arrays.
        allocate: returns a zeroed array of the block's shape in its memory order.
        threads: that may share a step.
    """

    def __init__(
        self,
        memory: BlockMemory,
        scheme: Scheme,
        r: Array | None,
        dtype: Any,
        allocate: Callable[[], Array],
        threads: int,
    ) -> None:
        dtype = np.dtype(dtype)
        self._sweeps = [Sweep(memory, scheme, r, dtype, threads)]
        self._kept: list[Array] = []
        if scheme.passes == 3:
            self._sweeps.append(Sweep(memory, scheme, r, dtype, threads, further=True))
            self._kept = [allocate() for _ in range(4)]

    @property
    def arrays(self) -> list[Array]:
        """All scratch."""
        return [*self._kept, *(array for sweep in self._sweeps for array in sweep.arrays)]

    def advance(self, psi: Array, out: Array, C: list[Array], planes: Layers, workers: Any) -> None:
        """Advance the planes of the slowest axis from first to last."""
        if not self._kept:
            self._sweeps[0].run(psi, None, out, C, None, planes, workers)
            return
        iterate, *velocities = self._kept
        self._sweeps[0].run(psi, None, iterate, C, velocities, planes, workers)
        self._sweeps[1].run(psi, iterate, out, velocities, None, planes, workers)

    def in_cache(self) -> FusedSteps:
        """Return what does the same arithmetic, in the memory of one plane: for timing only."""
        twin = copy(self)
        twin._sweeps = [sweep.in_cache() for sweep in self._sweeps]
        return twin


def edges_of(memory: BlockMemory, dtype: np.dtype[Any]) -> Edges:
    """Return what lies outside the domain, for the axes z, y, x of a block of three axes."""
    geometry, axes = memory.geometry, [axis for axis in reversed(memory.axes) if axis is not None]
    extents = [geometry.interior[axis] for axis in axes]
    kinds, values, rank = [], [], []
    for axis in axes:
        ends = geometry.boundaries[axis]
        for end, touched in zip(ends, geometry.touches(axis), strict=True):
            kinds.append(KINDS[end.kind] if touched else 0)
            values.append(end.value)
            rank.append(axis)
    whole = np.array(extents, np.int64), np.array(kinds, np.int64)
    return Edges(*whole, np.array(values, dtype), np.array(rank, np.int64))
