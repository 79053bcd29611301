"""Carrying distributed data between the ranks of two layouts, as each kind of it knows how."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from dmr.data.decomposition import Box, Decomposition
from dmr.data.field import Field
from dmr.data.streams import Steps
from dmr.errors import TransferError
from dmr.wire.ranks import Check, wait_until

SHARED_BYTES = 1 << 28
"""Of one message to the ranks of a node."""


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
