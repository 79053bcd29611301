"""Functions of Linux's C library that Python does not offer; elsewhere they do nothing.

No other module loads the library. What a function saves is measured by ``dmr bench``, with and
without it by turns, on a virtual machine of two cores that other work kept busy.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy.typing as npt

LEAST_BYTES = 16 << 20
"""A smaller array is not touched beforehand by a thread (:class:`dmr.resize.merge.NewBlocks`).

The move of a merge of 256 MiB from 1 to 2 ranks took 0.37 s (0.22 to 0.93), without the thread
1.3 s (0.25 to 2.9): medians and ranges of six turns.
"""

TOUCHED_BYTES = 16 << 20
"""Bytes touched at a time by a thread that another may stop."""

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


def read_memory(pid: int, address: int, into: npt.NDArray[Any]) -> int:
    """Fill a buffer from the memory of a process; return the bytes that were read, -1 for none.

    The kernel refuses it for a process of another user, and under Yama's ``ptrace_scope``.

    The move of a warm resize of 256 MiB from 1 to 2 ranks took 95 ms (57 to 256), by messages
    between the same processes 439 ms (268 to 726): medians and ranges of eight turns.
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
