"""MPDATA on a whole grid in one process: the solver without MPI, for use by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.backends import StepperResources, array_module, choose_backend, make_stepper
from mpdata.cases.arrays import memory_case
from mpdata.cases.setup import Setup, open_mesh
from mpdata.errors import InputError
from mpdata.flow.faces import (
    held_bytes,
    make_flow,
    max_courant,
    on_host,
    scale_for,
    steps_for,
    unstable,
)
from mpdata.flow.velocities import make_velocities, max_courant_over_time
from mpdata.grid import Geometry, fill_halo
from mpdata.numerics.cuda.memory import allocator
from mpdata.options import BoundaryPair, Scheme, with_outside

Array = npt.NDArray[Any]


def count_steps(setup: Setup) -> int:
    """Return the steps of a case, also where they follow from its flow's own stability limit."""
    if setup.steps is not None:
        return setup.steps
    geometry = Geometry(setup.grid, (0, 0, 0), setup.grid, 1, setup.boundaries)
    return steps_for(setup, scale_for(setup, max_courant(setup, geometry)))


ALIGNMENT_BYTES = 64
"""A cache line. Rows padded further cost speed: the unused lines are fetched as well."""


def padded_zeros(geometry: Geometry, dtype: np.dtype[Any]) -> Array:
    """Return zeros of a block's shape, the first interior cell of every row aligned."""
    axis = max(geometry.active, default=2)
    items = ALIGNMENT_BYTES // dtype.itemsize
    lead = -(geometry.halo if geometry.active else 0) % items
    row = geometry.shape[axis]
    shape = list(geometry.shape)
    shape[axis] = -(-(lead + row) // items) * items
    raw = np.zeros(prod(shape) + items, dtype)
    start = -(raw.ctypes.data // dtype.itemsize) % items
    whole = raw[start : start + prod(shape)].reshape(shape)
    cut = [slice(None)] * 3
    cut[axis] = slice(lead, lead + row)
    return whole[tuple(cut)]


class Solver:
    """Advects the field of a case (of several tracers the first).

    A flow that changes in time (``Setup.time_levels``, ``Setup.face_at``) is taken in the middle of
    each step.

    Args:
        setup: the case.
        scheme: passes and options.
        dtype: numpy.float64 or numpy.float32, from end to end.
        backend: ``auto``, ``numpy``, ``numba`` or ``cupy``.
        threads: CPU threads.
        tuned: the file of tuned tiles of GPUs.

    Raises:
        InputError: what the case, the scheme or the backend cannot do.
    """

    def __init__(
        self,
        setup: Setup,
        scheme: Scheme | None = None,
        dtype: npt.DTypeLike = np.float64,
        backend: str = "auto",
        threads: int = 1,
        tuned: Path | None = None,
    ) -> None:
        self.setup, scheme = setup, scheme or Scheme()
        self._shape: tuple[int, ...] = setup.grid
        backend = choose_backend(backend)
        self._xp = xp = array_module(backend)
        self.geometry = Geometry(setup.grid, (0, 0, 0), setup.grid, scheme.halo, setup.boundaries)

        allocate: Callable[[], Any] = partial(padded_zeros, self.geometry, np.dtype(dtype))
        if xp is not np:
            allocate = allocator(xp, self.geometry, dtype)

        highest = max_courant_over_time(setup, self.geometry)
        scale = scale_for(setup, highest)
        problem = unstable(highest, scale)
        if problem is not None:
            raise InputError(problem)
        self.flow = make_flow(setup, self.geometry, dtype, allocate, xp)
        self._velocities = make_velocities(setup, self.geometry, self.flow, scale, allocate)
        self._step = 0
        self._psi, self._next = allocate(), allocate()
        cells = (np.arange(n) for n in setup.grid)
        with np.errstate(over="ignore"):  # infinite values are refused below
            initial = np.asarray(setup.initial(*open_mesh(*cells)), dtype)
        ends = with_outside(setup.boundaries, float(initial.min()), float(initial.max()))
        problem = scheme.range_error("psi", *ends, initial.itemsize, single=setup.single)
        if problem is not None:
            raise InputError(problem)
        self._psi[self.geometry.cells(0)] = xp.asarray(initial)
        self._stepper = make_stepper(
            backend, self.geometry, scheme, self.flow, allocate, StepperResources(threads, tuned)
        )

    @classmethod
    def of(
        cls,
        psi: npt.ArrayLike,
        face_values: Sequence[npt.ArrayLike | None],
        h: npt.ArrayLike | None = None,
        boundaries: str | Sequence[str | BoundaryPair] = "periodic",
        scheme: Scheme | None = None,
        dtype: npt.DTypeLike | None = None,
        backend: str = "auto",
        threads: int = 1,
    ) -> Solver:
        """Return a solver for arrays in memory, of which it keeps copies.

        Args:
            psi: the field, of 1 to 3 axes; :attr:`psi` has its shape.
            face_values: c = h u dt/dx normal to each axis: an array of the shape of psi with one
                more along that axis, face i before cell i. Along a periodic axis the last face is
                the first one and may be left out. A number is the same everywhere; None is for an
                axis of one cell.
            h: the density, an array of the shape of psi or a number; 1 if left out.
            boundaries: ``open``, or one for each axis as ``periodic,open/wall``, or a sequence
                of those (:func:`mpdata.options.parse_boundaries`).
            scheme: passes and options.
            dtype: numpy.float64 or numpy.float32; by default float32 for a psi of float32.
            backend: ``auto``, ``numpy``, ``numba`` or ``cupy``.
            threads: CPU threads.

        Raises:
            InputError: shapes that do not fit, values that are not finite, outgoing Courant
                numbers above 1, or what the scheme or the backend cannot do.
        """
        setup = memory_case(psi, face_values, h, boundaries)
        if dtype is None:
            dtype = np.float32 if setup.single else np.float64
        solver = cls(setup, scheme, dtype, backend, threads)
        solver._shape = np.shape(psi)
        return solver

    @property
    def psi(self) -> Array:
        """The field (N, M, L), or as ``of`` was given it, a view; on a device a copy."""
        return on_host(self._xp, self._psi[self.geometry.cells(0)]).reshape(self._shape)

    @property
    def density(self) -> Array:
        """The density, likewise."""
        return on_host(self._xp, self.flow.h[self.geometry.cells(0)]).reshape(self._shape)

    @property
    def step(self) -> int:
        """How many steps have been made."""
        return self._step

    def resume(self, psi: Array, step: int) -> None:
        """Continue from a field as :attr:`psi` was after so many steps of any run."""
        self._psi[self.geometry.cells(0)] = self._xp.asarray(psi).reshape(self.setup.grid)
        self._step = step

    def advance(self, steps: int) -> None:
        """Advance the field by a number of steps.

        Raises:
            InputError: a flow that changes in time is not known or not stable in a step; the
                field is then the one before that step.
        """
        for _ in range(steps):
            self._velocities.move_to(self._step)
            fill_halo(self._psi, self.geometry)
            self.advance_filled()
            self._psi, self._next = self._next, self._psi
            self._step += 1

    def advance_filled(self) -> None:
        """Compute one step of the field as it is into the spare array, and stay (for timing)."""
        self._stepper.advance(self._psi, self._next, self.flow.C)

    def in_cache(self) -> Callable[[], None] | None:
        """Return a step's arithmetic in memory that stays in a core's caches, for timing.

        It spoils the spare array only. None where the backend or the scheme has none.
        """
        twin = self._stepper.in_cache() if hasattr(self._stepper, "in_cache") else None
        if twin is None:
            return None
        # The two arrays change places at every step.
        return lambda: twin.advance(self._psi, self._next, self.flow.C)

    def wait(self) -> None:
        """Wait for steps that are under way on a device."""
        if self._xp is not np:
            self._xp.cuda.Device().synchronize()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held."""
        parts = (self.flow.nbytes, self._velocities.nbytes, self._stepper.nbytes)
        return held_bytes(self._psi) + held_bytes(self._next) + sum(parts)
