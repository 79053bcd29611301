"""Part ``order``: who is served first."""

from __future__ import annotations

from rms.model import Job, State


def submitted(state: State) -> list[Job]:
    """First come, first served; jobs of one instant in the order they were handed in."""
    return list(state.pending.values())
