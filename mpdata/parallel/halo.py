"""The halo of psi, filled once a step: from neighbours, from the other side, from the edge.

Axes go last to first, so the paper's order results: first left and right (axis M), then top and
bottom (axis N) with the halos just filled, which brings the corners without diagonal messages
(Iserte & Rojek, section 4). The messages of axis 0 go last, so they can be under way while the
layers that need none of them are advanced: :meth:`HaloExchange.start`, then ``finish``.

What is copied where is decided here; how, by a :class:`HaloCopier`: for arrays on a device, that of
mpdata/numerics/cuda/halo.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from mpdata.grid import Geometry, LayerCopy, copy_layers, edge_copies, wrap_copies

Array = Any
Neighbours = dict[int, tuple[int | None, int | None]]
"""For each axis that is cut, the ranks below and above (None at an edge of the domain)."""

Region = tuple[slice, ...]


class Message(Protocol):
    """Room for a box of cells on its way: what MPI sends or receives is ``host``."""

    host: Array

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...


class HaloCopier(Protocol):
    """Copies boxes of cells of a block's arrays.

    On a device the copies are under way beside what is computed: they begin with what has been
    computed at :meth:`begin`, and what is computed after :meth:`release` sees them.
    """

    deferred: bool
    """Whether what is packed is in host memory only after :meth:`wait`."""

    def message(self, shape: tuple[int, int, int]) -> Any:
        """Return room for a box of this shape."""
        ...

    def begin(self) -> None:
        """Copy from now on what has been computed so far; all messages' host memory is free."""
        ...

    def wait(self) -> None:
        """Wait until what has been packed is in host memory."""
        ...

    def release(self) -> None:
        """Compute from now on with what has been copied so far."""
        ...

    def pack(self, message: Any, array: Array, where: Region) -> None:
        """Copy a box of ``array`` into a message."""
        ...

    def unpack(self, message: Any, array: Array, where: Region) -> None:
        """Copy a message that has arrived into a box of ``array``."""
        ...

    def layers(self, array: Array, axis: int, copies: Iterable[LayerCopy]) -> None:
        """Set layers of ``array`` along an axis from others of its own, or to a value."""
        ...


class HostMessage:
    """A message of host memory: ``host`` is that memory, ``cells`` the box in axis order."""

    def __init__(self, shape: tuple[int, int, int], order: list[int], dtype: Any) -> None:
        self.host = np.empty([shape[axis] for axis in order], dtype)
        self.cells = self.host.transpose([order.index(axis) for axis in range(3)])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self.host.nbytes)


class HostHaloCopier:
    """Copies boxes of NumPy arrays laid out as ``like``: every copy is done when it returns.

    Messages have the arrays' own order in memory, the same on all ranks, so rows go as rows.
    """

    deferred = False

    def __init__(self, like: Array) -> None:
        self._dtype = like.dtype
        self._order = sorted(range(3), key=lambda axis: -like.strides[axis])

    def message(self, shape: tuple[int, int, int]) -> HostMessage:
        """Return room for a box of this shape."""
        return HostMessage(shape, self._order, self._dtype)

    def begin(self) -> None:
        """Nothing is under way."""

    wait = release = begin

    def pack(self, message: HostMessage, array: Array, where: Region) -> None:
        """Copy a box of ``array`` into a message."""
        message.cells[...] = array[where]

    def unpack(self, message: HostMessage, array: Array, where: Region) -> None:
        """Copy a message that has arrived into a box of ``array``."""
        array[where] = message.cells

    def layers(self, array: Array, axis: int, copies: Iterable[LayerCopy]) -> None:
        """Set layers of ``array`` along an axis from others of its own, or to a value."""
        copy_layers(array, axis, copies)


@dataclass
class Exchange:
    """The messages of one axis under way.

    Attributes:
        sends: (message, peer, tag) still to be sent.
        arriving: messages and the boxes of ``array`` they are for.
    """

    array: Array
    requests: list[MPI.Request]
    sends: list[tuple[Any, int, int]]
    arriving: list[tuple[Any, Region]]


