"""Part ``frequency``: at which frequency jobs start, where that of nodes can be set.

A part is asked for the room of each pass: it returns one whose starts have frequencies. What a job
gets is the highest that anyone on its host asks for (:mod:`rms.core.clocks`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import ClassVar

import msgspec

from rms.core.clocks import drawn, longer
from rms.core.model import Job, Node
from rms.core.policies.placement import Room, expected_slowdown, take
from rms.core.policies.shared import SharedRoom
from rms.core.state import State

FrequencyPart = Callable[[State, Room], Room]
"""Part ``frequency``."""


class Nominal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every job at the highest frequency."""

    sets: ClassVar[bool] = False

    def __call__(self, state: State, room: Room) -> Room:
        """Return the room as it is."""
        return room


NOMINAL = Nominal()


class PowerAware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processes that would wait for slower ones of their job run slower (Guim et al., IV-A-2).

    On nodes whose processes share bandwidth, each of which has a frequency of its own: what
    ``power_aware = true`` of a placement there does too.
    """

    sets: ClassVar[bool] = True

    def __call__(self, state: State, room: Room) -> Room:
        """Let the room of shared nodes set frequencies."""
        if isinstance(room, SharedRoom):
            room.power_aware = state.settable_frequencies
        return room


class OptimalOperatingPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every job at the frequency at which it needs least energy (Chauhan et al., section III).

    By its time and power over frequency; one of which these are not known asks for the highest.

    Attributes:
        slowdown: run time there over that at the highest frequency is at most this.
    """

    slowdown: float = inf

    sets: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.slowdown >= 1.0:
            raise ValueError(f"expected a slowdown of at least 1, got {self.slowdown}")

    def __call__(self, state: State, room: Room) -> Room:
        """Return a room whose starts ask for the frequency."""
        return ClockedRoom(room, state, self) if state.settable_frequencies else room

    def asks(self, state: State, job: Job) -> float:
        """Return the frequency for a job, over the highest one; of equal ones the higher.

        Energy is that of its own power and of its share of its host's idle power.
        """
        levels, points = state.site.levels, job.spec.operating_points
        if not points:
            return 1.0
        slots = state.least_slots
        model = state.power_models[0]
        own_w = model.slot_w(job.spec, job.spec.preferred, slots) or 1.0
        found, least = 1.0, inf
        for ghz, _ in reversed(levels):
            share = ghz / levels[-1][0]
            time = longer(levels, points, share)
            energy = time * (model.idle_w / slots + own_w * drawn(levels, points, share))
            if time <= self.slowdown * (1.0 + 1e-12) and energy < least:
                found, least = share, energy
        return found


class ClockedRoom:
    """A room in which every start has a frequency."""

    __slots__ = ("_part", "_room", "_state")

    def __init__(self, room: Room, state: State, part: OptimalOperatingPoint) -> None:
        self._room, self._state, self._part = room, state, part

    @property
    def free(self) -> int:
        """How many nodes are left."""
        return self._room.free

    @property
    def passed(self) -> int:
        """How many running jobs are over by expectation."""
        return self._room.passed

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` nodes now."""
        return self._room.fits(job, size)

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take nodes for a job that fits."""
        return self._room.place(job, size)

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a running job at another size."""
        return self._room.resize(job, size)

    def slowdown(self, job: Job, size: int) -> float:
        """Return how much longer the job is expected to run."""
        share = self._part.asks(self._state, job)
        own = longer(self._state.site.levels, job.spec.operating_points, share)
        return own * expected_slowdown(self._room, job, size)

    def take(self, job: Job, size: int) -> tuple[tuple[Node, ...], tuple[float, ...]]:
        """Take nodes for a job that fits; return the frequency on each too."""
        nodes, _ = take(self._room, job, size)
        share = self._part.asks(self._state, job)
        return nodes, () if share == 1.0 else (share,) * len(nodes)
