"""A list of items on every rank, of a length that varies: particles, cells of a mesh, agents.

The application says by one function on which rank each item belongs; that is all a resize needs.
An item is a row of a NumPy array: a number, a record of a structured type, or an array.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from dmr.data import gather
from dmr.data.decomposition import Box, Decomposition, Halo
from dmr.data.distributed import (
    Array,
    Getter,
    Setter,
    Spec,
    Steps,
    StoredPieces,
    Wait,
    check_accessors,
)
from dmr.data.field import host_array
from dmr.data.streams import CHUNK_BYTES, Pending, receive_chunks, send_chunks
from dmr.errors import TransferError, outside_block
from dmr.system.watch import WATCH
from dmr.wire import tags

Owner = Callable[[Array, Decomposition], npt.ArrayLike]
"""Returns the rank in a decomposition of every item: whole numbers, as many as there are items."""

ANYWHERE = 1 << 40
"""Cells of the grid of a list whose items may be on any rank: more than there are ranks."""

POLLS = 1000
"""Polls of a rank that waits for others in its step, until it yields its core."""


class OwnerError(TransferError):
    """The application does not say where its items belong; one sentence."""


@dataclass(frozen=True)
class ListSpec(Spec):
    """What an application states about a list that every rank has a part of.

    The decomposition of the grid is that of a field; ``owner`` receives it (:func:`rank_of`).
    ``initial`` returns the items that belong to the box of a rank in the beginning, in order.

    Attributes:
        item: shape of an item, () for a number or a record.
        owner: on which rank of a decomposition each item belongs.
    """

    item: tuple[int, ...] = ()
    owner: Owner | None = None

    def __post_init__(self) -> None:
        if not self.split:
            raise ValueError("expected at least one axis of the items' grid to split, got none")
        if self.constant:
            raise ValueError("expected a list that may change, got constant=True")
        if self.owner is None:
            raise ValueError("expected a function that says who owns an item, got none")
        super().__post_init__()

    def block(self, decomposition: Decomposition, rank: int) -> Items:
        """Return a rank's part, empty."""
        return Items(self, decomposition, rank)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole: 0, for they are not known beforehand."""
        return 0

    def stored_shape(self, rows: int, edges: Halo = ()) -> tuple[int, ...]:
        """Return the shape that a checkpoint holds, if it has so many items."""
        return (rows, *self.item)

    def extents_in_checkpoint(self, parts: Sequence[Box]) -> list[Box]:
        """Return where the items of all ranks lie in the list: in the order of the ranks."""
        ends = list(accumulate((part.stop[0] for part in parts), initial=0))
        extents = zip(parts, ends, ends[1:], strict=False)
        return [part.cut(0, begin, end) for part, begin, end in extents]

    def owners(self, items: Array, decomposition: Decomposition) -> npt.NDArray[np.int64]:
        """Return the rank of every item.

        Raises:
            OwnerError: the application's function failed, or gave something else.
        """
        try:
            ranks = np.asarray(self.owner(items, decomposition) if self.owner is not None else ())
        except Exception as error:
            raise OwnerError(f"who owns an item is not known: {error!r}") from error
        good = ranks.shape == (len(items),) and (
            not len(items)
            or (ranks.dtype.kind in "iu" and ranks.min() >= 0 and ranks.max() < decomposition.size)
        )
        if not good:
            raise OwnerError(
                f"expected {len(items)} owners of 0 to {decomposition.size - 1}, "
                f"got shape {ranks.shape} and type {ranks.dtype}"
            )
        return ranks.astype(np.int64)

    def signature(self) -> dict[str, Any]:
        """Return what both sides of a resize must agree on."""
        return {
            "grid": list(self.shape),
            "split": list(self.split),
            "item": list(self.item),
            "dtype": str(np.dtype(self.dtype)),
        }


class Items:
    """One rank's part of a list.

    Attributes:
        spec: what the application stated.
        decomposition: who owns which cells of the items' grid in this world.
        rank: whose part it is.
        box: the cells of this rank.
        comm: the library's own ranks of the world that the part is in, once it is.
    """

    comm: MPI.Intracomm | None = None
    on_host = True
    edges: Halo = ()
    ordered = False
    """Whether the order of the items is part of the data."""

    def __init__(self, spec: ListSpec, decomposition: Decomposition, rank: int) -> None:
        self.spec, self.decomposition, self.rank = spec, decomposition, rank
        self.box = decomposition.box(rank)
        self._kept: dict[int, Array] = {}
        self._before: Items | None = None
        self._announced: Announcements | None = None
        self.storage = self.none()

    def none(self, count: int = 0) -> Array:
        """Return room for items."""
        return np.zeros((count, *self.spec.item), self.spec.dtype)

    @property
    def items(self) -> Array:
        """The items of this rank along axis 0, the application's to set or change."""
        return self.storage

    @items.setter
    def items(self, values: npt.ArrayLike) -> None:
        items = np.asarray(values, self.spec.dtype)
        if items.shape[1:] != self.spec.item:
            raise ValueError(
                f"expected items of shape {self.spec.item}, got an array of shape {items.shape}"
            )
        self.storage = items

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an item, or of its numbers."""
        return np.dtype(self.spec.dtype)

    def join(self, comm: MPI.Intracomm | None) -> None:
        """Enter a world with these ranks of the library's own; None: leave the one before."""
        self.comm = comm

    def initialise(self) -> None:
        """Set the application's initial items."""
        self.items = self.spec.initial(self.box)

    def update(self) -> None:
        """Read the items by the application's getter, if it has one.

        Raises:
            ValueError: on this rank alone: the getter returns items of another shape.
        """
        if self.spec.getter is not None:
            self.items = self.spec.getter()

    def deliver(self) -> None:
        """Give the items to the application's setter, if it has one."""
        if self.spec.setter is not None:
            self.spec.setter(self.items)

    def release(self) -> None:
        """Do nothing: the items are the application's own memory."""

    def prefault(self) -> None:
        """Do nothing: how many items will arrive is not known."""

    def gather(self) -> Array | None:
        """Return the whole list on rank 0, None on the others (collective)."""
        self.update()
        return gather.whole(self.comm, self)

    def keep(self, old: Items) -> int:
        """Take what stays on this rank; return its bytes (merge)."""
        self._before = old
        owners = self.spec.owners(old.items, self.decomposition)
        mine = old.items[owners == self.rank]
        self._kept[self.rank] = mine
        return int(mine.nbytes)

    def moved_to(self, decomposition: Decomposition, rank: int) -> Self:
        """Return a rank's empty part of another decomposition."""
        return type(self)(self.spec, decomposition, rank)

    def parts(self, decomposition: Decomposition) -> dict[int, Array]:
        """Return the items by their ranks, in their order here; of ranks with any."""
        owners = self.spec.owners(self.items, decomposition)
        order = np.argsort(owners, kind="stable")
        ranks, begins = np.unique(owners[order], return_index=True)
        parts = np.split(np.ascontiguousarray(self.items[order]), begins[1:]) if len(ranks) else []
        return dict(zip(ranks.tolist(), parts, strict=True))

    def migrate(self) -> Array:
        """Send every item to its owner; return those of this rank (collective).

        They come in the order of the ranks that had them, and in their order there. A rank sends
        messages to those that get items from it, no others.

        Raises:
            OwnerError: the application does not say where an item belongs.
            RuntimeError: the list is not part of a run.
        """
        if self.comm is None:
            raise outside_block("migrate()")
        self.update()
        with WATCH.within("migrate()"):
            for wait in self.migrating(self.comm):
                polls = 0
                while not wait():  # spins first: sched_yield may give up a whole time slice
                    polls += 1
                    if polls > POLLS:
                        os.sched_yield()
        self.deliver()
        return self.items

    def migrating(self, comm: MPI.Comm) -> Steps[None]:
        """Do what :meth:`migrate` does; yield what it waits for."""
        leaving = self.parts(self.decomposition)
        mine = leaving.pop(self.rank, self.none())
        announced = Announcements(comm, {peer: len(part) for peer, part in leaving.items()})
        yield from announced.steps()
        arriving = {peer: self.none(count) for peer, count in announced.arriving.items()}
        with Pending() as pending:
            for peer, part in arriving.items():
                pending.add(comm.Irecv(_bytes(part), peer, tags.CHUNK), _bytes(part))
            for peer, part in leaving.items():
                pending.add(comm.Isend(_bytes(part), peer, tags.CHUNK), _bytes(part))
            yield from pending.all()
        arriving[self.rank] = mine
        self.items = np.concatenate([arriving[rank] for rank in sorted(arriving)])

    def sending(self, comm: MPI.Comm, new: Decomposition, *, on_host: bool) -> Steps[int]:
        """Send the items to their owners in another decomposition: their number, chunks, a hash."""
        parts = self.parts(new)
        if not comm.Is_inter():
            parts.pop(self.rank, None)
        self._announced = Announcements(comm, {peer: len(part) for peer, part in parts.items()})
        yield from self._announced.steps()
        with Pending() as pending:
            for peer, part in parts.items():
                yield from send_chunks(comm, peer, _chunks(part), pending)
            yield from pending.all()
        return sum(part.nbytes for part in parts.values())

    def receiving(self, comm: MPI.Comm, old: Decomposition, *, on_host: bool) -> Steps[bool]:
        """Take the items from ranks of another decomposition; what :meth:`keep` has taken stays."""
        before, announced = self._before, Announcements(comm, {})
        if before is None:
            yield from announced.steps()
        else:  # this rank sends as well, and takes part once
            yield lambda: before._announced is not None and before._announced.done
            announced, before._announced = before._announced or announced, None
        intact, parts = True, dict[int, Array]()
        for peer, count in sorted(announced.arriving.items()):
            parts[peer] = part = self.none(count)
            intact &= yield from receive_chunks(comm, peer, _chunks(part))
        self._before = None
        parts, self._kept = parts | self._kept, {}
        self.items = np.concatenate([self.none(), *(parts[rank] for rank in sorted(parts))])
        return intact

    def gathered(self, comm: MPI.Intracomm) -> tuple[tuple[int, ...], Iterator[Array | None]]:
        """Return the shape of the whole list; on rank 0 that of each rank (collective)."""
        counts = comm.gather(len(self.items))
        whole = (sum(counts or ()), *self.spec.item)
        return whole, gather.lists(comm, np.ascontiguousarray(self.items), counts)

    def carried(self, edges: Halo | None = None) -> Self:
        """Return the part itself: a list has no halo."""
        return self

    def stored_box(self) -> Box:
        """Return the extent of the items of this rank."""
        return Box((0,) * self.items.ndim, self.items.shape)

    def stored_pieces(self, limit_bytes: int) -> Iterator[Array]:
        """Yield the items of this rank, as many in each piece but the last."""
        items = np.ascontiguousarray(self.items)
        step = max(1, limit_bytes // max(1, self.none(1).nbytes))
        for at in range(0, len(items), step):
            yield items[at : at + step]

    @property
    def stored_order(self) -> tuple[int, ...]:
        """The axes of what this rank writes, from the slowest in memory to the contiguous one."""
        return tuple(range(self.items.ndim))

    def store_into(self, out: Array) -> None:
        """Copy the items of this rank into a host array of their shape."""
        out[...] = self.items

    def restore(self, read: StoredPieces) -> None:
        """Take from a checkpoint the items that belong here, a piece at a time."""
        own = [self.none()]
        for _, values in read(None):
            items = values.view(self.spec.dtype)
            own.append(items[self.spec.owners(items, self.decomposition) == self.rank])
        self.items = np.concatenate(own)


def adapt_list(
    items: npt.NDArray[Any] | None = None,
    shape: tuple[int, ...] = (),
    owner: Owner | None = None,
    *,
    split: tuple[int, ...] = (0,),
    deliver: Literal["owner", "any"] = "owner",
    get: Getter | None = None,
    set: Setter | None = None,  # noqa: A002
) -> ListSpec:
    """State a list of items, of which every rank has its own and not always as many::

        dmr.adapt_list(particles, (N, M), owner)
        dmr.adapt_list(get=library.rows, set=library.create, deliver="any")

    Args:
        items: those of this rank in the beginning, along axis 0 (a structured type, or numbers
            with further axes). Read and set those of now as ``run.fields[name].items``.
        shape: global extents of the grid that the items live on.
        owner: ``owner(items, decomposition)`` returns the rank of each item in a decomposition of
            that grid over ``decomposition.size`` ranks; :func:`dmr.rank_of` has the rank of a cell.
        split: the axes of the grid that are cut over the ranks.
        deliver: ``"any"`` for a library that sends items to their ranks itself: without ``shape``
            and ``owner``, each rank of a new world gets about as many items, in any order.
        get, set: in place of ``items``: ``get()`` returns this rank's items as an array,
            ``set(items)`` has the program take them; called as those of :func:`dmr.adapt`, and by
            ``migrate``.

    Raises:
        ValueError: the items have a mask; there are both items and ``get``, or only one of ``get``
            and ``set``; ``shape`` and ``owner`` do not fit ``deliver``.
    """
    check_accessors(items, get, set)
    if deliver not in ("owner", "any"):
        raise ValueError(f'expected deliver="owner" or "any", got {deliver!r}')
    stated = [name for name, one in (("shape", shape), ("owner", owner)) if one]
    if len(stated) != (2 if deliver == "owner" else 0):
        wanted = "shape and owner" if deliver == "owner" else "neither shape nor owner"
        raise ValueError(
            f"expected {wanted} with deliver={deliver!r}, got {' and '.join(stated) or 'neither'}"
        )
    if deliver == "any":
        shape, owner = (ANYWHERE,), spread
    own = host_array(items if get is None else get())
    return ListSpec(
        shape,
        own.dtype,
        lambda box: own,
        split=split,
        item=own.shape[1:],
        owner=owner,
        getter=get,
        setter=set,
    )


def spread(items: Array, decomposition: Decomposition) -> npt.NDArray[np.int64]:
    """Return ranks for items that may be on any: as many on each, in order."""
    return np.arange(len(items)) * decomposition.size // max(1, len(items))


def rank_of(decomposition: Decomposition, *cells: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the ranks that own cells, given by their global index along each split axis."""
    if len(cells) != len(decomposition.split):
        raise ValueError(
            f"expected indices along axes {decomposition.split}, got {len(cells)} of them"
        )
    parts = [decomposition.part_with(at, index) for at, index in enumerate(cells)]
    return decomposition.rank_at(parts)


def _bytes(values: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _chunks(part: Array) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of contiguous items, a message at a time."""
    data = _bytes(part)
    for at in range(0, data.size, CHUNK_BYTES):
        yield data[at : at + CHUNK_BYTES]


# --- how many items go to which rank, where only the senders know -------------------------------
#
# A rank announces its items by synchronous sends to their owners and enters a barrier that does not
# block once these have arrived; a rank that is through the barrier has all announcements
# (T. Hoefler, C. Siebert, A. Lumsdaine, "Scalable communication protocols for dynamic sparse data
# exchange", PPoPP 2010, algorithm 2). So a rank sends as many messages as it has receivers, and the
# logarithm of the number of ranks for the barrier.

_rounds: list[int] = []
"""The key by which a communicator has the number of its next round, once there is one."""


class Announcements:
    """One round, among all ranks of a communicator (an inter-communicator's on both sides).

    Args:
        leaving: how many items this rank has for others, by their rank; 0 is left out.

    Attributes:
        arriving: how many items others have for this rank, by theirs; complete once ``done``.
    """

    def __init__(self, comm: MPI.Comm, leaving: Mapping[int, int]) -> None:
        self._comm, self._leaving = comm, leaving
        self.arriving: dict[int, int] = {}
        self.done = False

    def steps(self) -> Steps[None]:
        """Go through the round; yield what it waits for."""
        # A rank may be a round ahead of another, and no more: two tags are enough.
        tag = tags.COUNT + _next_round(self._comm) % 2
        with Pending() as pending:
            for peer, count in self._leaving.items():
                if count:
                    number = np.array([count], np.int64)
                    pending.add(self._comm.Issend(number, peer, tag), number)
            for wait in pending.all():
                yield self._receiving(wait, tag)
            pending.add(self._comm.Ibarrier(), np.empty(0, np.uint8))
            for wait in pending.all():
                yield self._receiving(wait, tag)
        self.done = True

    def _receiving(self, wait: Wait, tag: int) -> Wait:
        """Return a wait during which announcements are received."""

        def poll() -> bool:
            status, number = MPI.Status(), np.empty(1, np.int64)
            while self._comm.Iprobe(MPI.ANY_SOURCE, tag, status):
                self._comm.Recv(number, status.Get_source(), tag)
                self.arriving[status.Get_source()] = int(number[0])
            return wait()

        return poll


def _next_round(comm: MPI.Comm) -> int:
    if not _rounds:
        _rounds.append(MPI.Comm.Create_keyval())
    number: int = comm.Get_attr(_rounds[0]) or 0
    comm.Set_attr(_rounds[0], number + 1)
    return number
