"""A step as one loop over cells after the other: one pass, or grids of one or two axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mpdata.grid import fill_edges
from mpdata.numerics.numba.kernel_arguments import (
    Array,
    BlockMemory,
    KernelTerms,
    Region,
    flag,
    flat,
    terms_of,
)
from mpdata.numerics.step import Layers
from mpdata.options import Scheme

FaceVelocities = list[Array]
"""Values at the faces normal to each axis of the grid; nothing for an axis of one cell."""


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
        self._memory, self._scheme = memory, scheme
        self._r = None if r is None else flat(r)
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
        run = partial(self._run, planes, workers)
        iterates, limited, r = [*self._iterates, out], self._scheme.limiter, self._r
        before, flow = flat(psi), self._memory.flow(C, self._none)
        up, down = map(flat, self._betas or [self._none, self._none])
        strides = (np.uint64(1), *self._memory.strides[1:])
        # The axes x and z: place in memory, and that of the other.
        axes = [(a, e) for a, e in ((0, 2), (2, 0)) if self._memory.axes[a] is not None]
        depth = self._scheme.halo - 1
        run("donor_cell_pass", (flat(iterates[0]), before, flow, r), depth)
        for number, velocities in enumerate(self._velocities):
            fill_edges(iterates[number], self._memory.geometry)
            now, V = flat(iterates[number]), self._memory.flow(velocities, self._none)
            terms = self._terms(number)
            # As far around the block as the next pass looks (see ReferenceStepper).
            depth -= 1 if terms.third is None else 2
            for a, e in axes:
                faces = (V[a], now, flow[a], flow[e], r, strides[a], strides[e])
                run("face_pass", faces, depth, (terms,), last_face=a)
            if limited:
                options = (terms.eps, terms.holds_velocity)
                run("betas_pass", (up, down, before, now, V, r), depth, options)
                depth -= 1
            update = (flat(iterates[number + 1]), now, V, up, down, r)
            run("correct_pass", update, depth, (flag(limited), terms.holds_velocity))
            if limited and terms.holds_velocity is not None:
                for a, _ in axes:
                    run("limit_pass", (V[a], now, up, down, strides[a]), depth, last_face=a)
            flow = V

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

    def _run(
        self,
        planes: Layers,
        workers: Any,
        name: str,
        given: tuple[Any, ...],
        depth: int,
        options: tuple[Any, ...] = (),
        last_face: int | None = None,
    ) -> None:
        """Run a pass on the interior's planes and ``depth`` cells around them.

        ``last_face``: the axis, by its place in memory, along which there is one layer more.
        """
        axes = self._memory.axes
        below = [0 if axis is None else -depth for axis in axes]
        above = [
            self._memory.cells(axis) - low + (place == last_face)
            for place, (axis, low) in enumerate(zip(axes, below, strict=True))
        ]
        first, last = planes
        if first < last:
            first, last = first + below[2], last - below[2] + (last_face == 2)

        def arguments(worker: int, low: int, high: int) -> tuple[Any, ...]:
            region = Region(low, high, below[1], above[1], below[0], above[0])
            return (*given, self._memory.strides, region, *options)

        workers.run(f"cell_kernels.{name}", (first, last), arguments)
