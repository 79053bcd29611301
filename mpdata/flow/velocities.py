"""The flow of each step: steady, between the time levels of a file, or a function of time.

A step from n to n + 1 takes the face values at time n + 1/2, which keeps the scheme of second
order in time. They are written into the block's own arrays once, when the step begins, by
arithmetic on single elements only: the same bits for any number of ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mpdata.cases.setup import Setup
from mpdata.errors import InputError
from mpdata.flow.faces import (
    ROUND_OFF,
    Flow,
    MaxCourant,
    check_periodic_faces,
    fill_faces,
    held_bytes,
    held_max_courant,
    largest,
    max_courant,
    slabs,
    unstable,
)
from mpdata.grid import Geometry

Array = Any

SINGLE_ROUND_OFF = 1e-6
"""What float32 face values and density may add to a sum of outgoing Courant numbers."""

INTERPOLATED_CELLS = 1 << 15
"""Cells interpolated at once: few enough to stay in a core's cache."""

ON_DEVICE_CELLS = 1 << 24
"""The same on a device: enough to keep it busy, and 128 MiB of its memory."""


class Velocities(Protocol):
    """Sets the face values of a block's flow for one step after the other."""

    @property
    def nbytes(self) -> int:
        """Bytes held beside the flow itself."""
        ...

    def may_fail(self, step: int) -> bool:
        """Return whether :meth:`move_to` reads or checks anything: the same on every rank."""
        ...

    def move_to(self, step: int) -> None:
        """Set the face values that carry step ``step`` (from 0) to the next (local).

        Raises:
            InputError: on this rank alone, for what cannot be read or would be unstable.
        """
        ...


def max_courant_over_time(setup: Setup, geo: Geometry) -> MaxCourant:
    """Return the largest outgoing sum on a block over all time levels, before any step (local).

    Between two levels the flow is a convex combination of them, and so are its parts max(c, 0)
    and max(-c, 0) at most: the outgoing sum is convex in c, hence nowhere above the larger of
    the levels' own. Stable levels make a stable flow. A function of time is looked at where the
    first step takes it, and again at every step.

    Raises:
        InputError: as :func:`mpdata.flow.faces.max_courant`, or a Courant number is asked of
            such a flow.
    """
    if setup.time_levels is None and setup.face_at is None:
        return max_courant(setup, geo)
    if setup.courant is not None or setup.duration is not None:
        raise InputError(
            "expected face values used as they are where they change in time, got "
            f"courant {setup.courant} and duration {setup.duration}"
        )
    if setup.time_levels is None:
        return replace(max_courant(_at_time(setup, 0.5), geo), time=0.5)
    return largest(
        [
            replace(max_courant(_at_level(setup, number), geo), time=time)
            for number, time in enumerate(setup.time_levels.times)
        ]
    )


def scales_later(setup: Setup, dtype: npt.DTypeLike) -> bool:
    """Return whether a steady flow may be set unscaled and scaled in place: the same bits.

    In float32 a value would be rounded twice; where nothing is to be scaled it is rounded once.
    """
    return np.dtype(dtype).itemsize == 8 or setup.courant is None


def make_velocities(
    setup: Setup,
    geo: Geometry,
    flow: Flow,
    scale: float,
    allocate: Callable[[], Array],
    held: float | None = None,
) -> Velocities:
    """Return what sets the face values of ``flow``; a steady flow's are set here (local).

    ``allocate`` returns arrays laid out as the flow's. ``held`` is the scale of the face values
    that a steady flow holds already, None where it holds none.
    """
    if setup.time_levels is not None:
        return Interpolated(setup, geo, flow, allocate)
    if setup.face_at is not None:
        return Evaluated(setup, geo, flow)
    if held == 1.0 != scale and scales_later(setup, flow.h.dtype):
        for axis in geo.active:
            flow.C[axis] *= scale
    elif held != scale:
        fill_faces(flow.C, setup, geo, scale, flow.xp)
    return Steady()


class Steady:
    """The flow that was set at first."""

    nbytes = 0

    def may_fail(self, step: int) -> bool:
        """Nothing is done."""
        return False

    def move_to(self, step: int) -> None:
        """Nothing changes."""


