"""How the interior of a block goes to its owners in another world: streams of checked chunks.

A piece that spans both blocks but for their slowest axis in memory lies there without gaps and in
the same order on both sides: it goes from storage to storage with nothing packed (its rows bring
their halo and padding along, which is cheaper than leaving them out). The two ranks exchange
how their blocks lie in memory before. Every other piece is packed
into a host buffer and unpacked from one, so the extra memory of a rank is a few chunks, not a
copy of the field. One hash runs over each stream of chunks from a sender to a receiver.

Of a long piece that goes from storage to storage within a node the receiver reads the sender's
memory itself, while the sender hashes it and waits.

Senders go through receivers in rising order and receivers through senders likewise, so the
smallest unfinished (sender, receiver) pair is always at the head of both: no deadlock for any
pair of grids.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import xxhash
from mpi4py import MPI

from dmr.data.decomposition import (
    Box,
    Decomposition,
    Halo,
    MemoryLayout,
    chunks,
    common_edges,
    transfers,
)
from dmr.errors import TransferError
from dmr.system import libc
from dmr.wire import tags
from dmr.wire.ranks import Check, wait_until

if TYPE_CHECKING:
    from mpi4py import MPI

CHUNK_BYTES = 1 << 20
"""Bytes of one message: small enough to be in cache still when it is hashed."""

WINDOW = 2
"""Messages under way per rank, each way."""

DIGEST_BYTES = 8

LEAST_READ_BYTES = 4 << 20
"""A piece of less goes by messages: to offer it takes as long."""

SHARED_BYTES = 1 << 28
"""Of one message to the ranks of a node."""

Buffer = npt.NDArray[Any]

Wait = Callable[[], bool]
"""Returns whether what a step of a transfer waits for has happened."""

Steps = Generator[Wait, None, None]
"""A transfer under way: yields what has to be waited for before it can go on."""


class Distributed(Protocol):
    """What a resize needs of distributed data: a field (:class:`dmr.Field`), or a list."""

    def sending(
        self, comm: MPI.Comm, new: Decomposition, sent: list[int], *, on_host: bool
    ) -> Steps:
        """Send this rank's part to its owners in a new decomposition; add the bytes to ``sent``."""

    def receiving(
        self, comm: MPI.Comm, old: Decomposition, broken: list[Box], *, on_host: bool
    ) -> Steps:
        """Fill this rank's part from its old owners; add to ``broken`` what has another hash."""


class CellBlock(Protocol):
    """What is to be known of one rank's block of cells (:class:`dmr.Field`)."""

    decomposition: Decomposition
    rank: int
    box: Box
    memory_layout: MemoryLayout
    storage: Any

    @property
    def edges(self) -> Halo:
        """Cells of the halo at the edge of the domain that are transferred, or ()."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a cell."""

    @property
    def on_host(self) -> bool:
        """Whether the storage lies in host memory."""

    def pack(self, box: Box) -> npt.NDArray[Any]:
        """Return a contiguous host copy of the cells of ``box``."""

    def unpack(self, box: Box, values: npt.NDArray[Any]) -> None:
        """Set the cells of ``box``."""


@dataclass(frozen=True)
class Stream:
    """What one rank sends another of one field: boxes in order, then their common hash.

    Attributes:
        direct: whether the boxes go from storage to storage, without packing.
        offered: whether the receiver is asked to read the sender's memory.
    """

    peer: int
    boxes: tuple[Box, ...]
    direct: bool
    offered: bool


Form = npt.NDArray[np.int64]
"""How a block lies in memory: its edges; halo, order and layer of storage (see :func:`form_of`)."""


def form_of(block: CellBlock) -> Form:
    """Return what the other rank of a stream needs to know of a block, a row for each axis."""
    axes = len(block.box.shape)
    edges = block.edges or ((0, 0),) * axes
    layer = (0, *block.storage.shape[1:])
    rows = zip(edges, block.memory_layout.halo, block.memory_layout.order, layer, strict=True)
    return np.array([(*edge, *halo, at, cells) for edge, halo, at, cells in rows], np.int64)


