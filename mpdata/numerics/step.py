"""One time step of MPDATA: the passes, their order, and how far around the block each reaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mpdata.grid import Geometry, fill_edges
from mpdata.numerics import reference
from mpdata.options import Scheme

Array = Any
Layers = tuple[int, int]
"""A half-open range of the interior's layers along axis 0."""


class Stepper(Protocol):
    """A scheme on one block, by whichever backend; owns its scratch memory."""

    @property
    def nbytes(self) -> int:
        """Bytes of scratch."""
        ...

    @property
    def splits(self) -> bool:
        """Whether ``layers`` may be less than all."""
        ...

    def warm(self) -> None:
        """Compile or load what the first step needs, and compute nothing of the block."""
        ...

    def advance(self, psi: Array, out: Array, C: list[Array], layers: Layers | None = None) -> None:
        """Set the interior of ``out`` to psi, its halo filled, advanced by one step."""
        ...


class ReferenceStepper:
    """The formulas of :mod:`mpdata.numerics.reference` in their order.

    Args:
        geometry: the block.
        scheme: passes and options.
        h: density.
        allocate: returns a zeroed array of the block's shape in its memory order.
    """

    splits = False

    def __init__(
        self, geometry: Geometry, scheme: Scheme, h: Array, allocate: Callable[[], Array]
    ) -> None:
        self.geo, self.scheme, self.h = geometry, scheme, h
        corrective = scheme.passes - 1
        self._iterate = [allocate() for _ in range(corrective)]
        empty = np.empty(0)
        self._velocity = [
            [allocate() if a in geometry.active else empty for a in range(3)]
            for _ in range(corrective)
        ]
        self._betas = [allocate() for _ in range(2 if corrective and scheme.limiter else 0)]

    @property
    def nbytes(self) -> int:
        """Bytes of scratch."""
        arrays = [*self._iterate, *self._betas, *(v for vs in self._velocity for v in vs)]
        return sum(int(a.nbytes) for a in arrays)

    def warm(self) -> None:
        """NumPy is always ready."""

    def advance(self, psi: Array, out: Array, C: list[Array], layers: Layers | None = None) -> None:
        """Set the interior of ``out`` to psi, its halo filled, advanced by one step."""
        depth = self.geo.halo - 1
        now = [*self._iterate, out]
        reference.donor_cell(now[0], psi, C, self.h, self.geo, depth)
        for number in range(self.scheme.passes - 1):
            fill_edges(now[number], self.geo)
            V = self._velocity[number]
            depth = self._correct(V, number, psi, now[number], C, depth)
            gauge = self.scheme.infinite_gauge
            reference.correct(now[number + 1], now[number], V, self.h, self.geo, depth, gauge)
            C = V

    def _correct(
        self, V: list[Array], number: int, before: Array, psi: Array, C: list[Array], depth: int
    ) -> int:
        """Compute the corrective velocities; return how far around the block the next pass can go.

        ``psi`` is valid on ``depth`` cells around the interior: velocities then on the faces of
        one cell less (two with third-order terms), and limited ones on one less again.
        """
        scheme, h, geo = self.scheme, self.h, self.geo
        terms = reference.Terms(
            scheme.infinite_gauge,
            third_order=scheme.third_order and number == 0,
            divergent_flow=scheme.divergent_flow and number == 0,
        )
        depth -= 2 if terms.third_order else 1
        for a in geo.active:
            reference.antidiffusive_velocity(V[a], a, psi, C, h, geo, depth, terms)
        if scheme.limiter:
            up, down = self._betas
            gauge = scheme.infinite_gauge
            reference.betas(up, down, before, psi, V, h, geo, depth, gauge)
            depth -= 1
            for a in geo.active:
                reference.limit(V[a], a, psi, up, down, geo, depth, gauge)
        return depth
