"""Filling the halo of a block: from neighbours, from the other side, from the edge.

Axes go last to first, each with the halo that those before it have filled, which brings the
corners without diagonal messages (Iserte & Rojek, section 4). The messages of the first axis go
last, so they may be under way while the inner cells are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dmr.data.decomposition import Decomposition, Padding
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


@dataclass
class Message:
    """Cells on their way: ``host`` is what MPI sends or receives, bound to ``request`` for good."""

    where: Region
    host: Array
    request: MPI.Prequest


class HaloExchange:
    """Fills the halo of one block by persistent requests; free it before its communicator.

    Args:
        comm: the library's own, over the ranks of the block's world.
        layout, rank, padding: of the block.
        boundaries: for every axis.
        dtype: of a cell.
        xp: the array module that holds the block.

    Raises:
        ExchangeError: a block is thinner than its halo.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        layout: Decomposition,
        rank: int,
        padding: Padding,
        boundaries: tuple[Boundary, ...],
        like: tuple[np.dtype[Any], Any],
    ) -> None:
        self.comm, self.boundaries = comm, boundaries
        self._layout, self._rank, self._padding = layout, rank, padding
        self._dtype, self._xp = like
        self._inverse = tuple(padding.order.index(axis) for axis in range(len(padding.order)))
        self._axes = [
            axis for axis in reversed(range(len(layout.shape))) if any(padding.halo[axis])
        ]
        self._check()
        self._messages = {axis: self._messages_of(axis) for axis in self._axes}
        self._under_way: tuple[int, Array] | None = None

    def _check(self) -> None:
        for axis in self._axes:
            needed = self.boundaries[axis] == "periodic" or self._layout.parts_along(axis) > 1
            thinnest = min(self._layout.box(rank).shape[axis] for rank in range(self._layout.size))
            if needed and thinnest < max(self._padding.halo[axis]):
                raise ExchangeError(
                    f"expected blocks at least as thick as their halo of "
                    f"{max(self._padding.halo[axis])} along axis {axis}, got one of {thinnest}"
                )

    # --- filling -----------------------------------------------------------------------------

    def start(self, array: Array) -> None:
        """Fill the halo of ``array`` but for what comes by messages along the first axis."""
        for axis in self._axes:
            self.finish()
            receives, sends = self._messages[axis]
            for message in sends:
                self._pack(array, message)
            for message in (*receives, *sends):
                message.request.Start()
            self._under_way = axis, array
            self._fill_edges(array, axis)

    def finish(self) -> None:
        """Wait for what :meth:`start` has left under way."""
        if self._under_way is None:
            return
        (axis, array), self._under_way = self._under_way, None
        receives, sends = self._messages[axis]
        for message in receives:
            message.request.Wait()
            self._unpack(array, message)
        for message in sends:
            message.request.Wait()

    def free(self) -> None:
        """Free the requests."""
        for receives, sends in self._messages.values():
            for message in (*receives, *sends):
                message.request.Free()
        self._messages.clear()
        self._axes = []

    def _pack(self, array: Array, message: Message) -> None:
        view = array[message.where].transpose(self._padding.order)
        if self._xp is not np:
            view = self._xp.asnumpy(self._xp.ascontiguousarray(view))
        message.host[...] = view

    def _unpack(self, array: Array, message: Message) -> None:
        array[message.where] = self._xp.asarray(message.host).transpose(self._inverse)

    def _fill_edges(self, array: Array, axis: int) -> None:
        """Fill what no message fills along an axis: the far side of itself, edges of the domain."""
        low, high = self._padding.halo[axis]
        cells, kind = self._padding.interior[axis], self.boundaries[axis]
        below, above = self._neighbours(axis)
        if below == self._rank:  # then it is above as well
            self._copy(array, axis, (0, low), (cells, cells + low))
            self._copy(array, axis, (low + cells, low + cells + high), (low, low + high))
        if kind is None or kind == "periodic":
            return
        for at, other in ((range(low), below), (range(low + cells, low + cells + high), above)):
            inside = low if at.start == 0 else low + cells - 1
            if other is None and len(at):
                into = self._region(axis, at.start, at.stop)
                if kind == "edge":
                    for layer in at:
                        self._copy(array, axis, (layer, layer + 1), (inside, inside + 1))
                else:
                    array[into] = kind

    def _copy(self, array: Array, axis: int, into: tuple[int, int], of: tuple[int, int]) -> None:
        array[self._region(axis, *into)] = array[self._region(axis, *of)]

    # --- who, and what -----------------------------------------------------------------------

    def _neighbours(self, axis: int) -> tuple[int | None, int | None]:
        periodic = self.boundaries[axis] == "periodic"
        below, above = (
            self._layout.neighbour(self._rank, axis, way, periodic=periodic) for way in (-1, 1)
        )
        return below, above

    def _region(self, axis: int, start: int, stop: int) -> Region:
        """Return layers of an axis: later axes with their halo, earlier ones without."""
        parts = []
        for other, (low, high) in enumerate(self._padding.halo):
            cells = self._padding.interior[other]
            whole = slice(0, low + cells + high) if other > axis else slice(low, low + cells)
            parts.append(slice(start, stop) if other == axis else whole)
        return tuple(parts)

    def _messages_of(self, axis: int) -> tuple[list[Message], list[Message]]:
        """Return what this rank receives and sends along an axis."""
        low, high = self._padding.halo[axis]
        cells = self._padding.interior[axis]
        below, above = self._neighbours(axis)
        # What goes down arrives from above, and the other way round; tags tell them apart where
        # both neighbours are one rank.
        down, up = tags.HALO + 2 * axis, tags.HALO + 2 * axis + 1
        receives = [(below, up, 0, low), (above, down, low + cells, high)]
        sends = [(below, down, low, high), (above, up, cells, low)]
        return (
            [self._message(axis, *one, sends=False) for one in receives if self._goes(one)],
            [self._message(axis, *one, sends=True) for one in sends if self._goes(one)],
        )

    def _goes(self, one: tuple[int | None, int, int, int]) -> bool:
        return one[0] not in (None, self._rank) and one[3] > 0

    def _message(
        self, axis: int, peer: int | None, tag: int, first: int, count: int, *, sends: bool
    ) -> Message:
        where = self._region(axis, first, first + count)
        shape = [part.stop - part.start for part in where]
        host = np.empty([shape[at] for at in self._padding.order], self._dtype)
        init = self.comm.Send_init if sends else self.comm.Recv_init
        return Message(where, host, init(host.reshape(-1).view(np.uint8), peer or 0, tag))
