"""Sizing ``equal-share``: all nodes over all jobs that can run (policy ``array-share``).

After Iserte & Rojek, section 3: as many jobs side by side as possible, at the sizes that this
takes; the rest goes to the job with the longest time to go. In addition to theirs a resize must pay
its price, jobs are shrunk no further than waiting ones need, small and large sizes rotate so that
all jobs end together, and time and energy have weights.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from operator import itemgetter
from typing import Literal

import msgspec

from rms.core.model.events import Reason, Resize
from rms.core.model.jobs import Job, JobId
from rms.core.model.speedup import some_sizes
from rms.core.policies.placement import Room, Sizing
from rms.core.rules.powercap import PowerBudget
from rms.core.state import State

Entry = tuple[float, int, int, Job]
"""A job that may be expanded: minus its time to go, its size, its number."""

RESTS_S = 300.0
"""Time between expansions of a job that was resized often, if its resizes cost nothing."""


@dataclass(slots=True)
class SharePlan:
    """Sizes of jobs that should start, and of running ones that should change.

    Attributes:
        sizes: of the jobs that should start, in that order.
        changes: running jobs, their new sizes, and the reasons.
        in_order: jobs start in the order of the queue.
        energy: weight of energy against time.
        awaits: running jobs that would be resized if they were at a resize point.
        queue: the waiting jobs in its own order, or None.
    """

    sizes: dict[JobId, int] = field(default_factory=dict)
    changes: list[tuple[Job, int, str, Reason]] = field(default_factory=list)
    in_order: bool = True
    energy: float = 0.0
    awaits: list[Job] = field(default_factory=list)
    queue: Iterable[Job] | None = None

    def start(self, job: Job, free: int) -> int:
        """Return the size at which a waiting job should start."""
        return self.sizes.get(job.spec.id, job.least)

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return the resizes for which nodes are left after the starts."""
        if not self.changes:
            return []
        resizes, budget = [], room.budget
        for job, size, reason, code in self.changes:
            if size - job.size > room.free or (budget and not budget.widens(job, size)):
                continue
            nodes = room.resize(job, size)
            if nodes and len(nodes) != size:
                continue  # a power cap leaves too few
            resizes.append(Resize(job.spec.id, nodes, reason, code, 0 if nodes else size))
        return resizes