def streams(
    block: CellBlock,
    other: Decomposition,
    forms: Mapping[int, Form] | None = None,
    *,
    on_host: bool,
    sending: bool = True,
) -> list[Stream]:
    """Return what this rank exchanges with each rank of ``other``; both sides cut alike.

    Args:
        forms: those of the ranks of ``other``; by default they are as this block's.
    """
    found = []
    mine = form_of(block)
    for transfer in transfers(block.decomposition, block.rank, other, sending=sending):
        form = (forms or {}).get(transfer.peer, mine)
        direct = (
            on_host
            and _aligned(block, other.box(transfer.peer), transfer.box)
            and _lie_alike(block, mine, form)
        )
        edges = common_edges(_edges_of(mine), _edges_of(form))
        box = block.decomposition.widened(transfer.box, edges)
        boxes = (
            _slabs(block, box) if direct else tuple(chunks(box, block.dtype.itemsize, CHUNK_BYTES))
        )
        long = box.size * block.dtype.itemsize >= LEAST_READ_BYTES
        found.append(Stream(transfer.peer, boxes, direct, direct and long))
    return found


def _edges_of(form: Form) -> Halo:
    return tuple((int(low), int(high)) for low, high in form[:, :2])


def _lie_alike(block: CellBlock, mine: Form, form: Form) -> bool:
    """Return whether layers along the slowest axis lie alike in two blocks."""
    others = [axis for axis in range(len(mine)) if axis != block.memory_layout.order[0]]
    halos = np.array_equal(mine[others, 2:4], form[others, 2:4])
    return halos and np.array_equal(mine[:, 4:], form[:, 4:])


def _meet(
    comm: MPI.Comm, block: CellBlock, other: Decomposition, *, on_host: bool, sending: bool
) -> Generator[Wait, None, list[Stream]]:
    """Return the streams to other ranks, once they have exchanged how their blocks lie."""
    peers = [
        one.peer
        for one in transfers(block.decomposition, block.rank, other, sending=sending)
        if not is_self(comm, one.peer, block.rank)
    ]
    mine = form_of(block)
    forms = {peer: np.empty_like(mine) for peer in peers}
    own, theirs = tags.OLD_FORM, tags.NEW_FORM
    if not sending:
        own, theirs = theirs, own
    with Pending() as pending:
        for peer, form in forms.items():
            pending.add(comm.Irecv(form, source=peer, tag=theirs), form)
            pending.add(comm.Isend(mine, dest=peer, tag=own), mine)
        yield from pending.all()
    found = streams(block, other, forms, on_host=on_host, sending=sending)
    return [stream for stream in found if stream.peer in forms]


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

    def oldest(self) -> Steps:
        """Yield what the oldest waits for, then forget it."""
        yield self._messages[0][0].Test
        self._messages.popleft()

    def all(self) -> Steps:
        """Yield what all of them wait for, then forget them."""
        yield lambda: all(request.Test() for request, _ in self._messages)
        self._messages.clear()

    def __enter__(self) -> Pending:
        return self

    def __exit__(self, *_: object) -> None:
        self._abandoned.extend(self._messages)


def sending(
    comm: MPI.Comm, block: CellBlock, new: Decomposition, sent: list[int], *, on_host: bool
) -> Steps:
    """Send a block to its owners in another decomposition; yield what has to be waited for.

    The bytes of interior sent are added to ``sent``. Where both worlds have one communicator
    (merge), what stays on this rank is left out.
    """
    plan = yield from _meet(comm, block, new, on_host=on_host, sending=True)
    with Pending() as pending:
        read: set[int] = set()
        yield from _offer(comm, block, plan, read)
        for stream in plan:
            digest = xxhash.xxh3_64()
            for box in stream.boxes:
                values = _slab(block, box) if stream.direct else _packed(block, box)
                if stream.peer not in read:
                    pending.add(comm.Isend(values, dest=stream.peer, tag=tags.CHUNK), values)
                digest.update(values.data)
                sent.append(box.size * block.dtype.itemsize)
                if len(pending) >= WINDOW:
                    yield from pending.oldest()
            word = np.frombuffer(digest.digest(), np.uint8)
            pending.add(comm.Isend(word, dest=stream.peer, tag=tags.DIGEST), word)
            if stream.peer in read:  # until then this rank's memory must stay as it is
                word = np.empty(1, np.uint8)
                pending.add(comm.Irecv(word, source=stream.peer, tag=tags.READ), word)
        while len(pending):
            yield from pending.oldest()


