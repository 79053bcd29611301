"""Distributed fields: what the application states, and one rank's padded block of it.

Nothing here knows which array module holds the data: NumPy, CuPy, or any module with
``zeros``, ``asarray``, ``ascontiguousarray`` and (where its arrays do not live in host memory)
``asnumpy``.

:func:`adapt` states a field over an array that the application owns: wrapped, not copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dmr.data.decomposition import ALIGNMENT_BYTES, Box, Decomposition, Halo, Padding, memory_order

Array = Any
"""An array of the field's own module (numpy.ndarray, cupy.ndarray, ...)."""

ArrayModule = Any
"""numpy, cupy, or a module that offers the same few functions."""


@dataclass(frozen=True)
class FieldSpec:
    """What an application states about one distributed array.

    Attributes:
        shape: global extents, 1 to 4 axes.
        dtype: anything ``numpy.dtype`` accepts.
        initial: returns the initial values of a box of global indices, shape ``box.shape``
            (or broadcastable to it). Called only where nothing is restored.
        halo: cells of halo: one number for all sides, or ``(below, above)`` for each axis.
        split: the one or two axes that are cut over the ranks, rows first.
        xp: array module that holds the blocks.
        order: axes from slowest to contiguous in memory; the paper's N, L, M by default.
        thinnest: least block thickness where an axis is cut, by default the halo's.
        alignment: bytes that rows are padded to; less saves memory and traffic on a CPU.
    """

    shape: tuple[int, ...]
    dtype: npt.DTypeLike
    initial: Callable[[Box], Any]
    halo: int | Halo = 0
    split: tuple[int, ...] = (0, 1)
    xp: ArrayModule = field(default=np, compare=False)
    order: tuple[int, ...] | None = None
    thinnest: int | None = None
    alignment: int = ALIGNMENT_BYTES

    def __post_init__(self) -> None:
        axes = len(self.shape)
        if not 1 <= axes <= 4 or min(self.shape) < 1:
            raise ValueError(f"expected 1 to 4 axes of at least 1 cell, got shape {self.shape}")
        split = (0,) if axes == 1 and self.split == (0, 1) else self.split
        inside = all(0 <= axis < axes for axis in split)
        if not 1 <= len(split) <= 2 or len(set(split)) != len(split) or not inside:
            raise ValueError(f"expected one or two of {axes} axes to split, got {self.split}")
        self._check_dtype()
        object.__setattr__(self, "split", split)
        if self.order is not None and sorted(self.order) != list(range(axes)):
            raise ValueError(f"expected an order of {axes} axes, got {self.order}")

        if isinstance(self.halo, int):
            good = self.halo >= 0
        else:
            good = len(self.halo) == axes and min(min(side) for side in self.halo) >= 0
        if not good:
            raise ValueError(
                f"expected a halo of 0 or more on each of {axes} axes, got {self.halo}"
            )

    def _check_dtype(self) -> None:
        if self.alignment % np.dtype(self.dtype).itemsize:
            raise ValueError(
                f"expected items of a size that divides {self.alignment} bytes, got {self.dtype}"
            )

    @property
    def halos(self) -> Halo:
        """The halo of every axis as (below, above)."""
        if isinstance(self.halo, int):
            return ((self.halo, self.halo),) * len(self.shape)
        return self.halo

    def thinnest_blocks(self) -> tuple[int, ...]:
        """Return the least thickness of a block along each split axis."""
        if self.thinnest is not None:
            return (self.thinnest,) * len(self.split)
        return tuple(max(1, *self.halos[axis]) for axis in self.split)

    def decompose(self, grid: tuple[int, ...]) -> Decomposition:
        """Return this array cut over a process grid."""
        return Decomposition(self.shape, self.split, grid)

    def padding(self, interior: tuple[int, ...]) -> Padding:
        """Return how a block with this interior lies in memory."""
        order = memory_order(self.shape) if self.order is None else self.order
        itemsize = np.dtype(self.dtype).itemsize
        return Padding(interior, self.halos, itemsize, order, self.alignment)

    def block(self, layout: Decomposition, rank: int) -> Field:
        """Return a rank's block, zeroed."""
        return Field(self, layout, rank)

    def storage(self, box: Box, padding: Padding) -> Array:
        """Return the memory of a block, C-contiguous, slowest axis first."""
        return allocate(self.xp, padding, self.dtype)

    def prefault(self, storage: Array) -> None:
        """Write to new memory, so that its pages exist before the data arrives."""
        storage[...] = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the global interior."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def signature(self) -> dict[str, Any]:
        """Return what both sides of a resize, or a file and a run, must agree on."""
        return {
            "shape": list(self.shape),
            "dtype": np.dtype(self.dtype).str,
            "split": list(self.split),
        }


