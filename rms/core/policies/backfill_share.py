"""Sizing ``backfill-share`` and admission ``planned``: the default policy, for a stream of jobs.

1. Jobs that EASY would have started by now, if all jobs were rigid, are *due*
   (:mod:`rms.core.scheduler.twin`; ``tail`` of ``planned`` is its order of backfilling). They start
   before all others, in the order in which they became due, at their least sizes. The first that
   cannot start has a reservation, by the requests of the running jobs at their least sizes, that no
   later job may delay.
2. Other jobs start in the queue's order, if they do not delay the first waiting job that is not
   flexible or, once a job is due and cannot start, that one.
3. Running jobs can be shrunk to their least sizes, so nodes above these count as free. One measure
   decides which jobs give nodes, and which get idle ones: the *worth* of a job, ``w /
   (a left^a)``, with ``left`` the time to its end, a = ``short`` and ``w`` = 1 + waiting jobs x its
   least size / nodes, since a job that ends sooner frees its least nodes for waiting jobs, too.
   For a close to 0 this is weighted proportional fairness (Kelly, European Transactions on
   Telecommunications 8, 1997, 33-37); for a = 1 the shortest remaining time comes first.
4. A resize must bring more worth than it costs, and no job is widened beyond the size at which it
   takes ``node_hours`` more node hours than at its preferred one.
5. While every job is fixed, EASY decides. While all jobs are of one array, ``equal-share`` decides,
   except over nodes that it leaves idle because too few are left for the next task.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush, merge
from math import inf
from operator import itemgetter
from typing import ClassVar, Literal

import msgspec

from rms.core.model.events import Later, Reason, Start, node_words
from rms.core.model.jobs import Job, JobId, Mode
from rms.core.model.speedup import Speedup, some_sizes
from rms.core.policies.admission import Admission, Easy, InOrder, View, start, within_limits
from rms.core.policies.placement import Plan, Room, Sizing, plan_of_sizing
from rms.core.policies.share import EqualShare, SharePlan, balanced, freeing
from rms.core.rules.powercap import PowerBudget, never_fits, why_power
from rms.core.state import End, RunningKey, State

UNKNOWN_S = 1e9
"""Time to the end, on one node, of a job without an estimate."""

WIDE = 0.25
"""The oldest flexible job goes first, as any other, if it needs more than this share of nodes."""

START, FIXED_START, ONLY_START = 3.0, 0.05, 0.12
"""Worth of a start over that of a running job of the same size, as a waiting job makes no progress.
For a fixed job it is so low that others hardly make room for it before it is due: it makes none. It
is higher while no other job waits, since none takes the next nodes that come free."""

REST_S, REST_SHARE = 60.0, 0.05
"""Time, and share of the time to its end, for which a job without a price of resizes is not widened
again; the shorter one counts."""

GAIN = 2.0
"""Least gain of a resize of a running job over its cost."""


class BackfillShare(Sizing, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """EASY backfilling over least sizes; the remaining nodes are lent to running jobs.

    Attributes:
        energy: weight of energy against time, from 0 to 1, in the largest sizes of jobs.
        rotate: of ``equal-share``, as long as all jobs are of one array.
        look: at most this many jobs are considered for a change.
        node_hours: further node hours that a job may take at the size to which it is widened, as a
            share of those at its preferred size.
        short: exponent of the time to the end in the worth of a job, above 0 and at most 1.
        rest: time between expansions of a job, in prices of a resize.
        horizon_s: time for which a new size is expected to last while other jobs wait.
    """

    energy: float = 0.0
    rotate: bool = True
    look: int = 48
    node_hours: float = 0.1
    short: float = 0.1
    rest: float = 10.0
    horizon_s: float = 600.0
    twin: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.energy <= 1.0 or self.look < 1:
            raise ValueError(f"expected energy of 0 to 1 and look of at least 1, got {self}")
        if not (self.node_hours >= 0.0 and self.rest >= 0.0 and self.horizon_s > 0.0):
            raise ValueError(
                f"expected node_hours and rest of at least 0 and horizon_s above 0, got {self}"
            )
        if not 0.0 < self.short <= 1.0:
            raise ValueError(f"expected short above 0 and at most 1, got {self.short}")

    @property
    def keys(self) -> dict[str, RunningKey]:
        """The keys by which running jobs are sorted."""
        return {"loss": self._loss, "gain": self._gain, "least end": _least_end_s}

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> SharePlan:
        """Return the plan of a pass."""
        if state.due is None:
            return BackfillPlan(in_order=False, easy=True, queue=_by_age(state, queue))
        if state.one_array:
            share = EqualShare(energy=self.energy, rotate=self.rotate, look=self.look)
            plan = share(state, queue, room)
            plan.awaits = [job for job in state.running.values() if job.spec.mode.resizable]
            left = room.free + state.releasing - sum(plan.sizes.values())
            if plan.changes or left <= 0 or len(plan.sizes) == len(state.pending):
                return plan
        plan = BackfillPlan(in_order=False, energy=self.energy, sizing=self)
        if not (state.needs_pass or state.new_jobs or state.reached_resize_point):
            return plan
        backfill = plan.backfill = self.backfilled(state, queue, room)
        budget = room.budget
        if budget is not None:
            budget = budget.plus(0.0)
        spare, starting, short, short_w = room.free, [], 0, 0.0
        for job, size in zip(backfill.jobs, backfill.sizes, strict=True):
            if size <= spare and (budget is None or budget.starts(job, size)):
                spare -= size
                if budget is not None:
                    budget.take(budget.start_w(job, size))
                plan.sizes[job.spec.id] = size
                starting.append(job)
            else:
                if job.spec.id in state.due:  # no job may take the nodes that it waits for
                    short, spare = short - spare, 0
                short += size
                short_w += 0.0 if budget is None else budget.start_w(job, size)
        if short or short_w:
            if budget is not None:
                short_w -= budget.left_w + budget.releasing_w
            self._make_room(state, plan, (short - spare - state.releasing, short_w), budget)
        elif spare > 0:
            self._widen(state, plan, starting, spare, budget)
        return plan

    # --- starts ------------------------------------------------------------------------------

    def backfilled(self, state: State, queue: Iterable[Job], room: Room) -> Backfilled:
        """Return the jobs that may start if resizable ones held their least sizes only."""
        if not state.pending:
            return Backfilled()
        base = room.free + state.releasing
        backfill = Backfilled(free=base + state.callable)
        budget = room.budget
        if budget is not None:
            lent_w = [budget.drawn_w(j) - budget.at_w(j, _least(j)) for *_, j in state.shrinkable]
            backfill.budget = budget.plus(budget.releasing_w + sum(lent_w))
        narrowest = state.queue_by(_width)[0][0]
        if backfill.free < narrowest:
            return backfill  # ``first`` is computed when it is needed
        due = state.due or {}
        for job in _in_turn(state, queue):
            if job.spec.id in due:
                if not backfill.fits(job, job.least):
                    backfill.first = backfill.first or job
                    continue
            else:
                # Jobs that are not due wait in the queue's order. The oldest is protected: it is
                # first unless it can start on few nodes or is worth nodes of others.
                wide = job.spec.mode is not Mode.FLEXIBLE or job.least > WIDE * state.nodes
                if backfill.first is None and not (
                    backfill.fits(job, job.least)
                    and self._may_make_room(state, job, base - backfill.used)
                ):
                    backfill.first = job
                elif backfill.first is None and wide:
                    backfill.take(state, room, job, _start_size(state, job, backfill, self.energy))
                break
            backfill.take(state, room, job, _start_size(state, job, backfill, self.energy))
            if backfill.free < narrowest:
                return backfill
        donors: Iterator[tuple[float, int]] | None = None
        worth = True  # until a job is not worth the nodes of others: then no later one is
        taken = set(map(id, backfill.jobs))
        for job in queue:
            least = job.least
            if job.spec.id in due or id(job) in taken or job is backfill.first:
                continue
            if not backfill.fits(job, least):
                if backfill.first is None:
                    backfill.first = job
                continue
            size = _start_size(state, job, backfill, self.energy)
            free = base - backfill.used
            if size > free:
                if donors is None:
                    donors = _donors(state, free)
                lacking = size - max(0, free)
                worth = worth and _is_worth(self._start_worth(state, job, size), lacking, donors)
                if not worth:
                    if backfill.first is None:
                        backfill.first = job
                    if free < narrowest:
                        break
                    continue
            if backfill.first is not None and backfill.delays(state, room, job):
                continue
            backfill.take(state, room, job, size)
            if backfill.free < narrowest and backfill.first is not None:
                break
        return backfill

    def _may_make_room(self, state: State, job: Job, free: int) -> bool:
        """Return whether a fixed job that is not due is worth the nodes that it lacks."""
        if job.spec.mode is not Mode.FIXED or job.least <= free:
            return True
        donors = _donors(state, free)
        worth = self._start_worth(state, job, job.least)
        return _is_worth(worth, job.least - max(0, free), donors)

    # --- the worth of jobs -------------------------------------------------------------------

    def _weight(self, state: State, job: Job) -> float:
        return (1.0 + len(state.pending) * job.spec.smallest / state.nodes) / self.short

    def _start_worth(self, state: State, job: Job, size: int) -> float:
        fixed = ONLY_START if len(state.pending) == 1 else FIXED_START
        start = fixed if job.spec.mode is Mode.FIXED else START
        return start * self._weight(state, job) / float(_to_go_s(job, size, 0.0) ** self.short)

    def _loss(self, state: State, job: Job) -> float:
        """Return the cost of a node of a running job that is shrunk to its least size."""
        least = job.size - job.callable
        if job.callable <= 0 or state.sizes_stay:
            return inf
        now, price_s = state.now_s, job.spec.resize_price_s
        left_s = _to_go_s(job, job.size, now)
        if left_s <= price_s:
            return inf  # it is over before the resize would be
        worth = self._weight(state, job) / float(left_s**self.short)
        slower = float((left_s / _to_go_s(job, least, now)) ** self.short)
        stall = self.short * price_s / max(1.0, min(left_s, self.horizon_s))
        return worth * (1.0 - slower + stall) / (job.size - least)

    def _gain(self, state: State, job: Job) -> float:
        """Return minus the worth of another node for a running job; inf for none."""
        if not job.resizable_now or job.kept or state.sizes_stay:
            return inf
        steps = self._steps(state, job, job.size)
        return -steps.worth if steps.goes_on() else inf

    def _steps(self, state: State, job: Job, size: int) -> Steps:
        """Return the sizes to which a job may be widened from a size, with their worth."""
        spec, speedup = job.spec, job.speedup
        law, scale = None if speedup is None else speedup.law, 1.0
        if job.start_s is not None and speedup is not None:
            scale = job.remaining_share(state.now_s) * job.stretch
        elif speedup is not None and spec.limit_s is not None:
            scale = spec.limit_s / (speedup.time(spec.preferred) or 1.0)
        if speedup is None:  # as if twice the nodes halved the time to the end
            law = _to_go_s(job, size, state.now_s) * size, 0.0
        weight, most = self._weight(state, job), self.widest(state, job)
        steps = Steps(job, size, most, weight, self.short, scale, law)
        steps.value = steps.value_at(size)
        return steps

    def widest(self, state: State, job: Job) -> int:
        """Return the largest size to which a job is widened."""
        spec, speedup = job.spec, job.speedup
        if speedup is None:
            return spec.nodes_max
        if speedup.law is not None:
            limits = spec.nodes_min, spec.nodes_max, spec.preferred
            most = _widest_by_law(*speedup.law, *limits, self.node_hours)
        else:
            most = _widest(speedup, spec.sizes(), spec.preferred, self.node_hours)
        if not self.energy:
            return most
        sizes = [n for n in some_sizes(spec.sizes(), spec.preferred) if n <= most]
        return balanced(state, job, sizes, self.energy)

    # --- resizes -----------------------------------------------------------------------------

    def _make_room(
        self,
        state: State,
        plan: BackfillPlan,
        lacking: tuple[int, float],
        budget: PowerBudget | None,
    ) -> None:
        """Shrink jobs: if a due job waits, first jobs at a resize point, else by least loss."""
        short, short_w = lacking
        here = set(map(id, state.reached_resize_point))
        losses = state.running_by("loss")
        most = state.resizes_left
        able: Iterable[End] = losses
        due = state.due or {}
        if (
            here
            and plan.backfill is not None
            and any(job.spec.id in due for job in plan.backfill.jobs)
        ):
            able = [e for e in losses if id(e[2]) in here]
            able += [e for e in losses if id(e[2]) not in here]
        for _, _, job in able:
            if (short <= 0 and short_w <= 0.0) or len(plan.changes) >= most:
                break
            size = _shrunk(job, short, short_w, budget)
            if size >= job.size:
                continue
            short -= job.size - size
            if budget is not None:
                short_w -= budget.at_w(job, job.size) - budget.at_w(job, size)
            if _can(job, here):
                change = (job, size, "makes room for waiting jobs", Reason.MAKES_ROOM)
                plan.changes.append(change)
            else:
                plan.awaits.append(job)

    def _widen(
        self,
        state: State,
        plan: BackfillPlan,
        starting: list[Job],
        spare: int,
        budget: PowerBudget | None,
    ) -> None:
        """Give spare nodes to starting and running jobs by worth.

        Nodes that are worth most for a job on its way to a resize point wait for it.
        """
        first = None if plan.backfill is None else plan.backfill.first
        heap: list[tuple[float, int, int, Steps]] = []
        for job in starting:
            if _lends(job, first):
                steps = self._steps(state, job, job.least)
                if steps.goes_on():
                    heappush(heap, (-steps.worth, steps.size, job.number, steps))
        gains = state.running_by("gain")
        if not heap and not gains:
            return
        now, at, most = state.now_s, 0, min(self.look, len(gains))
        chosen: dict[int, Steps] = {}
        while spare > 0:
            if at < most and (not heap or gains[at][0] <= heap[0][0]):
                job = gains[at][2]
                at += 1
                if now < job.widened_s + self._rest_s(job, now):
                    plan.awaits.append(job)
                    continue
                steps = self._steps(state, job, job.size)
                if steps.goes_on() and self._pays(state, steps, spare):
                    heappush(heap, (-steps.worth, steps.size, job.number, steps))
                continue
            if not heap:
                break
            steps = heappop(heap)[3]
            size, wider = steps.size, steps.reach(spare)
            if not wider:
                continue
            if budget and not budget.affords(budget.widening_w(steps.job, size, wider)):
                continue
            spare -= wider - size
            steps.size, steps.value = wider, steps.value_at(wider)
            chosen[steps.job.number] = steps
            if spare > 0 and steps.goes_on():
                heappush(heap, (-steps.worth, steps.size, steps.job.number, steps))
        here = set(map(id, state.reached_resize_point))
        left = state.resizes_left if chosen else 0
        for steps in chosen.values():
            job = steps.job
            if job.start_s is None:
                plan.sizes[job.spec.id] = steps.size
            elif not _can(job, here):
                plan.awaits.append(job)
            elif left > 0:
                left -= 1
                plan.changes.append((job, steps.size, "takes idle nodes", Reason.IDLE_NODES))

    def _rest_s(self, job: Job, now: float) -> float:
        """Return the time between expansions of a job."""
        if job.spec.resize_price_s > 0.0:
            return self.rest * job.spec.resize_price_s
        return min(REST_S, REST_SHARE * _to_go_s(job, job.size, now))

    def _pays(self, state: State, steps: Steps, spare: int) -> bool:
        """Return whether widening a running job by at most ``spare`` nodes is worth its price."""
        price_s, size = steps.job.spec.resize_price_s, steps.size
        if price_s <= 0.0:
            return True
        reach = _at_most(steps.job, min(steps.most, size + spare))
        slow_s, fast_s = steps.time_s(size), steps.time_s(reach if reach > size else steps.wider)
        if slow_s - fast_s <= price_s:
            return False
        gain = float((slow_s / fast_s) ** self.short) - 1.0
        span_s = slow_s if not state.pending else min(slow_s, self.horizon_s)
        return gain > GAIN * self.short * price_s / max(1.0, span_s)


@dataclass(slots=True)
class Steps:
    """Sizes to which a job may be widened, in steps of about a quarter.

    Attributes:
        job, size, most: the job, its size so far, and the largest that it may have.
        weight, short: of its worth.
        scale, law: its time to the end on n nodes is ``scale`` (tc + t1 / n), or ``scale`` times
            that of its table if ``law`` is None.
        value: its worth at ``size``; ``worth``: the worth that a node of the next step adds.
        wider: the next size.
    """

    job: Job
    size: int
    most: int
    weight: float
    short: float
    scale: float
    law: tuple[float, float] | None
    value: float = 0.0
    worth: float = 0.0
    wider: int = 0

    def time_s(self, size: int) -> float:
        """Return the time to the end at a size."""
        law = self.law
        if law is None:
            assert self.job.speedup is not None
            return max(1.0, self.scale * self.job.speedup.time(size))
        return max(1.0, self.scale * (law[1] + law[0] / size))

    def value_at(self, size: int) -> float:
        """Return the worth of the job at a size."""
        return self.weight * float(self.time_s(size) ** -self.short)

    def goes_on(self) -> bool:
        """Return whether there is another step, and compute its worth."""
        size, most = self.size, self.most
        if size >= most:
            return False
        wider = min(most, size + max(1, size >> 2))
        if self.law is None or self.job.refused_sizes or self.job.speedup is None:
            wider = _at_most(self.job, wider)
            if wider <= size:
                wider = self.job.next_larger(size) or size
            if not size < wider <= most:
                return False
        self.wider = wider
        self.worth = (self.value_at(wider) - self.value) / (wider - size)
        return True

    def reach(self, spare: int) -> int:
        """Return the size after the next step with at most ``spare`` nodes, or 0 for none."""
        wider = self.wider
        if wider - self.size > spare:
            wider = _at_most(self.job, self.size + spare)
        return wider if wider > self.size else 0


@dataclass(slots=True)
class BackfillPlan(SharePlan):
    """A plan with the jobs that may start, to explain why the others may not.

    Attributes:
        sizing: the sizing that has made it.
        backfill: None until it is computed.
        easy: EASY decides the starts, in the order of ``queue``; no job is resized.
    """

    sizing: BackfillShare = field(default_factory=BackfillShare)
    backfill: Backfilled | None = None
    easy: bool = False

    def start(self, job: Job, free: int) -> int:
        """Return the size at which a waiting job should start."""
        return job.spec.preferred if self.easy else self.sizes.get(job.spec.id, job.least)


@dataclass(slots=True)
class Backfilled:
    """The jobs that may start by EASY over least sizes.

    Attributes:
        jobs, sizes: in order, with their nodes.
        first: the first that may not start, or None.
        free: free nodes with all running jobs at their least sizes and ``jobs`` started.
        used: nodes of ``jobs``.
        at_s: the reservation of ``first``; None as long as no job could have delayed it.
        extra, extra_w: free nodes and power at that time beyond the reserved ones.
        budget: the rest of the power cap then, or None.
    """

    jobs: list[Job] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    first: Job | None = None
    free: int = 0
    used: int = 0
    at_s: float | None = None
    extra: int = 0
    budget: PowerBudget | None = None
    extra_w: float = inf

    def fits(self, job: Job, size: int) -> bool:
        """Return whether nodes and power suffice for a job."""
        return size <= self.free and (self.budget is None or self.budget.starts(job, size))

    def delays(self, state: State, room: Room, job: Job) -> bool:
        """Return whether a job delays ``first``, even at its least size."""
        at_s = self.reserve(state, room)
        return job.least > self.extra and state.now_s + job.longest_s > at_s

    def take(self, state: State, room: Room, job: Job, size: int) -> None:
        """Let a job start, unless it delays ``first``."""
        if self.first is not None:
            end_s = state.now_s + _longest_s(job, size)
            # A job without a time limit need not end before another one.
            late = end_s > self.reserve(state, room) or end_s == inf
            if late:  # it has to leave the reservation its nodes and power
                own_w = 0.0 if self.budget is None else self.budget.start_w(job, size)
                if size > self.extra or own_w > self.extra_w:
                    return
                self.extra -= size
                self.extra_w -= own_w
        self.jobs.append(job)
        self.sizes.append(size)
        self.free -= size
        self.used += size
        if self.budget is not None:
            self.budget.take(self.budget.start_w(job, size))

    def reserve(self, state: State, room: Room) -> float:
        """Return the reservation of ``first``, computed before a job behind it may start."""
        if self.at_s is None and self.first is not None:
            self.at_s = _reserve(state, room, self, self.first)
        return inf if self.at_s is None else self.at_s


def _in_turn(state: State, queue: Iterable[Job]) -> Iterator[Job]:
    """Yield the due jobs, first due first, then the first of the others in the order of EASY.

    A list has not all waiting jobs: others were refused in this pass or are held back by the limits
    of their arrays.
    """
    due, pending = state.due or {}, state.pending
    there = set(map(id, queue)) if isinstance(queue, list) else None
    jobs = [pending[job_id] for job_id in due if job_id in pending]
    for job in state.by_priority(jobs):
        if there is None or id(job) in there:
            yield job
    for job in _in_order(state, queue):
        if job.spec.id not in due:
            yield job
            return


def _in_order(state: State, queue: Iterable[Job]) -> Iterable[Job]:
    """Return the waiting jobs in the order of EASY: by fair share if that counts, else by age."""
    if state.usage is not None:
        return queue
    jobs = state.by_priority(state.pending.values())
    if not isinstance(queue, list):
        return jobs
    there = set(map(id, queue))
    return [job for job in jobs if id(job) in there]


def _by_age(state: State, queue: Iterable[Job]) -> Iterable[Job]:
    """Return the waiting jobs in the order of EASY, within the limits of arrays."""
    if state.usage is not None or not state.array_limited:
        return _in_order(state, queue)
    jobs = (job for job in state.pending.values() if job.least <= state.nodes)
    if state.power_cap_w is not None:
        jobs = (job for job in jobs if not never_fits(state, job))
    return list(within_limits(state, state.by_priority(jobs)))


Release = tuple[float, Job, int]
"""The time at which a job frees nodes, the job, and their number."""


def _reserve(state: State, room: Room, backfill: Backfilled, first: Job) -> float:
    """Return the earliest start of a job, all others at their least sizes; set ``extra``."""
    now, budget, size = state.now_s, backfill.budget, first.least
    running: Iterable[Release]
    running = ((end_s, job, _least(job)) for end_s, _, job in state.running_by("least end"))
    if room.passed:
        passed = {job for _, _, job in state.ends[: room.passed]}
        running = (release for release in running if release[1] not in passed)
    if state.returning is not None:
        end_s, _, stand_in = state.returning
        running = merge(running, [(end_s, stand_in, stand_in.size)], key=itemgetter(0))
    if backfill.jobs:
        pairs = zip(backfill.jobs, backfill.sizes, strict=True)
        starting = [(now + _longest_s(job, nodes), job, nodes) for job, nodes in pairs]
        starting.sort(key=lambda release: (release[0], release[1].number))
        running = merge(running, starting, key=itemgetter(0))
    free, left_w, own_w = backfill.free + _in_flight(state), inf, 0.0
    if budget is not None:
        left_w, own_w = budget.for_reservation_w, budget.start_w(first, size)
    reserved = now if free >= size and left_w >= own_w else inf
    for end_s, job, nodes in running:
        if end_s > reserved:
            break
        free += nodes
        if budget is not None:
            left_w += budget.at_w(job, nodes)
        if free >= size and left_w >= own_w and reserved == inf:
            reserved = max(end_s, now)  # further ends at that time count, too
    none = reserved == inf
    backfill.extra, backfill.extra_w = (0, 0.0) if none else (free - size, left_w - own_w)
    return reserved


def _in_flight(state: State) -> int:
    """Return the nodes above their least sizes of jobs that are being resized."""
    resizing = (job for job in state.running.values() if job.requested_size is not None)
    return sum(job.size + job.gain - job.loss - _least(job) for job in resizing)


def _least_end_s(state: State, job: Job) -> float:
    """Return the expected end of a running job if it is shrunk to its least size now."""
    end_s, now, least = job.expected_end_s, state.now_s, _least(job)
    if least >= job.size or end_s == inf:
        return end_s
    whole_s = job.spec.expected_s(job.size)
    if not 0.0 < whole_s < inf:
        return end_s
    return now + max(0.0, end_s - now) * job.spec.expected_s(least) / whole_s


def _donors(state: State, free: int) -> Iterator[tuple[float, int]]:
    """Yield costs of nodes of running jobs with their numbers, without ``-free`` promised ones."""
    promised = -free
    for loss, _, job in state.running_by("loss"):
        nodes = job.callable
        if promised > 0:
            nodes, promised = nodes - min(nodes, promised), promised - nodes
        if nodes > 0:
            yield loss, nodes


def _is_worth(worth: float, lacking: int, donors: Iterator[tuple[float, int]]) -> bool:
    """Return whether a start is worth the nodes that it takes from others, if these suffice."""
    for loss, nodes in donors:
        worth -= loss * min(lacking, nodes)
        lacking -= nodes
        if lacking <= 0 or worth <= 0.0:
            break
    return lacking <= 0 and worth > 0.0


def _to_go_s(job: Job, size: int, now: float) -> float:
    """Return the time to the end of a job at a size: its own, or by its request."""
    left_s: float | None = None
    if job.start_s is None:
        whole_s = job.spec.expected_s(size)
        left_s = None if whole_s == inf else whole_s
    else:
        left_s = job.remaining_s(size, now)
    if left_s is None:
        span_s = job.expected_end_s - now
        left_s = span_s * job.size / size if span_s < inf else UNKNOWN_S / size
    return max(1.0, left_s)


def _at_most(job: Job, size: int) -> int:
    """Return the largest size of a job up to ``size`` that was not refused, 0 for none."""
    sizes = job.spec.sizes()
    at = bisect_right(sizes, size)
    while at and sizes[at - 1] in job.refused_sizes:
        at -= 1
    return sizes[at - 1] if at else 0


@lru_cache(maxsize=65536)
def _widest_by_law(
    t1_s: float, tc_s: float, low: int, high: int, preferred: int, more: float
) -> int:
    """Return the largest n with n t(n) at most (1 + more) p t(p), for t(n) = tc + t1 / n."""
    if tc_s <= 0.0:
        return high
    most = ((1.0 + more) * (tc_s * preferred + t1_s) - t1_s) / tc_s * (1.0 + 1e-12)
    return max(preferred, int(min(high, most)))


def _widest(speedup: Speedup, sizes: Iterable[int], preferred: int, more: float) -> int:
    """Return the largest size with at most (1 + more) of the node hours at the preferred one."""
    base = (1.0 + more) * preferred * speedup.time(preferred)
    return max([n for n in sizes if n <= preferred or n * speedup.time(n) <= base])


def _width(job: Job) -> float:
    return job.least


def _start_size(state: State, job: Job, backfill: Backfilled, energy: float) -> int:
    """Return the size with which a job that fits counts at its start.

    A moldable one keeps the size of its start: the preferred one, or the largest that fits; with a
    weight of energy, the best for both.
    """
    if job.spec.mode is not Mode.MOLDABLE:
        return job.least
    most = min(backfill.free, job.spec.preferred)
    sizes = [n for n in job.spec.sizes() if n <= most]
    if backfill.budget is not None:
        sizes = [n for n in sizes if backfill.fits(job, n)] or [job.least]
    return balanced(state, job, sizes, energy)


def _longest_s(job: Job, size: int) -> float:
    """Return the longest time for which a job that starts on ``size`` nodes may hold nodes.

    A job that can be resized counts with its least size: it may have to lend the rest.
    """
    return job.spec.expected_s(size) if job.spec.mode is Mode.MOLDABLE else job.longest_s


def _can(job: Job, here: Set[int]) -> bool:
    """Return whether a job can be resized at once.

    A job with stated resize points is resized there, so that it holds no nodes back until then.
    """
    return not job.spec.resize_points_known or id(job) in here


def _least(job: Job) -> int:
    """Return the least size of a running job that was not refused."""
    if job.requested_size is None or job.refused_sizes:
        return job.size - job.callable
    return min(job.requested_size, job.spec.smallest)


def _lends(job: Job, first: Job | None) -> bool:
    """Return whether a job that starts may have more than its least size.

    A flexible job returns nodes at a resize point. Without stated resize points it gets none of the
    nodes that are reserved for a job of another mode.
    """
    if job.spec.mode is not Mode.FLEXIBLE:
        return False
    return job.spec.resize_points_known or first is None or first.spec.mode is Mode.FLEXIBLE


def _shrunk(job: Job, short: int, short_w: float, budget: PowerBudget | None) -> int:
    """Return the size of a job that gives up to ``short`` nodes or, if it cannot, a few more.

    Under a power cap it gives up to ``short_w`` watts, too.
    """
    sizes = job.spec.sizes()
    smaller = sizes[: bisect_left(sizes, job.size)]
    if job.refused_sizes:
        smaller = [n for n in smaller if n not in job.refused_sizes]
    if not smaller:
        return job.size
    at = bisect_right(smaller, job.size - short)
    if budget is not None:
        size = freeing(budget, job, smaller[:at] or smaller[:1], short_w)
        if size is not None or short <= 0:
            return job.size if size is None else size
    return smaller[max(0, at - 1)]


class Planned(Admission, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Start the jobs that the sizing ``backfill-share`` has planned.

    Attributes:
        estimates: expected run times are the ``requested`` ones.
        tail: of the EASY that the sizing follows: the order in which it backfills (``queue``, or
            ``shortest`` expected run time first). The first waiting job keeps its reservation.
    """

    estimates: Literal["requested"] = "requested"
    tail: Literal["queue", "shortest"] = "queue"

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        share = _share(plan)
        if share is None:
            return _IN_ORDER(state, queue, plan, room)
        if share.easy:
            return _EASY[self.tail](state, share.queue or queue, plan, room)
        starts = []
        for job_id in share.sizes:
            job = state.pending[job_id]
            size = plan.start(job, room.free)
            if room.fits(job, size):
                starts.append(start(job, size, room, "fits", Reason.FITS))
        return starts

    def reservation(self, view: View) -> tuple[JobId, float] | None:
        """Return the job that has a reservation and its time, or None."""
        share = _share(view.plan)
        if share is None or share.easy:
            return None
        backfill = _backfilled(share, view)
        if backfill.first is None:
            return None
        return backfill.first.spec.id, backfill.reserve(view.state, view.room)

    def explain(self, job: Job, view: View) -> Later:
        """Return why a job waits."""
        state, room, share = view.state, view.room, _share(view.plan)
        if share is None or share.easy:
            return (_IN_ORDER if share is None else _EASY[self.tail]).explain(job, view)
        backfill = _backfilled(share, view)
        at_s = backfill.reserve(state, room)
        when = "" if at_s == inf else f", reserved in {at_s - state.now_s:.0f} s"
        due_s = (state.due or {}).get(job.spec.id, inf)
        due = "" if due_s == inf else f"; due for {state.now_s - due_s:.0f} s"
        if job.least <= room.free and not room.fits(job, job.least):
            text = (
                f"PowerCap: {node_words(room.free, verb=True)} free, but its power fits on too few"
            )
            return Later(job.spec.id, text, Reason.POWER)
        nodes = node_words(job.least)
        if backfill.budget is not None and job.least <= backfill.free:
            why = why_power(state, job, backfill.budget)
            if why is not None and job not in backfill.jobs:
                return Later(job.spec.id, f"{why}, by resizes", Reason.POWER)
        if job in backfill.jobs:
            text = f"Resources: waits for running jobs to give {nodes}{due}"
            return Later(job.spec.id, text, Reason.RESOURCES)
        first = job if backfill.first is None else backfill.first
        if job is not first and job.least <= backfill.free:
            text = f"Priority: {nodes} can be had, but it would delay {first.spec.id}{when}{due}"
            return Later(job.spec.id, text, Reason.PRIORITY)
        before = "" if job is first else f"; {first.spec.id} is first"
        text = f"waits for {nodes}, {max(0, backfill.free)} can be had{before}{when}{due}"
        return Later(job.spec.id, f"Resources: {text}", Reason.RESOURCES)


def _backfilled(plan: BackfillPlan, view: View) -> Backfilled:
    """Return the jobs that a plan may start, computed once per plan."""
    if plan.backfill is None:
        plan.backfill = plan.sizing.backfilled(view.state, view.queue, view.room)
    if plan.backfill.first is None and not plan.backfill.jobs:
        plan.backfill.first = next(_in_turn(view.state, view.queue), None)
    return plan.backfill


def _share(plan: Plan) -> BackfillPlan | None:
    """Return a plan of starts, None where jobs start in order."""
    plan = plan_of_sizing(plan)
    return plan if isinstance(plan, BackfillPlan) and not plan.in_order else None


_IN_ORDER = InOrder()
_EASY = {"queue": Easy(), "shortest": Easy(tail="shortest")}
