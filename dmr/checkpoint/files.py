"""The files of checkpoints as the disk sees them: written through a sink, read around the cache.

HDF5 crashes, some writes later or at exit, once one of its own has failed. So a sink tells it that
all went well, and whoever wrote looks afterwards at what did not.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import mmap
import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmr.system import libc
from rms.wire.files import open_own

if TYPE_CHECKING:
    import h5py

WRITEBACK_BYTES = 8 << 20
"""So much is written before the disk is asked to begin with it."""

UNDER_WAY = 4
"""Stretches of so much that are on their way to the disk before the first is waited for."""

SLOW_BYTES_PER_S = 1e9
"""Memory for the file that comes at less costs more than the disk: then it is used again."""

BLOCK_BYTES = 4096
"""What is read without the system's memory begins and ends at multiples of this."""

NUMBERS = "biufc"
"""Kinds of types that a file holds as memory does."""

NOT_HERE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ESPIPE)
"""What a file that has no such function says."""


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
        self._ask(0, 0, libc.SYNC_FILE_RANGE_WRITE)
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
        if self._ask(start, size, libc.SYNC_FILE_RANGE_ALL):
            with contextlib.suppress(OSError):  # of no use: no harm
                os.posix_fadvise(self.fileno(), start, size, os.POSIX_FADV_DONTNEED)

    def _ask(self, start: int, size: int, what: int) -> bool:
        """Ask the disk for a stretch; return whether it has done it, or note why not."""
        if self.problem is not None:
            return False
        done = libc.sync_file_range(self.fileno(), start, size, what)
        if done:
            number = ctypes.get_errno()
            if number not in NOT_HERE:  # an fsync later may not say it once more
                self.problem = OSError(number, os.strerror(number))
        return done == 0

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


class PlainReader:
    """Reads a dataset from the disk without memory of the system's for the file (``O_DIRECT``).

    To find that memory may take the system longer than the disk takes. A thread reads a piece while
    the one before is used. What the system has in memory is left to HDF5, and so is what is stored
    in another way than it lies in memory.

    Args:
        path: of the file.
        dataset: of numbers.
        most: bytes that are read at once.
    """

    def __init__(self, path: str, dataset: h5py.Dataset, most: int) -> None:
        offset, size = dataset.id.get_offset(), int(dataset.size) * dataset.dtype.itemsize
        self._handles: list[int] = []
        plain = offset is not None and size == dataset.id.get_storage_size()
        if not plain or dataset.dtype.kind not in NUMBERS or not hasattr(os, "RWF_NOWAIT"):
            return
        self._offset = int(offset)
        with contextlib.suppress(OSError):
            self._handles.append(os.open(path, os.O_RDONLY))
            self._handles.append(os.open(path, os.O_RDONLY | os.O_DIRECT))
        self._buffers = [
            memoryview(mmap.mmap(-1, most + 2 * BLOCK_BYTES))  # aligned
            for _ in range(2)
        ]
        self._size = size
        self._next: tuple[int, int] = 0, 0
        self._under_way: Future[int] | None = None
        self._reader = ThreadPoolExecutor(1, "dmr-read")

    def read(self, start: int, size: int) -> memoryview | None:
        """Return some bytes, good until others are read; None where it is left to HDF5.

        As many that follow are read meanwhile.
        """
        if len(self._handles) < 2 or not size:
            return None
        try:
            if self._under_way is None or self._next != (start, size):
                self._begin(start, size)
            under_way, self._under_way = self._under_way, None
            lead = (self._offset + start) % BLOCK_BYTES
            read = -1 if under_way is None else under_way.result()
            if read < lead + size:
                return None
            found = self._buffers[0][lead : lead + size]
            self._buffers.reverse()
            if start + size < self._size:
                self._begin(start + size, min(size, self._size - start - size))
        except OSError:  # not on this file system
            return None
        return found

    def _begin(self, start: int, size: int) -> None:
        """Have bytes read to the first buffer, but what the system has in memory."""
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None
        at = self._offset + start
        first, end = at // BLOCK_BYTES * BLOCK_BYTES, -(-(at + size) // BLOCK_BYTES) * BLOCK_BYTES
        if not self._in_memory(at + size - 1):
            into = self._buffers[0][: end - first]
            self._next = start, size
            self._under_way = self._reader.submit(os.preadv, self._handles[1], [into], first)

    def _in_memory(self, at: int) -> bool:
        """Return whether the system has a byte of the file in memory."""
        try:
            return os.preadv(self._handles[0], [bytearray(1)], at, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the file."""
        if len(self._handles) == 2:
            self._reader.shutdown()
        while self._handles:
            os.close(self._handles.pop())
