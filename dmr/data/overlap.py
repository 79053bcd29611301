"""Which cells go where when a world is replaced: pure, tested without MPI.

Old and new interiors are intersected for any two process grids. Only interiors are moved
(and the halo at the edge of the domain, where both sides state it); other halos are refilled
by the application's own exchange afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from dmr.data.decomposition import Box, Decomposition


@dataclass(frozen=True)
class Transfer:
    """A box of cells that moves between ``peer`` (a rank of the other world) and this rank."""

    peer: int
    box: Box


def transfers(
    mine: Decomposition, rank: int, other: Decomposition, *, sending: bool = True
) -> list[Transfer]:
    """Return what ``rank`` of ``mine`` shares with each rank of ``other``, by rising peer.

    Called with (old, rank, new) it lists what to send, with (new, rank, old) what to receive:
    the two sides agree without exchanging a word. Costs as many steps as there are overlaps,
    not as there are ranks. Of an array that every rank has the whole of, each new rank gets it
    from one old one, or each of the new layout's ``receivers`` does.
    """
    if mine.shape != other.shape or mine.split != other.split:
        raise ValueError(
            f"expected two decompositions of one array, got {mine.shape} split along "
            f"{mine.split} and {other.shape} split along {other.split}"
        )
    box = mine.box(rank)
    if not box.size:
        return []
    if not mine.split:
        old, new = (mine, other) if sending else (other, mine)
        return [Transfer(peer, box) for peer in _replicas(rank, old, new, sending=sending)]
    touched = [
        range(other.part_with(at, box.start[axis]), other.part_with(at, box.stop[axis] - 1) + 1)
        for at, axis in enumerate(other.split)
    ]
    peers = sorted(other.rank_at(place) for place in product(*touched))
    shared = [Transfer(peer, box.intersect(other.box(peer))) for peer in peers]
    return [one for one in shared if one.box.size] if other.bounds else shared


def _replicas(rank: int, old: Decomposition, new: Decomposition, *, sending: bool) -> Sequence[int]:
    """Return the ranks that get the whole array from this one, or whom this gets it from."""
    if new.receivers is None:
        return range(rank, new.copies, old.copies) if sending else [rank % old.copies]
    # Old ranks that are far apart, so that they lie on as many nodes as can be.
    senders = [at * old.copies // len(new.receivers) for at in range(len(new.receivers))]
    pairs = list(zip(senders, new.receivers, strict=True))
    if sending:
        return [receiver for sender, receiver in pairs if sender == rank]
    return [sender for sender, receiver in pairs if receiver == rank]


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
