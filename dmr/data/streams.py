"""How the interior of a block goes to its owners in another world: streams of checked chunks.

A piece that spans both blocks but for their slowest axis in memory lies there without gaps and in
the same order on both sides: it goes from storage to storage with nothing packed (its rows bring
their halo and padding along, which is cheaper than leaving them out). Every other piece is packed
into a host buffer and unpacked from one, so the extra memory of a rank is a few chunks, not a
copy of the field. One hash runs over each stream of chunks from a sender to a receiver.

Two ranks first exchange how their blocks lie in memory. Of a long piece that goes from storage to
storage within a node the receiver then reads the sender's memory itself, while the sender hashes
it and waits.

Senders go through receivers in rising order and receivers through senders likewise, so the
smallest unfinished (sender, receiver) pair is always at the head of both: no deadlock for any
pair of grids.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from dmr.data.decomposition import (
    Box,
    Decomposition,
    Halo,
    MemoryLayout,
    Transfer,
    chunks,
    common_edges,
    transfers,
)
from dmr.data.distributed import Distributed, Steps, T, Wait
from dmr.errors import TransferError
from dmr.wire import tags
from dmr.wire.ranks import Check, wait_until

if TYPE_CHECKING:
    from mpi4py import MPI

CHUNK_BYTES = 1 << 20
"""Bytes of one message: small enough to be in cache still when it is hashed."""

WINDOW = 4
"""Messages under way per rank, each way. With 2, MPICH's ofi moved 10 to 45 % less over TCP."""

DIGEST_BYTES = 8

LEAST_READ_BYTES = 4 << 20
"""A smaller piece goes by messages: the offer takes as long as the piece."""

SHARED_BYTES = 1 << 28
"""Of one message to the ranks of a node."""

Buffer = npt.NDArray[Any]

Words = npt.NDArray[np.int64]


class CellBlock(Distributed, Protocol):
    """One rank's block of cells (:class:`dmr.Field`)."""

    box: Box
    memory_layout: MemoryLayout

    def pack(self, box: Box) -> Buffer:
        """Return a contiguous host copy of the cells of ``box``."""

    def unpack(self, box: Box, values: Buffer) -> None:
        """Set the cells of ``box``."""


def sending(comm: MPI.Comm, block: CellBlock, new: Decomposition, *, on_host: bool) -> Steps[int]:
    """Send a block to its owners in another decomposition; return the bytes of interior sent.

    Where both worlds have one communicator (merge), what stays on this rank is left out.
    """
    plan = yield from _meet(comm, block, new, on_host=on_host, sending=True)
    with Pending() as pending:
        answers = {stream.peer: np.zeros(1, np.uint8) for stream in plan if stream.offered}
        for peer, answer in answers.items():
            pending.add(comm.Irecv(answer, source=peer, tag=tags.ANSWER), answer)
        yield from pending.all()
        for stream in plan:
            bytes_of = _slab if stream.direct else _packed
            pieces = (bytes_of(block, box) for box in stream.boxes)
            if stream.offered and answers[stream.peer][0]:
                digest = xxhash.xxh3_64()
                for values in pieces:
                    digest.update(values.data)
                send_digest(comm, stream.peer, digest, pending)
                read = np.empty(1, np.uint8)  # until then this rank's memory must stay as it is
                pending.add(comm.Irecv(read, source=stream.peer, tag=tags.READ), read)
            else:
                yield from send_chunks(comm, stream.peer, pieces, pending)
        yield from pending.all()
    cells = sum(box.size for stream in plan for box in stream.boxes)
    return cells * block.dtype.itemsize


def receiving(
    comm: MPI.Comm, block: CellBlock, old: Decomposition, *, on_host: bool
) -> Steps[bool]:
    """Fill a block from its owners in another decomposition; return whether every hash agrees.

    Raises:
        TransferError: a sender whose memory is being read is gone.
    """
    plan = yield from _meet(comm, block, old, on_host=on_host, sending=False)
    reads = {stream.peer: readable(stream.memory) for stream in plan if stream.offered}
    with Pending() as pending:
        for peer, can_read in reads.items():
            answer = np.array([can_read], np.uint8)
            pending.add(comm.Isend(answer, dest=peer, tag=tags.ANSWER), answer)
        yield from pending.all()
    intact = True
    for stream in plan:
        if reads.get(stream.peer):
            intact &= yield from _read(comm, block, stream)
            continue
        room = _slab if stream.direct else _buffer
        unpack = None if stream.direct else partial(_unpack, block, iter(stream.boxes))
        rooms = (room(block, box) for box in stream.boxes)
        intact &= yield from receive_chunks(comm, stream.peer, rooms, unpack)
    return intact