def _offer(comm: MPI.Comm, block: CellBlock, plan: Sequence[Stream], read: set[int]) -> Steps:
    """Offer receivers this rank's memory to read; note those that will."""
    with Pending() as pending:
        answers = {}
        for stream in plan:
            if stream.offered:
                words = offer(_slab(block, stream.boxes[0]))
                pending.add(comm.Isend(words, dest=stream.peer, tag=tags.OFFER), words)
                answers[stream.peer] = word = np.zeros(1, np.uint8)
                pending.add(comm.Irecv(word, source=stream.peer, tag=tags.ANSWER), word)
        while len(pending):
            yield from pending.oldest()
    read |= {peer for peer, word in answers.items() if word[0]}


def _accept(comm: MPI.Comm, plan: Sequence[Stream], readers: dict[int, Reader]) -> Steps:
    """Answer the senders' offers; note those whose memory can be read."""
    with Pending() as pending:
        for stream in plan:
            if stream.offered:
                words = np.empty(OFFER_WORDS, np.uint64)
                pending.add(comm.Irecv(words, source=stream.peer, tag=tags.OFFER), words)
                yield from pending.oldest()
                reader = reader_of(words)
                if reader is not None:
                    readers[stream.peer] = reader
                word = np.array([reader is not None], np.uint8)
                pending.add(comm.Isend(word, dest=stream.peer, tag=tags.ANSWER), word)
                yield from pending.oldest()


def receiving(
    comm: MPI.Comm, block: CellBlock, old: Decomposition, broken: list[Box], *, on_host: bool
) -> Steps:
    """Fill a block from its owners in another decomposition; yield what has to be waited for.

    A stream whose hash does not agree is added to ``broken``.

    Raises:
        TransferError: a sender whose memory is being read is gone.
    """
    plan = yield from _meet(comm, block, old, on_host=on_host, sending=False)
    readers: dict[int, Reader] = {}
    yield from _accept(comm, plan, readers)
    posted: deque[tuple[Box, Buffer]] = deque()
    pieces = ((each, box) for each in plan if each.peer not in readers for box in each.boxes)
    with Pending() as pending, Pending() as words:

        def post() -> None:
            while len(posted) < WINDOW and (piece := next(pieces, None)) is not None:
                stream, box = piece
                into = _slab(block, box) if stream.direct else _buffer(block, box)
                pending.add(comm.Irecv(into, source=stream.peer, tag=tags.CHUNK), into)
                posted.append((box, into))

        for stream in plan:
            digest, reader = xxhash.xxh3_64(), readers.get(stream.peer)
            for box in stream.boxes:
                post()
                if reader is not None:
                    values = _slab(block, box)
                    reader.fill(values)
                    digest.update(values.data)
                    yield _at_once
                    continue
                yield from pending.oldest()
                _, values = posted.popleft()
                post()
                digest.update(values.data)
                if not stream.direct:
                    block.unpack(box, values.view(block.dtype).reshape(box.shape))
            if reader is not None:
                words.add(comm.Isend(read := np.ones(1, np.uint8), stream.peer, tags.READ), read)
                yield from words.oldest()
            word = np.empty(DIGEST_BYTES, np.uint8)
            words.add(comm.Irecv(word, source=stream.peer, tag=tags.DIGEST), word)
            yield from words.oldest()
            if word.tobytes() != digest.digest():
                broken.append(stream.boxes[0])


def _at_once() -> bool:
    """Wait for nothing, so that other transfers go on as well."""
    return True


def is_self(comm: MPI.Comm, peer: int, rank: int) -> bool:
    """Return whether a peer is this very rank, as it may be where a world is not replaced."""
    return peer == rank and not comm.Is_inter()


def _packed(block: CellBlock, box: Box) -> Buffer:
    return block.pack(box).reshape(-1).view(np.uint8)


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


