"""Part ``order``: who is served first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from math import sqrt

import msgspec

from rms.core.model import Job, Mode
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
    """Small jobs first, but nobody is overtaken for long.

    Small by the least nodes a job can start on times the square root of the time it requests (one
    of the orders that Carastan-Santos & de Camargo, SC'17, found to wait least). Before all others
    come jobs that have waited ``stretch`` times their request, the first due first, and before
    those the first of the queue unless it is flexible: a job that can neither start on fewer nodes
    nor give some back is the one that a stream of small jobs would starve.

    Attributes:
        stretch: how many times the time it requests a job waits until none that is due later may
            overtake it.
        least_s: requests below this (and jobs without one) count as this.
        depth: how many jobs are looked at in a pass.
        resizable: share of the nodes on which jobs that can be resized must run for this order;
            below it jobs come in the order of submission. Rigid jobs alone leave nodes idle when
            wide ones come last: nobody can use the nodes that are gathered for them.
    """

    stretch: float = 30.0
    resizable: float = 0.1
    least_s: float = 600.0
    depth: int = 1000

    def __post_init__(self) -> None:
        if not self.stretch > 0 or not self.least_s > 0 or self.depth < 1:
            raise ValueError(f"expected stretch, least_s and depth above 0, got {self}")
        if not 0.0 <= self.resizable <= 1.0:
            raise ValueError(f"expected a resizable share of 0 to 1, got {self.resizable}")

    def __call__(self, state: State) -> Iterable[Job]:
        """Return the queue."""
        if state.one_array:
            return state.pending.values()
        return SmallestQueue(self, state)

    def resizable_hold(self, state: State) -> bool:
        """Return whether jobs that can be resized run on that share of the nodes."""
        lacking = self.resizable * state.nodes
        if lacking <= 0:
            return True
        for job in state.running.values():
            if job.spec.mode.resizable:
                lacking -= job.size
                if lacking <= 0:
                    return True
        return False

    def due_s(self, job: Job) -> float:
        """Return from when on a job is overtaken by none that is due later."""
        run_s = 0.0 if job.spec.is_assumed else job.spec.expected_s(job.spec.preferred)
        return job.spec.submit_s + self.stretch * max(self.least_s, run_s)


class SmallestQueue:
    """The queue of one pass by :class:`SmallestFirst`; it may be gone through again.

    Most passes at a resize point look at nobody who waits, so nothing is worked out before.
    """

    __slots__ = ("_in_order", "_order", "_state")

    def __init__(self, order: SmallestFirst, state: State) -> None:
        self._order, self._state = order, state
        self._in_order: bool | None = None

    def __iter__(self) -> Iterator[Job]:
        """Yield the jobs, each once."""
        return islice(self._all(), self._order.depth)

    def _all(self) -> Iterator[Job]:
        state = self._state
        full = _full_arrays(state) if state.array_limited else ()
        waiting = (job for job in state.pending.values() if job.spec.array not in full)
        if self._in_order is None:
            self._in_order = not self._order.resizable_hold(state)
        if self._in_order:
            yield from waiting
            return
        first = next(waiting, None)
        if first is None:
            return
        before = set()
        if first.spec.mode is not Mode.FLEXIBLE:
            before.add(first.number)
            yield first
        for due_s, number, job in state.queue_by(self._order.due_s):
            if due_s > state.now_s:
                break
            if number not in before and job.spec.array not in full:
                before.add(number)
                yield job
        for _, number, job in state.queue_by(size):
            if number not in before and job.spec.array not in full:
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