def _read(comm: MPI.Comm, block: CellBlock, stream: Stream) -> Steps[bool]:
    """Read the pieces of a stream from the sender's memory; return whether their hash agrees."""
    from dmr.system import libc

    digest = xxhash.xxh3_64()
    pid, _, _, address = map(int, stream.memory)
    for box in stream.boxes:
        values = _slab(block, box)
        count = libc.read_memory(pid, address, values)
        if count != values.nbytes:
            why = os.strerror(ctypes.get_errno()) if count < 0 else f"{count}"
            raise TransferError(f"expected {values.nbytes} bytes of process {pid}, got {why}")
        address += count
        digest.update(values.data)
        yield lambda: True  # so that other transfers go on as well
    with Pending() as pending:
        read = np.ones(1, np.uint8)
        pending.add(comm.Isend(read, dest=stream.peer, tag=tags.READ), read)
        yield from pending.all()
        return (yield from digest_agrees(comm, stream.peer, digest, pending))


# --- chunks of bytes, then their hash -----------------------------------------------------------


class Pending:
    """Messages under way, oldest first, with the memory that each of them uses.

    What is left when a transfer fails is kept until the process ends: MPI may still read or write
    that memory, and a message to or from a rank that has died can neither complete nor be taken
    back.
    """

    _abandoned: ClassVar[list[tuple[MPI.Request, Buffer]]] = []

    def __init__(self) -> None:
        self._messages: deque[tuple[MPI.Request, Buffer]] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, request: MPI.Request, buffer: Buffer) -> None:
        """Note a message that has been started."""
        self._messages.append((request, buffer))

    def oldest(self) -> Steps[Buffer]:
        """Wait for the oldest message; return its memory."""
        yield self._messages[0][0].Test
        return self._messages.popleft()[1]

    def all(self) -> Steps[None]:
        """Wait for all messages."""
        yield lambda: all(request.Test() for request, _ in self._messages)
        self._messages.clear()

    def __enter__(self) -> Pending:
        return self

    def __exit__(self, *_: object) -> None:
        self._abandoned.extend(self._messages)


def send_chunks(
    comm: MPI.Comm, peer: int, pieces: Iterable[Buffer], pending: Pending
) -> Steps[None]:
    """Send pieces, then their hash, which may still be pending then."""
    digest = xxhash.xxh3_64()
    for values in pieces:
        pending.add(comm.Isend(values, dest=peer, tag=tags.CHUNK), values)
        digest.update(values.data)
        if len(pending) >= WINDOW:
            yield from pending.oldest()
    send_digest(comm, peer, digest, pending)


def send_digest(comm: MPI.Comm, peer: int, digest: Any, pending: Pending) -> None:
    """Start the message with a hash."""
    word = np.frombuffer(digest.digest(), np.uint8)
    pending.add(comm.Isend(word, dest=peer, tag=tags.DIGEST), word)


def receive_chunks(
    comm: MPI.Comm,
    peer: int,
    rooms: Iterable[Buffer],
    arrived: Callable[[Buffer], None] | None = None,
) -> Steps[bool]:
    """Receive a chunk into every room, then their hash; return whether it agrees.

    Args:
        arrived: called with every room once it is filled.
    """
    digest, rooms = xxhash.xxh3_64(), iter(rooms)
    with Pending() as pending:
        while True:
            for room in islice(rooms, WINDOW - len(pending)):
                pending.add(comm.Irecv(room, source=peer, tag=tags.CHUNK), room)
            if not len(pending):
                return (yield from digest_agrees(comm, peer, digest, pending))
            values = yield from pending.oldest()
            digest.update(values.data)
            if arrived is not None:
                arrived(values)


