"""Widths of a job over hours whose electricity differs in price or in carbon.

A job that has to be over by its deadline runs wide in cheap hours, and narrow or not at all in dear
ones. The cost of a node in an hour is its power times the value of the hour (its price, or carbon
intensity); a further node is worth taking where the work that it adds costs least: the *marginal
throughput* for each node and hour (Hanafy et al., "CarbonScaler", POMACS 7(3) 57, 2023, section 4).

:func:`cheapest` takes these steps in rising order of their cost until the work is done. A step of
an efficient size is never cheaper than the one before it (:func:`efficient_sizes`), so no other
schedule costs less: it is the greedy solution of a fractional knapsack.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from math import ceil, inf
from statistics import fmean
from typing import ClassVar, NamedTuple

import msgspec

from rms.core.model.events import (
    Decision,
    Event,
    HourlyPrices,
    Later,
    Never,
    PowerOff,
    Reason,
    Resize,
    Start,
)
from rms.core.model.jobs import Job, JobId, JobSpec, Node, NodePower
from rms.core.model.speedup import some_sizes
from rms.core.rules.checks import without_jobs
from rms.core.state import State

JOULES_PER_KWH = 3.6e6

PARTS = 200
"""The work that is left of a job counts in so many parts, rounded up."""

HOUR_S = 3600.0
ROUNDING_S = 1e-3
DONE = 1e-9
"""Times and shares of a job that count as rounding."""


class Width(NamedTuple):
    """A size at which a job may run.

    Attributes:
        nodes: the size.
        rate: share of the whole job that it does in a second.
        watts: power of all its nodes, or their number where no power is stated.
    """

    nodes: int
    rate: float
    watts: float


class Hour(NamedTuple):
    """A time with one price or carbon intensity."""

    begin_s: float
    end_s: float
    value: float


class Piece(NamedTuple):
    """A time in which a job has one size."""

    begin_s: float
    end_s: float
    width: Width


@dataclass(frozen=True)
class HourlySizes:
    """The sizes of a job over time.

    Attributes:
        pieces: by time; there are none where the job pauses.
        cost: sum of watts x seconds x value.
        done: share of the whole job.
    """

    pieces: tuple[Piece, ...]
    cost: float
    done: float

    @property
    def begin_s(self) -> float:
        """The begin of the first piece; inf without one."""
        return self.pieces[0].begin_s if self.pieces else inf

    @property
    def end_s(self) -> float:
        """The end of the last piece; -inf without one."""
        return self.pieces[-1].end_s if self.pieces else -inf

    @property
    def resizes(self) -> int:
        """The number of changes of size, pauses included."""
        return sum(
            old.width.nodes != new.width.nodes or old.end_s != new.begin_s
            for old, new in pairwise(self.pieces)
        )

    def size_at(self, at_s: float) -> int:
        """Return the number of nodes at a time, 0 for none."""
        for begin_s, end_s, width in self.pieces:
            if begin_s <= at_s < end_s:
                return width.nodes
        return 0


# --- sizes ---------------------------------------------------------------------------------------


def efficient_sizes(widths: Iterable[Width]) -> tuple[Width, ...]:
    """Return the sizes of which none is slower and draws no less than a mixture of others.

    Throughput over power is concave over them, from no node on, so the step to the next larger one
    adds less work per joule than the step before it.
    """
    hull: list[Width] = []
    for width in sorted(widths, key=lambda width: (width.watts, -width.rate)):
        if hull and width.rate <= hull[-1].rate:
            continue
        while hull and _slope(width, hull[-1]) >= _slope(hull[-1], hull[-2] if hull[1:] else None):
            hull.pop()
        hull.append(width)
    return tuple(hull)


def _slope(width: Width, before: Width | None) -> float:
    """Return the throughput that a step adds for each watt."""
    if before is None:
        return width.rate / width.watts if width.watts > 0.0 else inf
    watts = width.watts - before.watts
    return (width.rate - before.rate) / watts if watts > 0.0 else inf


# --- the greedy ----------------------------------------------------------------------------------


def cheapest(
    widths: Sequence[Width],
    hours: Sequence[Hour],
    work: float = 1.0,
    *,
    pauses: bool = True,
    running: bool = False,
) -> HourlySizes | None:
    """Return the sizes at which the work is done in these hours at the least cost, or None.

    Args:
        widths: efficient sizes, rising.
        hours: by time, none overlaps; the last one ends at the deadline. A value below 0 counts
            as 0.
        work: share of the whole job.
        pauses: the job may stop and go on later; else it runs from its start to its end.
        running: it runs already, and does not pause.
    """
    if work <= DONE:
        return HourlySizes((), 0.0, 0.0)
    if pauses and not running:
        return _greedy(widths, hours, work)
    if len(widths) == 1 and not running:
        return _one_size(widths[0], hours, work)
    # A begin of which even a job that may pause costs more than the best so far is left out.
    begins = []
    for first in range(1 if running else len(hours)):
        if (bound := _greedy(widths, hours[first:], work)) is not None:
            begins.append((bound.cost, first))
    best: HourlySizes | None = None
    for least, first in sorted(begins):
        if best is not None and least >= best.cost:
            break
        for last in range(first, len(hours)):
            window = hours[first : last + 1]
            inner = range(0 if running else 1, len(window) - 1)
            if _most(widths[0], window[inner.start : inner.stop]) > work:
                break  # it is over before, however narrow
            made = _greedy(widths, window, work, inner)
            if made is not None and (best is None or made.cost < best.cost - DONE * abs(best.cost)):
                best = made
    return best


def _one_size(width: Width, hours: Sequence[Hour], work: float) -> HourlySizes | None:
    """Return the cheapest begin of a job of one size: it begins or ends with an hour."""
    if not hours or _most(width, hours) < work - DONE:
        return None
    span_s, first_s, last_s = work / width.rate, hours[0].begin_s, hours[-1].end_s
    times, sums = [first_s], [0.0]  # the cost of a second, up to each time
    for begin_s, end_s, value in hours:
        times.append(end_s)
        sums.append(sums[-1] + (end_s - begin_s) * max(0.0, value))

    def until(at_s: float) -> float:
        at = min(max(0, bisect_right(times, at_s) - 1), len(hours) - 1)
        return sums[at] + (at_s - times[at]) * max(0.0, hours[at].value)

    latest_s = max(first_s, last_s - span_s)
    begins = {at_s for at_s in times if at_s <= latest_s}
    begins |= {at_s - span_s for at_s in times if at_s - span_s >= first_s} | {latest_s}
    costs = [(until(at_s + span_s) - until(at_s), at_s) for at_s in sorted(begins)]
    least = min(costs)[0]
    begin_s = next(at_s for cost, at_s in costs if cost <= least + DONE * abs(least))
    pieces = [
        Piece(max(hour.begin_s, begin_s), min(hour.end_s, begin_s + span_s), width)
        for hour in hours
    ]
    return _joined(pieces, hours)


def _most(width: Width, hours: Sequence[Hour]) -> float:
    """Return the work of all of these hours at one size."""
    return width.rate * sum(end_s - begin_s for begin_s, end_s, _ in hours)


def _greedy(
    widths: Sequence[Width], hours: Sequence[Hour], work: float, inner: range = range(0)
) -> HourlySizes | None:
    """Return the cheapest sizes; in the ``inner`` hours the job does not pause."""
    if not hours or _most(widths[-1], hours) < work - DONE:
        return None
    levels = [int(at in inner) for at in range(len(hours))]
    done = _most(widths[0], hours[inner.start : inner.stop])
    steps: list[tuple[float, int, int, float]] = []
    for at, (_, _, value) in enumerate(hours):
        least = levels[at]
        before = widths[0] if least else None
        for level, width in enumerate(widths[least:], least + 1):
            slope = _slope(width, before)
            steps.append((max(0.0, value) / slope, level, at, width.rate))
            before = width
    steps.sort()
    share = 1.0
    last: int | None = None
    for _, level, at, rate in steps:
        if done >= work - DONE:
            break
        begin_s, end_s, _ = hours[at]
        more = (rate - (widths[level - 2].rate if level > 1 else 0.0)) * (end_s - begin_s)
        levels[at], last = level, at
        share = min(1.0, (work - done) / more)
        done += more * share
    pieces: list[Piece] = []
    for at, (begin_s, end_s, _) in enumerate(hours):
        level = levels[at]
        if not level:
            continue
        if at != last or share == 1.0:
            pieces.append(Piece(begin_s, end_s, widths[level - 1]))
            continue
        lower = widths[level - 2] if level > 1 else None
        wide_s = share * (end_s - begin_s)
        # Beside the size of the neighbour a change is saved.
        after = levels[at + 1] if at + 1 < len(hours) else 0
        if lower is not None and after == level and (at == 0 or levels[at - 1] != level):
            pieces.append(Piece(begin_s, end_s - wide_s, lower))
            pieces.append(Piece(end_s - wide_s, end_s, widths[level - 1]))
        elif lower is None and after and not (at and levels[at - 1]):
            pieces.append(Piece(end_s - wide_s, end_s, widths[level - 1]))
        else:
            pieces.append(Piece(begin_s, begin_s + wide_s, widths[level - 1]))
            if lower is not None:
                pieces.append(Piece(begin_s + wide_s, end_s, lower))
    return _joined(pieces, hours)


def _joined(pieces: Iterable[Piece], hours: Sequence[Hour]) -> HourlySizes:
    """Return sizes with their cost; pieces of one size that follow one another become one."""
    joined: list[Piece] = []
    cost = done = 0.0
    at = 0
    for piece in pieces:
        span_s = piece.end_s - piece.begin_s
        if span_s <= 0.0:
            continue
        while hours[at].end_s <= piece.begin_s:
            at += 1
        cost += span_s * piece.width.watts * hours[at].value
        done += span_s * piece.width.rate
        if joined and joined[-1].end_s == piece.begin_s and joined[-1].width is piece.width:
            joined[-1] = Piece(joined[-1].begin_s, piece.end_s, piece.width)
        else:
            joined.append(piece)
    return HourlySizes(tuple(joined), cost, done)


# --- a price of resizes --------------------------------------------------------------------------


def carried_out(
    levels: Sequence[Width | None],
    hours: Sequence[Hour],
    work: float,
    price_s: float = 0.0,
    before: Width | None = None,
) -> HourlySizes:
    """Return what a job does at one size an hour, until the work is done.

    A change of size, a restart after a pause included, holds its nodes for ``price_s`` without
    progress; the first start costs nothing.

    Args:
        levels: the size by hour, None for a pause.
        before: the size that the job has at first; None where it has not started.
    """
    pieces, cost, done = list[Piece](), 0.0, 0.0
    now, started = before, before is not None
    for (begin_s, end_s, value), width in zip(hours, levels, strict=True):
        if done >= work - DONE:
            break
        if width is not None:
            stall_s = price_s if started and now != width else 0.0
            span_s = min(end_s - begin_s, stall_s + (work - done) / width.rate)
            cost += span_s * width.watts * value
            done += max(0.0, span_s - stall_s) * width.rate
            pieces.append(Piece(begin_s, begin_s + span_s, width))
            started = True
        now = width
    return HourlySizes(tuple(pieces), cost, done)


def cheapest_by_hour(
    widths: Sequence[Width],
    hours: Sequence[Hour],
    work: float = 1.0,
    *,
    price_s: float = 0.0,
    before: Width | None = None,
    pauses: bool = True,
) -> HourlySizes | None:
    """Return one size an hour, at a low cost that includes a price of resizes, or None.

    Solutions without that price, of all widths, of the narrowest ones and of each alone, are the
    first tries. While another size in one hour, or in a row of hours that have one size, makes a
    try cheaper, the best such change is made.

    Args:
        price_s, before: as for :func:`carried_out`.
    """
    cost = partial(carried_out, hours=hours, work=work, price_s=price_s, before=before)
    best: HourlySizes | None = None
    subsets = [*(widths[:n] for n in range(len(widths), 1, -1)), *((width,) for width in widths)]
    for some in subsets:
        made = cheapest(some, hours, work, pauses=pauses)
        if made is None:
            continue
        levels = _complete(_by_hour(made, hours), widths, cost, work, pauses=pauses)
        if levels is not None:
            made = _improved(levels, widths, cost, work, pauses=pauses)
            if best is None or made.cost < best.cost - DONE * abs(best.cost):
                best = made
    return best


Levels = list[Width | None]
"""The size by hour; None for a pause."""


def _by_hour(made: HourlySizes, hours: Sequence[Hour]) -> Levels:
    """Return the largest size in each hour."""
    levels: Levels = [None] * len(hours)
    for at, (begin_s, end_s, _) in enumerate(hours):
        there = [p.width for p in made.pieces if p.begin_s < end_s and p.end_s > begin_s]
        levels[at] = max(there, key=lambda width: width.rate, default=None)
    return levels


def _complete(
    levels: Levels,
    widths: Sequence[Width],
    cost: Callable[[Levels], HourlySizes],
    work: float,
    *,
    pauses: bool,
) -> Levels | None:
    """Widen sizes, where that costs least for its work, until the work is done; None if never."""
    now = cost(levels)
    while now.done < work - DONE:
        tries: list[tuple[float, int, HourlySizes, Levels]] = []
        for changed in _changes(levels, widths, pauses=pauses, wider=True):
            made = cost(changed)
            if (more := made.done - now.done) > DONE:
                tries.append(((made.cost - now.cost) / more, len(tries), made, changed))
        if not tries:
            return None
        _, _, now, levels = min(tries)
    return levels


def _improved(
    levels: Levels,
    widths: Sequence[Width],
    cost: Callable[[Levels], HourlySizes],
    work: float,
    *,
    pauses: bool,
) -> HourlySizes:
    """Return the sizes after all changes that make them cheaper, the best first."""
    best = cost(levels)
    while True:
        better: Levels | None = None
        for changed in _changes(levels, widths, pauses=pauses):
            made = cost(changed)
            if made.done >= work - DONE and made.cost < best.cost - DONE * abs(best.cost):
                best, better = made, changed
        if better is None:
            return best
        levels = better


def _changes(
    levels: Sequence[Width | None],
    widths: Sequence[Width],
    *,
    pauses: bool,
    wider: bool = False,
) -> Iterable[Levels]:
    """Yield levels with another size in one hour or in a row of hours of one size."""
    rows = [(at, at + 1) for at in range(len(levels))]
    begin = 0
    for at in range(1, len(levels) + 1):
        if at == len(levels) or levels[at] != levels[begin]:
            if at - begin > 1:
                rows.append((begin, at))
            begin = at
    choices: Levels = [None, *widths]
    for first, last in rows:
        for width in choices:
            old = levels[first]
            if width == old or (wider and (width is None or (old and width.rate < old.rate))):
                continue
            changed = [*levels]
            changed[first:last] = [width] * (last - first)
            if pauses or _whole(changed):
                yield changed


def _whole(levels: Sequence[Width | None]) -> bool:
    """Return whether a job runs from its start to its end."""
    there = [at for at, width in enumerate(levels) if width is not None]
    return not there or there[-1] - there[0] == len(there) - 1


# --- part ``hours`` ------------------------------------------------------------------------------

Place = Callable[[State, Job, int], tuple[Node, ...]]
"""The nodes of a running job at another size (:meth:`rms.core.policies.policy.Policy.place`)."""


class HoursPart:
    """Part ``hours``: the jobs that are put off to other hours, and sizes by the hour.

    Attributes:
        waits_for_prices: jobs with a deadline are put off to cheap hours.
    """

    __slots__ = ()

    waits_for_prices: ClassVar[bool] = False

    def applies(self, state: State) -> bool:
        """Return whether there are jobs that it may put off, or resize."""
        return False

    def look_s(self, state: State) -> float:
        """Return the time at which a job is to change without an event, inf for never."""
        return inf

    def view(self, state: State, events: Sequence[Event]) -> HoursView:
        """Return the state and events for the other parts."""
        raise NotImplementedError

    def resized(
        self, view: HoursView, decisions: Sequence[Decision], place: Place
    ) -> list[Decision]:
        """Return the decisions of the other parts as the hours allow them, and further resizes."""
        raise NotImplementedError

    def waiting(self, state: State) -> dict[JobId, Later]:
        """Return the jobs that are put off, with reasons."""
        return {}


class AnyHour(HoursPart, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices do not matter."""


