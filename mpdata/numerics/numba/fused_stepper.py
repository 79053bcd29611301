"""The fused sweep over one block: its tiles, their rolling buffers, the domain's edges."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from mpdata.numerics.numba.kernel_arguments import (
    LINE_BYTES,
    SEGMENT,
    Array,
    BlockMemory,
    Buffers,
    CpuTile,
    Edges,
    aligned,
    compiled_in,
    flat,
    terms_of,
)
from mpdata.numerics.step import Layers
from mpdata.options import Scheme

CACHE_BYTES = 3 << 17
"""What the rolling buffers of one tile may take: they share a second-level cache of a MiB (of
512 KiB on some machines) with the rows that stream by."""

PSI_PLANES = 3
"""Planes of psi after the donor cell in the rolling buffers; one more with third-order terms."""

OTHER_PLANES = 7
"""Two of faces and of each beta, one of the result under way."""

KINDS = {"periodic": 0, "pole": 0, "open": 1, "wall": 1, "fixed": 2}


class FusedSweep:
    """Two passes in one sweep (a way of :class:`mpdata.numerics.numba.stepper.NumbaStepper`).

    Args:
        memory: of the block, of three axes.
        scheme: of two passes.
        r: 1 / density, or None.
        dtype: of all arrays.
        threads: that may share a step, each with buffers of its own.
    """

    def __init__(
        self, memory: BlockMemory, scheme: Scheme, r: Array | None, dtype: Any, threads: int
    ) -> None:
        self._layout, self._scheme, self._r = memory, scheme, r
        self._strides = memory.strides
        self._dtype = np.dtype(dtype)
        self._margin = 1 + scheme.limiter + scheme.third_order
        self._psi_planes = PSI_PLANES + scheme.third_order
        self._tile = self._shape()
        self._buffers = [self._rolling() for _ in range(threads)]
        self._edges = edges_of(memory, self._dtype)
        self._limiter = compiled_in(scheme.limiter)
        self._terms = terms_of(scheme, self._dtype, scheme.divergent_flow, third=scheme.third_order)
        self._none = np.empty(0, self._dtype)

    @property
    def arrays(self) -> list[Array]:
        """All scratch."""
        return [buffer for worker in self._buffers for buffer in worker]

    def advance(self, psi: Array, out: Array, C: list[Array], planes: Layers, workers: Any) -> None:
        """Advance the planes of the slowest axis from first to last."""
        flow = self._layout.flow(C, self._none)
        r = None if self._r is None else flat(self._r)
        fixed = (flat(out), flat(psi), flow, r, self._strides, self._edges, self._tile)

        def arguments(worker: int, first: int, last: int) -> tuple[Any, ...]:
            return (*fixed, self._buffers[worker], self._limiter, self._terms, first, last)

        workers.run("fused_kernel.sweep", planes, arguments)

    def in_cache(self) -> FusedSweep:
        """Return what does the same arithmetic, in the memory of one plane: for timing only."""
        twin = copy(self)
        twin._strides = self._strides._replace(s=np.uint64(0))
        return twin

    def _shape(self) -> CpuTile:
        c, m, _ = self._layout.axes
        geometry, cells = self._layout.geometry, self._layout.cells(self._layout.axes[0])
        line = LINE_BYTES // self._dtype.itemsize
        around = geometry.boundaries[c].periodic and cells == geometry.grid[c]
        lead = 0 if around else self._margin
        count = cells + 2 * lead
        if self._layout.strides.s >= line:
            # Whole vectors: what is read too much lies in the next row or the spare last plane.
            count = -(-count // line) * line
        pitch = (-(-count // line) + 1) * line
        rows = self._layout.cells(m)
        planes = self._psi_planes + OTHER_PLANES
        fit = CACHE_BYTES // (pitch * self._dtype.itemsize * planes) - 2 * self._margin
        tiles = -(-rows // max(4, fit))
        cut = compiled_in(lead == 0 and cells % SEGMENT == 0)
        return CpuTile(np.uint64(lead), np.uint64(count), np.uint64(pitch), -(-rows // tiles), cut)

    def _rolling(self) -> Buffers:
        """Return the buffers of one worker, a line before and one behind each."""
        plane = self._tile.height + 2 * self._margin
        limited = 2 * plane if self._scheme.limiter else 0
        heights = (self._psi_planes * plane, 4, 4, 2 * plane, limited, limited, plane, 1)
        lines, pitch = 2 * LINE_BYTES // self._dtype.itemsize, int(self._tile.pitch)
        return Buffers(*(aligned(rows * pitch + lines, self._dtype) for rows in heights))


def edges_of(memory: BlockMemory, dtype: np.dtype[Any]) -> Edges:
    """Return what lies outside the domain, for the axes s, m, c of a block of three axes."""
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
