"""Part ``admission``: the jobs that start now.

In order, first fit, or with reservations: EASY reserves nodes for the first waiting job only,
``conservative`` for all waiting jobs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import inf
from typing import Literal

import msgspec

from rms.core.model.events import Later, Reason, Start, free_words, node_words
from rms.core.model.jobs import Job, JobId
from rms.core.policies.placement import Plan, Room
from rms.core.state import End, State


@dataclass(eq=False)
class View:
    """The state for the parts, with their results, to explain why jobs wait.

    Attributes:
        state: all nodes on.
        room: the room, within the power cap.
        queue: the waiting jobs in order.
        plan: their sizes.
    """

    state: State
    room: Room
    queue: Iterable[Job]
    plan: Plan

    @cached_property
    def running(self) -> Counter[str | None]:
        """The number of running jobs by array."""
        return Counter(job.spec.array for job in self.state.running.values())


class Admission:
    """Part ``admission``: the jobs that start now, and the reasons why others wait."""

    __slots__ = ()

    @property
    def estimates(self) -> Literal["requested", "exact"] | None:
        """Whether requested or exact run times are expected; None without a choice."""
        return None

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        raise NotImplementedError

    def explain(self, job: Job, view: View) -> Later:
        """Return why a job waits."""
        return Later(job.spec.id, "Resources: its turn has not come", Reason.RESOURCES)

    def reservation(self, view: View) -> tuple[JobId, float] | None:
        """Return the job that has a reservation and its time, or None."""
        return None


# --- in order, and first fit ---------------------------------------------------------------------


class InOrder(Admission, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs start in order; the first that does not fit holds up the jobs behind it.

    Attributes:
        at_most: largest number of starts in one pass, or None.
    """

    at_most: int | None = None

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        starts: list[Start] = []
        if self.at_most is not None or not news_only(state, queue, room):
            start_head(islice(queue, self.at_most), plan, room, starts)
        return starts

    def explain(self, job: Job, view: View) -> Later:
        """Return why a job waits."""
        return _waits(job, next(iter(view.queue)), view)