class EqualShare(Sizing, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Share all nodes over all jobs that can run.

    Attributes:
        energy: weight of energy against time, from 0 to 1: 0 uses all nodes, above it a job is
            expanded only as long as the weighted sum of the time to the last end and of the
            cluster's energy falls, in units of their values with all jobs at their smallest.
        rotate: exchange small and large sizes now and then, where that pays.
        look: at most this many jobs are considered for a change, so that a pass costs no more on a
            large cluster than on a small one.
        resizes: after this many resizes a job without a price of resizes is widened only once in
            ``RESTS_S``; else nothing would bound its resizes while other jobs come and go.
        sizes: sizes to which a running job is resized: ``any`` of its sizes, or by ``doubling``,
            only to twice or half of its size, as DMR does by default (Iserte & Rojek, section
            4). Then a job whose size is odd is not shrunk, and a job is shrunk to a quarter in
            two resizes. Jobs start at any of their sizes. A shrink for a power cap may go to any
            size. ``backfill-share`` has ``any`` only.
    """

    energy: float = 0.0
    rotate: bool = True
    look: int = 48
    resizes: int = 24
    sizes: Literal["any", "doubling"] = "any"

    def __post_init__(self) -> None:
        if not 0.0 <= self.energy <= 1.0 or self.look < 1:
            raise ValueError(f"expected energy of 0 to 1 and look of at least 1, got {self}")
        if self.resizes < 0:
            raise ValueError(f"expected resizes of at least 0, got {self.resizes}")

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> SharePlan:
        """Return the plan of a pass."""
        plan = SharePlan()
        if not state.needs_pass and not state.new_jobs:
            # An expansion that did not pay pays less now; only exchanges become due by time.
            if self.rotate and not state.pending and not state.releasing:
                self._rotate(state, plan, room)
            return plan
        left, releasing_w = room.free + state.releasing, 0.0
        budget = None if state.power_cap_w is None else room.budget
        if budget is not None:
            releasing_w = budget.releasing_w
            budget = budget.plus(releasing_w)
        admitted = []
        waiting = iter(queue)
        for job in waiting:
            if job.least > left or (budget and not budget.starts(job, job.least)):
                self._shrink(state, plan, (job, waiting), left, budget)
                return plan
            left -= job.least
            if budget is not None:
                budget.take(budget.start_w(job, job.least))
            plan.sizes[job.spec.id] = job.least
            admitted.append(job)
        if left > state.releasing:
            spare = left - state.releasing
            if budget is not None:
                budget.take(releasing_w)
            # No more jobs than nodes can be expanded; a few more, as the index has another order.
            running = self.expandable(state, min(self.look, spare + 8))
            self._expand(state, plan, (admitted, running), spare, budget)
        if self.rotate and not plan.changes and not state.pending and not state.releasing:
            self._rotate(state, plan, room)
        return plan

    def expandable(self, state: State, look: int) -> list[Entry]:
        """Return the running jobs that may be expanded now, the longest to go first."""
        now, entries = state.now_s, list[Entry]()
        for until, number, job in reversed(state.expandable):
            if until <= now or len(entries) >= look:
                break
            often = job.resize_count >= self.resizes and not job.spec.resize_price_s
            if not often or now >= job.widened_s + RESTS_S:
                entries.append((now - job.expected_end_s, job.size, number, job))
        entries.sort(key=itemgetter(0, 1, 2))
        return entries[: state.resizes_left]

    def _shrink(
        self,
        state: State,
        plan: SharePlan,
        waiting: tuple[Job, Iterable[Job]],
        left: int,
        budget: PowerBudget | None,
    ) -> None:
        """Shrink running jobs so that the first job that does not fit does, and jobs behind it.

        Args:
            waiting: that first job, and the jobs behind it.
            left: nodes that are free or soon will be; ``budget`` is the rest of the power cap.
        """
        first, others = waiting
        least, most = first.least - left, state.resizes_left
        least_w = 0.0 if budget is None else budget.start_w(first, first.least) - budget.left_w
        if least <= 0 and least_w <= 0.0:
            return
        need = least + sum(job.least for job in islice(others, self.look))
        freed, freed_w = 0, 0.0
        changes: list[tuple[Job, int, str, Reason]] = []
        for _, _, job in reversed(state.shrinkable[-self.look :]):
            enough = freed >= least and freed_w >= least_w
            if enough and (freed >= need or len(changes) >= most or least <= 0):
                break
            now_s = job.remaining_s(job.size, state.now_s)
            if now_s is not None and now_s <= job.spec.resize_price_s:
                continue  # it is over before the resize would be
            sizes = [n for n in job.spec.sizes() if n < job.size and n not in job.refused_sizes]
            if self.sizes == "doubling":
                sizes = _halvings(job.size, sizes)
            if not sizes:
                continue
            at = bisect_right(sizes, job.size - (need - freed))
            size = sizes[max(0, at - 1)]
            if budget is not None:
                able = sizes[:at] if least > 0 else sizes
                smaller = freeing(budget, job, able, least_w - freed_w)
                size = smaller or (size if least > 0 else job.size)
                if size == job.size:
                    continue
                freed_w += budget.at_w(job, job.size) - budget.at_w(job, size)
            freed += job.size - size
            if self.sizes == "doubling":
                size = job.size // 2  # the rest of the way in later passes
            changes.append((job, size, "makes room for waiting jobs", Reason.MAKES_ROOM))
        if freed >= least and freed_w >= least_w:
            plan.changes += changes

    def _expand(
        self,
        state: State,
        plan: SharePlan,
        jobs: tuple[Sequence[Job], Sequence[Entry]],
        spare: int,
        budget: PowerBudget | None,
    ) -> None:
        """Give spare nodes, one size at a time, to the job with the longest time to go.

        Args:
            jobs: jobs about to start, and running ones, the longest to go first.
            budget: the rest of the power cap, or None; it is used up.
        """
        now, (admitted, running) = state.now_s, jobs
        heap = [_entry(job, job.least, now) for job in admitted if job.spec.mode.any_start]
        heapq.heapify(heap)
        weighs = self.energy > 0
        able = [entry[3] for entry in (*heap, *running)] if weighs else []
        at, refused, last = 0, 0, dict[Job, int]()
        steps: list[tuple[Job, int]] = []
        paths: dict[int, Iterator[tuple[int, float]]] = {}
        while spare > 0 and refused < self.look:
            if at < len(running) and (not heap or running[at] <= heap[0]):
                _, size, number, job = running[at]
                at += 1
            elif heap:
                _, size, number, job = heapq.heappop(heap)
            else:
                break
            path = paths.get(number)
            if path is None:
                path = _widenings(job, size, now, doubling=self.sizes == "doubling")
                paths[number] = path
            rival = running[at][0] if at < len(running) else inf
            if heap and heap[0][0] < rival:
                rival = heap[0][0]
            first = size
            for wider, key in path:
                if wider - first > spare:
                    break
                if budget and not budget.covers(budget.widening_w(job, first, wider)):
                    break
                size = wider
                if weighs:
                    steps.append((job, size))
                if key > rival or key == -inf:
                    heapq.heappush(heap, (key, size, number, job))
                    break
            if size > first:
                last[job] = size
                spare -= size - first
                if budget is not None:
                    budget.take(budget.widening_w(job, first, size))
            else:
                refused += job.next_larger(size) is not None
        if steps:
            last = dict(steps[: self._best(state, plan, able, steps)])
        for job, size in last.items():
            if job.start_s is None:
                plan.sizes[job.spec.id] = size
            else:
                plan.changes.append((job, size, "takes idle nodes", Reason.IDLE_NODES))

    def _best(
        self, state: State, plan: SharePlan, able: list[Job], steps: list[tuple[Job, int]]
    ) -> int:
        """Return the number of steps after which the weighted sum is least."""
        sizes = {job: plan.sizes.get(job.spec.id, job.size) for job in able}
        others = max(
            (end - state.now_s for end, _, job in reversed(state.ends) if job not in sizes),
            default=0.0,
        )
        first_s, first_j = _cost(state, sizes, others)
        best, at = 1.0, 0
        for number, (job, size) in enumerate(steps, 1):
            sizes[job] = size
            span_s, energy_j = _cost(state, sizes, others)
            sum_ = (1 - self.energy) * span_s / first_s + self.energy * (
                energy_j / first_j if first_j else 1.0
            )
            if sum_ < best:
                best, at = sum_, number
        return at

    def _rotate(self, state: State, plan: SharePlan, room: Room) -> None:
        """Shrink a job with less to do so that another may expand, if all then end earlier."""
        if state.power_cap_w is not None:
            return  # the other job might lack power to expand
        if not 2 <= len(state.running) <= self.look or not state.shrinkable or self.energy > 0:
            return
        jobs = list(state.running.values())
        since = state.now_s - max([job.since_s for job in jobs])
        longest = state.ends[-1][0] - state.now_s
        price_s = max([job.spec.resize_price_s for job in jobs])
        if since + 2 * price_s + (jobs[0].spec.resize_every_s or 0.0) < longest / (2 * len(jobs)):
            return  # not due by any of the intervals
        array, handed_in = jobs[0].spec.array, jobs[0].spec.submit_s
        candidates = []
        for job in jobs:
            if not job.resizable_now or job.speedup is None or job.kept:
                return
            if job.resize_count >= self.resizes and not job.spec.resize_price_s:
                return
            if job.spec.array != array or job.spec.submit_s != handed_in:
                return  # jobs that come and go have no common end
            sizes = some_sizes(job.spec.sizes(), job.size)
            if self.sizes == "doubling":
                reach = {job.size, 2 * job.size, job.size / 2}
                sizes = [n for n in job.spec.sizes() if n in reach]
            time_s = {n: job.speedup.time(n) for n in sizes}
            left = job.remaining_share(state.now_s)
            delay_s = job.spec.resize_every_s or 0.0
            candidates.append(RotationJob(left, job.size, time_s, job.spec.resize_price_s, delay_s))
        for job, size in zip(jobs, rotation_sizes(candidates, room.free, since), strict=True):
            asks_now = job.spec.resize_every_s is None or job in state.reached_resize_point
            if size < job.size and asks_now and size not in job.refused_sizes:
                text = "is ahead: lets another be wide for a while"
                plan.changes.append((job, size, text, Reason.BALANCES))


def _entry(job: Job, size: int, now: float) -> Entry:
    """Return a heap entry: longest to go first; of jobs without run times, the smallest."""
    left_s = job.remaining_s(size, now)
    return (-inf if left_s is None else -left_s, size, job.number, job)


def freeing(budget: PowerBudget, job: Job, sizes: Sequence[int], watts: float) -> int | None:
    """Return the largest of some smaller sizes, rising, at which a job frees ``watts``.

    If it frees less at all of them, the size at which it frees most; None if it frees no power.
    """
    drawn_w, best, most_w = budget.at_w(job, job.size), None, 0.0
    for size in reversed(sizes):
        freed_w = drawn_w - budget.at_w(job, size)
        if freed_w >= watts:
            return size
        if freed_w > most_w:
            best, most_w = size, freed_w
    return best


def _halvings(size: int, sizes: Sequence[int]) -> list[int]:
    """Return the allowed sizes, rising, to which repeated halving of ``size`` leads."""
    result: list[int] = []
    while size % 2 == 0 and size // 2 in sizes:
        size //= 2
        result.append(size)
    return result[::-1]


def _widenings(job: Job, size: int, now: float, *, doubling: bool) -> Iterator[tuple[int, float]]:
    """Yield the sizes above ``size`` to which expanding a job pays, with keys of heap entries.

    A key is minus the time to go, -inf without an estimate. With ``doubling`` a running job has one
    such size at most.
    """
    speedup, sizes, refused = job.speedup, job.spec.sizes(), job.refused_sizes
    wider_sizes = sizes[bisect_right(sizes, size) :]
    if doubling and job.start_s is not None:
        wider_sizes = [n for n in wider_sizes if n == 2 * job.size]
    if speedup is None:
        for wider in wider_sizes:
            if wider not in refused:
                yield wider, -inf
        return
    left = job.remaining_share(now)
    price_s = 0.0 if job.start_s is None else job.spec.resize_price_s
    time_s = speedup.time(size)
    for wider in wider_sizes:
        if wider in refused:
            continue
        faster_s = speedup.time(wider)
        if left * (time_s - faster_s) <= price_s:
            return
        time_s = faster_s
        yield wider, -left * time_s


def _cost(state: State, sizes: dict[Job, int], others_s: float) -> tuple[float, float]:
    """Return the time to the last end and the cluster's energy until then, at these sizes."""
    span = others_s if others_s < inf else 0.0
    busy_j = busy_s = 0.0
    model = state.site.power[0] if state.site.power else None
    for job, size in sizes.items():
        to_go = job.remaining_s(size, state.now_s) or 0.0
        span = max(span, to_go)
        busy_s += size * to_go
        if model is not None:
            busy_j += size * to_go * model.busy_w(job.spec, size)
    idle_w = 0.0 if model is None else model.idle_w
    return max(span, 1e-9), busy_j + idle_w * (state.nodes * span - busy_s)


def balanced(state: State, job: Job, sizes: Sequence[int], energy: float) -> int:
    """Return the size at which the weighted sum of a job's time and energy is least.

    In units of their values at the largest size, which is returned without a speedup or a model.
    """
    speedup, model = job.speedup, state.site.power[0] if state.site.power else None
    if not energy or speedup is None or model is None:
        return sizes[-1]

    def joules(n: int) -> float:
        return n * speedup.time(n) * model.busy_w(job.spec, n)

    whole_s, whole_j = speedup.time(sizes[-1]), joules(sizes[-1]) or 1.0
    return min(
        reversed(sizes),
        key=lambda n: (1 - energy) * speedup.time(n) / whole_s + energy * joules(n) / whole_j,
    )


# --- rotation ------------------------------------------------------------------------------------
#
# Where sizes are coarse, an equal share leaves nodes idle, or some jobs have less left to do than
# others. If the jobs take turns at the larger size, all end together: nine jobs on 20 nodes at
# sizes 1, 2, 4 take 1,248 s at 2 nodes per job, 1,177 s if a job has four nodes for a ninth of the
# time. The rotation looks ahead on a few jobs.


@dataclass(frozen=True, slots=True)
class RotationJob:
    """A running job in a rotation.

    Attributes:
        remaining: share that is left, from 0 to 1.
        size: nodes it has.
        time_s: run times of the whole job by size, rising.
        resize_price_s: price of a resize.
        resize_delay_s: time until the job is at a resize point.
    """

    remaining: float
    size: int
    time_s: dict[int, float]
    resize_price_s: float
    resize_delay_s: float = 0.0


def rotation_sizes(jobs: Sequence[RotationJob], free: int, since_last_resize_s: float) -> list[int]:
    """Return the present sizes of all running jobs, or others if an exchange pays and is due."""
    present = [job.size for job in jobs]
    nodes = free + sum(present)
    remaining = [job.remaining for job in jobs]
    if largest_to_longest(jobs, remaining, nodes) == present:
        return present
    unchanged_s = _time_to_last_end(jobs, nodes, inf)
    most = max(remaining)
    longest = sum(share > most - 1e-6 for share in remaining)
    turns = sorted({longest, longest + 1, len(jobs), 2 * len(jobs)})
    # First the shrinks, then the expansions onto the nodes that they free.
    exchange_s = 2 * max(job.resize_price_s for job in jobs)
    exchange_s += max(job.resize_delay_s for job in jobs)
    if since_last_resize_s + exchange_s < unchanged_s / turns[-1] - 1e-6:
        return present
    best_s, every_s = min(
        (_time_to_last_end(jobs, nodes, unchanged_s / k), unchanged_s / k) for k in turns
    )
    if best_s >= unchanged_s - 1e-6:
        return present
    if since_last_resize_s + exchange_s < every_s * best_s / unchanged_s - 1e-6:
        return present
    return largest_to_longest(jobs, remaining, nodes)


def largest_to_longest(
    jobs: Sequence[RotationJob], remaining: Sequence[float], nodes: int
) -> list[int]:
    """Return the sizes after expanding the job with longest to go from all smallest sizes."""
    sizes = [next(iter(job.time_s)) for job in jobs]
    spare = nodes - sum(sizes)
    heap = [(-remaining[at] * jobs[at].time_s[size], at) for at, size in enumerate(sizes)]
    heapq.heapify(heap)
    while heap and spare > 0:
        _, at = heap[0]
        larger = _next_larger(jobs[at], sizes[at])
        if larger is None or larger - sizes[at] > spare or remaining[at] <= 0:
            heapq.heappop(heap)
            continue
        spare -= larger - sizes[at]
        sizes[at] = larger
        heapq.heapreplace(heap, (-remaining[at] * jobs[at].time_s[larger], at))
    return sizes


def _time_to_last_end(jobs: Sequence[RotationJob], nodes: int, every_s: float) -> float:
    """Return the time to the last end if sizes are chosen anew every ``every_s`` seconds.

    With ``inf``, sizes only grow, when a job ends and where that pays.
    """
    remaining = [job.remaining for job in jobs]
    sizes = [job.size for job in jobs]
    alive = list(range(len(jobs)))
    at_s, first = 0.0, True
    while alive:
        some = [jobs[at] for at in alive]
        if every_s < inf:
            # The first exchange is due now.
            wanted = largest_to_longest(some, [remaining[at] for at in alive], nodes)
        elif first:
            wanted = [sizes[at] for at in alive]
        else:
            wanted = _grow(some, alive, remaining, sizes, nodes)
        first = False
        at_s += _advance(jobs, alive, wanted, remaining, sizes, every_s)
        alive = [at for at in alive if remaining[at] > 1e-9]
    return at_s


def _advance(
    jobs: Sequence[RotationJob],
    alive: Sequence[int],
    wanted: Sequence[int],
    remaining: list[float],
    sizes: list[int],
    most_s: float,
) -> float:
    """Bring the jobs to their new sizes and run them until one ends, or for ``most_s`` seconds.

    Changes ``remaining`` and ``sizes`` of the jobs in ``alive``; returns the seconds that passed.
    """
    shrink_s = max(
        [jobs[at].resize_price_s for at, n in zip(alive, wanted, strict=True) if n < sizes[at]],
        default=0.0,
    )
    # By job: its time at the old size, the begin at the new one, its end, its old run time.
    plans = {}
    for at, size in zip(alive, wanted, strict=True):
        job, old_s = jobs[at], jobs[at].time_s[sizes[at]]
        waits = size > sizes[at] and shrink_s > 0
        before_s = shrink_s + job.resize_delay_s if waits else 0.0
        resized_s = 0.0 if size == sizes[at] else before_s + job.resize_price_s
        rest = max(0.0, remaining[at] - before_s / old_s)
        plans[at] = before_s, resized_s, resized_s + rest * job.time_s[size], old_s
    step_s = min(most_s, min(plan[2] for plan in plans.values()))
    for at, size in zip(alive, wanted, strict=True):
        before_s, resized_s, _, old_s = plans[at]
        after_s = max(0.0, step_s - resized_s)
        remaining[at] -= min(step_s, before_s) / old_s + after_s / jobs[at].time_s[size]
        sizes[at] = size
    return step_s


def _grow(
    some: Sequence[RotationJob],
    alive: Sequence[int],
    remaining: Sequence[float],
    sizes: list[int],
    nodes: int,
) -> list[int]:
    """Return sizes grown into spare nodes, longest to go first, where that saves the price."""
    now = [sizes[at] for at in alive]
    spare = nodes - sum(now)
    for at in sorted(range(len(some)), key=lambda i: -remaining[alive[i]] * some[i].time_s[now[i]]):
        while (larger := _next_larger(some[at], now[at])) is not None and larger - now[at] <= spare:
            time_s = some[at].time_s
            saved_s = remaining[alive[at]] * (time_s[now[at]] - time_s[larger])
            if saved_s <= some[at].resize_price_s:
                break
            spare -= larger - now[at]
            now[at] = larger
    return now


def _next_larger(job: RotationJob, size: int) -> int | None:
    sizes = list(job.time_s)
    at = bisect_right(sizes, size)
    return sizes[at] if at < len(sizes) else None