class HaloExchange:
    """Fills the halo of one block; its message buffers live as long as the world.

    Args:
        comm: all ranks of the world.
        geometry: the block.
        neighbours: ranks next to it on the axes that are cut.
        like: an array of the block, for type and shape.
        copier: how to copy; by default as NumPy arrays are.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        geometry: Geometry,
        neighbours: Neighbours,
        like: Array,
        copier: HaloCopier | None = None,
    ) -> None:
        self.comm, self.geo, self.neighbours = comm, geometry, neighbours
        self._copier = HostHaloCopier(like) if copier is None else copier
        self._under_way: Exchange | None = None
        self._sides = {axis: self._side_buffers(axis, like) for axis in neighbours}

    @property
    def nbytes(self) -> int:
        """Bytes of message buffers."""
        return sum(b.nbytes for sides in self._sides.values() for pair in sides for b in pair)

    @property
    def ready(self) -> tuple[int, int]:
        """The interior layers of axis 0 whose step needs no message along it, as a range.

        All of them where axis 0 is not cut; empty (low >= high) where the block is thin.
        """
        below, above = self.neighbours.get(0, (None, None))
        reach, cells = self.geo.halo, self.geo.interior[0]
        return (0 if below is None else reach), (cells if above is None else cells - reach)

    def fill(self, array: Array) -> None:
        """Fill the halo of ``array`` (collective among neighbours)."""
        self.start(array)
        self.finish()

    def start(self, array: Array) -> None:
        """Fill the halo of ``array`` but for what comes by messages along axis 0: post those.

        Axes 2 and 1 are done when this returns, and so are the edges of the domain along axis 0,
        which no message touches. Until :meth:`finish` the interior of ``array`` may be read, not
        changed.
        """
        self._copier.begin()
        for axis in (2, 1, 0):
            if axis not in self.geo.active:
                continue
            if axis not in self.neighbours and self.geo.boundaries[axis].periodic:
                self._copier.layers(array, axis, wrap_copies(self.geo, axis))
            self._copier.layers(array, axis, edge_copies(self.geo, axis))
            if axis in self.neighbours and axis > 0:
                self._under_way = self._post(array, axis)
                self._complete()
        # What the ready layers reach is there: packing axis 0 goes on beside them.
        self._copier.release()
        if 0 in self.neighbours:
            self._under_way = self._post(array, 0)

    def finish(self) -> None:
        """Wait for what :meth:`start` has posted and put it in its place."""
        if self._under_way is not None:
            self._complete()
            self._copier.release()

    def _complete(self) -> None:
        if self._under_way is None:
            return
        exchange, self._under_way = self._under_way, None
        self._send(exchange)
        MPI.Request.Waitall(exchange.requests)
        for message, where in exchange.arriving:
            self._copier.unpack(message, exchange.array, where)

    def _send(self, exchange: Exchange) -> None:
        if exchange.sends:
            self._copier.wait()
        for message, peer, tag in exchange.sends:
            exchange.requests.append(self.comm.Isend(message.host, dest=peer, tag=tag))
        exchange.sends.clear()

    def _side_buffers(self, axis: int, like: Array) -> list[tuple[Any, Any]]:
        shape = list(self._region(axis, 0, 1))
        extents = [len(range(*part.indices(n))) for part, n in zip(shape, like.shape, strict=True)]
        extents[axis] = self.geo.halo
        n, m, el = extents
        return [
            (self._copier.message((n, m, el)), self._copier.message((n, m, el))) for _ in range(2)
        ]

    def _region(self, axis: int, start: int, stop: int) -> Region:
        """Return layers of an axis: later axes with their halo, earlier ones without."""
        parts = list(self.geo.cells(0))
        for other in range(axis + 1, 3):
            if other in self.geo.active:
                parts[other] = slice(0, 2 * self.geo.halo + self.geo.interior[other])
        parts[axis] = slice(start, stop)
        return tuple(parts)

    def _post(self, array: Array, axis: int) -> Exchange:
        halo, cells = self.geo.halo, self.geo.interior[axis]
        below, above = self.neighbours[axis]
        # What goes down arrives from above, and the other way round; tags tell them apart where
        # both neighbours are one rank.
        down = (below, 2 * axis, self._region(axis, halo, 2 * halo))
        up = (above, 2 * axis + 1, self._region(axis, cells, cells + halo))
        from_above = (above, 2 * axis, self._region(axis, halo + cells, 2 * halo + cells))
        from_below = (below, 2 * axis + 1, self._region(axis, 0, halo))
        exchange = Exchange(array, [], [], [])
        for (peer, tag, where), (_, message) in zip(
            (from_above, from_below), self._sides[axis], strict=True
        ):
            if peer is not None:
                exchange.requests.append(self.comm.Irecv(message.host, source=peer, tag=tag))
                exchange.arriving.append((message, where))
        for (peer, tag, where), (message, _) in zip((down, up), self._sides[axis], strict=True):
            if peer is not None:
                self._copier.pack(message, array, where)
                exchange.sends.append((message, peer, tag))
        if not self._copier.deferred:
            self._send(exchange)
        return exchange
