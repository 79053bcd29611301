"""The functions of Linux's C library that Python does not offer; elsewhere they do nothing."""

from __future__ import annotations

import ctypes
import functools
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

LEAST_BYTES = 16 << 20
"""A smaller array is neither touched beforehand nor given back: it costs more than it saves."""

TOUCHED_BYTES = 16 << 20
"""Bytes touched at a time by a thread that may be asked to stop."""

SYNC_FILE_RANGE_WRITE = 2


class _Range(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@functools.cache
def _function(name: str, *arguments: Any, result: Any = ctypes.c_int) -> Any:
    """Return a function of the C library, None where it has none of that name."""
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = arguments, result
    return function


def give_back(memory: npt.NDArray[np.uint8]) -> int:
    """Give whole pages of memory that is no longer needed to the system; return their bytes.

    They read as zeros from then on. Less than ``LEAST_BYTES`` is kept, and all of it where the
    system cannot take it.

    Args:
        memory: bytes, contiguous, in use nowhere else.
    """
    start = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (memory.ctypes.data + memory.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    madvise = _function("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if madvise is None or not hasattr(mmap, "MADV_DONTNEED") or size < LEAST_BYTES:
        return 0
    return 0 if madvise(start, size, mmap.MADV_DONTNEED) else size


def read_memory(pid: int, address: int, into: npt.NDArray[Any]) -> int:
    """Fill a buffer from the memory of a process; return the bytes that were read, -1 for none.

    The kernel refuses it for a process of another user, and under Yama's ``ptrace_scope``.
    """
    ranges = (ctypes.POINTER(_Range), ctypes.c_ulong)
    kinds = (ctypes.c_int, *ranges, *ranges, ctypes.c_ulong)
    read = _function("process_vm_readv", *kinds, result=ctypes.c_ssize_t)
    if read is None:
        return -1
    here, there = _Range(into.ctypes.data, into.nbytes), _Range(address, into.nbytes)
    return int(read(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))


def begin_writeback(handle: int) -> None:
    """Have the disk begin to write what the system holds of a file."""
    kinds = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    sync = _function("sync_file_range", *kinds)
    if sync is not None:
        sync(handle, 0, 0, SYNC_FILE_RANGE_WRITE)