class FirstFitting(Admission, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Backfill first fit: jobs that fit start, in order, even if they overtake others.

    Without a reservation the first waiting job may be overtaken for ever (Chiesi et al., section
    3, whose jobs need one slot each).
    """

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        starts = []
        for job in queue:
            if room.free <= 0:
                break
            size = plan.start(job, room.free)
            if room.fits(job, size):
                starts.append(start(job, size, room, "fits", Reason.FITS))
        return starts

    def explain(self, job: Job, view: View) -> Later:
        """Return why a job waits."""
        return _waits(job, job, view)


# --- EASY: a reservation for the first waiting job ----------------------------------------------


class Easy(Admission, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """EASY backfilling: a job may overtake if it does not delay the first waiting one.

    The first job that does not fit gets a reservation at the earliest time at which enough nodes
    are free, by the expected ends of running jobs; it is computed anew in every pass. A later job
    starts now if it fits and either ends before that time or leaves the reservation enough nodes
    (Lifka, "The ANL/IBM SP scheduling system", 1995).

    Attributes:
        tail: order of the jobs behind the first: ``queue``, or ``shortest`` expected run time
            first.
        estimates: expected run times are the ``requested`` or the ``exact`` ones.
    """

    tail: Literal["queue", "shortest"] = "queue"
    estimates: Literal["requested", "exact"] = "requested"

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        starts: list[Start] = []
        news = news_only(state, queue, room)
        if news:
            if min([job.least for job in news]) > room.free:
                return starts
            head: Job | None = next(iter(queue))
            waiting: Iterable[Job] = news
        else:
            rest = iter(queue)
            waiting, head = rest, start_head(rest, plan, room, starts)
        if head is None or room.free <= 0:
            return starts
        exact, now = state.exact, state.now_s
        size = plan.start(head, room.free)
        budget, watts, extra_w = None, 0.0, inf
        if state.power_cap_w is not None and (budget := room.budget) is not None:
            watts = budget.start_w(head, size)
        shadow, extra = reservation(state, room, starts, size, watts)
        if budget is not None:
            extra_w = power_then(state, room, starts, shadow) - watts
        free = room.free
        for job in self._tail(state, head, waiting, starts, news, queue):
            least = job.least
            if least > free:
                continue
            if least > extra and not exact:
                spec = job.spec
                limit_s = spec.limit_s
                if limit_s is not None and spec.speedup is None and now + limit_s > shadow:
                    continue  # the most frequent case, which needs no size
            size = plan.start(job, free)
            if not room.fits(job, size):
                continue
            span_s = job.spec.expected_s(size, exact=exact)
            if room.varies:
                span_s *= room.slowdown(job, size)
            if now + span_s > shadow:
                own_w = 0.0 if budget is None else budget.start_w(job, size)
                if size > extra or own_w > extra_w:
                    continue
                extra -= size
                extra_w -= own_w
            starts.append(start(job, size, room, "backfills", Reason.BACKFILLS))
            free = room.free
            if free <= 0:
                break
        return starts

    def _tail(
        self,
        state: State,
        head: Job,
        waiting: Iterable[Job],
        starts: list[Start],
        news: list[Job],
        queue: Iterable[Job],
    ) -> Iterable[Job]:
        """Return the jobs behind the first waiting one, in the order of backfilling.

        A list has not all waiting jobs: others are held back by the limits of their arrays.
        """
        if self.tail == "queue":
            return waiting
        if news:
            return sorted(news, key=state.estimate)
        begun = {start.job for start in starts}
        begun.add(head.spec.id)
        tail = [job for _, _, job in state.by_estimate if job.spec.id not in begun]
        if isinstance(queue, list):
            there = set(map(id, queue))
            tail = [job for job in tail if id(job) in there]
        return state.by_priority(tail)

    def explain(self, job: Job, view: View) -> Later:
        """Return why a job waits."""
        state, plan, room = view.state, view.plan, view.room
        head = next(iter(view.queue))
        size, budget = plan.start(head, room.free), room.budget
        watts = 0.0 if budget is None else budget.start_w(head, size)
        at, _ = reservation(state, room, [], size, watts)
        when = "" if at == inf else f", reserved for it in {at - state.now_s:.0f} s"
        if job is head:
            if size <= room.free and not room.fits(job, size):
                return _waits(job, head, view)
            text = f"Resources: waits for {node_words(size)}, {free_words(room.free)}{when}"
            return Later(job.spec.id, text, Reason.RESOURCES)
        own = plan.start(job, room.free)
        if own > room.free:
            text = f"Resources: waits for {node_words(own)}, {free_words(room.free)}"
            return Later(job.spec.id, text, Reason.RESOURCES)
        text = (
            f"Priority: {node_words(own, verb=True)} free, but it would delay {head.spec.id}{when}"
        )
        return Later(job.spec.id, text, Reason.PRIORITY)


def news_only(state: State, queue: Iterable[Job], room: Room) -> list[Job]:
    """Return the new jobs, if nothing else has changed since the first one had to wait.

    Jobs that waited would only be refused again, so a submission costs no more on a long queue than
    on a short one.
    """
    if state.needs_pass or room.passed or state.array_limited or not state.new_jobs:
        return []
    if state.prioritised:
        return []  # a new job may go first
    if state.power_cap_w is not None:
        return []  # the first may wait for power, which is reserved for it in every pass
    first = next(iter(queue), None)
    return state.new_jobs if first is not None and first.number < state.new_jobs[0].number else []


def start_head(queue: Iterator[Job], plan: Plan, room: Room, starts: list[Start]) -> Job | None:
    """Start jobs in order as long as they fit; return the first that does not."""
    for job in queue:
        size = plan.start(job, room.free)
        if not room.fits(job, size):
            return job
        starts.append(start(job, size, room, "fits", Reason.FITS))
    return None


def reservation(
    state: State, room: Room, starts: list[Start], size: int, watts: float = 0.0
) -> tuple[float, int]:
    """Return the time at which nodes and power will be free, and the number of further nodes."""
    free, now = room.free, state.now_s
    budget = room.budget if watts else None
    left_w = 0.0 if budget is None else budget.for_reservation_w
    ends = _ends(state, room, starts) if starts else islice(state.ends, room.passed, None)
    for end, _, job in ends:
        free += job.size if job.requested_size is None else job.size + job.gain
        if budget is not None:
            left_w += budget.drawn_w(job)
            if left_w < watts:
                continue
        if free >= size:
            reserved_s = max(end, now)
            break
    else:
        return inf, 0
    for end, _, job in ends:  # further ends at that time
        if end > reserved_s:
            break
        free += job.size if job.requested_size is None else job.size + job.gain
    return reserved_s, free - size


def power_then(state: State, room: Room, starts: list[Start], at_s: float) -> float:
    """Return the rest of the power cap at a time, in W."""
    budget = room.budget
    if budget is None:
        return inf
    ends = _ends(state, room, starts)
    return budget.for_reservation_w + sum(
        [budget.drawn_w(job) for end, _, job in ends if end <= at_s]
    )


def _ends(state: State, room: Room, starts: list[Start]) -> Iterator[End]:
    """Return the expected ends of jobs that run or are about to start, rising in time."""
    ends, first = state.ends, room.passed
    if starts:
        ends, first = ends[first:], 0
        for start in starts:
            job = state.pending[start.job]
            span = job.spec.expected_s(start.size, exact=state.exact) * start.slowdown
            # The job itself has no size yet: a stand-in of the start's size takes its place.
            insort(ends, (state.now_s + span, job.number, Job(job.spec, size=start.size)))
    return islice(ends, first, None)


def _waits(job: Job, head: Job, view: View) -> Later:
    room = view.room
    if job is head:
        size, there = view.plan.start(job, room.free), node_words(room.free, verb=True)
        if size <= room.free and room.contended:
            text = f"Resources: {there} free, but too little memory bandwidth there"
            return Later(job.spec.id, text, Reason.RESOURCES)
        if size <= room.free:
            text = f"PowerCap: {there} free, but its power fits on none"
            return Later(job.spec.id, text, Reason.POWER)
        text = f"Resources: waits for {node_words(size)}, {free_words(room.free)}"
        return Later(job.spec.id, text, Reason.RESOURCES)
    return Later(job.spec.id, f"Priority: {head.spec.id} is first", Reason.PRIORITY)


def start(job: Job, size: int, room: Room, reason: str, code: Reason) -> Start:
    """Take nodes for a job that fits and return its start."""
    if not room.varies:  # the most frequent case
        nodes = room.place(job, size)
        return Start(job.spec.id, nodes, reason, code, 0 if nodes else size)
    slowdown = room.slowdown(job, size)
    nodes, frequencies = room.take(job, size)
    return Start(job.spec.id, nodes, reason, code, 0 if nodes else size, slowdown, frequencies)


def within_limits(state: State, queue: Iterable[Job]) -> Iterator[Job]:
    """Yield jobs, except tasks above the limits of their arrays."""
    running = Counter(job.spec.array for job in state.running.values())
    for job in queue:
        limit = job.spec.array_limit
        if limit is None or running[job.spec.array] < limit:
            running[job.spec.array] += 1
            yield job


# --- conservative backfilling: a reservation for every waiting job ------------------------------
#
# A job may overtake only if that delays no job before it (Mu'alem & Feitelson, IEEE TPDS 12(6),
# 2001, 529-543). Reservations are computed anew in every pass, in the queue's order, on the profile
# of free nodes over time that the expected ends of running jobs give.


class NodeProfile:
    """Free nodes over time: ``free[i]`` from ``at_s[i]`` on.

    Args:
        ends: of running jobs, rising; None for the expected ends of the state.

    Attributes:
        left_w: the rest of the power cap from then on, in W; empty without a cap.
    """

    __slots__ = ("at_s", "free", "left_w")

    def __init__(self, state: State, room: Room, ends: Iterable[End] | None = None) -> None:
        self.at_s, self.free = [state.now_s], [room.free]
        budget = room.budget
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
        """Return the time from which nodes and power are free for ``span_s``, ``inf`` if never."""
        at_s, free = self.at_s, self.free
        if self.left_w:  # a step with too little power counts as one without nodes
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
        """Return the index of the step that begins at a time; split a step for it."""
        at = bisect_left(self.at_s, at_s)
        if at == len(self.at_s) or self.at_s[at] != at_s:
            self.at_s.insert(at, at_s)
            self.free.insert(at, self.free[at - 1])
            if self.left_w:
                self.left_w.insert(at, self.left_w[at - 1])
        return at

    def at(self, at_s: float) -> int:
        """Return the number of free nodes at a time."""
        return self.free[bisect_right(self.at_s, at_s) - 1]


MOST_ENDS = 1000
"""With more running jobs, consecutive ends are grouped, at the last of a group."""


def expected_starts(
    state: State, room: Room, queue: Iterable[Job], running: Mapping[str | None, int]
) -> dict[JobId, float]:
    """Return the expected starts of waiting jobs.

    As if jobs started at their least sizes in order, and running jobs ended when expected: a policy
    that resizes or backfills may start them earlier. Left out are tasks of an array that waits for
    its own tasks, and jobs behind one for which no end frees enough nodes.
    """
    ends = sorted(
        (max(job.limit_end_s if end == inf else end, state.now_s), number, job)
        for end, number, job in islice(state.ends, room.passed, None)
    )
    at_once = -(-len(ends) // MOST_ENDS) or 1
    last = len(ends) - 1
    ends = [
        (ends[min(at - at % at_once + at_once - 1, last)][0], number, job)
        for at, (_, number, job) in enumerate(ends)
    ]
    profile, starts = NodeProfile(state, room, ends), dict[JobId, float]()
    for job in queue:
        spec, least = job.spec, job.least
        if spec.array_limit is not None and running.get(spec.array, 0) >= spec.array_limit:
            continue
        span_s = spec.expected_s(least, exact=state.exact)
        at_s = profile.earliest(least, span_s)
        if at_s == inf:
            break
        profile.take(least, at_s, span_s)
        starts[spec.id] = at_s
    return starts


class Conservative(Admission, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every waiting job has a reservation, and starts at its time.

    Attributes:
        estimates: expected run times are the ``requested`` or the ``exact`` ones.
        depth: largest number of waiting jobs with reservations; jobs behind them wait.
    """

    estimates: Literal["requested", "exact"] = "requested"
    depth: int = 1000

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        starts: list[Start] = []
        if room.free <= 0:
            return starts
        planned = list(islice(queue, self.depth))
        # Behind the last job that is no wider than the free nodes, no job could start now.
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
        """Yield jobs with their sizes and the times of their reservations."""
        profile, budget = NodeProfile(state, room), room.budget
        left, watts = room.free, 0.0
        for job in islice(queue, self.depth):
            size = plan.start(job, left)
            span_s = job.spec.expected_s(size, exact=state.exact)
            span_s *= room.slowdown(job, size)
            if budget is not None:
                watts = budget.start_w(job, size)
            at_s = profile.earliest(size, span_s, watts)
            if at_s == inf:
                continue
            profile.take(size, at_s, span_s, watts)
            left = max(0, profile.at(state.now_s))
            yield job, size, at_s

    def explain(self, job: Job, view: View) -> Later:
        """Return why a job waits."""
        for other, size, at_s in self._planned(view.state, view.queue, view.plan, view.room):
            if other is job:
                nodes, left_s = node_words(size, verb=True), at_s - view.state.now_s
                text = f"Resources: {nodes} reserved for it in {left_s:.0f} s"
                return Later(job.spec.id, text, Reason.RESOURCES)
        return Later(job.spec.id, "Priority: jobs before it have no expected end", Reason.PRIORITY)
