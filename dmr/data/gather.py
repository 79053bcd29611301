"""Streaming distributed data in the order of a file: through rank 0, or each rank its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dmr.data.decomposition import Box
from dmr.data.distributed import Array, Distributed
from dmr.errors import outside_block
from dmr.system.watch import WATCH
from dmr.wire import tags

if TYPE_CHECKING:
    from mpi4py import MPI

    from dmr.data.streams import CellBlock

SLAB_BYTES = 2 << 20
"""In cache still when it is hashed and written; and its memory is used again, without new pages."""


def slabs(comm: MPI.Intracomm, block: CellBlock) -> Iterator[tuple[Box, Array | None]]:
    """Yield the global interior as slabs along axis 0, in C order (collective).

    Rank 0 gets the values of a slab, the others None. No rank ever holds more than a slab, and a
    slab is one plane at least and about ``SLAB_BYTES`` otherwise.

    Args:
        comm: over the ranks of the block's world, the library's own (``World.internal_comm``).
    """
    shape = block.decomposition.shape
    plane_bytes = int(np.prod(shape[1:])) * block.dtype.itemsize
    for slab in Box((0,) * len(shape), shape).layers(0, max(1, SLAB_BYTES // plane_bytes)):
        yield slab, _gather_slab(comm, block, slab)


def whole(comm: MPI.Intracomm | None, part: Distributed) -> Array | None:
    """Return all cells or items on rank 0, None on the others (collective).

    Raises:
        RuntimeError: the part is not in a run.
    """
    if comm is None:
        raise outside_block("gather()")
    with WATCH.within("gather()", patient=True):
        own = []
        for piece in part.gathered(comm)[1]:
            WATCH.restart()  # the timeout applies to each piece
            if piece is not None:
                own.append(piece)
    return None if comm.rank else np.concatenate(own)


def own_boxes(block: CellBlock, limit_bytes: int = SLAB_BYTES) -> Iterator[Box]:
    """Yield the interior of this rank's block cut along axis 0, in order."""
    layer_bytes = block.box.size // max(1, block.box.shape[0]) * block.dtype.itemsize
    yield from block.box.layers(0, max(1, limit_bytes // max(1, layer_bytes)))


def lists(comm: MPI.Intracomm, mine: Array, counts: list[int] | None) -> Iterator[Array | None]:
    """Yield the items of every rank, in the order of the ranks, on rank 0; elsewhere None, once.

    Args:
        mine: this rank's items, contiguous.
        counts: the number of items of every rank, on rank 0.
    """
    if counts is None:
        comm.Send(mine.reshape(-1).view(np.uint8), dest=0, tag=tags.GATHER)
        yield None
        return
    yield mine
    for rank, count in enumerate(counts[1:], 1):
        items = np.empty((count, *mine.shape[1:]), mine.dtype)
        comm.Recv(items.reshape(-1).view(np.uint8), source=rank, tag=tags.GATHER)
        yield items


def _gather_slab(comm: MPI.Intracomm, block: CellBlock, slab: Box) -> Array | None:
    if not block.decomposition.split:
        return None if comm.rank else block.pack(slab)  # every rank has it
    if comm.rank:
        mine = block.box.intersect(slab)
        if mine.size:
            comm.Send(block.pack(mine).reshape(-1).view(np.uint8), dest=0, tag=tags.GATHER)
        return None
    if block.box.intersect(slab) == slab:
        return block.pack(slab)
    values = np.empty(slab.shape, block.dtype)
    for rank in range(comm.size):
        part = block.decomposition.box(rank).intersect(slab)
        if not part.size:
            continue
        if rank:
            message = np.empty(part.size * block.dtype.itemsize, np.uint8)
            comm.Recv(message, source=rank, tag=tags.GATHER)
            piece = message.view(block.dtype).reshape(part.shape)
        else:
            piece = block.pack(part)
        values[part.slices(slab.start)] = piece
    return values
