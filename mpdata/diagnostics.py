"""What a run reports of its answer, from slabs of the global field in file order.

Rank 0 sees the slabs one after the other, so every figure is the same for any number of ranks.
"""

from __future__ import annotations

import hashlib
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.cases.setup import Index, Setup, Sums, open_mesh

Array = npt.NDArray[Any]


class Diagnostics:
    """Collects mass, extrema, hash and error sums slab by slab."""

    def __init__(self, setup: Setup, *, compare: bool) -> None:
        self._setup = setup
        self._compare = compare and setup.exact is not None
        self._digest = hashlib.sha256()
        self._mass: list[float] = []
        self._absolute: list[float] = []
        self._squared: list[float] = []
        self._largest = 0.0
        self._cells = 0
        self.min, self.max = float("inf"), float("-inf")

    def add(self, start: int, values: Array) -> None:
        """Take the slab of rows ``start`` and following, shape (rows, M, L)."""
        # -0.0 becomes 0.0 before hashing: the two are equal and must hash alike.
        little = (values + 0).astype(values.dtype.newbyteorder("<"), copy=False)
        self._digest.update(np.ascontiguousarray(little).data)
        self.min = min(self.min, float(values.min()))
        self.max = max(self.max, float(values.max()))
        wide = values.astype(np.float64)
        mesh = self._mesh(start, len(values))
        density = np.broadcast_to(np.asarray(self._setup.density(*mesh), np.float64), wide.shape)
        self._mass += [float(plane.sum()) for plane in wide * density]
        self._cells += values.size
        if self._compare and self._setup.exact is not None:
            exact = np.asarray(self._setup.exact(*mesh), np.float64)
            gap = np.abs(wide - exact)
            self._absolute += [float(plane.sum()) for plane in gap]
            self._squared += [float((plane * plane).sum()) for plane in gap]
            self._largest = max(self._largest, float(gap.max()))

    def _mesh(self, start: int, rows: int) -> tuple[Index, Index, Index]:
        _, m, el = self._setup.grid
        return open_mesh(np.arange(start, start + rows), np.arange(m), np.arange(el))

    @property
    def mass(self) -> float:
        """Sum of h psi over cells."""
        return fsum(self._mass)

    @property
    def sha256(self) -> str:
        """Hash of the field in file order, little-endian, in its own type."""
        return self._digest.hexdigest()

    @property
    def errors(self) -> dict[str, float]:
        """The norms the case's source defines, empty where the answer is not known."""
        if not self._compare or self._setup.norms is None:
            return {}
        return self._setup.norms(
            Sums(self._cells, fsum(self._absolute), fsum(self._squared), self._largest)
        )


class FinalWriter:
    """Writes the final field as .npy, whole or not at all."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._memory = np.lib.format.open_memmap(
            self._part, mode="w+", dtype=np.dtype(dtype), shape=shape
        )

    def add(self, start: int, values: Array) -> None:
        """Take the slab of rows ``start`` and following."""
        self._memory[start : start + len(values)] = values

    def close(self) -> None:
        """Put the file in its place."""
        self._memory.flush()
        del self._memory
        self._part.replace(self._path)
