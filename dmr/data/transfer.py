"""Carrying distributed data between the ranks of two layouts, as each kind of it knows how."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from dmr.data.decomposition import Box, Decomposition
from dmr.data.field import Field
from dmr.data.streams import Steps
from dmr.errors import TransferError
from dmr.wire import tags
from dmr.wire.ranks import Check, wait_until

SHARED_BYTES = 1 << 28
"""Of one message to the ranks of a node."""

PLAIN_ROUNDS = 5
"""Rounds of plain sends, where those are measured."""


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
    field: Field,
    new: Decomposition,
    *,
    in_host: bool = False,
    check: Check | None = None,
) -> int:
    """Send this rank's part to its owners in the new world; return the bytes of it.

    Args:
        in_host: whether the data of both worlds lies in host memory, so that MPI may use it in
            place.

    Raises:
        TransferError: memory is short, or nobody knows where list items belong.
    """
    sent: list[int] = []
    drive([field.sending(comm, new, sent, in_host=in_host)], check)
    return sum(sent)


def receive(
    comm: MPI.Comm,
    field: Field,
    old: Decomposition,
    *,
    in_host: bool = False,
    check: Check | None = None,
) -> bool:
    """Fill this rank's part from the old world; return whether every hash agreed.

    Raises:
        TransferError: memory is short.
    """
    broken: list[Box] = []
    drive([field.receiving(comm, old, broken, in_host=in_host)], check)
    return not broken


def share(node: MPI.Intracomm, field: Field, check: Check | None = None) -> None:
    """Fill a field that every rank has whole from the one of a node's first rank (collective)."""
    field = field.carried()
    if field.in_host:
        cells = field.storage.reshape(-1).view(np.uint8)
    else:
        cells = field.pack(field.box).reshape(-1).view(np.uint8)
    for start in range(0, cells.size, SHARED_BYTES):
        wait_until(node.Ibcast(cells[start : start + SHARED_BYTES]).Test, check)
    if not field.in_host and node.rank:
        field.unpack(field.box, cells.view(field.dtype).reshape(field.box.shape))


def plain(
    comm: MPI.Comm, field: Field, other: Decomposition, *, sending: bool, check: Check
) -> float:
    """Send as many bytes between the same ranks from plain buffers; return the seconds it took.

    For comparison: nothing is packed, hashed or checked, and the buffers are there beforehand.
    The best of some rounds counts, since whatever else runs can only slow them down.
    """
    pieces = [
        (peer, np.ones(count, np.uint8))
        for peer, count in field.bytes_shared_with(other, sending=sending)
        if count
    ]
    if not pieces:
        return 0.0
    word = np.zeros(1, np.uint8)
    best = float("inf")
    for _ in range(PLAIN_ROUNDS):
        for peer, _ in pieces:  # all are there
            ready = comm.Irecv if sending else comm.Isend
            wait_until(ready(word, peer, tags.RAW_READY).Test, check)
        begun = time.perf_counter()
        transfer = comm.Isend if sending else comm.Irecv
        MPI.Request.Waitall([transfer(buffer, peer, tags.RAW) for peer, buffer in pieces])
        best = min(best, time.perf_counter() - begun)
    return best
