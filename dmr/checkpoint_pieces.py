"""The pieces of a dataset in a checkpoint: hashed one by one, so that they are checked as they are
read, on the only pass through the file.

Beside ``fields/NAME`` a file has ``hashes/NAME``: 16 bytes for each piece of so many rows (its
attribute ``rows``). Files of earlier versions have none; of them the whole is read first.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from dmr.data import gather

if TYPE_CHECKING:
    import h5py

Array = npt.NDArray[Any]

AHEAD = 8
"""Pieces that the system is asked to read while one is taken."""

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


def has_pieces(file: h5py.File, name: str) -> bool:
    """Return whether a file says of each piece of a field what its hash is."""
    return f"hashes/{name}" in file


class CheckedDataset:
    """A dataset of an open file, whose pieces are checked as they are read.

    Args:
        file: that holds it, with hashes of its pieces.
        name: of the field.
        part: its file's name and what the hashes of the pieces are to hash to, where it is a part.
        once: whether no other rank reads the same, so that the system need not keep it.

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
        self._ahead = ReadAhead(file.filename, self._dataset, self._buffer.nbytes, once=once)

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
        start = number * self._rows
        piece = self._buffer[: min(self._rows, self.shape[0] - start)]
        if number != self._at:
            self._at = -1
            self._ahead.reading(number)
            if piece.size:
                self._dataset.read_direct(piece, np.s_[start : start + len(piece)])
            digest = xxhash.xxh3_128_digest(piece.reshape(-1).view(np.uint8).data)
            if digest != self._digests[number].tobytes():
                raise BrokenPieceError(self._wrong)
            self._at = number
        return piece

    def close(self) -> None:
        """Let go of what it has beside the file."""
        self._ahead.close()


class ReadAhead:
    """Has the system read the pieces of a dataset before they are asked for.

    What it did not have in memory anyway it need not keep once it has been taken: then the next
    pieces go to the same memory, and no new pages are needed. These are hints; where they cannot be
    given nothing else changes.

    Args:
        path: of the file.
        dataset: whose bytes lie in it in one stretch, or no hints are given.
        piece_bytes: of all pieces but the last.
        once: whether what is read may be forgotten.
    """

    def __init__(self, path: str, dataset: h5py.Dataset, piece_bytes: int, *, once: bool) -> None:
        offset = dataset.id.get_offset()
        self._handle, self._next, self._once = -1, 0, once
        self._new: deque[int] = deque()
        """Pieces, in rising order, that were not in memory and have not been forgotten yet."""
        if offset is not None and piece_bytes and hasattr(os, "posix_fadvise"):
            self._handle = os.open(path, os.O_RDONLY)
            self._offset, self._bytes = int(offset), piece_bytes
            self._count = -(-int(dataset.id.get_storage_size()) // piece_bytes)

    def reading(self, number: int) -> None:
        """Note which piece is about to be read; those before it have been taken."""
        if self._handle < 0:
            return
        for piece in range(max(self._next, number), min(number + AHEAD + 1, self._count)):
            if not self._in_memory(piece):
                self._advise(piece, os.POSIX_FADV_WILLNEED)
                self._new.append(piece)
            self._next = piece + 1
        while self._new and self._new[0] < number:
            self._forget(self._new.popleft())

    def close(self) -> None:
        """Forget the rest."""
        if self._handle >= 0:
            while self._new:
                self._forget(self._new.popleft())
            os.close(self._handle)
            self._handle = -1

    def _forget(self, piece: int) -> None:
        if self._once:
            self._advise(piece, os.POSIX_FADV_DONTNEED)

    def _in_memory(self, piece: int) -> bool:
        """Return whether the system has the end of a piece, as far as it says so."""
        try:
            at = self._offset + (piece + 1) * self._bytes - 1
            os.preadv(self._handle, [bytearray(1)], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except (AttributeError, OSError):
            return True  # it cannot be told: leave all to the system
        return True

    def _advise(self, piece: int, advice: int) -> None:
        with contextlib.suppress(OSError):
            at = self._offset + piece * self._bytes
            os.posix_fadvise(self._handle, at, self._bytes, advice)