def digest_agrees(comm: MPI.Comm, peer: int, digest: Any, pending: Pending) -> Steps[bool]:
    """Receive the sender's hash; return whether it is this one."""
    word = np.empty(DIGEST_BYTES, np.uint8)
    pending.add(comm.Irecv(word, source=peer, tag=tags.DIGEST), word)
    yield from pending.oldest()
    return bool(word.tobytes() == digest.digest())


# --- what goes to which rank, and how -----------------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """What one rank sends another of one field: boxes in order, then their common hash.

    Attributes:
        direct: whether the boxes go from storage to storage, without packing.
        offered: whether the receiver may read the sender's memory.
        memory: what :func:`offer` returns of the sender's memory where the boxes begin; the
            receiver reads it.
    """

    peer: int
    boxes: tuple[Box, ...]
    direct: bool
    offered: bool
    memory: Words


class Form:
    """How a block lies in memory, as the ranks of two worlds exchange it.

    Attributes:
        words: the message.
        rows: for every axis its edges and halo, below and above; the axis at this place of the
            order of storage, and the items of a layer of storage there (0 for the slowest).
        memory: what :func:`offer` returns of the storage.
    """

    def __init__(self, words: Words) -> None:
        self.words = words
        self.rows, self.memory = words[:-OFFER_WORDS].reshape(-1, 6), words[-OFFER_WORDS:]

    @classmethod
    def of(cls, block: CellBlock) -> Form:
        """Return the form of a block."""
        layout = block.memory_layout
        edges = block.edges or ((0, 0),) * len(layout.halo)
        layer = (0, *block.storage.shape[1:])
        rows = zip(edges, layout.halo, layout.order, layer, strict=True)
        words = np.array([(*edge, *halo, at, n) for edge, halo, at, n in rows], np.int64)
        address = block.storage.ctypes.data if block.on_host else 0
        return cls(np.concatenate([words.reshape(-1), offer(address)]))

    @property
    def edges(self) -> Halo:
        """Cells of the halo at the edge of the domain that are transferred."""
        return tuple((int(low), int(high)) for low, high in self.rows[:, :2])

    def alike(self, other: Form) -> bool:
        """Return whether layers along the slowest axis lie alike in two blocks."""
        halos_differ = (self.rows[:, 2:4] != other.rows[:, 2:4]).any(axis=1)
        halos_differ[self.rows[0, 4]] = False
        return not halos_differ.any() and np.array_equal(self.rows[:, 4:], other.rows[:, 4:])


def _meet(
    comm: MPI.Comm, block: CellBlock, other: Decomposition, *, on_host: bool, sending: bool
) -> Steps[list[Stream]]:
    """Return the streams to or from other ranks, once they have exchanged how their blocks lie."""
    shared = [
        one
        for one in transfers(block.decomposition, block.rank, other, sending=sending)
        if one.peer != block.rank or comm.Is_inter()
    ]
    mine = Form.of(block)
    forms = {one.peer: Form(np.empty_like(mine.words)) for one in shared}
    own, theirs = tags.OLD_FORM, tags.NEW_FORM
    if not sending:
        own, theirs = theirs, own
    with Pending() as pending:
        for peer, form in forms.items():
            pending.add(comm.Irecv(form.words, source=peer, tag=theirs), form.words)
            pending.add(comm.Isend(mine.words, dest=peer, tag=own), mine.words)
        yield from pending.all()
    return [_stream(block, other, one, mine, forms[one.peer], on_host) for one in shared]


def _stream(
    block: CellBlock,
    other: Decomposition,
    transfer: Transfer,
    mine: Form,
    form: Form,
    on_host: bool,
) -> Stream:
    """Return the stream to or from a rank of ``other``; both sides cut alike."""
    theirs, slowest = other.box(transfer.peer), block.memory_layout.order[0]
    box = block.decomposition.widened(transfer.box, common_edges(mine.edges, form.edges))
    if not (on_host and _aligned(block, theirs, transfer.box) and mine.alike(form)):
        boxes = tuple(chunks(box, block.dtype.itemsize, CHUNK_BYTES))
        return Stream(transfer.peer, boxes, False, False, form.memory)
    layer_bytes = block.storage[0].nbytes
    boxes = tuple(box.layers(slowest, max(1, CHUNK_BYTES // layer_bytes)))
    memory = form.memory.copy()
    layers = box.start[slowest] - theirs.start[slowest] + form.rows[slowest, 2]
    memory[-1] += layers * layer_bytes
    long = box.size * block.dtype.itemsize >= LEAST_READ_BYTES
    return Stream(transfer.peer, boxes, True, long, memory)


def _packed(block: CellBlock, box: Box) -> Buffer:
    return block.pack(box).reshape(-1).view(np.uint8)


def _unpack(block: CellBlock, boxes: Iterator[Box], values: Buffer) -> None:
    box = next(boxes)
    block.unpack(box, values.view(block.dtype).reshape(box.shape))


def _buffer(block: CellBlock, box: Box) -> Buffer:
    return np.empty(box.size * block.dtype.itemsize, np.uint8)


def _aligned(block: CellBlock, other: Box, box: Box) -> bool:
    """Return whether a piece lies without gaps, and alike, in this block and the other."""
    slowest = block.memory_layout.order[0]
    return len(box.shape) > 1 and all(
        (block.box.start[axis], block.box.stop[axis])
        == (other.start[axis], other.stop[axis])
        == (box.start[axis], box.stop[axis])
        for axis in range(len(box.shape))
        if axis != slowest
    )


def _slab(block: CellBlock, box: Box) -> Buffer:
    """Return the storage of some layers along the slowest axis, as bytes, without a copy."""
    axis = block.memory_layout.order[0]
    shift = block.memory_layout.halo[axis][0] - block.box.start[axis]
    layers = block.storage[box.start[axis] + shift : box.stop[axis] + shift]
    values: Buffer = layers.reshape(-1).view(np.uint8)
    return values


# --- memory of another rank on this node --------------------------------------------------------
#
# Where the kernel does not allow it (another node, another user, Yama's ``ptrace_scope``, no Linux)
# the receiver declines, and the data goes by messages.

OFFER_WORDS = 4

_token: Words = np.frombuffer(os.urandom(8), np.int64)
"""Tells this process's memory from that of a process of the same number on another node."""


