"""Carrying fields between blocks, in checked chunks.

A piece that spans both blocks but for their slowest axis in memory lies there without gaps and in
the same order on both sides: it goes from storage to storage with nothing packed (its rows bring
their halo and padding along, which is cheaper than leaving them out). Every other piece is packed
into a host buffer and unpacked from one, so the extra memory of a rank is a few chunks, not a
copy of the field. One hash runs over each stream of chunks from a sender to a receiver.

Senders go through receivers in rising order and receivers through senders likewise, so the
smallest unfinished (sender, receiver) pair is always at the head of both: no deadlock for any
pair of grids.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from mpi4py import MPI

from dmr.data import particles
from dmr.data.decomposition import Box, Decomposition
from dmr.data.field import Field
from dmr.data.overlap import chunks, transfers
from dmr.data.particles import Items
from dmr.wire.ranks import Check, wait_until

CHUNK_BYTES = 1 << 20
"""Bytes of one message: small enough to be in cache still when it is hashed."""

WINDOW = 2
"""Messages under way per rank, each way."""

PLAIN_ROUNDS = 5
"""Rounds of plain sends, where those are measured."""

DIGEST_BYTES = 8
TAG, DIGEST_TAG = 77, 78

Buffer = npt.NDArray[Any]


@dataclass(frozen=True)
class Stream:
    """What one rank sends another of one field: boxes in order, then their common hash."""

    peer: int
    boxes: tuple[Box, ...]
    direct: bool


def streams(field: Field, rank: int, other: Decomposition, *, in_host: bool) -> list[Stream]:
    """Return what ``rank`` exchanges with each rank of ``other``; both sides cut alike."""
    itemsize = np.dtype(field.spec.dtype).itemsize
    found = []
    for transfer in transfers(field.layout, rank, other):
        direct = in_host and _aligned(field, other.box(transfer.peer), transfer.box)
        boxes = (
            _slabs(field, transfer.box)
            if direct
            else tuple(chunks(transfer.box, itemsize, CHUNK_BYTES))
        )
        found.append(Stream(transfer.peer, boxes, direct))
    return found


Wait = Callable[[], bool]
"""What a step of a transfer waits for."""


def sending(
    comm: MPI.Comm, field: Field, new: Decomposition, sent: list[int], *, in_host: bool = False
) -> Iterator[Wait]:
    """Send this block to its owners in another layout; yield what has to be waited for.

    The bytes of interior sent are added to ``sent``. Where both layouts are of one communicator
    (merge), what stays on this rank is left out: :func:`copy` does that.
    """
    if isinstance(field, Items):
        yield from particles.sending(comm, field, new, sent)
        return
    pending: deque[tuple[MPI.Request, Buffer]] = deque()
    itemsize = np.dtype(field.spec.dtype).itemsize
    for stream in streams(field, field.rank, new, in_host=in_host):
        if _self(comm, stream.peer, field.rank):
            continue
        digest = xxhash.xxh3_64()
        for box in stream.boxes:
            values = _slab(field, box) if stream.direct else _packed(field, box)
            pending.append((comm.Isend(values, dest=stream.peer, tag=TAG), values))
            digest.update(values.data)
            sent.append(box.size * itemsize)
            if len(pending) >= WINDOW:
                yield pending[0][0].Test
                pending.popleft()
        word = np.frombuffer(digest.digest(), np.uint8)
        pending.append((comm.Isend(word, dest=stream.peer, tag=DIGEST_TAG), word))
    while pending:
        yield pending[0][0].Test
        pending.popleft()


def receiving(
    comm: MPI.Comm, field: Field, old: Decomposition, broken: list[Box], *, in_host: bool = False
) -> Iterator[Wait]:
    """Fill this block from its owners in another layout; yield what has to be waited for.

    A stream whose hash does not agree is added to ``broken``.
    """
    if isinstance(field, Items):
        yield from particles.receiving(comm, field, old, broken)
        return
    plan = [
        stream
        for stream in streams(field, field.rank, old, in_host=in_host)
        if not _self(comm, stream.peer, field.rank)
    ]
    pending: deque[tuple[MPI.Request, Box, Buffer]] = deque()
    pieces = ((stream, box) for stream in plan for box in stream.boxes)

    def post() -> None:
        while len(pending) < WINDOW and (piece := next(pieces, None)) is not None:
            stream, box = piece
            into = _slab(field, box) if stream.direct else _buffer(field, box)
            pending.append((comm.Irecv(into, source=stream.peer, tag=TAG), box, into))

    for stream in plan:
        digest = xxhash.xxh3_64()
        for _ in stream.boxes:
            post()
            request, box, values = pending.popleft()
            yield request.Test
            post()
            digest.update(values.data)
            if not stream.direct:
                field.unpack(box, values.view(field.spec.dtype).reshape(box.shape))
        word = np.empty(DIGEST_BYTES, np.uint8)
        yield comm.Irecv(word, source=stream.peer, tag=DIGEST_TAG).Test
        if word.tobytes() != digest.digest():
            broken.append(stream.boxes[0])


def drive(transfers_: Sequence[Iterator[Wait]], check: Check | None = None) -> None:
    """Run transfers to their ends, whichever can go on; ``check`` may raise meanwhile."""
    under_way = [(one, wait) for one in transfers_ if (wait := next(one, None)) is not None]

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
    field: Field,
    new: Decomposition,
    *,
    in_host: bool = False,
    check: Check | None = None,
) -> int:
    """Send this rank's interior to its owners in the new world; return the bytes of it."""
    sent: list[int] = []
    drive([sending(comm, field, new, sent, in_host=in_host)], check)
    return sum(sent)


