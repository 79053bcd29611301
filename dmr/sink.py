"""A file that HDF5 can write to a full disk.

HDF5 crashes, some writes later or at exit, once one of its own has failed. So it is told that
all went well, and whoever wrote looks afterwards at what did not.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

from rms.wire.files import open_own

WRITEBACK_BYTES = 8 << 20
"""So much is written before the disk is asked to begin with it."""

UNDER_WAY = 4
"""Stretches of so much that are on their way to the disk before the first is waited for."""

SLOW_BYTES_PER_S = 1e9
"""Memory for the file that comes at less costs more than the disk: then it is used again."""

SYNC_FILE_RANGE_WRITE = 2
SYNC_FILE_RANGE_ALL = 7
"""Wait for what is under way, write, and wait for that."""

NOT_HERE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ESPIPE)
"""What a file that has no such function says."""


def _function() -> Any:
    """Return Linux's ``sync_file_range``, None elsewhere."""
    try:
        found = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (AttributeError, OSError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return found


_sync_range = _function()


class Sink(io.FileIO):
    """A file to read and write.

    The disk begins while more is written, so that less is left for the ``fsync`` at the end. Where
    the system takes longer to find memory for the file than the disk takes to write it (on a
    virtual machine that gets its memory from the host, say), what has reached the disk is
    forgotten, and the file goes on in the same memory.

    Args:
        mode: ``w+`` for a new one, ``r+`` for one that is there.

    Attributes:
        problem: the first error of the system, from which on nothing is written; or None.
    """

    problem: OSError | None = None

    def __init__(self, path: Path, mode: str = "w+") -> None:
        super().__init__(path, mode, opener=open_own())
        self._since, self._taken_s = 0, 0.0
        self._reuses = False
        self._ends: deque[int] = deque([0])
        """Where stretches that are under way begin, and where the next one does."""

    def write(self, data: Any) -> int:
        """Write all of ``data``, or note why not."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        begun = time.perf_counter()
        try:
            while rest and self.problem is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.problem = error
        if rest:
            self.seek(len(rest), io.SEEK_CUR)
        self._since += size
        self._taken_s += time.perf_counter() - begun
        if self._since >= WRITEBACK_BYTES:
            self._begin_writing()
        return size

    def _begin_writing(self) -> None:
        """Have the disk write what it has."""
        self._reuses |= self._since < self._taken_s * SLOW_BYTES_PER_S
        self._since, self._taken_s = 0, 0.0
        self._ask(0, 0, SYNC_FILE_RANGE_WRITE)
        end = self.tell()
        if end <= self._ends[-1]:
            return  # back to what was written before
        self._ends.append(end)
        if len(self._ends) > UNDER_WAY:
            start = self._ends.popleft()
            if self._reuses:
                self._forget(start, self._ends[0] - start)

    def _forget(self, start: int, size: int) -> None:
        """Wait until a stretch is on the disk, and give its memory back."""
        if self._ask(start, size, SYNC_FILE_RANGE_ALL):
            with contextlib.suppress(OSError):  # of no use: no harm
                os.posix_fadvise(self.fileno(), start, size, os.POSIX_FADV_DONTNEED)

    def _ask(self, start: int, size: int, what: int) -> bool:
        """Ask the disk for a stretch; return whether it has done it, or note why not."""
        if _sync_range is None or self.problem is not None:
            return False
        if _sync_range(self.fileno(), start, size, what):
            number = ctypes.get_errno()
            if number not in NOT_HERE:  # an fsync later may not say it once more
                self.problem = OSError(number, os.strerror(number))
            return False
        return True

    def truncate(self, size: int | None = None) -> int:
        """Set the length, or note why not."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.problem = self.problem or error
            return self.tell() if size is None else size

    def close(self) -> None:
        """Close, or note why not."""
        try:
            super().close()
        except OSError as error:
            self.problem = self.problem or error
