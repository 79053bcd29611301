"""Sizing ``paper-share``: a model of the system of Iserte & Rojek (policy ``array-share-paper``).

The paper states the 10 s between two scheduling passes (section 5.1). The rest was chosen so that
the model comes close to tables 3 and 4, so it is plausible, not known: a job starts at the largest
power of two that fits, gives nodes away at a resize point while others wait, and is never expanded,
although the paper describes expanding. Other rules are parameters, from which
``rms reproduce iserte-rojek`` fits the model to one cluster and predicts the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from rms.core.model.events import Reason, Resize
from rms.core.model.jobs import Job
from rms.core.policies.placement import Room, Sizing
from rms.core.state import State


class PaperShare(Sizing, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs start large and are shrunk at resize points while others wait.

    Attributes:
        flexible: the size to which a flexible job is shrunk while others wait. ``share``: the
            largest power of two up to the cluster's nodes over running and waiting jobs; ``half``:
            half its size; ``least``: its smallest size.
        malleable: the same for a malleable job. ``another``: its smallest size, but only where
            that lets another job start at its largest size; ``never``: it keeps its size.
        expand: a job is expanded to twice its size at a resize point where no job waits and so
            many nodes are free.
    """

    flexible: Literal["share", "half", "least"] = "share"
    malleable: Literal["another", "share", "half", "least", "never"] = "another"
    expand: bool = False

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> PaperPlan:
        """Return the plan of a pass."""
        return PaperPlan(self)


class PaperPlan:
    """Sizes of one pass."""

    __slots__ = ("_rules",)

    def __init__(self, rules: PaperShare) -> None:
        self._rules = rules

    def start(self, job: Job, free: int) -> int:
        """Return the preferred size, or the largest power of two that fits."""
        if not job.spec.mode.any_start:
            return job.spec.preferred
        fitting = [n for n in _powers(job) if n <= free]
        return fitting[-1] if fitting else job.least

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return the resizes of the jobs that are at a resize point."""
        found = []
        for job in state.reached_resize_point:
            if not job.resizable_now:
                continue
            size = self._smaller(state, job) if state.pending else self._larger(job, room)
            if size != job.size and size not in job.refused_sizes:
                nodes = room.resize(job, size)
                count = 0 if nodes else size
                text, code = "makes room for waiting jobs", Reason.MAKES_ROOM
                if size > job.size:
                    text, code = "takes idle nodes", Reason.IDLE_NODES
                found.append(Resize(job.spec.id, nodes, text, code, count))
        return found

    def _smaller(self, state: State, job: Job) -> int:
        """Return the size to which a job is shrunk while others wait, or its present one."""
        least, largest = job.spec.sizes()[0], job.spec.nodes_max
        rule: str = self._rules.flexible if job.spec.mode.any_start else self._rules.malleable
        if rule == "another":
            enough = state.free_count < largest <= state.free_count + job.size - least
            rule = "least" if enough else "never"
        if rule == "never":
            return job.size
        if rule == "least":
            return least
        share = state.nodes // (len(state.running) + len(state.pending))
        most = share if rule == "share" else job.size // 2
        return min(job.size, max([n for n in _powers(job) if n <= most], default=least))

    def _larger(self, job: Job, room: Room) -> int:
        """Return twice the size of a job where that many nodes are left, or its present size."""
        wider = 2 * job.size
        fits = self._rules.expand and job.size <= room.free
        return wider if fits and wider in job.spec.sizes() else job.size


def _powers(job: Job) -> list[int]:
    """Return the job's sizes that are powers of two, rising."""
    return [n for n in job.spec.sizes() if n & (n - 1) == 0]