ANY_HOUR = AnyHour()


class CheapHours(HoursPart, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs with a deadline run wide in cheap hours, and narrow or not yet in dear ones.

    The sizes by the hour follow from the job's run times by size and from the prices or carbon
    intensities that the daemon knows (:func:`cheapest`); a job that runs does not pause. They are
    computed anew in every pass. A job that waits for a cheap hour holds up no other one, and then
    starts behind all others; it is an ordinary job, at its place in the queue, from the time on at
    which it could otherwise miss its deadline, by the expected ends of running jobs. It is widened
    only while no job waits for nodes.

    Attributes:
        margin: share of its run time at its preferred size that it keeps to its deadline.
        backlog: where the waiting jobs do not all fit on the free nodes, it also keeps this many
            times the time that they take on all nodes: jobs to come may need what idles now.
        gain: least time until another size follows, in prices of a resize.
    """

    margin: float = 0.2
    backlog: float = 2.0
    gain: float = 10.0

    waits_for_prices: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.margin >= 0.0 and self.backlog >= 0.0 and self.gain >= 0.0):
            raise ValueError(f"expected margin, backlog and gain of at least 0, got {self}")

    def applies(self, state: State) -> bool:
        """Return whether there are both prices and jobs with a deadline."""
        return state.deadlines > 0 and state.prices is not None

    def look_s(self, state: State) -> float:
        """Return the time at which a job with a deadline is to change, inf for never."""
        if not self.applies(state):
            return inf
        times = [plan.next_s for plan in self.plans(state).values()]
        return min([at_s for at_s in times if at_s > state.now_s + ROUNDING_S], default=inf)

    def plans(self, state: State) -> dict[JobId, HourlyPlan]:
        """Return the plans of all jobs with a deadline that wait or run."""
        known, pending, prices = state.hour_plans, state.pending, state.prices
        if known is not None and known[0] is self and known[1] is pending:
            return known[2]
        plans = dict[JobId, HourlyPlan]()
        if prices is None:
            return plans
        free, hour_s = _FreeNodes(state), prices.begin_of(state.now_s)
        kept_s = self._kept_s(state)
        for name, job in pending.items():
            if job.spec.deadline_s is not None:
                plans[name] = self._waiting(state, job, free, kept_s, prices, hour_s)
        for name, job in state.running.items():
            if job.spec.deadline_s is not None and job.spec.mode.resizable:
                plans[name] = self._running(state, job, prices)
        if len(state.cheapest) > 2 * len(pending):
            for name in state.cheapest.keys() - pending.keys():
                del state.cheapest[name]
        state.hour_plans = self, pending, plans
        return plans

    def _kept_s(self, state: State) -> float:
        """Return the time that each waiting job keeps to its deadline for all waiting jobs.

        Jobs without a stated run time count as none.
        """
        nodes, node_s = 0, 0.0
        for job in state.pending.values():
            nodes += job.least
            if not job.spec.is_assumed:
                node_s += job.spec.expected_s(job.least, exact=state.exact) * job.least
        fit = nodes <= state.free_count + len(state.off) + len(state.booting)
        return 0.0 if fit else self.backlog * node_s / state.nodes

    def _until_s(self, state: State, spec: JobSpec) -> tuple[float, float]:
        """Return its time to be complete, and its run time at its preferred size."""
        span_s = spec.expected_s(spec.preferred, exact=state.exact)
        assert spec.deadline_s is not None
        return spec.deadline_s - self.margin * span_s, span_s

    def _waiting(
        self,
        state: State,
        job: Job,
        free: _FreeNodes,
        kept_s: float,
        prices: HourlyPrices,
        hour_s: float,
    ) -> HourlyPlan:
        """Return the plan of a waiting job.

        Args:
            kept_s: the time that it keeps to its deadline for all waiting jobs.
            hour_s: the begin of the present hour.
        """
        spec, now_s = job.spec, state.now_s
        until_s, span_s = self._until_s(state, spec)
        if span_s == inf:
            return HourlyPlan(spec.nodes_max, inf)
        latest_s = until_s - span_s - kept_s
        last_s = latest_s - ROUNDING_S
        if now_s >= last_s or free.at_s(spec.preferred) >= last_s:
            return HourlyPlan(spec.nodes_max, inf, urgent=True)
        made = _cheapest(state, job, prices, hour_s, until_s)
        if made is None or not made.pieces:
            return HourlyPlan(spec.nodes_max, inf, urgent=True)
        begin_s, _, width = made.pieces[0]
        if begin_s <= now_s + ROUNDING_S:
            return HourlyPlan(width.nodes, latest_s, made, until_s)
        return HourlyPlan(0, min(begin_s, latest_s), made, until_s)

    def _running(self, state: State, job: Job, prices: HourlyPrices) -> HourlyPlan:
        """Return the plan of a running job."""
        spec = job.spec
        until_s, span_s = self._until_s(state, spec)
        widths = _widths(spec, state.nodes, state.power_models[0], state.exact, job)
        if not widths or span_s == inf:
            return HourlyPlan(job.size, inf)
        hours = _hours(prices, state.now_s, until_s)
        left = min(1.0, ceil(job.remaining_share(state.now_s) * PARTS) / PARTS)
        made = _going_on(widths, hours, left)
        if made is None or not made.pieces:
            return HourlyPlan(widths[-1].nodes, inf, urgent=True)
        return HourlyPlan(made.pieces[0].width.nodes, made.pieces[0].end_s, made, until_s)

    def view(self, state: State, events: Sequence[Event]) -> HoursView:
        """Return the state without jobs that are put off, and others no wider than planned."""
        plans = self.plans(state)
        off = {name for name in state.pending if name in plans and not plans[name].size}
        view, events = without_jobs(state, events, off)
        pending, last = dict[JobId, Job](), dict[JobId, Job]()
        for name, job in view.pending.items():
            plan = plans.get(name)
            if plan is None or plan.made is None:
                pending[name] = job
            else:
                last[name] = _behind(state, job, plan)
        view.set_pending(pending | last)
        if state.due is not None:
            view.due = {name: at_s for name, at_s in state.due.items() if name in pending}
        return HoursView(view, events, plans, frozenset(off))

    def resized(
        self, view: HoursView, decisions: Sequence[Decision], place: Place
    ) -> list[Decision]:
        """Return decisions without wider sizes than planned, and with the planned resizes."""
        state, kept, taken = view.state, list[Decision](), set[Node]()
        free, left, changed = state.free_count, state.resizes_left, set[JobId]()
        waits = set(state.pending)
        for decision in decisions:
            if isinstance(decision, Resize):
                job, plan = state.running[decision.job], view.plans.get(decision.job)
                if plan is not None and plan.made and decision.size > max(job.size, plan.size):
                    continue
                changed.add(decision.job)
                taken.update(set(decision.nodes).difference(job.nodes))
                free -= max(0, decision.size - job.size)
                left -= 1
            elif isinstance(decision, Start):
                taken.update(decision.nodes)
                free -= decision.size
                waits.discard(decision.job)
            elif isinstance(decision, Never):
                waits.discard(decision.job)
            elif isinstance(decision, PowerOff):
                taken.update(decision.nodes)
                free -= len(decision.nodes)
            kept.append(decision)
        for name, plan in view.plans.items():
            if name not in state.running or name in changed:
                continue
            job = state.running[name]
            size = self._size(state, job, plan, 0 if waits else max(0, free))
            if not size:
                state.awaited.pop(name, None)
                continue
            if job.spec.resize_points_known:
                state.awaited[name] = job
            if not job.resizable_now or left <= 0:
                continue
            there = state
            if size > job.size and taken:
                there, _ = without_jobs(state, (), frozenset(), sorted(taken))
            nodes = place(there, job, size)
            if nodes and len(nodes) != size:
                continue
            taken.update(set(nodes).difference(job.nodes))
            free -= max(0, size - job.size)
            left -= 1
            text = "the hour is cheap" if size > job.size else "the hour is dear"
            count = 0 if nodes else size
            kept.append(Resize(name, nodes, text, Reason.CHEAP_HOURS, count))
        return kept

    def _size(self, state: State, job: Job, plan: HourlyPlan, free: int) -> int:
        """Return the other size that a running job should have, 0 for none."""
        spec = job.spec
        if not spec.mode.resizable or job.kept or job.requested_size is not None:
            return 0
        if plan.made is None and not plan.urgent:
            return 0
        if plan.next_s - state.now_s < self.gain * spec.resize_price_s and not plan.urgent:
            return 0
        if plan.size > job.size and state.power_cap_w is not None:
            return 0  # the sizing shares out what the cap leaves
        most = min(plan.size, job.size + free)
        sizes = [n for n in spec.sizes() if n <= most and n not in job.refused_sizes]
        size = sizes[-1] if sizes else 0
        return 0 if size == job.size or (size < job.size <= plan.size) else size

    def waiting(self, state: State) -> dict[JobId, Later]:
        """Return the jobs that are put off, with what that saves."""
        return {
            name: Later(name, plan.words(state, state.pending[name]), Reason.CHEAP_HOURS)
            for name, plan in self.plans(state).items()
            if name in state.pending and plan.made is not None and not plan.size
        }


class HourlyPlan(NamedTuple):
    """What a job with a deadline should do now.

    Attributes:
        size: nodes it should have now; 0: it is put off.
        next_s: the time at which that changes.
        made: its sizes by the hour; None where it has none, so that prices do not matter.
        until_s: the end of the last hour.
        urgent: it may miss its deadline otherwise.
    """

    size: int
    next_s: float
    made: HourlySizes | None = None
    until_s: float = inf
    urgent: bool = False

    def words(self, state: State, job: Job) -> str:
        """Return why the job is put off, and what that saves against a start now."""
        assert self.made is not None and state.prices is not None
        first = self.made.pieces[0]
        text = f"CheapHours: put off by {first.begin_s - state.now_s:.0f} s"
        power, exact = state.power_models[0], state.exact
        hours = _hours(state.prices, state.now_s, self.until_s, twelfths=False)
        preferred = _width(job.spec, job.spec.preferred, power, exact)
        at_once = carried_out([preferred] * len(hours), hours, self.made.done)
        if at_once.cost <= 0.0:
            return text
        saved = at_once.cost - self.made.cost
        text += f", saves {100.0 * saved / at_once.cost:.0f} %"
        if any(model.busy_w(job.spec, first.width.nodes) for model in state.power_models):
            text += f" ({saved / JOULES_PER_KWH:.3g} {state.prices.unit})"
        return text


class HoursView(NamedTuple):
    """The state and events for the other parts of a policy.

    Attributes:
        plans: of the jobs with a deadline.
        off: the jobs that are put off.
    """

    state: State
    events: Sequence[Event]
    plans: dict[JobId, HourlyPlan]
    off: frozenset[JobId]


class _FreeNodes:
    """The nodes that are free at a time, by the expected ends of running jobs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._now = state.free_count + len(state.off) + len(state.booting)
        self._then: tuple[list[int], list[float]] | None = None

    def at_s(self, size: int) -> float:
        """Return the time at which so many nodes, or all, are free, inf for never."""
        size = min(size, self._state.nodes)
        if size <= self._now:
            return self._state.now_s
        if self._then is None:
            free, numbers, times = self._now, list[int](), list[float]()
            for end_s, _, job in self._state.ends:
                free += job.size + job.gain
                numbers.append(free)
                times.append(end_s)
            self._then = numbers, times
        numbers, times = self._then
        at = bisect_left(numbers, size)
        return times[at] if at < len(times) else inf


def _cheapest(
    state: State, job: Job, prices: HourlyPrices, hour_s: float, until_s: float
) -> HourlySizes | None:
    """Return the cheapest sizes by the hour of a job that waits.

    Its begin stays the same until then, so it is computed once; again only in later hours, where
    the job did not begin for lack of nodes.
    """
    spec, known = job.spec, state.cheapest.get(job.spec.id)
    on = spec, prices, job.done, until_s, state.power_models[0], state.nodes, state.exact
    made: HourlySizes | None
    if known is not None and known[0] == on:
        _, from_s, made = known
        if made is None or from_s == hour_s or made.begin_s >= hour_s:
            return made
    begin_s = max(spec.submit_s, spec.begin_s or 0.0)
    for from_s in (begin_s, hour_s):
        hours = _hours(prices, from_s, until_s, twelfths=False)
        made = _planned(spec, state, hours, 1.0 - job.done)
        if made is None or made.begin_s >= hour_s:
            break
    state.cheapest[spec.id] = on, from_s, made
    return made


def _planned(spec: JobSpec, state: State, hours: Sequence[Hour], work: float) -> HourlySizes | None:
    """Return the cheapest sizes in these hours of a job that waits."""
    widths = _widths(spec, state.nodes, state.power_models[0], state.exact)
    if not hours or not widths:
        return None
    if spec.mode.resizable and spec.mode.any_start:
        return cheapest(widths, hours, work, pauses=False)
    # It begins at one size: all its life, or until a resize point.
    plans = [cheapest([width], hours, work, pauses=False) for width in widths]
    return min([plan for plan in plans if plan], key=lambda plan: plan.cost, default=None)


@lru_cache(maxsize=1 << 12)
def _going_on(
    widths: tuple[Width, ...], hours: tuple[Hour, ...], work: float
) -> HourlySizes | None:
    return cheapest(widths, hours, work, running=True) if hours else None


def _widths(
    spec: JobSpec, nodes: int, power: NodePower, exact: bool, running: Job | None = None
) -> tuple[Width, ...]:
    """Return the efficient sizes of a job; empty without an expected run time."""
    sizes: Sequence[int] = [spec.preferred]
    if spec.mode.any_start or running is not None:
        sizes = [n for n in some_sizes(spec.sizes(), spec.preferred) if n <= nodes]
    widths = [_width(spec, n, power, exact, running) for n in sizes]
    return efficient_sizes([width for width in widths if width.rate > 0.0])


def _width(
    spec: JobSpec, n: int, power: NodePower, exact: bool, running: Job | None = None
) -> Width:
    time_s = running.time_s(n) if running is not None and running.measured_steps else None
    if time_s is None:
        time_s = spec.expected_s(n, exact=exact)
    rate = 1.0 / time_s if 0.0 < time_s < inf else 0.0
    return Width(n, rate, n * power.busy_w(spec, n) or float(n))


def _hours(
    prices: HourlyPrices, now_s: float, until_s: float, *, twelfths: bool = True
) -> tuple[Hour, ...]:
    """Return the hours until a time; outside the values their mean counts.

    With ``twelfths`` the first begins at the next twelfth of its hour: of an hour of the day, if
    the value holds for longer.
    """
    times, values = prices.times_s, prices.values
    at = bisect_right(times, now_s) - 1
    begin_s = now_s
    if twelfths and 0 <= at < len(values):
        twelfth_s = min(HOUR_S, times[at + 1] - times[at]) / 12.0
        begin_s = times[at] + ceil((now_s - times[at]) / twelfth_s - 1e-6) * twelfth_s
        if begin_s >= times[at + 1]:
            at, begin_s = at + 1, times[at + 1]
    mean, hours = fmean(values), list[Hour]()
    if at < 0 and begin_s < min(until_s, times[0]):
        hours.append(Hour(begin_s, min(until_s, times[0]), mean))
    for n in range(max(0, at), len(values)):
        if times[n] >= until_s:
            break
        begin, end = max(begin_s, times[n]), min(until_s, times[n + 1])
        if end > begin:
            hours.append(Hour(begin, end, values[n]))
    if until_s > max(begin_s, times[-1]):
        hours.append(Hour(max(begin_s, times[-1]), until_s, mean))
    return tuple(hours)


def _behind(state: State, job: Job, plan: HourlyPlan) -> Job:
    """Return a waiting job behind all others, which starts on no more nodes than planned.

    On fewer only if it would be over in time without further ones.
    """
    spec, size, until_s = job.spec, plan.size, plan.until_s
    if spec.mode.any_start and size in spec.sizes():
        sizes = [n for n in spec.sizes() if n <= size]
        least = next(
            (n for n in sizes if state.now_s + spec.expected_s(n) <= until_s)
            if spec.mode.resizable
            else iter(sizes[-1:]),
            size,
        )
        spec = msgspec.structs.replace(
            spec,
            nodes_min=least,
            nodes_max=size,
            preferred=size,
            limit_s=None if spec.limit_s is None else spec.expected_s(size),
        )
    other = copy.copy(job)
    other.spec, other.number = spec, state.submitted + job.number
    other.least = spec.smallest_start
    return other
