"""The halo of a block, filled from neighbours, from the other side and from the edge.

Axes go last to first, each with the halo that those before it have filled, which brings the
corners without diagonal messages (Iserte & Rojek, section 4). The messages of the first axis go
last, so they may be under way while the inner cells are computed.

Of a block in host memory MPI sends rows in place where they are one stretch; a block in device
memory has copies on a stream of CuPy, beside the computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from dmr.data.decomposition import Decomposition, Halo, MemoryLayout
from dmr.system.watch import WATCH
from dmr.wire import tags

if TYPE_CHECKING:
    from mpi4py import MPI

Array = Any
Region = tuple[slice, ...]

End = str | float | None
"""What lies beyond one end of an axis of the domain: ``"periodic"``, ``"edge"`` (the nearest cell's
value), a number, or None to leave the halo there as it is."""

Boundary = End | tuple[End, End]
"""The ends of an axis: one value for both, or (low, high)."""

Ends = tuple[End, End]


class ExchangeError(ValueError):
    """A boundary that is none, or a block that is too thin for its halo; one sentence."""


def boundaries_of(boundary: End | Sequence[Boundary], axes: int) -> tuple[Ends, ...]:
    """Return the boundaries at the low and the high end of every axis.

    Raises:
        ExchangeError: the number of boundaries is not that of the axes, a value is no boundary, or
            one end of an axis alone is periodic.
    """
    of_axes: Sequence[Boundary]
    if boundary is None or isinstance(boundary, str | int | float):
        of_axes = (boundary,) * axes
    else:
        of_axes = boundary
    pairs = [tuple(one) if isinstance(one, tuple | list) else (one, one) for one in of_axes]
    good = all(len(pair) == 2 and all(map(_is_end, pair)) for pair in pairs)
    if len(pairs) != axes or not good:
        raise ExchangeError(
            f'expected a boundary of "periodic", "edge", a number or None, or one or a pair for '
            f"each of {axes} axes, got {boundary!r}"
        )
    for axis, (low, high) in enumerate(pairs):
        if (low == "periodic") != (high == "periodic"):
            raise ExchangeError(
                f'expected "periodic" at both ends of axis {axis} or at none, got {(low, high)}'
            )
    return tuple((low, high) for low, high in pairs)


def _is_end(value: Any) -> bool:
    return value is None or value in ("periodic", "edge") or isinstance(value, int | float)


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
    """The exchange along one axis, for any array of the block; regions have axes in memory order.

    Attributes:
        receives, sends: messages.
        in_place: whether MPI sends from the block's own memory. It receives into buffers even then:
            to write to rows that are in no cache takes it longer than a buffer and a copy.
        requests: persistent requests of all messages, by the address of the array they are bound
            to, 0 where they are bound to buffers.
        copies: regions, the regions of the same block they are copied from, and a buffer between:
            without it NumPy takes longer, to check that the two do not overlap.
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
    """The exchange along one axis of one array, as views of it.

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

    def fill(self) -> None:
        """Carry out the copies, and set what has one value."""
        for into, of, between in self.copies:
            between[...] = of
            into[...] = between
        for into, value in self.fills:
            into[...] = value


class HaloExchange:
    """Fills the halo of one block by persistent requests; free it before its communicator.

    Args:
        comm: the library's own, over the ranks of the block's world.
        decomposition, rank, memory_layout: of the block.
        halo: cells to fill below and above each axis. The memory may have further layers above.
        boundary: of all axes, or of each.
        like: type of a cell, and the array module that holds the block.
        widths: the halos between ranks and those at the edge of the domain, if they differ.

    Raises:
        ExchangeError: the boundary is none, or a block of a cut axis is thinner than its halo.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        decomposition: Decomposition,
        rank: int,
        memory_layout: MemoryLayout,
        halo: Halo,
        boundary: End | Sequence[Boundary],
        like: tuple[np.dtype[Any], Any],
        widths: tuple[Halo, Halo] | None = None,
    ) -> None:
        from mpi4py import MPI  # fields are stated where no MPI can be loaded, too

        self.boundary, self._ends = boundary, boundaries_of(boundary, len(halo))
        self._comm, self._halo = comm, halo
        self._prequest, self._memory = MPI.Prequest, MPI.buffer
        self._address = MPI.Get_address
        self._decomposition, self._rank, self._memory_layout = decomposition, rank, memory_layout
        self._dtype, self._xp = like
        self._on_host = self._xp is np
        self._inner, self._outer = widths or (halo, halo)
        self._needed = self._needed_layers()
        self._axes = [
            axis for axis in reversed(range(len(halo))) if any((*halo[axis], *self._needed[axis]))
        ]
        self._check()
        self._plans = [self._plan(axis) for axis in self._axes]
        peers = {message.peer for plan in self._plans for message in (*plan.receives, *plan.sends)}
        self._waiting = WATCH.within("exchange()", peers)
        self._bound: dict[int, list[BoundAxis]] = {}
        self._under_way: BoundAxis | None = None
        self._array: Array = None  # has to outlive what is under way

    def _check(self) -> None:
        for axis in self._axes:
            thinnest = min(
                self._decomposition.box(rank).shape[axis]
                for rank in range(self._decomposition.size)
            )
            halo = max(self._inner[axis])
            if self._ends[axis][0] == "periodic":
                halo = max(halo, *self._outer[axis])
            if self._decomposition.parts_along(axis) > 1 and thinnest < halo:
                raise ExchangeError(
                    f"expected blocks at least as thick as their halo of {halo} along axis {axis}, "
                    f"got one of {thinnest}"
                )

    def _needed_layers(self) -> Halo:
        """Return the layers that the neighbours below and above need, for every axis."""
        box, shape = self._decomposition.box(self._rank), self._decomposition.shape
        sides = zip(self._inner, self._outer, box.start, box.stop, shape, strict=True)
        return tuple(
            (outer[1] if start == 0 else inner[1], outer[0] if stop == cells else inner[0])
            for inner, outer, start, stop, cells in sides
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the messages' own memory."""
        messages = [one for plan in self._plans for one in (*plan.receives, *plan.sends)]
        return sum(int(one.host.nbytes) for one in messages if one.host is not None)

    # --- filling -----------------------------------------------------------------------------

    def start(self, array: Array) -> None:
        """Fill the halo of ``array`` but for what comes by messages along the first axis."""
        self._array = array
        for axis in self._bound_to(array):
            if self._under_way is not None:
                self.finish()
            if axis.requests:
                for host, cells in axis.packs:
                    host[...] = cells
                self._prequest.Startall(axis.requests)
                self._under_way = axis
            axis.fill()
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
            cells[...] = host
        self._array = None

    def free(self) -> None:
        """Free the requests."""
        for plan in self._plans:
            for requests in plan.requests.values():
                _free(requests)
        self._plans, self._bound = [], {}

    # --- plans -------------------------------------------------------------------------------

    def _plan(self, axis: int) -> AxisPlan:
        """Return the plan of an axis."""
        low, high = self._halo[axis]
        cells = self._memory_layout.interior[axis]
        below, above = self._neighbours(axis)
        # What goes down arrives from above, and the other way round; tags tell them apart where
        # both neighbours are one rank.
        down, up = tags.HALO + 2 * axis, tags.HALO + 2 * axis + 1
        receives = [(below, up, 0, low), (above, down, low + cells, high)]
        to_below, to_above = self._needed[axis]
        sends = [(below, down, low, to_below), (above, up, low + cells - to_above, to_above)]
        arriving = [self._message(axis, *one, sends=False) for one in receives if self._goes(one)]
        leaving = [self._message(axis, *one, sends=True) for one in sends if self._goes(one)]
        copies, fills = self._edges(axis, below, above)
        return AxisPlan(arriving, leaving, self._is_one_stretch(axis), {}, copies, fills)

    def _edges(
        self, axis: int, below: int | None, above: int | None
    ) -> tuple[list[tuple[Region, Region, Array]], list[tuple[Region, float]]]:
        """Return the copies and fills of an axis: its far side, or edges of the domain."""
        low, high = self._halo[axis]
        cells = self._memory_layout.interior[axis]
        copies: list[tuple[Region, Region, Array]] = []
        fills: list[tuple[Region, float]] = []
        if below == self._rank:  # above as well: the axis is periodic and whole
            # From the interior outwards, no more than it has: the halo may be wider.
            for done in range(0, low, cells):
                count = min(cells, low - done)
                into = self._region(axis, low - done - count, low - done)
                of = self._region(axis, low + cells - count, low + cells)
                copies.append(self._copy(into, of))
            for done in range(0, high, cells):
                count = min(cells, high - done)
                into = self._region(axis, low + cells + done, low + cells + done + count)
                copies.append(self._copy(into, self._region(axis, low, low + count)))
            return copies, fills
        sides = [(0, low, below, low), (low + cells, high, above, low + cells - 1)]
        for end, (first, count, peer, nearest) in zip(self._ends[axis], sides, strict=True):
            into = self._region(axis, first, first + count)
            if not count or peer is not None:
                continue
            if end == "edge":
                copies.append(self._copy(into, self._region(axis, nearest, nearest + 1)))
            elif end is not None and not isinstance(end, str):
                fills.append((into, end))
        return copies, fills

    def _copy(self, into: Region, of: Region) -> tuple[Region, Region, Array]:
        shape = [part.stop - part.start for part in of]
        between = self._xp.zeros(prod(shape), dtype=self._dtype).reshape(shape)
        return into, of, between

    # --- neighbours and regions --------------------------------------------------------------

    def _neighbours(self, axis: int) -> tuple[int | None, int | None]:
        periodic = self._ends[axis][0] == "periodic"
        below, above = (
            self._decomposition.neighbour(self._rank, axis, way, periodic=periodic)
            for way in (-1, 1)
        )
        return below, above

    def _region(self, axis: int, start: int, stop: int) -> Region:
        """Return layers of an axis: later axes with their halo, earlier ones without."""
        parts = []
        for other in self._memory_layout.order:
            low, high = self._halo[other]
            cells = self._memory_layout.interior[other]
            whole = slice(0, low + cells + high) if other > axis else slice(low, low + cells)
            parts.append(slice(start, stop) if other == axis else whole)
        return tuple(parts)

    def _goes(self, one: tuple[int | None, int, int, int]) -> bool:
        return one[0] not in (None, self._rank) and one[3] > 0

    def _is_one_stretch(self, axis: int) -> bool:
        """Whether layers of an axis are one stretch of host memory, rows with their padding."""
        layout, order = self._memory_layout, self._memory_layout.order
        slower = order[: order.index(axis)]
        cut = [other for other in order if other < axis and any(layout.halo[other])]
        return self._on_host and not cut and all(layout.padded[other] == 1 for other in slower)

    def _message(
        self, axis: int, peer: int | None, tag: int, first: int, count: int, *, sends: bool
    ) -> Message:
        where = self._region(axis, first, first + count)
        shape = [part.stop - part.start for part in where]
        host = None
        if not self._is_one_stretch(axis):
            host = self._host_memory(shape)
        elif not sends:
            stretch = list(self._memory_layout.storage)
            stretch[self._memory_layout.order.index(axis)] = count
            host = np.empty(stretch, self._dtype)[tuple(map(slice, shape))]
        return Message(where, peer or 0, tag, sends, host)

    def _host_memory(self, shape: list[int]) -> Array:
        return np.empty(shape, self._dtype)

    def _bound_to(self, array: Array) -> list[BoundAxis]:
        """Return the plans bound to an array; those of host arrays are kept."""
        if not self._on_host:
            # Views of a device array would keep its memory after the application has dropped it.
            array = array.transpose(self._memory_layout.order)
            return [self._bind(plan, array, 0) for plan in self._plans]
        # __array_interface__ has it too, but takes 20 us where it is in no cache.
        address = self._address(array[:0])
        axes = self._bound.get(address)
        if axes is None:
            if len(self._bound) == MOST_ARRAYS:
                dropped = next(iter(self._bound))
                del self._bound[dropped]
                for plan in self._plans:
                    _free(plan.requests.pop(dropped, []))
            array = array.transpose(self._memory_layout.order)
            # By its address: views and requests of an array that is dropped keep no memory.
            memory: Any = self._memory.fromaddress(address, _span(array))
            view = np.ndarray(array.shape, array.dtype, memory, strides=array.strides)
            axes = [self._bind(plan, view, address) for plan in self._plans]
            self._bound[address] = axes
        return axes

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


class DeviceHaloExchange(HaloExchange):
    """Fills the halo of a block in device memory; messages go by way of host memory.

    CuPy's copies run on a stream of their own, beside the computation, to and from pinned memory:
    they begin with what was enqueued before :meth:`start`, and what is enqueued after it, or after
    :meth:`finish`, sees the halo filled that far. The layers of the first axis are on their way to
    the host while the stream of the computation goes on. A copy of another array module is complete
    when it returns.
    """

    def __init__(self, *block: Any) -> None:
        super().__init__(*block)
        cuda, self._stream = getattr(self._xp, "cuda", None), None
        if cuda is not None and any(plan.sends or plan.receives for plan in self._plans):
            # Before the step's own blocks, which fill the device: neighbours wait for messages.
            self._stream = cuda.Stream(non_blocking=True, priority=-1)

    def start(self, array: Array) -> None:
        """Fill the halo of ``array`` but for what comes by messages along the first axis."""
        self._array = array
        computing = self._computing()
        self._order(computing, self._stream)
        with self._stream or nullcontext():
            for axis in self._bound_to(array):
                if self._under_way is not None:
                    self._receive()
                axis.fill()
                self._order(self._stream, computing)
                for host, cells in axis.packs:
                    self._pack(host, cells)
                self._under_way = axis if axis.requests else None
        if self._under_way is None:
            self._array = None

    def finish(self) -> None:
        """Exchange the messages of the first axis, and put them in their place."""
        if self._under_way is None:
            return
        with self._stream or nullcontext():
            self._receive()
        self._order(self._stream, self._computing())
        self._array = None

    def free(self) -> None:
        """Wait for the copies, and free the requests."""
        if self._stream is not None:
            self._stream.synchronize()
        super().free()

    def _receive(self) -> None:
        axis, self._under_way = self._under_way, None
        if axis is None:
            return
        if self._stream is not None:
            # What leaves is in host memory then, and what arrived last has left it.
            self._stream.synchronize()
        self._prequest.Startall(axis.requests)
        with self._waiting:
            self._prequest.Waitall(axis.requests)
        for cells, host in axis.unpacks:
            if self._stream is None:
                cells[...] = self._xp.asarray(host)
                continue
            arrived = self._xp.empty(host.shape, self._dtype)
            arrived.set(host, self._stream)
            cells[...] = arrived

    def _pack(self, host: Array, cells: Array) -> None:
        contiguous = self._xp.ascontiguousarray(cells)
        if self._stream is None:
            host[...] = self._xp.asnumpy(contiguous)
        else:
            contiguous.get(self._stream, out=host, blocking=False)

    def _host_memory(self, shape: list[int]) -> Array:
        cuda = getattr(self._xp, "cuda", None)
        if cuda is None:
            return super()._host_memory(shape)
        pinned = cuda.alloc_pinned_memory(prod(shape) * self._dtype.itemsize)
        return np.frombuffer(pinned, self._dtype, prod(shape)).reshape(shape)

    def _computing(self) -> Any:
        return None if self._stream is None else self._xp.cuda.get_current_stream()

    def _order(self, first: Any, then: Any) -> None:
        """Have a stream wait for what another one has been given so far."""
        if self._stream is not None:
            then.wait_event(first.record(self._xp.cuda.Event(disable_timing=True)))


def _span(array: Array) -> int:
    """Return the bytes from an array's first to behind its last."""
    last = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
    return int(last + array.itemsize)


def _free(requests: list[MPI.Prequest]) -> None:
    for request in requests:
        request.Free()