def offer(address: int) -> Words:
    """Return what another rank needs to read this one's memory from an address on."""
    return np.array([os.getpid(), _token.ctypes.data, int(_token[0]), address], np.int64)


def readable(memory: Words) -> bool:
    """Return whether memory that another rank offers can be read from here."""
    from dmr.system import libc

    pid, at, token, _ = map(int, memory)
    here = np.zeros(1, np.int64)
    return libc.read_memory(pid, at, here) == here.nbytes and int(here[0]) == token


# --- transfers, run to their ends ---------------------------------------------------------------


def drive(transfers: Sequence[Steps[T]], check: Check | None = None) -> list[T]:
    """Run transfers to their ends, whichever can go on; return their results.

    Args:
        check: called meanwhile; it may raise.

    Raises:
        TransferError: there is no memory to pack, or to receive into.
    """
    with contextlib.ExitStack() as stack:
        for one in transfers:
            stack.callback(one.close)
        try:
            return _drive(transfers, check)
        except MemoryError as error:
            detail = f": {error}" if str(error) else ""
            raise TransferError(f"not enough memory to move the data{detail}") from error


def _drive(transfers: Sequence[Steps[T]], check: Check | None) -> list[T]:
    results: dict[int, T] = {}
    waits: dict[int, Wait] = {}

    def advance(at: int) -> None:
        try:
            waits[at] = next(transfers[at])
        except StopIteration as end:
            waits.pop(at, None)
            results[at] = end.value

    def advance_any() -> bool:
        ready = [at for at, wait in waits.items() if wait()]
        for at in ready:
            advance(at)
        return bool(ready)

    for at in range(len(transfers)):
        advance(at)
    while waits:
        wait_until(advance_any, check)
    return [results[at] for at in range(len(transfers))]


def share(node: MPI.Intracomm, block: CellBlock, check: Check | None = None) -> None:
    """Fill a block that every rank has whole from the one of a node's first rank (collective)."""
    direct = block.on_host
    cells = (block.storage if direct else block.pack(block.box)).reshape(-1).view(np.uint8)
    for start in range(0, cells.size, SHARED_BYTES):
        wait_until(node.Ibcast(cells[start : start + SHARED_BYTES]).Test, check)
    if not direct and node.rank:
        block.unpack(block.box, cells.view(block.dtype).reshape(block.box.shape))