def _slabs(block: CellBlock, box: Box) -> tuple[Box, ...]:
    """Cut a box along the slowest axis in memory, into about ``CHUNK_BYTES`` of storage each."""
    axis = block.memory_layout.order[0]
    layer = block.storage[0].nbytes
    step = max(1, CHUNK_BYTES // layer)
    return tuple(
        Box(
            (*box.start[:axis], at, *box.start[axis + 1 :]),
            (*box.stop[:axis], min(at + step, box.stop[axis]), *box.stop[axis + 1 :]),
        )
        for at in range(box.start[axis], box.stop[axis], step)
    )


def _slab(block: CellBlock, box: Box) -> Buffer:
    """Return the storage of some layers along the slowest axis, as bytes, without a copy."""
    axis = block.memory_layout.order[0]
    shift = block.memory_layout.halo[axis][0] - block.box.start[axis]
    layers = block.storage[box.start[axis] + shift : box.stop[axis] + shift]
    found: Buffer = layers.reshape(-1).view(np.uint8)
    return found


# --- memory of another rank on this node --------------------------------------------------------
#
# Messages take a handshake each, between ranks that may share a core. Here the receiver reads what
# it needs by itself (Linux: ``process_vm_readv``). Where the kernel does not allow it (another
# node, another user, Yama's ``ptrace_scope``, no Linux) an offer is declined, and the data goes by
# messages.

Words = npt.NDArray[np.uint64]

OFFER_WORDS = 4

_token: Words = np.frombuffer(os.urandom(8), np.uint64)
"""Tells this process's memory from that of a process of the same number on another node."""


def offer(first: Buffer) -> Words:
    """Return what another rank needs to read this one's memory from the start of ``first`` on."""
    words = (os.getpid(), _token.ctypes.data, int(_token[0]), first.ctypes.data)
    return np.array(words, np.uint64)


@dataclass
class Reader:
    """Reads a stretch of another rank's memory from its beginning on."""

    pid: int
    address: int

    def fill(self, into: Buffer) -> None:
        """Read as many bytes as a buffer has, and go on from there the next time.

        Raises:
            TransferError: the other rank is gone, or its memory is.
        """
        count = libc.read_memory(self.pid, self.address, into)
        if count != into.nbytes:
            why = os.strerror(ctypes.get_errno()) if count < 0 else f"{count}"
            raise TransferError(f"expected {into.nbytes} bytes of process {self.pid}, got {why}")
        self.address += into.nbytes


def reader_of(offered: Words) -> Reader | None:
    """Return a reader, None if the memory that is offered cannot be read from here."""
    pid, at, token, address = map(int, offered)
    found = np.zeros(1, np.uint64)
    if libc.read_memory(pid, at, found) != found.nbytes or int(found[0]) != token:
        return None
    return Reader(pid, address)


# --- transfers, run to their ends ---------------------------------------------------------------


def drive(transfers: Sequence[Steps], check: Check | None = None) -> None:
    """Run transfers to their ends, whichever can go on; ``check`` may raise meanwhile.

    Raises:
        TransferError: there is no memory to pack, or to receive into.
    """
    with contextlib.ExitStack() as stack:
        for one in transfers:
            stack.callback(one.close)
        try:
            _drive(transfers, check)
        except MemoryError as error:
            detail = f": {error}" if str(error) else ""
            raise TransferError(f"not enough memory to move the data{detail}") from error


def _drive(transfers: Sequence[Steps], check: Check | None) -> None:
    under_way = [(one, wait) for one in transfers if (wait := next(one, None)) is not None]

    def advance() -> bool:
        moved = False
        for at, (one, wait) in reversed(list(enumerate(under_way))):
            if wait():
                moved = True
                following = next(one, None)
                if following is None:
                    del under_way[at]
                else:
                    under_way[at] = one, following
        return moved

    while under_way:
        wait_until(advance, check)


def send(
    comm: MPI.Comm,
    part: Distributed,
    new: Decomposition,
    *,
    on_host: bool = False,
    check: Check | None = None,
) -> int:
    """Send this rank's part to its owners in the new world; return the bytes of it.

    Args:
        on_host: whether the data of both worlds lies in host memory, so that MPI may use it in
            place.

    Raises:
        TransferError: memory is short, or nobody knows where list items belong.
    """
    sent: list[int] = []
    drive([part.sending(comm, new, sent, on_host=on_host)], check)
    return sum(sent)


def receive(
    comm: MPI.Comm,
    part: Distributed,
    old: Decomposition,
    *,
    on_host: bool = False,
    check: Check | None = None,
) -> bool:
    """Fill this rank's part from the old world; return whether every hash agreed.

    Raises:
        TransferError: memory is short.
    """
    broken: list[Box] = []
    drive([part.receiving(comm, old, broken, on_host=on_host)], check)
    return not broken


def share(node: MPI.Intracomm, block: CellBlock, check: Check | None = None) -> None:
    """Fill a block that every rank has whole from the one of a node's first rank (collective)."""
    if block.on_host:
        cells = block.storage.reshape(-1).view(np.uint8)
    else:
        cells = block.pack(block.box).reshape(-1).view(np.uint8)
    for start in range(0, cells.size, SHARED_BYTES):
        wait_until(node.Ibcast(cells[start : start + SHARED_BYTES]).Test, check)
    if not block.on_host and node.rank:
        block.unpack(block.box, cells.view(block.dtype).reshape(block.box.shape))
