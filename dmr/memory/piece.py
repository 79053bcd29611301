"""A piece: what one rank holds of one generation of copies, in one file of shared memory.

The keeper of the host has every file open (memfd_create(2)), and in its folder a link to it for the
ranks: the memory is free again once keeper and ranks have ended, however they end.

A generation is the state of a whole run at one step; it has a piece for each rank of the world
that took it. A file begins with a head of 64 bytes. The blocks of the rank's fields follow, each
with its axes from the slowest in memory to the contiguous one, then the encoded progress (rank 0
only), then the description (JSON of :class:`Piece`). The head states where the description lies
and its hash, and is written last: a file whose writer was killed is not a piece.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from dmr.boot.environment import free_on_host
from dmr.data.decomposition import Box, Halo
from dmr.plan import Limits

Array = npt.NDArray[Any]

HEAD = struct.Struct("!8sQQ16s")
MAGIC = b"dmrpiece"
HEAD_BYTES = 64
"""Room for the head, so that the first block begins at a cache line."""

DIGEST_BYTES = 16

CHUNK_BYTES = 4 << 20
"""Bytes that have a hash of their own, and are read together."""

SUFFIX = ".piece"


class BrokenPieceError(Exception):
    """A piece that cannot be read, or not as it was written; one sentence."""


class NoRoomError(Exception):
    """Shared memory has no room for a piece; one sentence."""


class Generation(msgspec.Struct, frozen=True, order=True):
    """The state of a run at one step, as one of its worlds copied it; the newest is the largest.

    Attributes:
        block: number of the block of :func:`dmr.malleable` within the program.
        step: steps done.
        life: worlds that the supervisor had started before.
        world: resizes until then.
    """

    block: int
    step: int
    life: int
    world: int


class Block(msgspec.Struct, frozen=True):
    """The cells of one field, or the items of one list, in a piece.

    Attributes:
        box: where they lie in the whole.
        order: their axes, from the slowest to the contiguous one.
        itemsize: bytes of a cell.
        offset: of the first byte in the file.
        rows: of a chunk along the slowest axis; the last chunk may have less.
        digests: hashes of the chunks.
    """

    box: Box
    order: tuple[int, ...]
    itemsize: int
    offset: int
    rows: int
    digests: list[bytes]

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along the axes in their order."""
        return tuple(self.box.shape[axis] for axis in self.order)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row along the slowest axis."""
        return prod(self.shape[1:]) * self.itemsize

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield offset and bytes of every chunk."""
        rows = self.shape[0]
        for at in range(0, rows, self.rows):
            yield (
                self.offset + at * self.row_bytes,
                min(self.rows, rows - at) * self.row_bytes,
            )


class Job(msgspec.Struct, frozen=True):
    """The data of a generation that all ranks have alike; rank 0's piece holds it.

    Attributes:
        offset, nbytes: of the encoded progress in the file.
        digest: of the encoded progress.
        options: of the plan.
        ranks: of the world.
        limits, sizes: of the plan, for the next world.
        signature: of the fields, by name.
        edges: cells of the halo at the edge of the domain that are stored, of fields with any.
    """

    offset: int
    nbytes: int
    digest: bytes
    options: dict[str, Any]
    ranks: int
    limits: Limits
    sizes: tuple[int, ...]
    signature: dict[str, Any]
    edges: dict[str, Halo]


class Piece(msgspec.Struct):
    """The description of a piece.

    Attributes:
        generation: that it belongs to.
        rank, ranks: whose it is, and ranks of that world.
        blocks: by field.
        job: rank 0's, None in the others.
    """

    generation: Generation
    rank: int
    ranks: int
    blocks: dict[str, Block]
    job: Job | None = None


def digest(data: Any) -> bytes:
    """Return the hash of bytes."""
    return xxhash.xxh3_128_digest(data)


