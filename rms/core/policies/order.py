"""Part ``order``: who is served first."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rms.core.model import Job
from rms.core.state import State


class Fcfs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First come, first served; jobs of one instant in the order they were handed in."""

    def __call__(self, state: State) -> Iterable[Job]:
        """Return the queue."""
        return state.pending.values()


class ShortestFirst(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shortest expected run time first; of equal ones the first that came."""

    def __call__(self, state: State) -> Iterable[Job]:
        """Return the queue."""
        return [job for _, _, job in state.by_estimate]
