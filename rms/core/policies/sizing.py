"""Part ``sizing``: how many nodes each job should have."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Protocol

import msgspec

from rms.core.events import Resize
from rms.core.model import Job
from rms.core.policies.placement import Room
from rms.core.state import State


class Plan(Protocol):
    """The sizes wanted in one pass."""

    def start(self, job: Job, free: int) -> int:
        """Return the size at which a waiting job should start, ``free`` nodes being free."""

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return the resizes wanted of running jobs, after the starts of the pass."""


class AsAskedPlan:
    """Every job at its preferred size; moldable and flexible ones at what fits now."""

    __slots__ = ()

    def start(self, job: Job, free: int) -> int:
        """Return the preferred size, or the largest that fits."""
        preferred = job.spec.preferred
        if job.least == preferred or preferred <= free:
            return preferred
        sizes = job.spec.sizes()
        at = bisect_right(sizes, min(free, preferred))
        return sizes[at - 1] if at else job.least

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return nothing: without an eye on the other jobs there is no reason to."""
        return []


_AS_ASKED = AsAskedPlan()


class AsAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every job at its preferred size; moldable and flexible ones at what fits. No resizes."""

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> Plan:
        """Return the plan of a pass."""
        return _AS_ASKED
