"""Carrying fields from one world to another, in checked chunks.

Every chunk is packed into one host buffer with a hash behind it; a few are under way at a time,
so the extra memory of a rank is a few chunks, not a copy of the field. Senders go through
receivers in rising order and receivers through senders likewise, so the smallest unfinished
(sender, receiver) pair is always at the head of both: no deadlock for any pair of grids.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from mpi4py import MPI

from dmr.field import Field
from dmr.layout import Decomposition
from dmr.redistribution import Transfer, chunks, transfers

CHUNK_BYTES = 2 << 20
"""Bytes of one message: small enough to stay in cache between packing and sending."""

WINDOW = 4
"""Messages under way per rank."""

DIGEST_BYTES = 8
TAG = 77

Buffer = npt.NDArray[np.uint8]


def send(inter: MPI.Intercomm, field: Field, rank: int, new: Decomposition) -> int:
    """Send this rank's interior to its owners in the new world; return the bytes sent."""
    sent = 0
    pending: deque[tuple[MPI.Request, Buffer]] = deque()
    for piece in _pieces(field, transfers(field.layout, rank, new)):
        values = field.pack(piece.box).reshape(-1).view(np.uint8)
        message = np.empty(values.size + DIGEST_BYTES, np.uint8)
        message[:-DIGEST_BYTES] = values
        message[-DIGEST_BYTES:] = _digest(values)
        if len(pending) == WINDOW:
            pending.popleft()[0].Wait()
        pending.append((inter.Isend(message, dest=piece.peer, tag=TAG), message))
        sent += values.size
    for request, _ in pending:
        request.Wait()
    return sent


def receive(inter: MPI.Intercomm, field: Field, rank: int, old: Decomposition) -> bool:
    """Fill this rank's interior from the old world; return whether every hash agreed."""
    itemsize = np.dtype(field.spec.dtype).itemsize
    pieces = iter(_pieces(field, transfers(field.layout, rank, old)))
    pending: deque[tuple[MPI.Request, Transfer, Buffer]] = deque()

    def post(count: int) -> None:
        for piece in islice(pieces, count):
            message = np.empty(piece.box.size * itemsize + DIGEST_BYTES, np.uint8)
            pending.append((inter.Irecv(message, source=piece.peer, tag=TAG), piece, message))

    intact = True
    post(WINDOW)
    while pending:
        request, piece, message = pending.popleft()
        request.Wait()
        post(1)
        values = message[:-DIGEST_BYTES]
        intact &= bool((message[-DIGEST_BYTES:] == _digest(values)).all())
        field.unpack(piece.box, values.view(field.spec.dtype).reshape(piece.box.shape))
    return intact


def _pieces(field: Field, plan: list[Transfer]) -> Any:
    """Yield the plan cut into messages; sender and receiver cut alike."""
    itemsize = np.dtype(field.spec.dtype).itemsize
    for transfer in plan:
        for box in chunks(transfer.box, itemsize, CHUNK_BYTES):
            yield Transfer(transfer.peer, box)


def _digest(values: Buffer) -> Buffer:
    return np.frombuffer(xxhash.xxh3_64_digest(values.data), np.uint8)
