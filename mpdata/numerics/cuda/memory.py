"""Where arrays lie in host or device memory, and blocks laid out as the kernels like them best."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.grid import Geometry

Array = Any

ALIGNMENT_BYTES = 128


def address(array: Array) -> int:
    """Return where an array begins, in host or device memory."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        interface = array.__array_interface__
    return int(interface["data"][0])


def allocator(xp: Any, geo: Geometry, dtype: npt.DTypeLike) -> Callable[[], Array]:
    """Return what allocates zeroed arrays of a block in the array module ``xp``.

    They lie in memory as the application's blocks do: the paper's order N, L, M, axes of one cell
    first, rows of 128 bytes with the first interior cell aligned.
    """
    order = sorted((0, 2, 1), key=lambda axis: geo.grid[axis] > 1)
    size = np.dtype(dtype).itemsize
    step = ALIGNMENT_BYTES // size
    row = geo.shape[order[-1]]
    storage = (*(geo.shape[axis] for axis in order[:-1]), -(-row // step) * step)
    lead = geo.halo * size if order[-1] in geo.active else 0

    def allocate() -> Array:
        raw = xp.zeros(prod(storage) * size + ALIGNMENT_BYTES, np.uint8)
        shift = -(address(raw) + lead) % ALIGNMENT_BYTES
        items = raw[shift : shift + prod(storage) * size].view(np.dtype(dtype))
        rows = items.reshape(storage)[:, :, :row]
        return rows.transpose([order.index(axis) for axis in range(3)])

    return allocate
