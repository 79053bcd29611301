"""A file that HDF5 can write to a full disk.

HDF5 crashes, some writes later or at exit, once one of its own has failed. So it is told that
all went well, and whoever wrote looks afterwards at what did not.
"""

from __future__ import annotations

import ctypes
import io
from pathlib import Path
from typing import Any

WRITEBACK_BYTES = 16 << 20
"""So much is written before the disk is asked to begin with it."""

SYNC_FILE_RANGE_WRITE = 2


def _function() -> Any:
    """Return Linux's ``sync_file_range``, None elsewhere."""
    try:
        found = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return found


_begin_writing = _function()


class Sink(io.FileIO):
    """A file to read and write.

    Args:
        mode: ``w+`` for a new one, ``r+`` for one that is there.

    Attributes:
        problem: the first error of the system, from which on nothing is written; or None.
    """

    problem: OSError | None = None

    def __init__(self, path: Path, mode: str = "w+") -> None:
        super().__init__(path, mode)
        self._since = 0

    def write(self, data: Any) -> int:
        """Write all of ``data``, or note why not."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest and self.problem is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.problem = error
        if rest:
            self.seek(len(rest), io.SEEK_CUR)
        self._since += size
        if self._since >= WRITEBACK_BYTES:
            self._begin_writing()
        return size

    def _begin_writing(self) -> None:
        """Have the disk write what it has, so that less is left for the ``fsync`` at the end."""
        if _begin_writing is not None and self.problem is None:
            _begin_writing(self.fileno(), 0, 0, SYNC_FILE_RANGE_WRITE)  # of no use: no harm
        self._since = 0

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
