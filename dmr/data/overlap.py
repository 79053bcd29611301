"""Which cells go where when a world is replaced: pure, tested without MPI.

Old and new interiors are intersected for any two process grids. Only interiors travel; halos
are refilled by the application's own exchange afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from dmr.data.decomposition import Box, Decomposition, part_of


@dataclass(frozen=True)
class Transfer:
    """A box of cells that moves between ``peer`` (a rank of the other world) and this rank."""

    peer: int
    box: Box


def transfers(mine: Decomposition, rank: int, other: Decomposition) -> list[Transfer]:
    """Return what ``rank`` of ``mine`` shares with each rank of ``other``, by rising peer.

    Called with (old, rank, new) it lists what to send, with (new, rank, old) what to receive:
    the two sides agree without exchanging a word. Costs as many steps as there are overlaps,
    not as there are ranks.
    """
    if mine.shape != other.shape or mine.split != other.split:
        raise ValueError(
            f"expected two decompositions of one array, got {mine.shape} split along "
            f"{mine.split} and {other.shape} split along {other.split}"
        )
    box = mine.box(rank)
    if not box.size:
        return []
    touched = [
        range(
            part_of(other.shape[axis], parts, box.start[axis]),
            part_of(other.shape[axis], parts, box.stop[axis] - 1) + 1,
        )
        for axis, parts in zip(other.split, other.grid, strict=True)
    ]
    peers = sorted(other.rank_at(place) for place in product(*touched))
    return [Transfer(peer, box.intersect(other.box(peer))) for peer in peers]


def chunks(box: Box, itemsize: int, limit_bytes: int) -> Iterator[Box]:
    """Cut a box into boxes of at most ``limit_bytes`` (or single cells), in index order."""
    shape = box.shape
    if box.size * itemsize <= limit_bytes or box.size <= 1:
        yield box
        return
    axis = next(a for a, n in enumerate(shape) if n > 1)
    across = box.size // shape[axis]
    step = max(1, limit_bytes // max(1, across * itemsize))
    for start in range(box.start[axis], box.stop[axis], step):
        stop = min(start + step, box.stop[axis])
        piece = Box(
            (*box.start[:axis], start, *box.start[axis + 1 :]),
            (*box.stop[:axis], stop, *box.stop[axis + 1 :]),
        )
        yield from chunks(piece, itemsize, limit_bytes)
