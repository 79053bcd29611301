"""Part ``order``: who is served first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from math import sqrt
from typing import ClassVar

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


class SmallestFirst(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Due jobs first, then small ones; of these, first accounts that hold less than their share.

    Small by the least nodes a job can start on times the square root of the time it requests (one
    of the orders that Carastan-Santos & de Camargo, SC'17, found to wait least). Among n accounts
    with jobs, one whose jobs hold less than a share of 1 / n of the nodes, at their least sizes,
    comes first, so that many jobs of one user do not hold up those of others.

    Attributes:
        depth: how many jobs are looked at in a pass.
    """

    depth: int = 200
    twin: ClassVar[Fcfs] = Fcfs()

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"expected depth above 0, got {self}")

    def __call__(self, state: State) -> Iterable[Job]:
        """Return the queue."""
        return state.pending.values() if state.one_array else SmallestQueue(self, state)


class SmallestQueue:
    """The queue of one pass by :class:`SmallestFirst`; it may be gone through again."""

    __slots__ = ("_order", "_state")

    def __init__(self, order: SmallestFirst, state: State) -> None:
        self._order, self._state = order, state

    def __iter__(self) -> Iterator[Job]:
        """Yield the jobs, each once."""
        return islice(self._all(), self._order.depth)

    def _all(self) -> Iterator[Job]:
        state = self._state
        jobs = state.queue_by(size)
        full = _full_arrays(state) if state.array_limited else ()
        above: set[str] = set()
        if len(state.accounts) > 1:
            most = state.nodes / len(state.accounts)
            above = {account for account, nodes in state.held_by.items() if nodes >= most}
        due = state.due or {}
        for job_id in due:  # first of all, so that they are among those that limits let through
            if (first := state.pending.get(job_id)) is not None:
                yield first
        if not above and not full:
            for _, _, job in jobs:
                if not due or job.spec.id not in due:
                    yield job
            return
        for later in (False, True):
            for _, _, job in jobs:
                spec = job.spec
                own = (spec.account in above) is later and spec.array not in full
                if own and spec.id not in due:
                    yield job


def _full_arrays(state: State) -> set[str | None]:
    """Return the arrays of which as many jobs run as may: those that wait are not to be looked at.

    Else they would stand before others, of which ``depth`` lets so many be seen.
    """
    running = Counter(job.spec.array for job in state.running.values())
    limits = {job.spec.array: job.spec.array_limit for job in state.running.values()}
    return {name for name, most in limits.items() if most is not None and running[name] >= most}


def size(job: Job) -> float:
    """Return what :class:`SmallestFirst` sorts by: least nodes x sqrt(time requested on them)."""
    return job.least * sqrt(job.spec.expected_s(job.least))
