"""One time step of MPDATA: the passes, their order, and how far around the block each reaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mpdata.grid import Geometry, fill_edges
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


def inverse(h: Array, allocate: Callable[[], Array]) -> Array:
    """Return 1 / density, and 1 where there is none."""
    r = allocate()
    r[...] = 1
    np.divide(1, h, out=r, where=h > 0)
    return r


class ReferenceStepper:
    """The passes of :mod:`mpdata.numerics.reference` in their order.

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
        self.geo, self.scheme, self.r = geometry, scheme, inverse(h, allocate)
        self.axes = sorted(geometry.active, key=lambda axis: h.strides[axis])
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
        arrays = [self.r, *self._iterate, *self._betas, *(v for vs in self._velocity for v in vs)]
        return sum(int(a.nbytes) for a in arrays)

    def warm(self) -> None:
        """Load the one operation that NumPy lacks."""
        from mpdata.numerics import formulas

        formulas.fma(*np.zeros((3, 1), self.r.dtype))

    def advance(self, psi: Array, out: Array, C: list[Array], layers: Layers | None = None) -> None:
        """Set the interior of ``out`` to psi, its halo filled, advanced by one step."""
        from mpdata.numerics import reference

        depth = self.geo.halo - 1
        now = [*self._iterate, out]
        reference.donor_cell(now[0], psi, C, self.r, self.geo, self.axes, depth)
        for number, V in enumerate(self._velocity):
            fill_edges(now[number], self.geo)
            depth = self._correct(number, psi, now[number], now[number + 1], C, depth)
            C = V

    def _correct(
        self, number: int, before: Array, psi: Array, out: Array, C: list[Array], depth: int
    ) -> int:
        """Set ``out`` to psi after a corrective pass; return how far around the block it is valid.

        ``psi`` is valid on ``depth`` cells around the interior: velocities then on the faces of
        one cell less (two with third-order terms), and limited ones on one less again.
        """
        from mpdata.numerics import reference

        scheme, r, geo, axes, V = self.scheme, self.r, self.geo, self.axes, self._velocity[number]
        terms = reference.Terms(
            scheme.infinite_gauge,
            third_order=scheme.third_order and number == 0,
            divergent_flow=scheme.divergent_flow and number == 0,
        )
        depth -= 2 if terms.third_order else 1
        for a in axes:
            reference.pseudo_velocity(V[a], a, psi, C, r, geo, axes, depth, terms)
        if scheme.limiter:
            up, down = self._betas
            reference.betas(up, down, before, psi, V, r, geo, axes, depth, terms)
            depth -= 1
        reference.correct(out, psi, V, r, geo, axes, depth, terms, self._betas)
        if scheme.limiter and number + 1 < len(self._velocity):
            for a in axes:
                reference.limit_velocity(V[a], a, psi, self._betas, geo, depth, terms)
        return depth