def layout(
    fields: Mapping[str, Any], progress_bytes: int, start: int = HEAD_BYTES
) -> tuple[dict[str, Block], int, int]:
    """Return the blocks of a piece without hashes, the offset of the progress, and its end.

    Args:
        fields: parts to copy (:class:`~dmr.data.distributed.Distributed`), with their edges.
    """
    blocks, at = dict[str, Block](), start
    for name, part in fields.items():
        box = part.stored_box()
        if box is None or not box.size:
            continue
        order, itemsize = tuple(part.stored_order), part.dtype.itemsize
        row_bytes = box.size // box.shape[order[0]] * itemsize
        rows = max(1, CHUNK_BYTES // row_bytes)
        empty = [bytes(DIGEST_BYTES)] * -(-box.shape[order[0]] // rows)
        blocks[name] = Block(box, order, itemsize, at, rows, empty)
        at += -(-box.size * itemsize // HEAD_BYTES) * HEAD_BYTES
    return blocks, at, at + progress_bytes


MADV_POPULATE_WRITE = 23
"""Of madvise(2): make pages present, so that no write has to wait for them."""

POPULATED_BYTES = 4 << 20


def new_memory(path: Path) -> int:
    """Make memory that ends with the processes that have it open; return its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(path.name, os.MFD_CLOEXEC)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def give_name(path: Path, memory: int) -> None:
    """Let other processes of this user open the memory of a descriptor of this one by a name."""
    if hasattr(os, "memfd_create"):
        path.unlink(missing_ok=True)
        path.symlink_to(f"/proc/{os.getpid()}/fd/{memory}")


class PieceFile:
    """Shared memory for one piece after another, mapped into this process.

    It is used again, so that only the first piece waits for new pages.

    Args:
        path: its name, which another process has made.
        memory: descriptor of :func:`new_memory` to give that name, and to close at the end.
    """

    def __init__(self, path: Path, memory: int | None = None) -> None:
        self.path = path
        if memory is None:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        else:
            give_name(path, memory)
            self._file = memory
        self._lock = threading.Lock()  # of the file: a thread may get its memory
        self._map: mmap.mmap | None = None
        self._size = os.fstat(self._file).st_size

    def reserve(self, nbytes: int) -> memoryview:
        """Return memory of at least so many bytes, whose head states no piece.

        Raises:
            NoRoomError: there is not so much memory.
        """
        with self._lock:
            if self._file < 0:
                raise BrokenPieceError(f"expected {self.path} to be open, got a closed file")
            if self._map is None or self._size < nbytes:
                memory = self._map = self._grown(max(nbytes, self._size))
            else:
                memory = self._map
        memory[:HEAD_BYTES] = bytes(HEAD_BYTES)
        return memoryview(memory)

    def _grown(self, nbytes: int) -> mmap.mmap:
        """Return the file mapped in a larger size; arrays keep the map before until they go."""
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        free = room(self.path.parent)
        if size - self._size > free:
            raise NoRoomError(
                f"expected {size - self._size >> 20} MiB of free memory on a host, got "
                f"{free >> 20} MiB"
            )
        try:
            if hasattr(os, "posix_fallocate"):  # a page that cannot be had later is a SIGBUS
                os.posix_fallocate(self._file, 0, size)
            else:
                os.ftruncate(self._file, size)
            memory = mmap.mmap(self._file, size)
        except OSError as error:
            raise NoRoomError(
                f"expected {size >> 20} MiB of shared memory, got {os.strerror(error.errno or 0)}"
            ) from None
        self._size = size
        # Part by part: a call for all of it, as MAP_POPULATE, would stop the other threads.
        for at in range(0, size, POPULATED_BYTES):
            with contextlib.suppress(OSError):  # before Linux 5.14
                memory.madvise(MADV_POPULATE_WRITE, at, min(POPULATED_BYTES, size - at))
        return memory

    def seal(self, end: int, description: bytes) -> int:
        """Write the description at ``end``, then the head; return the bytes of the piece."""
        if self._map is None:
            raise BrokenPieceError(f"expected {self.path} to be mapped, got a closed file")
        self._map[end : end + len(description)] = description
        self._map[: HEAD.size] = HEAD.pack(MAGIC, end, len(description), digest(description))
        return end + len(description)

    def move(self, path: Path) -> None:
        """Give the file another name, in place of a file that has it."""
        self.path.replace(path)
        self.path = path

    def released(self) -> int:
        """Return its descriptor, which another piece may have from now on, and unmap it."""
        with self._lock:
            self._map = None
            memory, self._file = self._file, -1
        return memory

    def close(self, *, unlink: bool = False) -> None:
        """Close the file; its name stays unless ``unlink``."""
        with self._lock:
            self._map = None
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
        if unlink:
            self.path.unlink(missing_ok=True)


def room(folder: Path) -> int:
    """Return the free memory of the host, else the free bytes of the file system of a folder."""
    memory = free_on_host()
    if memory is not None:
        return memory
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def read_description(path: Path) -> tuple[Piece, int]:
    """Return the description of a file, and the bytes of the piece.

    Raises:
        BrokenPieceError: the file is no whole piece.
    """
    try:
        with path.open("rb") as file:
            magic, end, length, wanted = HEAD.unpack(file.read(HEAD.size))
            if magic != MAGIC:
                raise BrokenPieceError(f"{path.name} has no head")
            file.seek(end)
            text = file.read(length)
            if digest(text) != wanted:
                raise BrokenPieceError(f"{path.name} does not have its hash")
            return msgspec.json.decode(text, type=Piece), end + length
    except (OSError, struct.error, msgspec.DecodeError) as error:
        raise BrokenPieceError(f"{path.name} cannot be read: {error}") from None


def cells_of(
    data: bytes | bytearray | memoryview, block: Block, number: int, dtype: np.dtype[Any]
) -> Array:
    """Return the cells of a chunk, with its axes as those of the box.

    Raises:
        BrokenPieceError: the chunk does not have its hash.
    """
    if digest(data) != block.digests[number]:
        raise BrokenPieceError("a block does not have its hash")
    values = np.frombuffer(data, np.uint8).view(dtype).reshape(-1, *block.shape[1:])
    inverse = [block.order.index(axis) for axis in range(len(block.order))]
    return values.transpose(inverse)


def whole(pieces: Iterable[Piece]) -> list[Generation]:
    """Return the generations of which every rank has a piece, the newest first."""
    ranks: dict[Generation, set[int]] = {}
    sizes: dict[Generation, int] = {}
    for piece in pieces:
        ranks.setdefault(piece.generation, set()).add(piece.rank)
        sizes[piece.generation] = piece.ranks
    return sorted((one for one in ranks if len(ranks[one]) == sizes[one]), reverse=True)


def partner_shifts(hosts: int, partners: int) -> Sequence[int]:
    """Return by how many places in the ring of hosts each partner of a host lies ahead.

    The first partner is half the ring ahead: neighbours in the ring exchange halos.
    """
    ahead = [(hosts // 2 + at) % hosts for at in range(hosts)] if hosts else []
    return [shift for shift in ahead if shift][:partners]
