"""Pages of memory: when they come to exist, and when they are given back."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

LEAST_BYTES = 16 << 20
"""Memory of less is there at once, and is not worth giving back."""

TOUCHED_BYTES = 16 << 20
"""Of one call: whoever touches memory may be asked to stop."""


def _function() -> Any:
    try:
        found = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


_madvise = _function() if hasattr(mmap, "MADV_DONTNEED") else None


def give_back(memory: npt.NDArray[np.uint8]) -> int:
    """Give whole pages of memory that is no longer needed to the system; return their bytes.

    Those read as zeros then. Less than ``LEAST_BYTES`` is kept, and all where that is not possible.

    Args:
        memory: bytes, contiguous, that nobody else uses.
    """
    start = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (memory.ctypes.data + memory.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if _madvise is None or size < LEAST_BYTES or _madvise(start, size, mmap.MADV_DONTNEED):
        return 0
    return size
