"""A file that HDF5 can write to a full disk.

HDF5 crashes, some writes later or at exit, once one of its own has failed. So it is told that
all went well, and whoever wrote looks afterwards at what did not.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any


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
        return size

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
