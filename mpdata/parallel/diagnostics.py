"""What a run reports of its answer, from slabs of the global field in file order.

Rank 0 sees the slabs one after the other, so every figure is the same for any number of ranks.
"""

from __future__ import annotations

import hashlib
import io
from math import fsum, prod
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
        self._absolute_by_density: list[float] = []
        self._squared_by_density: list[float] = []
        self._largest = 0.0
        self._cells = 0
        self.min, self.max = float("inf"), float("-inf")
        self.wrong = 0
        """Cells that are not finite."""

    def add(self, start: int, values: Array) -> None:
        """Take the slab of rows ``start`` and following, shape (rows, M, L)."""
        # -0.0 becomes 0.0 before hashing: the two are equal and must hash alike.
        little = (values + 0).astype(values.dtype.newbyteorder("<"), copy=False)
        self._digest.update(np.ascontiguousarray(little).data)
        self.min = min(self.min, float(values.min()))
        self.max = max(self.max, float(values.max()))
        self.wrong += values.size - int(np.count_nonzero(np.isfinite(values)))
        wide = values.astype(np.float64)
        mesh = self._mesh(start, len(values))
        density = np.broadcast_to(np.asarray(self._setup.density(*mesh), np.float64), wide.shape)
        with np.errstate(over="ignore", invalid="ignore"):  # counted, and said in words
            self._mass += [float(plane.sum()) for plane in wide * density]
        self._cells += values.size
        if self._compare and self._setup.exact is not None and not self.wrong:
            exact = np.asarray(self._setup.exact(*mesh), np.float64)
            gap = np.abs(wide - exact)
            self._absolute += [float(plane.sum()) for plane in gap]
            self._squared += [float((plane * plane).sum()) for plane in gap]
            self._absolute_by_density += [float(plane.sum()) for plane in density * gap]
            self._squared_by_density += [float(plane.sum()) for plane in density * gap * gap]
            self._largest = max(self._largest, float(gap.max()))

    def _mesh(self, start: int, rows: int) -> tuple[Index, Index, Index]:
        _, m, el = self._setup.grid
        return open_mesh(np.arange(start, start + rows), np.arange(m), np.arange(el))

    @property
    def mass(self) -> float:
        """Sum of h psi over cells; NaN where it is too large for a number."""
        try:
            return fsum(self._mass)
        except (OverflowError, ValueError):
            return float("nan")

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
            Sums(
                self._cells,
                fsum(self._absolute),
                fsum(self._squared),
                self._largest,
                fsum(self._absolute_by_density),
                fsum(self._squared_by_density),
            )
        )


class FinalWriter:
    """Writes the final field as .npy into a file that is open for it, slab by slab.

    Shape (N, M, L), of several tracers (K, N, M, L).
    """

    def __init__(
        self, file: io.FileIO, shape: tuple[int, ...], dtype: npt.DTypeLike, tracers: int = 1
    ) -> None:
        self._file, self._dtype = file, np.dtype(dtype)
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": shape if tracers == 1 else (tracers, *shape),
        }
        np.lib.format.write_array_header_1_0(file, header)
        self._begin = file.tell()
        self._row_bytes = prod(shape[1:]) * self._dtype.itemsize
        self._rows = shape[0]

    def add(self, start: int, values: Array, tracer: int = 0) -> None:
        """Take a tracer's slab of rows ``start`` and following."""
        self._file.seek(self._begin + (tracer * self._rows + start) * self._row_bytes)
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
