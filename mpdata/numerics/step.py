"""One time step of MPDATA: the passes, their order, and how far around the block each reaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mpdata.geometry import Geometry, fill_edges
from mpdata.numerics import reference
from mpdata.options import Scheme

Array = Any


class Kernels(Protocol):
    """The formulas of :mod:`mpdata.numerics.reference`, by whichever backend.

    While ``idle`` is set a call loads what it needs and computes nothing.
    """

    idle: bool

    def donor_cell(self, out: Array, psi: Array, C: list[Array], h: Array, ring: int) -> None:
        """One donor-cell pass."""
        ...

    def antidiffusive_velocity(
        self, out: Array, a: int, psi: Array, C: list[Array], h: Array, ring: int
    ) -> None:
        """Pseudo-velocity normal to axis ``a``."""
        ...

    def betas(
        self, up: Array, down: Array, before: Array, psi: Array, V: list[Array], h: Array, ring: int
    ) -> None:
        """Both betas of the limiter."""
        ...

    def limit(self, V: Array, a: int, psi: Array, up: Array, down: Array, ring: int) -> None:
        """Limit a pseudo-velocity in place."""
        ...


class NumpyKernels:
    """The reference."""

    def __init__(self, geometry: Geometry) -> None:
        self.geo = geometry
        self.idle = False

    def donor_cell(self, out: Array, psi: Array, C: list[Array], h: Array, ring: int) -> None:
        """One donor-cell pass."""
        if not self.idle:
            reference.donor_cell(out, psi, C, h, self.geo, ring)

    def antidiffusive_velocity(
        self, out: Array, a: int, psi: Array, C: list[Array], h: Array, ring: int
    ) -> None:
        """Pseudo-velocity normal to axis ``a``."""
        if not self.idle:
            reference.antidiffusive_velocity(out, a, psi, C, h, self.geo, ring)

    def betas(
        self, up: Array, down: Array, before: Array, psi: Array, V: list[Array], h: Array, ring: int
    ) -> None:
        """Both betas of the limiter."""
        if not self.idle:
            reference.betas(up, down, before, psi, V, h, self.geo, ring)

    def limit(self, V: Array, a: int, psi: Array, up: Array, down: Array, ring: int) -> None:
        """Limit a pseudo-velocity in place."""
        if not self.idle:
            reference.limit(V, a, psi, up, down, self.geo, ring)


class Stepper:
    """Advances one block: owns the scratch arrays of the scheme.

    Args:
        geometry: the block.
        scheme: passes and limiter.
        kernels: the formulas.
        allocate: returns a zeroed array of the block's shape in its memory order.
    """

    def __init__(
        self,
        geometry: Geometry,
        scheme: Scheme,
        kernels: Kernels,
        allocate: Callable[[], Array],
    ) -> None:
        self.geo, self.scheme, self.kernels = geometry, scheme, kernels
        corrective = scheme.iterations > 1
        self._iterate = [allocate() for _ in range(2 if scheme.iterations == 3 else 1)]
        sets = min(scheme.iterations - 1, 2)
        empty = np.empty(0)
        self._velocity = [
            [allocate() if a in geometry.active else empty for a in range(3)] for _ in range(sets)
        ]
        self._betas = [allocate() for _ in range(2 if corrective and scheme.limiter else 0)]

    @property
    def nbytes(self) -> int:
        """Bytes of scratch."""
        arrays = [*self._iterate, *self._betas, *(v for vs in self._velocity for v in vs)]
        return sum(int(a.nbytes) for a in arrays)

    def warm(self, spare: Array, C: list[Array], h: Array) -> None:
        """Have every kernel compiled or loaded for these types before the first step.

        ``spare`` is an array that may be overwritten; nothing is computed where kernels can tell.
        """
        self.kernels.idle = True
        self.advance(spare, C, h)
        self.kernels.idle = False

    def advance(self, psi: Array, C: list[Array], h: Array) -> None:
        """Advance psi (its halo filled by the caller) by one step, in place."""
        ring = self.geo.halo - 1
        now = self._iterate[0]
        self.kernels.donor_cell(now, psi, C, h, ring)
        for number in range(self.scheme.iterations - 1):
            fill_edges(now, self.geo)
            V = self._velocity[number]
            ring = self._correct(V, psi, now, C, h, ring)
            last = number == self.scheme.iterations - 2
            after = psi if last else self._iterate[1]
            self.kernels.donor_cell(after, now, V, h, ring)
            now, C = after, V
        if now is not psi:
            inside = self.geo.cells(0)
            psi[inside] = now[inside]

    def _correct(
        self, V: list[Array], before: Array, psi: Array, C: list[Array], h: Array, ring: int
    ) -> int:
        """Compute the corrective velocities; return how far around the block the next pass can go.

        ``psi`` is valid on ``ring`` cells around the interior: velocities then on the faces of
        one cell less, and limited ones on one less again.
        """
        ring -= 1
        for a in self.geo.active:
            self.kernels.antidiffusive_velocity(V[a], a, psi, C, h, ring)
            self._close_walls(V[a], a)
        if self.scheme.limiter:
            up, down = self._betas
            self.kernels.betas(up, down, before, psi, V, h, ring)
            ring -= 1
            for a in self.geo.active:
                self.kernels.limit(V[a], a, psi, up, down, ring)
        return ring

    def _close_walls(self, V: Array, a: int) -> None:
        if self.geo.boundaries[a].kind != "wall":
            return
        faces = V.swapaxes(0, a)
        low, high = self.geo.touches(a)
        if low:
            faces[self.geo.halo] = 0
        if high:
            faces[self.geo.halo + self.geo.interior[a]] = 0