class Field:
    """One rank's block of a distributed array.

    Attributes:
        spec: what the application stated.
        layout: who owns which cells in this world.
        rank: whose block it is.
        box: the interior in global indices.
        storage: the C-contiguous memory, slowest axis first, rows with their padding.
        padded: interior and halo in axis order, a view of ``storage``.
        interior: the owned cells in axis order, a view of ``storage``.
    """

    def __init__(self, spec: FieldSpec, layout: Decomposition, rank: int) -> None:
        self.spec = spec
        self.layout, self.rank = layout, rank
        self.box = layout.box(rank)
        self.padding = spec.padding(self.box.shape)
        self.storage = spec.storage(self.box, self.padding)
        self._spare: Array | None = None
        self._set_views()

    def scratch(self) -> Array:
        """Return a zeroed array laid out as ``padded``, for the application's own use."""
        return logical_view(allocate(self.spec.xp, self.padding, self.spec.dtype), self.padding)

    @property
    def spare(self) -> Array:
        """A second array laid out as ``padded``, for steps that cannot work in place."""
        if self._spare is None:
            self._spare = allocate(self.spec.xp, self.padding, self.spec.dtype)
        return logical_view(self._spare, self.padding)

    def flip(self) -> None:
        """Make the spare array the field, and the field's memory the spare."""
        if self._spare is None:
            raise RuntimeError("expected a step written into Field.spare before Field.flip")
        self.storage, self._spare = self._spare, self.storage
        self._set_views()

    def rebind(self, padded: Array) -> None:
        """Make another array the field, as it is: of the shape and memory order of ``padded``.

        For programs that step from one array of their own into another and swap the two.

        Raises:
            ValueError: it is laid out in another way.
        """
        storage = padded.transpose(self.padding.order)
        if storage.shape != self.storage.shape or storage.dtype != self.storage.dtype:
            raise ValueError(
                f"expected an array of shape {self.padded.shape} and type {self.storage.dtype}, "
                f"got {padded.shape} and {padded.dtype}"
            )
        if not storage.flags.c_contiguous:
            raise ValueError("expected an array in the field's own memory order, without gaps")
        self.storage = storage
        self._set_views()

    hold = rebind
    """Name of :meth:`rebind` in 0.1.0."""

    def _set_views(self) -> None:
        self.padded = logical_view(self.storage, self.padding)
        self.interior = self.padded[self.padding.interior_slices()]

    def prefault(self) -> None:
        """Have the pages of the block's memory exist before its data arrives."""
        self.spec.prefault(self.storage)

    def initialise(self) -> None:
        """Set the interior to the application's initial values."""
        values = self.spec.xp.asarray(self.spec.initial(self.box), dtype=self.spec.dtype)
        self.interior[...] = values

    def pack(self, box: Box) -> npt.NDArray[Any]:
        """Return a contiguous host copy of the cells of ``box``, in axis order."""
        view = self.interior[box.slices(self.box.start)]
        return to_host(self.spec.xp, self.spec.xp.ascontiguousarray(view))

    def unpack(self, box: Box, values: npt.NDArray[Any]) -> None:
        """Set the cells of ``box`` from a contiguous host array of shape ``box.shape``."""
        self.interior[box.slices(self.box.start)] = self.spec.xp.asarray(values)


def allocate(xp: ArrayModule, padding: Padding, dtype: npt.DTypeLike) -> Array:
    """Return zeroed storage whose first interior element of every row is aligned."""
    raw = xp.zeros(padding.allocation_bytes, dtype=np.uint8)
    shift = padding.shift_bytes(_address(raw))
    items = raw[shift : shift + int(np.prod(padding.storage)) * padding.itemsize]
    return items.view(np.dtype(dtype)).reshape(padding.storage)


def logical_view(storage: Array, padding: Padding) -> Array:
    """Return interior and halo of a block in axis order, without the padding of its rows."""
    row = padding.padded[padding.order[-1]]
    inverse = tuple(padding.order.index(axis) for axis in range(len(padding.order)))
    return storage[..., :row].transpose(inverse)


def to_host(xp: ArrayModule, array: Array) -> npt.NDArray[Any]:
    """Return the array in host memory (itself where it is there already)."""
    asnumpy = getattr(xp, "asnumpy", None)
    return asnumpy(array) if asnumpy is not None else np.asarray(array)


def _address(array: Array) -> int:
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        interface = array.__array_interface__
    return int(interface["data"][0])


def adapt(
    array: npt.NDArray[Any],
    shape: tuple[int, ...],
    *,
    halo: int | Halo = 0,
    split: tuple[int, ...] = (0,),
) -> FieldSpec:
    """State a field that lives in an array of the application's own.

    The field's ``padded`` is a view of ``array``. In the first world its interior holds the
    initial values; in one that takes over, what has moved is written into it. A rank that
    strategy merge keeps gets another array, laid out alike, so read ``padded`` in ``build``.

    Args:
        array: this rank's padded array, interior and halo, in C or Fortran order (or any other
            order of the axes without gaps).
        shape: global extents, without halo.
        halo: cells of halo: one number for all sides, or ``(below, above)`` for each axis.
        split: the one or two axes that are cut over the ranks, into blocks of which the first
            are one cell longer where they cannot all be equal (:func:`dmr.split_range`).

    Raises:
        ValueError: the array has other axes, or gaps. That it has another shape than this rank's
            block is found out when the run is entered.
    """
    if array.ndim != len(shape):
        raise ValueError(f"expected an array of {len(shape)} axes, got {array.ndim}")
    order = next((o for o in _orders(array) if array.transpose(o).flags.c_contiguous), None)
    if order is None:
        raise ValueError(
            f"expected an array in C or Fortran order, without gaps, got strides {array.strides}"
        )
    source = WrappedArray(array)
    return WrappedSpec(shape, array.dtype, source.values, halo, split, order=order, source=source)


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

    def signature(self) -> dict[str, Any]:
        """Return what both sides must agree on: blocks may go over as they lie in memory."""
        return {**super().signature(), "memory": list(self.order or ())}


def _orders(array: npt.NDArray[Any]) -> list[tuple[int, ...]]:
    """Return orders of the axes in which an array may be without gaps, slowest first."""
    falling = np.argsort([-abs(step) for step in array.strides], kind="stable")
    axes = tuple(range(array.ndim))
    return [axes, axes[::-1], tuple(int(axis) for axis in falling)]