def receive(
    comm: MPI.Comm,
    field: Field,
    old: Decomposition,
    *,
    in_host: bool = False,
    check: Check | None = None,
) -> bool:
    """Fill this rank's interior from the old world; return whether every hash agreed."""
    broken: list[Box] = []
    drive([receiving(comm, field, old, broken, in_host=in_host)], check)
    return not broken


def copy(old: Field, new: Field) -> int:
    """Copy the cells that both blocks of one rank hold; return how many bytes stayed."""
    if isinstance(old, Items) and isinstance(new, Items):
        return new.keep(old)
    box = old.box.intersect(new.box)
    if box.size:
        new.interior[box.slices(new.box.start)] = old.interior[box.slices(old.box.start)]
    return box.size * np.dtype(new.spec.dtype).itemsize


def plain(
    comm: MPI.Comm, field: Field, other: Decomposition, *, sending: bool, check: Check
) -> float:
    """Send as many bytes between the same ranks from plain buffers; return the seconds it took.

    For comparison: nothing is packed, hashed or checked, and the buffers are there beforehand.
    The best of some rounds counts, since whatever else runs can only slow them down.
    """
    if isinstance(field, Items):
        return 0.0
    itemsize = np.dtype(field.spec.dtype).itemsize
    pieces = [
        (transfer.peer, np.ones(transfer.box.size * itemsize, np.uint8))
        for transfer in transfers(field.layout, field.rank, other)
    ]
    word = np.zeros(1, np.uint8)
    best = float("inf")
    for _ in range(PLAIN_ROUNDS):
        for peer, _ in pieces:  # all are there
            transfer = comm.Irecv if sending else comm.Isend
            wait_until(transfer(word, peer, DIGEST_TAG).Test, check)
        begun = time.perf_counter()
        transfer = comm.Isend if sending else comm.Irecv
        MPI.Request.Waitall([transfer(buffer, peer, TAG) for peer, buffer in pieces])
        best = min(best, time.perf_counter() - begun)
    return best


def _self(comm: MPI.Comm, peer: int, rank: int) -> bool:
    """Return whether a peer is this very rank, as it may be where a world is not replaced."""
    return peer == rank and not comm.Is_inter()


def _packed(field: Field, box: Box) -> Buffer:
    return field.pack(box).reshape(-1).view(np.uint8)


def _buffer(field: Field, box: Box) -> Buffer:
    return np.empty(box.size * np.dtype(field.spec.dtype).itemsize, np.uint8)


def _aligned(field: Field, other: Box, box: Box) -> bool:
    """Return whether a piece lies without gaps, and alike, in this block and the other."""
    slowest = field.padding.order[0]
    return len(box.shape) > 1 and all(
        (field.box.start[axis], field.box.stop[axis])
        == (other.start[axis], other.stop[axis])
        == (box.start[axis], box.stop[axis])
        for axis in range(len(box.shape))
        if axis != slowest
    )


def _slabs(field: Field, box: Box) -> tuple[Box, ...]:
    """Cut a box along the slowest axis in memory, into about ``CHUNK_BYTES`` of storage each."""
    axis = field.padding.order[0]
    layer = field.storage[0].nbytes
    step = max(1, CHUNK_BYTES // layer)
    return tuple(
        Box(
            (*box.start[:axis], at, *box.start[axis + 1 :]),
            (*box.stop[:axis], min(at + step, box.stop[axis]), *box.stop[axis + 1 :]),
        )
        for at in range(box.start[axis], box.stop[axis], step)
    )


def _slab(field: Field, box: Box) -> Buffer:
    """Return the storage of some layers along the slowest axis, as bytes, without a copy."""
    axis = field.padding.order[0]
    shift = field.padding.halo[axis][0] - field.box.start[axis]
    layers = field.storage[box.start[axis] + shift : box.stop[axis] + shift]
    found: Buffer = layers.reshape(-1).view(np.uint8)
    return found


def in_host(field: Field) -> bool:
    """Return whether a field lies in host memory, where MPI can read it in place."""
    return isinstance(field.storage, np.ndarray)
