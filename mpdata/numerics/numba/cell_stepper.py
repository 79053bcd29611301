"""A step as one loop over cells after the other, for every option and any number of axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpdata.grid import fill_edges
from mpdata.numerics.numba.kernel_arguments import (
    Array,
    BlockMemory,
    FaceArrays,
    KernelTerms,
    Region,
    flag,
    flat,
    terms_of,
)
from mpdata.numerics.step import Layers
from mpdata.options import Scheme

FaceVelocities = list[Array]
"""What the faces normal to each axis of the grid hold; nothing for an axis of one cell."""


class CellPasses:
    """Loops over cells (a way of :class:`mpdata.numerics.numba.stepper.NumbaStepper`).

    Args:
        memory: of the block.
        scheme: passes and options.
        r: 1 / density, or None.
        dtype: of all arrays.
        allocate: returns a zeroed array of the block's shape in its memory order.
    """

    def __init__(
        self,
        memory: BlockMemory,
        scheme: Scheme,
        r: Array | None,
        dtype: np.dtype[Any],
        allocate: Callable[[], Array],
    ) -> None:
        self._memory, self._scheme, self._r = memory, scheme, r
        active, corrective = memory.geometry.active, scheme.passes - 1
        self._none = np.empty(0, dtype)
        self._iterates = [allocate() for _ in range(corrective)]
        self._velocities: list[FaceVelocities] = [
            [allocate() if axis in active else self._none for axis in range(3)]
            for _ in range(corrective)
        ]
        limited = corrective and scheme.limiter
        self._betas = [allocate() for _ in range(2 if limited else 0)]

    @property
    def arrays(self) -> list[Array]:
        """All scratch."""
        velocities = [array for axes in self._velocities for array in axes]
        return [self._none, *self._iterates, *velocities, *self._betas]

    def advance(self, psi: Array, out: Array, C: list[Array], planes: Layers, workers: Any) -> None:
        """Advance the planes of the slowest axis from first to last."""
        geometry, now = self._memory.geometry, [*self._iterates, out]
        step = Step(self._memory, self._r, self._none, planes, workers)
        depth = self._scheme.halo - 1
        step.donor_cell(now[0], psi, C, depth)
        for number, V in enumerate(self._velocities):
            fill_edges(now[number], geometry)
            terms, limited = self._terms(number), self._scheme.limiter
            # As far around the block as the next pass looks (see ReferenceStepper).
            depth -= 1 if terms.third is None else 2
            step.faces(V, now[number], C, depth, terms)
            if limited:
                step.betas(self._betas, psi, now[number], V, depth, terms)
                depth -= 1
            betas = self._betas if limited else None
            step.correct(now[number + 1], now[number], V, betas, depth, terms)
            if terms.holds_velocity is not None and limited:
                step.limit(V, now[number], self._betas, depth)
            C = V

    def _terms(self, number: int) -> KernelTerms:
        """Return the terms of a corrective pass: further terms are of the first alone."""
        scheme, first = self._scheme, number == 0
        return terms_of(
            scheme,
            self._none.dtype,
            divergent=scheme.divergent_flow and first,
            third=scheme.third_order and first,
            holds_velocity=number + 1 < len(self._velocities),
        )


class Step:
    """The passes of one step on some planes; threads share the planes of each.

    ``depth`` is how far around the interior a result is wanted.
    """

    def __init__(
        self, memory: BlockMemory, r: Array | None, none: Array, planes: Layers, workers: Any
    ) -> None:
        self._memory, self._none, self._workers = memory, none, workers
        self._r = None if r is None else flat(r)
        self._planes = planes

    def donor_cell(self, out: Array, psi: Array, C: list[Array], depth: int) -> None:
        """Set ``out`` to psi after a donor-cell pass."""
        given = (flat(out), flat(psi), self._flow(C), self._r)
        self._run("donor_cell_pass", given, depth)

    def faces(
        self, V: FaceVelocities, psi: Array, C: list[Array], depth: int, terms: KernelTerms
    ) -> None:
        """Set what the faces hold: fluxes, or velocities for a further pass."""
        x, _, z = self._memory.axes
        one, dz = np.uint64(1), self._memory.strides.dz
        for axis, a, other, e, extra in (
            (x, one, z, dz, (1, 0, 0)),
            (z, dz, x, one, (0, 0, 1)),
        ):
            if axis is not None:
                beside = self._none if other is None else C[other]
                given = (flat(V[axis]), flat(psi), flat(C[axis]), flat(beside), self._r, a, e)
                self._run("face_pass", given, depth, (terms,), extra)

    def betas(
        self,
        betas: list[Array],
        before: Array,
        psi: Array,
        V: FaceVelocities,
        depth: int,
        terms: KernelTerms,
    ) -> None:
        """Set the limiter's betas."""
        up, down = map(flat, betas)
        given = (up, down, flat(before), flat(psi), self._flow(V), self._r)
        self._run("betas_pass", given, depth, (terms.eps, terms.holds_velocity))

    def correct(
        self,
        out: Array,
        psi: Array,
        V: FaceVelocities,
        betas: list[Array] | None,
        depth: int,
        terms: KernelTerms,
    ) -> None:
        """Set ``out`` to psi after the corrective fluxes, limited if there are betas."""
        limiter = flag(betas is not None)
        up, down = map(flat, betas or [self._none, self._none])
        given = (flat(out), flat(psi), self._flow(V), up, down, self._r)
        self._run("correct_pass", given, depth, (limiter, terms.holds_velocity))

    def limit(self, V: FaceVelocities, psi: Array, betas: list[Array], depth: int) -> None:
        """Limit velocities in place."""
        strides = (np.uint64(1), *self._memory.strides[1:])
        up, down = map(flat, betas)
        for place, axis in enumerate(self._memory.axes):
            if axis is not None:
                given = (flat(V[axis]), flat(psi), up, down, strides[place])
                more = [int(at == place) for at in range(3)]
                self._run("limit_pass", given, depth, (), (more[0], more[1], more[2]))

    def _flow(self, C: list[Array]) -> FaceArrays:
        return self._memory.flow(C, self._none)

    def _run(
        self,
        name: str,
        given: tuple[Any, ...],
        depth: int,
        options: tuple[Any, ...] = (),
        extra: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Run a pass on the interior's planes and ``depth`` cells around them.

        ``extra``: further layers along x, y and z, for the last faces.
        """
        x, y, z = self._memory.axes
        around = [0 if axis is None else depth for axis in (x, y, z)]
        more = [0 if axis is None else n for axis, n in zip((x, y, z), extra, strict=True)]
        rows = (-around[1], self._memory.cells(y) + around[1] + more[1])
        items = (-around[0], self._memory.cells(x) + around[0] + more[0])
        first, last = self._planes
        planes = (first - around[2], last + around[2] + more[2]) if first < last else (0, 0)

        def arguments(worker: int, low: int, high: int) -> tuple[Any, ...]:
            region = Region(low, high, *rows, *items)
            return (*given, self._memory.strides, region, *options)

        self._workers.run(f"cell_kernels.{name}", planes, arguments)
