"""The halo of psi, filled once a step: from neighbours, from the other side, from the edge.

Axes go last to first, so the paper's order results: first left and right (axis M), then top and
bottom (axis N) with the halos just filled, which brings the corners without diagonal messages
(Iserte & Rojek, section 4). The messages of axis 0 go last, so they can be under way while the
layers that need none of them are advanced: :meth:`HaloExchange.start`, then ``finish``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from mpdata.geometry import Geometry, fill_edge, wrap_axis

Array = Any
Neighbours = dict[int, tuple[int | None, int | None]]
"""For each axis that is cut, the ranks below and above (None at an edge of the domain)."""

Region = tuple[slice, ...]
Exchange = tuple[Array, list[MPI.Request], list[tuple[Region, Array]]]
"""The array, the requests under way, and which buffers go where in it."""


class HaloExchange:
    """Fills the halo of one block; its message buffers live as long as the world.

    Args:
        comm: all ranks of the world.
        geometry: the block.
        neighbours: ranks next to it on the axes that are cut.
        like: an array of the block, for type and shape.
    """

    def __init__(
        self, comm: MPI.Intracomm, geometry: Geometry, neighbours: Neighbours, like: Array
    ) -> None:
        self.comm, self.geo, self.neighbours = comm, geometry, neighbours
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
        for axis in (2, 1, 0):
            if axis not in self.geo.active:
                continue
            if axis in self.neighbours:
                self._under_way = self._post(array, axis)
                if axis > 0:
                    self.finish()
            elif self.geo.boundaries[axis].kind == "periodic":
                wrap_axis(array, self.geo, axis)
            fill_edge(array, self.geo, axis)

    def finish(self) -> None:
        """Wait for what :meth:`start` has posted and put it in its place."""
        if self._under_way is None:
            return
        array, requests, arriving = self._under_way
        self._under_way = None
        MPI.Request.Waitall(requests)
        for where, buffer in arriving:
            array[where] = buffer

    def _side_buffers(self, axis: int, like: Array) -> list[tuple[Array, Array]]:
        shape = list(self._region(axis, 0, 1))
        extents = [len(range(*part.indices(n))) for part, n in zip(shape, like.shape, strict=True)]
        extents[axis] = self.geo.halo
        return [(np.empty(extents, like.dtype), np.empty(extents, like.dtype)) for _ in range(2)]

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
        requests: list[MPI.Request] = []
        arriving: list[tuple[Region, Array]] = []
        for (peer, tag, where), (_, buffer) in zip(
            (from_above, from_below), self._sides[axis], strict=True
        ):
            if peer is not None:
                requests.append(self.comm.Irecv(buffer, source=peer, tag=tag))
                arriving.append((where, buffer))
        for (peer, tag, where), (buffer, _) in zip((down, up), self._sides[axis], strict=True):
            if peer is not None:
                buffer[...] = array[where]
                requests.append(self.comm.Isend(buffer, dest=peer, tag=tag))
        return array, requests, arriving
