"""Filling the halo of a block: from neighbours, from the other side, from the edge.

Axes go last to first, each with the halo that those before it have filled, which brings the
corners without diagonal messages (Iserte & Rojek, section 4). The messages of the first axis go
last, so they may be under way while the inner cells are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from dmr.data.decomposition import Decomposition, MemoryLayout
from dmr.system.watch import WATCH
from dmr.wire import tags

if TYPE_CHECKING:
    from mpi4py import MPI

Array = Any
Region = tuple[slice, ...]

Boundary = str | float | None
"""What is beyond the edge of the domain: ``"periodic"``, ``"edge"`` (the nearest cell's value), a
number, or None to leave the halo there as it is."""


class ExchangeError(ValueError):
    """A halo cannot be filled as it was asked for; one sentence."""


def boundaries_of(given: Boundary | Sequence[Boundary], axes: int) -> tuple[Boundary, ...]:
    """Return the boundary of every axis.

    Raises:
        ExchangeError: there are not as many as axes, or one is none.
    """
    one = given is None or isinstance(given, str | int | float)
    found: tuple[Any, ...] = (given,) * axes if one else tuple(given)  # type: ignore[arg-type]
    good = all(b is None or b in ("periodic", "edge") or isinstance(b, int | float) for b in found)
    if len(found) != axes or not good:
        raise ExchangeError(
            f'expected a boundary of "periodic", "edge", a number or None, or one for each of '
            f"{axes} axes, got {given!r}"
        )
    return found


MOST_ARRAYS = 4
"""Programs that swap arrays have two or three; requests of so many are kept for a field."""


@dataclass(frozen=True)
class Message:
    """Cells on their way.

    Attributes:
        where: their region of the block, axes in memory order.
        peer, tag, sends: which message it is, and the way it goes.
        host: what MPI sends or receives; None where it sends the block's own memory.
    """

    where: Region
    peer: int
    tag: int
    sends: bool
    host: Array | None


@dataclass(frozen=True)
class AxisPlan:
    """What is done along one axis, all worked out beforehand; regions have axes in memory order.

    Attributes:
        receives, sends: messages.
        in_place: whether MPI sends from the block's own memory. It receives into buffers even then:
            writing to rows that are in no cache took it longer than they and a copy together.
        requests: persistent ones of all messages, by the address of the array they are bound to, 0
            where that is buffers of the messages' own.
        copies: regions that are copies of others of the same block, by way of a buffer: NumPy
            would find out first, in more time, that the two do not overlap.
        fills: regions with one value.
    """

    receives: list[Message]
    sends: list[Message]
    in_place: bool
    requests: dict[int, list[MPI.Prequest]]
    copies: list[tuple[Region, Region, Array]]
    fills: list[tuple[Region, float]]


@dataclass(frozen=True)
class BoundAxis:
    """What is done along one axis of one array, as views of it: nothing is looked up on the way.

    Attributes:
        packs: buffers, and the cells to put into them before :attr:`requests` start.
        unpacks: cells, and the buffers they come from.
        copies, fills: as in :class:`AxisPlan`.
    """

    packs: list[tuple[Array, Array]]
    requests: list[MPI.Prequest]
    unpacks: list[tuple[Array, Array]]
    copies: list[tuple[Array, Array, Array]]
    fills: list[tuple[Array, float]]


class HaloExchange:
    """Fills the halo of one block by persistent requests; free it before its communicator.

    Args:
        comm: the library's own, over the ranks of the block's world.
        decomposition, rank, memory_layout: of the block.
        boundaries: for every axis.
        like: type of a cell, and the array module that holds the block.

    Raises:
        ExchangeError: a block is thinner than its halo.

    Attributes:
        asked: the boundary as it was asked for.
    """

    asked: Boundary | Sequence[Boundary] = None

    def __init__(
        self,
        comm: MPI.Intracomm,
        decomposition: Decomposition,
        rank: int,
        memory_layout: MemoryLayout,
        boundaries: tuple[Boundary, ...],
        like: tuple[np.dtype[Any], Any],
    ) -> None:
        from mpi4py import MPI  # fields are stated where no MPI can be loaded, too

        self._comm, self._boundaries = comm, boundaries
        self._prequest, self._memory = MPI.Prequest, MPI.buffer
        self._address = MPI.Get_address
        self._decomposition, self._rank, self._memory_layout = decomposition, rank, memory_layout
        self._dtype, self._xp = like
        self._on_host = self._xp is np
        axes = reversed(range(len(decomposition.shape)))
        self._axes = [axis for axis in axes if any(memory_layout.halo[axis])]
        self._check()
        self._plans = [self._plan(axis) for axis in self._axes]
        peers = {message.peer for plan in self._plans for message in (*plan.receives, *plan.sends)}
        self._waiting = WATCH.within("exchange()", peers)
        self._bound: dict[int, list[BoundAxis]] = {}
        self._under_way: BoundAxis | None = None
        self._array: Array = None  # has to outlive what is under way

    def _check(self) -> None:
        for axis in self._axes:
            needed = (
                self._boundaries[axis] == "periodic" or self._decomposition.parts_along(axis) > 1
            )
            thinnest = min(
                self._decomposition.box(rank).shape[axis]
                for rank in range(self._decomposition.size)
            )
            if needed and thinnest < max(self._memory_layout.halo[axis]):
                raise ExchangeError(
                    f"expected blocks at least as thick as their halo of "
                    f"{max(self._memory_layout.halo[axis])} along axis {axis}, "
                    f"got one of {thinnest}"
                )

    # --- filling -----------------------------------------------------------------------------

    def start(self, array: Array) -> None:
        """Fill the halo of ``array`` but for what comes by messages along the first axis."""
        self._array = array
        for axis in self._bound_to(array):
            if self._under_way is not None:
                self.finish()
            if axis.requests:
                for host, cells in axis.packs:
                    host[...] = self._host(cells)
                self._prequest.Startall(axis.requests)
                self._under_way = axis
            for into, of, between in axis.copies:
                between[...] = of
                into[...] = between
            for into, value in axis.fills:
                into[...] = value
        if self._under_way is None:
            self._array = None

    def finish(self) -> None:
        """Wait for what :meth:`start` has left under way."""
        if self._under_way is None:
            return
        axis, self._under_way = self._under_way, None
        with self._waiting:
            self._prequest.Waitall(axis.requests)
        for cells, host in axis.unpacks:
            cells[...] = host if self._on_host else self._xp.asarray(host)
        self._array = None

    def free(self) -> None:
        """Free the requests."""
        for plan in self._plans:
            for requests in plan.requests.values():
                _free(requests)
        self._plans, self._bound = [], {}

    def _host(self, cells: Array) -> Array:
        return cells if self._on_host else self._xp.asnumpy(self._xp.ascontiguousarray(cells))

    # --- what there is to do -----------------------------------------------------------------

    def _plan(self, axis: int) -> AxisPlan:
        """Return what is done along an axis."""
        low, high = self._memory_layout.halo[axis]
        cells = self._memory_layout.interior[axis]
        below, above = self._neighbours(axis)
        # What goes down arrives from above, and the other way round; tags tell them apart where
        # both neighbours are one rank.
        down, up = tags.HALO + 2 * axis, tags.HALO + 2 * axis + 1
        receives = [(below, up, 0, low), (above, down, low + cells, high)]
        sends = [(below, down, low, high), (above, up, cells, low)]
        arriving = [self._message(axis, *one, sends=False) for one in receives if self._goes(one)]
        leaving = [self._message(axis, *one, sends=True) for one in sends if self._goes(one)]
        copies, fills = self._edges(axis, below, above)
        return AxisPlan(arriving, leaving, self._is_one_stretch(axis), {}, copies, fills)

    def _edges(
        self, axis: int, below: int | None, above: int | None
    ) -> tuple[list[tuple[Region, Region, Array]], list[tuple[Region, float]]]:
        """Return what no message fills: the far side of this block, edges of the domain."""
        low, high = self._memory_layout.halo[axis]
        cells, kind = self._memory_layout.interior[axis], self._boundaries[axis]
        copies: list[tuple[Region, Region, Array]] = []
        fills: list[tuple[Region, float]] = []
        sides = [(0, low, below, cells, low), (low + cells, high, above, low, low + cells - 1)]
        for first, count, peer, far, nearest in sides:
            into = self._region(axis, first, first + count)
            if not count or kind is None or peer not in (None, self._rank):
                continue
            if peer == self._rank:
                copies.append(self._copy(into, self._region(axis, far, far + count)))
            elif kind == "edge":
                copies.append(self._copy(into, self._region(axis, nearest, nearest + 1)))
            elif not isinstance(kind, str):
                fills.append((into, kind))
        return copies, fills

    def _copy(self, into: Region, of: Region) -> tuple[Region, Region, Array]:
        shape = [part.stop - part.start for part in of]
        between = self._xp.zeros(prod(shape), dtype=self._dtype).reshape(shape)
        return into, of, between

    # --- who, and where -----------------------------------------------------------------------

    def _neighbours(self, axis: int) -> tuple[int | None, int | None]:
        periodic = self._boundaries[axis] == "periodic"
        below, above = (
            self._decomposition.neighbour(self._rank, axis, way, periodic=periodic)
            for way in (-1, 1)
        )
        return below, above

    def _region(self, axis: int, start: int, stop: int) -> Region:
        """Return layers of an axis: later axes with their halo, earlier ones without."""
        parts = []
        for other in self._memory_layout.order:
            low, high = self._memory_layout.halo[other]
            cells = self._memory_layout.interior[other]
            whole = slice(0, low + cells + high) if other > axis else slice(low, low + cells)
            parts.append(slice(start, stop) if other == axis else whole)
        return tuple(parts)

    def _goes(self, one: tuple[int | None, int, int, int]) -> bool:
        return one[0] not in (None, self._rank) and one[3] > 0

    def _is_one_stretch(self, axis: int) -> bool:
        """Whether layers of an axis are one stretch of host memory, rows with their padding."""
        order = self._memory_layout.order
        cut = [other for other in order if other < axis and any(self._memory_layout.halo[other])]
        return self._on_host and axis == order[0] and not cut

    def _message(
        self, axis: int, peer: int | None, tag: int, first: int, count: int, *, sends: bool
    ) -> Message:
        where = self._region(axis, first, first + count)
        shape = [part.stop - part.start for part in where]
        host = None
        if not self._is_one_stretch(axis):
            host = np.empty(shape, self._dtype)
        elif not sends:
            row = shape[-1] if len(shape) == 1 else self._memory_layout.row_items
            host = np.empty([*shape[:-1], row], self._dtype)[..., : shape[-1]]
        return Message(where, peer or 0, tag, sends, host)

    def _bound_to(self, array: Array) -> list[BoundAxis]:
        """Return what is to be done to an array, worked out when it is seen first."""
        if not self._on_host:
            array = array.transpose(self._memory_layout.order)
            return [self._bind(plan, array, 0) for plan in self._plans]
        # __array_interface__ tells it as well, in 20 us where it is in no cache.
        address = self._address(array[:0])
        found = self._bound.get(address)
        if found is None:
            if len(self._bound) == MOST_ARRAYS:
                dropped = next(iter(self._bound))
                del self._bound[dropped]
                for plan in self._plans:
                    _free(plan.requests.pop(dropped, []))
            array = array.transpose(self._memory_layout.order)
            # By its address: views and requests of an array that was dropped keep no memory.
            memory: Any = self._memory.fromaddress(address, _span(array))
            view = np.ndarray(array.shape, array.dtype, memory, strides=array.strides)
            found = [self._bind(plan, view, address) for plan in self._plans]
            self._bound[address] = found
        return found

    def _bind(self, plan: AxisPlan, array: Array, address: int) -> BoundAxis:
        messages = (*plan.receives, *plan.sends)
        requests = plan.requests.setdefault(address if plan.in_place else 0, [])
        requests.extend(self._request(one, array) for one in messages[len(requests) :])
        return BoundAxis(
            [(one.host, array[one.where]) for one in plan.sends if one.host is not None],
            requests,
            [(array[one.where], one.host) for one in plan.receives],
            [(array[into], array[of], between) for into, of, between in plan.copies],
            [(array[into], value) for into, value in plan.fills],
        )

    def _request(self, message: Message, array: Array) -> MPI.Prequest:
        init = self._comm.Send_init if message.sends else self._comm.Recv_init
        host = array[message.where] if message.host is None else message.host
        address = host.__array_interface__["data"][0]
        memory = self._memory.fromaddress(address, _span(host))
        return init(memory, message.peer, message.tag)


def _span(array: Array) -> int:
    """Return the bytes from an array's first to behind its last."""
    last = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
    return int(last + array.itemsize)


def _free(requests: list[MPI.Prequest]) -> None:
    for request in requests:
        request.Free()