class Interpolated:
    """Linear between the time levels of a file, of which the two next to now are held.

    They are held in the field's type, rounded once; c0 + w (c1 - c0) is evaluated in float64
    and rounded again, so that equal levels give exactly their value.
    """

    def __init__(
        self, setup: Setup, geo: Geometry, flow: Flow, allocate: Callable[[], Array]
    ) -> None:
        if setup.time_levels is None:
            raise RuntimeError("expected a case with time levels")
        self._setup, self._geo, self._flow = setup, geo, flow
        self._times = setup.time_levels.times
        empty = np.empty(0)
        self._held = [
            [allocate() if axis in geo.active else empty for axis in range(3)] for _ in range(2)
        ]
        self._numbers: list[int | None] = [None, None]

    @property
    def nbytes(self) -> int:
        """Bytes of the two levels."""
        return sum(held_bytes(array) for level in self._held for array in level)

    def may_fail(self, step: int) -> bool:
        """Return whether a level has to be read, or there is none."""
        number, _ = self._place(step)
        return number is None or self._numbers != [number, number + 1]

    def move_to(self, step: int) -> None:
        """Interpolate to the middle of the step."""
        number, weight = self._place(step)
        if number is None:
            raise InputError(
                f"expected velocities that cover time {step + 0.5:g}, got times from "
                f"{self._times[0]:g} to {self._times[-1]:g}"
            )
        self._hold(number)
        low, high = self._held
        for axis in self._geo.active:
            _interpolate(self._flow.xp, self._flow.C[axis], low[axis], high[axis], weight)

    def _place(self, step: int) -> tuple[int | None, float]:
        """Return the level below the middle of a step and how far it is to the one above."""
        time = step + 0.5
        if not self._times[0] <= time <= self._times[-1]:
            return None, 0.0
        number = min(bisect_right(self._times, time) - 1, len(self._times) - 2)
        low, high = self._times[number : number + 2]
        return number, (time - low) / (high - low)

    def _hold(self, number: int) -> None:
        if self._numbers[1] == number:
            self._held.reverse()
            self._numbers.reverse()
        for place, wanted in enumerate((number, number + 1)):
            if self._numbers[place] != wanted:
                self._numbers[place] = None  # until it is read whole
                level = _at_level(self._setup, wanted)
                fill_faces(self._held[place], level, self._geo, xp=self._flow.xp)
                self._numbers[place] = wanted


class Evaluated:
    """A function of time, evaluated and checked at every step."""

    nbytes = 0

    def __init__(self, setup: Setup, geo: Geometry, flow: Flow) -> None:
        self._setup, self._geo, self._flow = setup, geo, flow

    def may_fail(self, step: int) -> bool:
        """The function may say anything at any time."""
        return True

    def move_to(self, step: int) -> None:
        """Evaluate the function in the middle of the step."""
        now = _at_time(self._setup, step + 0.5)
        check_periodic_faces(now, self._geo)
        fill_faces(self._flow.C, now, self._geo, xp=self._flow.xp)
        highest = replace(held_max_courant(self._flow, self._geo), time=step + 0.5)
        double = self._flow.h.dtype.itemsize == 8
        problem = unstable(highest, 1.0, ROUND_OFF if double else SINGLE_ROUND_OFF)
        if problem is not None:
            raise InputError(problem)


def _at_level(setup: Setup, number: int) -> Setup:
    levels = setup.time_levels
    if levels is None:
        raise RuntimeError("expected a case with time levels")
    return replace(setup, face=lambda axis, i, j, k: levels.face(axis, number, i, j, k))


def _at_time(setup: Setup, time: float) -> Setup:
    face_at = setup.face_at
    if face_at is None:
        raise RuntimeError("expected a case with a function of time")
    return replace(setup, face=lambda axis, i, j, k: face_at(axis, time, i, j, k))


def _interpolate(xp: Any, out: Array, low: Array, high: Array, weight: float) -> None:
    """Set ``out`` to low + weight (high - low), slab by slab in float64."""
    # Along the axes as they lie in memory: a device takes neighbours in memory together.
    order = sorted(range(3), key=lambda axis: -out.strides[axis])
    out, low, high = (array.transpose(order) for array in (out, low, high))
    n, m, el = out.shape
    cells = INTERPOLATED_CELLS if xp is np else ON_DEVICE_CELLS
    for region in slabs((slice(0, n), slice(0, m), slice(0, el)), cells):
        if weight == 1.0:
            out[region] = high[region]
            continue
        part = xp.subtract(high[region], low[region], dtype=np.float64)
        part *= weight
        part += low[region]
        out[region] = part
