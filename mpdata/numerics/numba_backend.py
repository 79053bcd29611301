"""Calling the Numba kernels: strides, ranges, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.geometry import Geometry
from mpdata.numerics import numba_kernels as nk
from mpdata.numerics.reference import EPSILON

Array = npt.NDArray[Any]


class NumbaKernels:
    """The formulas on one block.

    Args:
        geometry: the block.
        strides: items from one cell to the next along each axis, the same for all arrays.
        threads: how many threads share a call, each on its own layers of the slowest axis.
    """

    def __init__(self, geometry: Geometry, strides: tuple[int, int, int], threads: int = 1) -> None:
        self.geo, self.strides = geometry, strides
        # Contiguous axis first; sorted() keeps axes of equal stride (one cell) apart already.
        self.order = sorted(geometry.active, key=lambda axis: strides[axis])
        self.threads = threads
        self.idle = False
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def donor_cell(self, out: Array, psi: Array, C: list[Array], h: Array, ring: int) -> None:
        """One donor-cell pass."""
        faces = self._by_axis(C)
        self._run(
            nk.donor_cell, ring, None, _flat(out), _flat(psi), *faces, _flat(h), *self._neighbours
        )

    def antidiffusive_velocity(
        self, out: Array, a: int, psi: Array, C: list[Array], h: Array, ring: int
    ) -> None:
        """Pseudo-velocity normal to axis ``a``."""
        # Cross terms in axis order, as the reference adds them.
        others = [e for e in self.geo.active if e != a]
        d, e = ([*others, a, a])[:2]
        strides = (np.uint64(self.strides[axis]) for axis in (a, d, e))
        self._run(
            nk.antidiffusive_velocity,
            ring,
            a,
            _flat(out),
            _flat(psi),
            _flat(C[a]),
            _flat(C[d]),
            _flat(C[e]),
            _flat(h),
            psi.dtype.type(EPSILON),
            self._axes,
            *strides,
        )

    def betas(
        self, up: Array, down: Array, before: Array, psi: Array, V: list[Array], h: Array, ring: int
    ) -> None:
        """Both betas of the limiter."""
        self._run(
            nk.betas,
            ring,
            None,
            _flat(up),
            _flat(down),
            _flat(before),
            _flat(psi),
            *self._by_axis(V),
            _flat(h),
            psi.dtype.type(EPSILON),
            *self._neighbours,
        )

    def limit(self, V: Array, a: int, psi: Array, up: Array, down: Array, ring: int) -> None:
        """Limit a pseudo-velocity in place."""
        self._run(
            nk.limit,
            ring,
            a,
            _flat(V),
            _flat(psi),
            _flat(up),
            _flat(down),
            np.uint64(self.strides[a]),
        )

    @property
    def _axes(self) -> int:
        return len(self.order)

    @property
    def _neighbours(self) -> tuple[int, Any, Any]:
        """Number of axes, strides of the second and third."""
        steps = [self.strides[axis] for axis in self.order] + [0, 0]
        return self._axes, np.uint64(steps[1]), np.uint64(steps[2])

    def _by_axis(self, faces: list[Array]) -> list[Array]:
        """Return the faces' memory, contiguous axis first, padded with any for missing axes."""
        arrays = [_flat(faces[axis]) for axis in self.order]
        return (arrays * 3)[:3]

    def _run(self, kernel: Any, ring: int, normal: int | None, *args: Any) -> None:
        """Call a kernel on the interior widened by ``ring`` (and the last faces of an axis)."""
        if not self.order:
            return
        base = sum((self.geo.halo - ring) * self.strides[axis] for axis in self.order)
        counts = [self.geo.interior[axis] + 2 * ring + (axis == normal) for axis in self.order]
        steps = [self.strides[axis] for axis in self.order]
        # Layers are the slowest axis there is, also in 2D and 1D: threads share those.
        inner, rows, layers = counts[0], 1, 1
        row_step = layer_step = 0
        if self._axes > 1:
            layers, layer_step = counts[-1], steps[-1]
        if self._axes > 2:
            rows, row_step = counts[1], steps[1]
        place = (np.uint64(base), inner, rows, np.uint64(row_step), np.uint64(layer_step))
        if self.idle:
            kernel(*args, *place, 0, 0)
            return
        if self._pool is None:
            kernel(*args, *place, 0, layers)
            return
        cuts = [layers * part // self.threads for part in range(self.threads + 1)]
        done = [
            self._pool.submit(kernel, *(*args, *place, first, last))
            for first, last in pairwise(cuts)
            if first < last
        ]
        for future in done:
            future.result()


def _flat(array: Array) -> Array:
    """Return a block array's memory as one row that starts at its first element."""
    items = 1 + sum(
        (n - 1) * (s // array.itemsize) for n, s in zip(array.shape, array.strides, strict=True)
    )
    return (
        np.lib.stride_tricks.as_strided(array, (items,), (array.itemsize,))
        if array.size
        else (array.reshape(-1))
    )
