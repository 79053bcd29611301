"""The pieces of a dataset in a checkpoint: hashed one by one, so that they are checked as they are
read, on the only pass through the file.

Beside ``fields/NAME`` a file has ``hashes/NAME``: 16 bytes for each piece of so many rows (its
attribute ``rows``).
"""

from __future__ import annotations

import contextlib
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from dmr.data import gather

if TYPE_CHECKING:
    import h5py

Array = npt.NDArray[Any]

BLOCK_BYTES = 4096
"""What is read without the system's memory begins and ends at multiples of this."""

NUMBERS = "biufc"
"""Kinds of types that a file holds as memory does."""

DIGEST_BYTES = 16


class BrokenPieceError(ValueError):
    """A piece that is not as it was written; one sentence."""


class PieceHashes:
    """The hashes of a dataset that is written row by row: of the whole, and of each piece.

    Args:
        row_bytes: of one row along the first axis.

    Attributes:
        whole: hash of all bytes so far.
        rows: of a piece.
    """

    def __init__(self, row_bytes: int) -> None:
        self.rows = max(1, gather.SLAB_BYTES // max(1, row_bytes))
        self.whole = xxhash.xxh3_128()
        self._found: list[bytes] = []
        self._piece, self._left = xxhash.xxh3_128(), self.rows

    def update(self, values: Array) -> None:
        """Go on with contiguous rows."""
        at = 0
        while at < len(values):
            taken = values[at : at + self._left]
            bytes_ = taken.reshape(-1).view(np.uint8).data
            self.whole.update(bytes_)
            self._piece.update(bytes_)
            at, self._left = at + len(taken), self._left - len(taken)
            if not self._left:
                self._end_piece()

    def _end_piece(self) -> None:
        self._found.append(self._piece.digest())
        self._piece, self._left = xxhash.xxh3_128(), self.rows

    def store(self, file: h5py.File, name: str) -> str:
        """Write what there is to say of the pieces of a field; return the hash of that."""
        if self._left < self.rows:
            self._end_piece()
        digests = np.frombuffer(b"".join(self._found), np.uint8).reshape(-1, DIGEST_BYTES)
        file.create_dataset(f"hashes/{name}", data=digests).attrs["rows"] = self.rows
        return xxhash.xxh3_128_hexdigest(digests.tobytes())


class CheckedDataset:
    """A dataset of an open file, whose pieces are checked as they are read.

    Args:
        file: that holds it, with hashes of its pieces.
        name: of the field.
        part: its file's name and what the hashes of the pieces are to hash to, where it is a part.
        once: whether no other rank reads the same, for whom the system would keep it.

    Raises:
        BrokenPieceError: the hashes are not those of this dataset.
    """

    def __init__(
        self, file: h5py.File, name: str, part: tuple[str, str] | None = None, *, once: bool
    ) -> None:
        self._dataset: h5py.Dataset = file["fields"][name]
        self.shape: tuple[int, ...] = tuple(self._dataset.shape)
        self.dtype: np.dtype[Any] = self._dataset.dtype
        hashes = file["hashes"][name]
        self._rows, self._digests = int(hashes.attrs["rows"]), np.ascontiguousarray(hashes)
        count = -(-self.shape[0] // max(1, self._rows))
        where = "" if part is None else f", in part {part[0]}"
        self._wrong = f"field {name} does not have the hash it was written with{where}"
        if self._rows < 1 or self._digests.shape != (count, DIGEST_BYTES):
            raise BrokenPieceError(self._wrong)
        if part is not None and xxhash.xxh3_128_hexdigest(self._digests.tobytes()) != part[1]:
            raise BrokenPieceError(self._wrong)
        self._at = -1
        self._buffer = np.empty((min(self._rows, self.shape[0]), *self.shape[1:]), self.dtype)
        self._last = self._buffer
        self._plain = (
            PlainReader(file.filename, self._dataset, self._buffer.nbytes) if once else None
        )

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Array:
        """Return some cells, which are good until others are asked for.

        Raises:
            BrokenPieceError: they, or others of the same piece, are not as they were written.
        """
        rows, *others = key if isinstance(key, tuple) else (key,)
        start, stop, _ = rows.indices(self.shape[0])
        first = self._piece(start // self._rows) if start < stop else self._buffer[:0]
        at = start // self._rows * self._rows
        if stop - at <= len(first) or start >= stop:
            return first[(slice(start - at, max(start, stop) - at), *others)]
        found = np.empty((stop - start, *first[(slice(0), *others)].shape[1:]), self.dtype)
        for begin in range(at, stop, self._rows):
            piece = self._piece(begin // self._rows)
            low, high = max(start, begin), min(stop, begin + self._rows)
            taken = piece[(slice(low - begin, high - begin), *others)]
            found[low - start : high - start] = taken
        return found

    def _piece(self, number: int) -> Array:
        """Return a piece, read and checked; the one before is gone."""
        if number != self._at:
            self._at = -1
            piece = self._read(number * self._rows)
            digest = xxhash.xxh3_128_digest(piece.reshape(-1).view(np.uint8).data)
            if digest != self._digests[number].tobytes():
                raise BrokenPieceError(self._wrong)
            self._at, self._last = number, piece
        return self._last

    def _read(self, start: int) -> Array:
        """Return the piece that begins with a row."""
        piece = self._buffer[: min(self._rows, self.shape[0] - start)]
        if self._plain is not None:
            found = self._plain.read(start * self._buffer[:1].nbytes, piece.nbytes)
            if found is not None:
                return np.frombuffer(found, self.dtype).reshape(piece.shape)
        if piece.size:
            self._dataset.read_direct(piece, np.s_[start : start + len(piece)])
        return piece

    def close(self) -> None:
        """Let go of what it has beside the file."""
        if self._plain is not None:
            self._plain.close()


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
