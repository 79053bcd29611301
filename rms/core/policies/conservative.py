"""Admission ``conservative``: a reservation for every waiting job.

A job may overtake only if that delays no one before it (Mu'alem & Feitelson, IEEE TPDS 12(6),
2001, 529-543). Reservations are worked out anew in every pass, in the queue's order, on the
profile of free nodes over time that running jobs' expected ends give.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from itertools import islice
from math import inf
from typing import Literal

import msgspec

from rms.core.events import Later, Reason, Start, node_words
from rms.core.model import Job, JobId
from rms.core.policies.admission import start
from rms.core.policies.capped import budget_of
from rms.core.policies.placement import Room, expected_slowdown
from rms.core.policies.sizing import Plan
from rms.core.state import End, State


class Profile:
    """Free nodes over time: ``free[i]`` from ``at_s[i]`` on.

    Args:
        ends: of running jobs, rising; None for those that the state expects.

    Attributes:
        left_w: what is left of the power cap then, in W; empty where there is none.
    """

    __slots__ = ("at_s", "free", "left_w")

    def __init__(self, state: State, room: Room, ends: Iterable[End] | None = None) -> None:
        self.at_s, self.free = [state.now_s], [room.free]
        budget = budget_of(room)
        self.left_w = [] if budget is None else [budget.for_reservation_w]
        for end, _, job in islice(state.ends, room.passed, None) if ends is None else ends:
            if end == inf:
                break
            nodes = self.free[-1] + job.size + job.gain
            if end <= self.at_s[-1]:
                self.free[-1] = nodes
            else:
                self.at_s.append(end)
                self.free.append(nodes)
                self.left_w += self.left_w[-1:]
            if budget is not None:
                self.left_w[-1] += budget.drawn_w(job)

    def earliest(self, size: int, span_s: float, watts: float = 0.0) -> float:
        """Return when ``size`` nodes and that power are free for a time, ``inf`` if never."""
        at_s, free = self.at_s, self.free
        if self.left_w:  # a step with too little power has as good as no nodes
            both = zip(free, self.left_w, strict=True)
            free = [nodes if left_w >= watts else -1 for nodes, left_w in both]
        first, steps = 0, len(at_s)
        while first < steps:
            if free[first] < size:
                first += 1
                continue
            until, at = at_s[first] + span_s, first + 1
            while at < steps and at_s[at] < until and free[at] >= size:
                at += 1
            if at == steps or at_s[at] >= until:
                return at_s[first]
            first = at + 1
        return inf

    def take(self, size: int, since_s: float, span_s: float, watts: float = 0.0) -> None:
        """Reserve nodes and power for a time."""
        begin = self._cut(since_s)
        end = self._cut(since_s + span_s) if span_s < inf else len(self.at_s)
        for at in range(begin, end):
            self.free[at] -= size
        if watts:
            for at in range(begin, end):
                self.left_w[at] -= watts

    def _cut(self, at_s: float) -> int:
        """Return the index of the step that begins at a time, which is made if need be."""
        at = bisect_left(self.at_s, at_s)
        if at == len(self.at_s) or self.at_s[at] != at_s:
            self.at_s.insert(at, at_s)
            self.free.insert(at, self.free[at - 1])
            if self.left_w:
                self.left_w.insert(at, self.left_w[at - 1])
        return at

    def at(self, at_s: float) -> int:
        """Return how many nodes are free at a time."""
        return self.free[bisect_right(self.at_s, at_s) - 1]


MOST_ENDS = 1000
"""With more running jobs, several consecutive ends count as one, at the last of them."""


def expected_starts(
    state: State, room: Room, queue: Iterable[Job], running: Mapping[str | None, int]
) -> dict[JobId, float]:
    """Return when waiting jobs are expected to start.

    As if each started at its least size, nobody overtook, and running jobs ended when expected: a
    policy that resizes or backfills may start them earlier. Left out are tasks of an array that
    waits for its own tasks, and who comes after a job that nobody knows enough free nodes for.

    Args:
        running: how many jobs of each array run.
    """
    ends = sorted(
        (max(_by_limit_s(job) if end == inf else end, state.now_s), number, job)
        for end, number, job in islice(state.ends, room.passed, None)
    )
    at_once = -(-len(ends) // MOST_ENDS) or 1
    last = len(ends) - 1
    ends = [
        (ends[min(at - at % at_once + at_once - 1, last)][0], number, job)
        for at, (_, number, job) in enumerate(ends)
    ]
    profile, found = Profile(state, room, ends), dict[JobId, float]()
    for job in queue:
        spec, least = job.spec, job.least
        if spec.array_limit is not None and running.get(spec.array, 0) >= spec.array_limit:
            continue
        span_s = spec.expected_s(least, exact=state.exact)
        at_s = profile.earliest(least, span_s)
        if at_s == inf:
            break
        profile.take(least, at_s, span_s)
        found[spec.id] = at_s
    return found


def _by_limit_s(job: Job) -> float:
    """Return when a running job's time is up, ``inf`` where it has no limit."""
    limit_s = job.spec.limit_s
    return inf if limit_s is None or job.start_s is None else job.start_s + limit_s


class Conservative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every waiting job has a reservation, and starts when it has come.

    Attributes:
        estimates: what is expected of a job's run time: what was ``requested`` for it, or
            ``exact``, what is known of it.
        depth: how many waiting jobs are planned at most; those behind them wait.
    """

    estimates: Literal["requested", "exact"] = "requested"
    depth: int = 1000

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        starts: list[Start] = []
        if room.free <= 0:
            return starts
        planned = list(islice(queue, self.depth))
        # Behind the last that is no wider than what is free, nobody could start now.
        while planned and planned[-1].least > room.free:
            planned.pop()
        for job, size, at_s in self._planned(state, planned, plan, room):
            if at_s <= state.now_s and room.fits(job, size):
                reason = "fits its reservation"
                starts.append(start(job, size, room, reason, Reason.BACKFILLS))
                if room.free <= 0:
                    break
        return starts

    def _planned(
        self, state: State, queue: Iterable[Job], plan: Plan, room: Room
    ) -> Iterable[tuple[Job, int, float]]:
        """Yield each job with its size and the time of its reservation."""
        profile, budget = Profile(state, room), budget_of(room)
        left, watts = room.free, 0.0
        for job in islice(queue, self.depth):
            size = plan.start(job, left)
            span_s = job.spec.expected_s(size, exact=state.exact)
            span_s *= expected_slowdown(room, job, size)
            if budget is not None:
                watts = budget.start_w(job, size)
            at_s = profile.earliest(size, span_s, watts)
            if at_s == inf:
                continue
            profile.take(size, at_s, span_s, watts)
            left = max(0, profile.at(state.now_s))
            yield job, size, at_s

    def explain(
        self, state: State, job: Job, queue: Iterable[Job], plan: Plan, room: Room
    ) -> Later:
        """Return why a job waits."""
        for other, size, at_s in self._planned(state, queue, plan, room):
            if other is job:
                nodes = node_words(size, verb=True)
                text = f"Resources: {nodes} reserved for it in {at_s - state.now_s:.0f} s"
                return Later(job.spec.id, text, Reason.RESOURCES)
        return Later(job.spec.id, "Priority: no end of those before it is known", Reason.PRIORITY)
