"""Streaming a distributed field through rank 0 in file order, a slab at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from dmr.data.decomposition import Box
from dmr.data.field import Field

SLAB_BYTES = 32 << 20
TAG = 78


def slabs(comm: MPI.Intracomm, field: Field) -> Iterator[tuple[Box, npt.NDArray[Any] | None]]:
    """Yield the global interior as slabs along the first axis, in C order (collective).

    Rank 0 gets each slab's values, the others None. No rank ever holds more than a slab, and a
    slab is one plane at least and about ``SLAB_BYTES`` otherwise.
    """
    shape = field.spec.shape
    dtype = np.dtype(field.spec.dtype)
    plane_bytes = int(np.prod(shape[1:])) * dtype.itemsize
    step = max(1, SLAB_BYTES // plane_bytes)
    for start in range(0, shape[0], step):
        stop = min(start + step, shape[0])
        slab = Box((start, *(0,) * (len(shape) - 1)), (stop, *shape[1:]))
        yield slab, _gather_slab(comm, field, slab, dtype)


def _gather_slab(
    comm: MPI.Intracomm, field: Field, slab: Box, dtype: np.dtype[Any]
) -> npt.NDArray[Any] | None:
    if comm.rank:
        mine = field.box.intersect(slab)
        if mine.size:
            comm.Send(field.pack(mine).reshape(-1).view(np.uint8), dest=0, tag=TAG)
        return None
    values = np.empty(slab.shape, dtype)
    for rank in range(comm.size):
        part = field.layout.box(rank).intersect(slab)
        if not part.size:
            continue
        if rank:
            message = np.empty(part.size * dtype.itemsize, np.uint8)
            comm.Recv(message, source=rank, tag=TAG)
            piece = message.view(dtype).reshape(part.shape)
        else:
            piece = field.pack(part)
        values[part.slices(slab.start)] = piece
    return values
