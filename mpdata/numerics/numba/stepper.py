"""A step on one block by the fused kernels: strides, edges, tiles, threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.grid import Geometry
from mpdata.numerics.numba.machine_code import kernel
from mpdata.numerics.reference import epsilon
from mpdata.numerics.step import Layers
from mpdata.options import Scheme

Array = npt.NDArray[Any]
Call = tuple[str, tuple[Any, ...], tuple[Any, ...]]
"""The name of a kernel, its arguments before the range of planes, and those behind."""

CACHE_BYTES = 3 << 17
"""What the rolling buffers of one tile may take: they share a second-level cache of a MiB (of
512 KiB on some machines) with the rows that stream by."""

LINE_BYTES = 64
SLOTS = 10
"""Planes of a tile in the rolling buffers: three of psi, two of faces and of each beta, one of
the result under way."""

KINDS = {"periodic": 0, "open": 1, "wall": 1, "fixed": 2}


@dataclass(frozen=True)
class Tile:
    """The rows that a sweep takes at once.

    Attributes:
        lead: items that are computed before the interior's first; 0 where the ends of the row
            are copied from one another.
        count: items of a row that are computed.
        pitch: items from one row of a buffer to the next.
        height: rows of the result.
        margin: rows around them.
        depth: planes of psi that are kept.
    """

    lead: int
    count: int
    pitch: int
    height: int
    margin: int
    depth: int


class NumbaStepper:
    """Advances one block.

    Args:
        geometry: the block.
        scheme: passes and options.
        h: density.
        allocate: returns a zeroed array of the block's shape in its memory order.
        threads: how many threads share a step, each with planes of its own.
    """

    def __init__(
        self,
        geometry: Geometry,
        scheme: Scheme,
        h: Array,
        allocate: Callable[[], Array],
        threads: int = 1,
    ) -> None:
        self.geo, self.scheme, self.threads = geometry, scheme, threads
        self._allocate, self._dtype = allocate, h.dtype
        strides = [stride // h.itemsize for stride in h.strides]
        order = sorted(geometry.active, key=lambda axis: strides[axis])
        # Contiguous, middle, slowest axis; without some of them a plane is a row, or all is one.
        self._c = order[0]
        if strides[self._c] != 1:
            raise ValueError(f"expected arrays with an axis of stride 1, got strides {strides}")
        self._s = order[-1] if len(order) > 1 else None
        self._m = order[1] if len(order) == 3 else None
        self._strides = [0 if a is None else strides[a] for a in (self._s, self._m)]
        self._base = sum(geometry.halo * strides[a] for a in geometry.active)
        self._none = allocate() if len(order) < 3 else np.empty(0, h.dtype)
        self._r = None if (h == 1).all() else self._inverse(h)
        passes = scheme.passes
        self._between = allocate() if passes == 3 else None
        self._kept = [allocate() if a in geometry.active else self._none for a in range(3)]
        if passes < 3:
            self._kept = []
        self._tiles = [self._tile(ring) for ring in self._rings]
        workers = range(threads if passes > 1 else 0)
        self._buffers = [[self._rolling(tile) for tile in self._tiles] for _ in workers]
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    @property
    def splits(self) -> bool:
        """Whether ``layers`` may be less than all: where axis 0 is the slowest, in one sweep."""
        return self._s == 0 and self.scheme.passes < 3

    @property
    def nbytes(self) -> int:
        """Bytes of scratch, rolling buffers included."""
        arrays = [self._none, self._r, self._between, *self._kept]
        arrays += [buffer for worker in self._buffers for tile in worker for buffer in tile]
        owned = {id(a.base if a.base is not None else a): a for a in arrays if a is not None}
        return sum(int((a if a.base is None else a.base).nbytes) for a in owned.values())

    def warm(self) -> None:
        """Compile or load the kernels: run them on no planes at all."""
        spare = self._allocate()
        self._advance(spare, spare, [spare] * 3, (0, 0), 1)

    def advance(self, psi: Array, out: Array, C: list[Array], layers: Layers | None = None) -> None:
        """Set the interior of ``out`` to psi, its halo filled, advanced by one step."""
        whole = (0, 1 if self._s is None else self.geo.interior[self._s])
        self._advance(psi, out, C, layers or whole, self.threads)

    def _advance(
        self, psi: Array, out: Array, C: list[Array], layers: Layers, threads: int
    ) -> None:
        flow = self._faces(C)
        if self.scheme.passes == 1:
            rows = 1 if self._m is None else self.geo.interior[self._m]
            ss, sm = map(np.uint64, self._strides)
            place = (self._flat(self._r), np.uint64(self._base), np.uint64(self._cells), rows)
            fixed = (self._flat(out), self._flat(psi), *flow, *place, sm, ss)
            self._share(layers, threads, lambda worker: ("upwind_step", fixed, ()))
            return
        if self._between is None:
            self._sweep(0, out, psi, None, flow, None, layers, threads)
            return
        # The first sweep's psi and velocities reach as far around the block as the second looks.
        reach = self._rings[0] if self._s is not None else 0
        wide = (layers[0] - reach, layers[1] + reach) if layers[0] < layers[1] else layers
        self._sweep(0, self._between, psi, None, flow, self._faces(self._kept), wide, threads)
        kept = self._faces(self._kept)
        self._sweep(1, out, psi, self._between, kept, None, layers, threads)

    def _sweep(
        self,
        number: int,
        out: Array,
        psi: Array,
        given: Array | None,
        flow: list[Array],
        kept: list[Array] | None,
        layers: Layers,
        threads: int,
    ) -> None:
        ring, tile = self._rings[number], self._tiles[number]
        rows = (0, 1) if self._m is None else (-ring, self.geo.interior[self._m] + ring)
        ss, sm = map(np.uint64, self._strides)
        scheme, first = self.scheme, number == 0
        on = [
            0 if wanted else None
            for wanted in (
                scheme.limiter,
                scheme.infinite_gauge,
                scheme.third_order and first,
                scheme.divergent_flow and first,
            )
        ]
        fixed = (
            self._flat(out),
            self._flat(psi),
            self._flat(given),
            *flow,
            self._flat(self._r),
            np.uint64(self._base),
            sm,
            ss,
            *self._edges(),
        )
        velocities = [None, None, None] if kept is None else kept
        after = (*velocities, epsilon(self._dtype), *on)

        def call(worker: int) -> Call:
            size = (*rows, ring, np.uint64(tile.lead), np.uint64(tile.count), tile.height)
            return (
                "sweep",
                fixed,
                (*size, *self._buffers[worker][number], np.uint64(tile.pitch), *after),
            )

        self._share(layers, threads, call)

    def _share(self, layers: Layers, threads: int, call: Callable[[int], Call]) -> None:
        """Run a kernel on ranges of planes, one a thread."""
        first, last = layers
        if threads == 1 or self._pool is None or last - first < 2:
            name, before, after = call(0)
            arguments = (*before, first, last, *after)
            kernel(name, arguments)(*arguments)
            return
        cuts = [first + (last - first) * part // threads for part in range(threads + 1)]
        waiting = []
        for worker, (low, high) in enumerate(pairwise(cuts)):
            name, before, after = call(worker)
            if low < high:
                arguments = (*before, low, high, *after)
                waiting.append(self._pool.submit(kernel(name, arguments), *arguments))
        for future in waiting:
            future.result()

    @property
    def _cells(self) -> int:
        return self.geo.interior[self._c]

    @property
    def _rings(self) -> list[int]:
        """How far around the interior each sweep's result reaches; none for upwind."""
        last = [0] if self.scheme.passes > 1 else []
        return [2 if self.scheme.limiter else 1, *last] if self.scheme.passes == 3 else last

    def _tile(self, ring: int) -> Tile:
        third = self.scheme.third_order and ring == self._rings[0]
        k = 1 + self.scheme.limiter + third
        line = LINE_BYTES // self._dtype.itemsize
        periodic = self.geo.boundaries[self._c].kind == "periodic"
        whole = self._cells == self.geo.grid[self._c]
        lead = 0 if periodic and whole and ring == 0 else ring + k
        count = self._cells + 2 * lead
        if self._s is not None and self._strides[0] >= line:
            # Whole vectors: what is read too much lies in the next row or the spare last plane.
            count = -(-count // line) * line
        pitch = (-(-count // line) + 1) * line
        rows = 1 if self._m is None else self.geo.interior[self._m] + 2 * ring
        fit = CACHE_BYTES // (pitch * self._dtype.itemsize * (SLOTS + third)) - 2 * k
        tiles = -(-rows // max(4, fit))
        return Tile(lead, count, pitch, -(-rows // tiles), 0 if self._m is None else k, 3 + third)

    def _rolling(self, tile: Tile) -> list[Array]:
        """Return P, Fc, Fm, Fs, U, D, Q, G of the kernel, a line before and one behind each."""
        plane = tile.height + 2 * tile.margin
        limited = 2 * plane if self.scheme.limiter else 0
        heights = (tile.depth * plane, 4, 4, 2 * plane, limited, limited, plane, 1)
        lines = 2 * LINE_BYTES // self._dtype.itemsize
        return [aligned(rows * tile.pitch + lines, self._dtype) for rows in heights]

    def _inverse(self, h: Array) -> Array:
        r = self._allocate()
        r[...] = 1
        np.divide(1, h, out=r, where=h > 0)
        return r

    def _edges(self) -> tuple[Array, Array, Array, Array]:
        """Return extents, kinds, values and rank of the kernel, for the axes s, m, c."""
        extents, kinds, values, rank = [], [], [], []
        for place, axis in enumerate((self._s, self._m, self._c)):
            extents.append(1 if axis is None else self.geo.interior[axis])
            boundary = self.geo.boundaries[self._c if axis is None else axis]
            sides = (False, False) if axis is None else self.geo.touches(axis)
            kinds += [KINDS[boundary.kind] if side else 0 for side in sides]
            values.append(boundary.value)
            rank.append(3 + place if axis is None else axis)
        numbers = (np.array(part, np.int64) for part in (extents, kinds, rank))
        first, second, third = numbers
        return first, second, np.array(values, self._dtype), third

    def _faces(self, C: list[Array]) -> list[Array]:
        """Return the memory of the face values normal to c, m and s."""
        found = [self._none if a is None else C[a] for a in (self._c, self._m, self._s)]
        return [flat(array) for array in found]

    def _flat(self, array: Array | None) -> Array | None:
        return None if array is None else flat(array)


def flat(array: Array) -> Array:
    """Return a block array's memory as one row that starts at its first element."""
    items = 1 + sum(
        (n - 1) * (s // array.itemsize) for n, s in zip(array.shape, array.strides, strict=True)
    )
    return np.lib.stride_tricks.as_strided(array, (items,), (array.itemsize,))


def aligned(items: int, dtype: np.dtype[Any]) -> Array:
    """Return zeros that start at a cache line."""
    extra = LINE_BYTES // dtype.itemsize
    raw = np.zeros(items + extra, dtype)
    start = -(raw.ctypes.data // dtype.itemsize) % extra
    return raw[start : start + items]
