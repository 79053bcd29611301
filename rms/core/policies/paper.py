"""Sizing ``paper-share``: what the system of Iserte & Rojek did (policy ``array-share-paper``).

The paper states the 10 s between looks; the rest was fitted to its tables 3 and 4, so it is
plausible, not known: jobs start as wide as a power of two fits; who is asked at a resize point
gives nodes away while others wait; nobody is expanded.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rms.core.events import Reason, Resize
from rms.core.model import Job
from rms.core.policies.placement import Room
from rms.core.state import State


class PaperPlan:
    """Sizes of one pass."""

    __slots__ = ()

    def start(self, job: Job, free: int) -> int:
        """Return the preferred size, or the largest power of two that fits."""
        if not job.spec.mode.any_start:
            return job.spec.preferred
        fitting = [n for n in _powers(job) if n <= free]
        return fitting[-1] if fitting else job.least

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return what the jobs that ask now give away."""
        found = []
        for job in state.reached_resize_point:
            size = self._size(state, job)
            if job.resizable_now and size < job.size and size not in job.refused_sizes:
                nodes = room.resize(job, size)
                count = 0 if nodes else size
                text = "makes room for waiting jobs"
                found.append(Resize(job.spec.id, nodes, text, Reason.MAKES_ROOM, count))
        return found

    def _size(self, state: State, job: Job) -> int:
        if not state.pending:
            return job.size
        if job.spec.mode.any_start:
            share = state.nodes // (len(state.running) + len(state.pending))
            return max([n for n in _powers(job) if n <= share], default=job.spec.sizes()[0])
        # A malleable job gives away all but one node if that lets another start at its largest.
        largest = job.spec.nodes_max
        if state.free_count < largest <= state.free_count + job.size - 1:
            return job.spec.sizes()[0]
        return job.size


_PLAN = PaperPlan()


class PaperShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The paper's way: large starts, shrunk at resize points while others wait, never expanded."""

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> PaperPlan:
        """Return the plan of a pass."""
        return _PLAN


def _powers(job: Job) -> list[int]:
    """Return the job's sizes that are powers of two, rising."""
    return [n for n in job.spec.sizes() if n & (n - 1) == 0]
