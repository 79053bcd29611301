"""Fields over arrays that the application owns: wrapped, not copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dmr.data.decomposition import Box, Halo, Padding
from dmr.data.field import Array, FieldSpec, Ranges, refuse_masked
from dmr.state.values import refuse_memmap


def adapt(
    array: npt.NDArray[Any],
    shape: tuple[int, ...],
    *,
    halo: int | Halo = 0,
    split: tuple[int, ...] = (0,),
    ranges: Ranges | None = None,
    grid: Callable[[int], Sequence[int]] | None = None,
    row_major: bool = False,
    constant: bool = False,
) -> FieldSpec:
    """State a field that lives in an array of the application's own.

    The field's ``padded`` is a view of ``array``. In the first world its interior holds the
    initial values; in one that takes over, the moved data is written into it, including the halo at
    the edge of the domain. A rank that strategy merge keeps gets another array, laid out alike, so
    read ``padded`` in ``build``.

    Args:
        array: this rank's padded array, interior and halo, in C or Fortran order (or any other
            order of the axes without gaps).
        shape: global extents, without halo.
        halo: cells of halo: one number for all sides, or ``(below, above)`` for each axis.
        split: the axes that are cut over the ranks, into blocks of which the first are one cell
            longer where they cannot all be equal (:func:`dmr.split_range`); () where every rank
            has the whole array.
        ranges: ``ranges(cells, parts)`` returns where the parts of an axis begin instead, then
            ``cells``.
        grid: ``grid(size)`` returns the process grid of so many ranks, one number a split axis;
            by default near a square, rows first.
        row_major: whether ranks run along the last split axis first (MPI_Cart_create, mpi4py-fft).
        constant: whether the program sets it before the block in every set of ranks, to the same,
            and never again: then a resize does not send it, but compares.

    Raises:
        ValueError: the array has other axes, or gaps, or a mask, or is mapped from a file. A
            shape other than that of this rank's block is refused when the run is entered.
    """
    refuse_memmap(array)
    refuse_masked(array)
    if array.ndim != len(shape):
        raise ValueError(f"expected an array of {len(shape)} axes, got {array.ndim}")
    order = next((o for o in _orders(array) if array.transpose(o).flags.c_contiguous), None)
    if order is None:
        raise ValueError(
            f"expected an array in C or Fortran order, without gaps, got strides {array.strides}"
        )
    source = WrappedArray(array)
    return WrappedSpec(
        *(shape, array.dtype, source.values, halo, split),
        order=order,
        ranges=ranges,
        grid=grid,
        row_major=row_major,
        constant=constant,
        edge=True,
        source=source,
    )


class WrappedArray:
    """The application's array, until a block has it."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array: npt.NDArray[Any] | None = array
        self._inside: npt.NDArray[Any] | None = None

    def take(self, padding: Padding) -> npt.NDArray[Any] | None:
        """Return it the first time."""
        found, self._array = self._array, None
        self._inside = None if found is None else found[padding.interior_slices()]
        return found

    def values(self, box: Box) -> Any:
        """Return the initial values: those it holds."""
        return self._inside


@dataclass(frozen=True)
class UnpaddedRows(Padding):
    """A block whose rows have no padding beyond their halo."""

    @property
    def row_items(self) -> int:
        """Items from one row to the next."""
        return self.padded[self.order[-1]]


@dataclass(frozen=True)
class WrappedSpec(FieldSpec):
    """A field over an array of the application's own."""

    source: WrappedArray | None = None

    def padding(self, interior: tuple[int, ...]) -> Padding:
        """Return how a block with this interior lies in memory: without gaps."""
        order = self.order or tuple(range(len(self.shape)))
        return UnpaddedRows(interior, self.halos, np.dtype(self.dtype).itemsize, order)

    def storage(self, box: Box, padding: Padding) -> Array:
        """Return the memory of the application's array, or of a new one laid out alike.

        Raises:
            ValueError: the application's array is not the block of this box.
        """
        found = None if self.source is None else self.source.take(padding)
        if found is None:
            return np.zeros(padding.storage, self.dtype)
        if found.shape != padding.padded:
            raise ValueError(
                f"expected an array of shape {padding.padded} for cells {box.start} to {box.stop} "
                f"and their halo, got {found.shape}"
            )
        return found.transpose(padding.order)

    def prefault(self, storage: Array) -> None:
        """Leave it: the application may have set its boundary already."""

    def memory_of(self, storage: Array) -> None:
        """Return nothing: the application may hold the array."""


def _orders(array: npt.NDArray[Any]) -> list[tuple[int, ...]]:
    """Return orders of the axes in which an array may be without gaps, slowest first."""
    falling = np.argsort([-abs(step) for step in array.strides], kind="stable")
    axes = tuple(range(array.ndim))
    return [axes, axes[::-1], tuple(int(axis) for axis in falling)]
