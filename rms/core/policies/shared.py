"""Placements on nodes whose processes share memory bandwidth (Guim et al., section IV-A).

``first-fit-shared`` takes the first free processors, ``less-consume`` those where the bandwidth
expected to be asked for slows the job least. Both may set frequencies (``power_aware``): a process
that would wait for slower ones of its job runs slower itself.

What a placement expects of bandwidth follows what is said of each job: what is asked for now, or
(``forecast``) until the ends that are expected of its neighbours.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, compress, islice
from math import inf
from typing import ClassVar, NamedTuple, cast

import msgspec

from rms.core.contention import Pools
from rms.core.forecast import Forecast
from rms.core.model import Job, Node, Site
from rms.core.policies.waiting import ByPool, Counts, OnNode, Waiting, asked_with, slowed
from rms.core.state import State

Alike = tuple[float, ...]
"""What jobs have in common that would start in the same place."""


class Offer(NamedTuple):
    """Where a job could start now.

    Attributes:
        slowdown: how much longer than stated it is expected to run.
        waiting: how much longer by bandwidth alone, by pool, where the placement looks at that.
    """

    counts: Counts
    slowdown: float
    waiting: ByPool | None = None


class SharedRoom:
    """Free processors of shared nodes during one pass."""

    __slots__ = (
        "_asleep",
        "_forecast",
        "_free",
        "_gb_s",
        "_offers",
        "_open",
        "_pools",
        "_refused",
        "_site",
        "_vacant",
        "free",
        "how",
        "passed",
        "power_aware",
    )

    def __init__(self, state: State, how: FirstFitShared | LessConsume) -> None:
        assert state.pools is not None  # the engine has seen to it
        self._pools: Pools = state.pools
        self._site: Site = state.site
        self._free, self._gb_s = list(state.pool_free), list(state.pool_gb_s)
        self._vacant = state.vacant
        self._asleep = {self._pools.of_slot[node] for node in state.asleep}
        self.how, self.free, self.passed = how, state.free_count, 0
        self.power_aware = how.power_aware and state.settable_frequencies
        self._forecast = Forecast(state) if how.forecast else None
        self._offers: dict[Alike, Offer] = {}
        self._refused: list[tuple[int, float]] = []
        self._open: list[tuple[int, int, float, float, float]] | None = None

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` processors now."""
        if size > self.free:
            return False
        most = self.how.threshold
        # On an empty cluster it starts however slow: it would never be faster.
        if most == inf or self.free == self._site.nodes:
            return True
        each_gb_s = job.spec.planned_gb_s
        if any(size >= other and each_gb_s >= gb_s for other, gb_s in self._refused):
            return False  # less than that was too much before in this pass
        if self.may_hold(size, each_gb_s, inf):
            waiting = self.offer(job, size).waiting
            return waiting is None or max(waiting.values()) <= most
        self._refused.append((size, each_gb_s))
        return False

    @property
    def tiers(self) -> list[tuple[int, float]]:
        """How many processors are free that are at least so fast, and that factor, rising."""
        free = self._free
        numbers = [sum([free[pool] for pool in pools]) for pools in self._pools.of_factor.values()]
        return list(zip(accumulate(numbers), self._pools.of_factor, strict=True))

    def may_hold(self, size: int, each_gb_s: float, slowdown: float) -> bool:
        """Return whether processes may find room where each takes at most so much longer.

        And waits for bandwidth no more than the threshold allows. False is certain. Sockets and
        nodes are looked at one by one, so true is not.
        """
        if not self.how.least_bandwidth:
            return True
        most_waiting = self.how.threshold
        for _, number, factor, least_gb_s, gb_s in self.open_pools():
            over = slowdown / factor
            if over >= 1.0:
                fitting = number
                if each_gb_s > 0.0:
                    waiting = over if over < most_waiting else most_waiting
                    left_gb_s = waiting * least_gb_s - gb_s
                    most = left_gb_s * factor / each_gb_s * (1.0 + 1e-9) + 1e-9
                    if most < number:
                        fitting = int(most) if most > 0.0 else 0
                size -= fitting
                if size <= 0:
                    return True
        return False

    def open_pools(self) -> list[tuple[int, int, float, float, float]]:
        """Return the pools with free processors.

        Of each: its number, how many are free, its factor, the least bandwidth between them and
        memory, and what is asked of it as long as that is known to stay.
        """
        if self._open is None:
            pools, now = self._pools, self._forecast is None
            self._open = [
                (pool, number, pools.factor[pool], pools.least_gb_s[pool], now * self._gb_s[pool])
                for pool, number in enumerate(self._free)
                if number
            ]
        return self._open

    def offer(self, job: Job, size: int) -> Offer:
        """Return where the job would start now and what is expected of it there."""
        how, alike = self.how, self.how.alike(job, size)
        found = self._offers.get(alike)
        if found is None:
            counts = self._first(size, how.fastest_first)
            factor = self._pools.factor
            if how.least_bandwidth:
                slowdowns = self._improve(counts, job.spec.planned_gb_s, job.spec.expected_s(size))
                longest = max([factor[pool] * slow for pool, slow in slowdowns.items()])
                found = Offer(counts, longest, slowdowns)
            else:
                found = Offer(counts, max([factor[pool] for pool in counts]))
            self._offers[alike] = found
        return found

    def slowdown(self, job: Job, size: int) -> float:
        """Return how much longer than stated a job is expected to run that starts now."""
        return self.offer(job, size).slowdown

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take processors for a job that fits."""
        return self.take(job, size)[0]

    def take(self, job: Job, size: int) -> tuple[tuple[Node, ...], tuple[float, ...]]:
        """Take processors for a job that fits; return the frequency on each too (see ``Start``)."""
        offer, pools, each_gb_s = self.offer(job, size), self._pools, job.spec.planned_gb_s
        counts, span_s = offer.counts, job.spec.expected_s(size)
        shares = self._frequencies(offer, each_gb_s, span_s) if self.power_aware else {}
        vacant, nodes, frequencies = self._vacant[:], list[Node](), list[float]()
        for pool, number in counts.items():
            slots, share = pools.slots[pool], shares.get(pool, 1.0)
            free = compress(slots, vacant[slots.start : slots.stop])
            nodes += cast("Iterable[Node]", islice(free, number))
            frequencies += [share] * number
            self._free[pool] -= number
            self._gb_s[pool] += number * each_gb_s * share / pools.factor[pool]
        if self._forecast is not None:
            parts = {(pool, shares.get(pool, 1.0)): number for pool, number in counts.items()}
            self._forecast.add(parts, each_gb_s, span_s * offer.slowdown)
        for node in nodes:
            vacant[node] = 0
        self._vacant = vacant
        self.free -= size
        self._offers.clear()
        self._open = None
        slower = any(share < 1.0 for share in shares.values())
        return tuple(nodes), tuple(frequencies) if slower else ()

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the processors of a job at another size: its first ones, or more beside them.

        Those it gains are placed as if a job of as many started; those of one node stay together.
        """
        if size <= len(job.nodes):
            return job.nodes[:size]
        more, _ = self.take(job, size - len(job.nodes))
        return tuple(sorted((*job.nodes, *more)))

    # --- which processors --------------------------------------------------------------------

    def _first(self, size: int, fastest_first: bool) -> Counts:
        """Return the first free processors, in the order of the nodes or by speed."""
        counts: Counts = {}
        free = self._free
        order = self._pools.by_speed if fastest_first else range(len(free))
        if self._asleep:  # those that are on are taken first
            order = sorted(order, key=self._asleep.__contains__)
        for pool in order:
            if number := free[pool]:
                counts[pool] = min(number, size)
                size -= number
                if size <= 0:
                    break
        return counts

    def _improve(self, counts: Counts, each_gb_s: float, span_s: float) -> ByPool:
        """Move processes from where they wait most for memory to where they wait less.

        Pools with free processors are tried once each, in order, until all have been or nobody
        waits (section IV-A-1). Returns how much bandwidth slows the processes of each pool then.
        """
        on_node = self._on_node(span_s)
        waiting = Waiting(self._pools, counts, each_gb_s, self._gb_s, on_node)
        heap = waiting.heap
        if not heap:
            return waiting.slowdowns
        least = heap[0][0]
        for pool, free, factor, least_gb_s, gb_s in self.open_pools():
            if gb_s + each_gb_s / factor >= -least * least_gb_s:
                continue  # the most frequent case: even one process would wait as long there
            moved, here = 1, counts.get(pool, 0)
            while moved and here < free and heap:
                least, _, worst = heap[0]
                one_more = gb_s + (here + 1) * each_gb_s / factor
                if worst == pool or one_more >= -least * least_gb_s:
                    break
                moved = min(moved, free - here, counts[worst])
                if waiting.move(worst, pool, moved):
                    here += moved
                    moved *= 2  # twice as many at once as long as that helps, then half as many
                else:
                    moved //= 2
        return waiting.slowdowns

    # --- how slow ----------------------------------------------------------------------------

    def _on_node(self, span_s: float) -> OnNode:
        """Return how to find how slow processes are, their neighbours' expected ends included.

        Args:
            span_s: a job's run time on the fastest processors, by which neighbours may have ended.
        """
        pools, forecast, base = self._pools, self._forecast, self._gb_s

        def on_node(node: int, asked: Sequence[float]) -> Sequence[float]:
            slowdowns = pools.slowdowns_among(node, asked)
            if forecast is None or max(slowdowns) <= 1.0:
                return slowdowns
            members = pools.members[node]
            own_gb_s = [asked[pool] - base[pool] for pool in members]
            return forecast.slowdowns(node, [asked[pool] for pool in members], own_gb_s, span_s)

        return pools.slowdowns_among if forecast is None else on_node

    def _frequencies(self, offer: Offer, each_gb_s: float, span_s: float) -> ByPool:
        """Return the frequencies at which all processes of a job end together (section IV-A-2).

        The steps: the critical process has the longest run time (1). The others ask for as much
        less as they are faster (2), by which neighbours may wait less (3). Each runs at the lowest
        level at which it is not later than the critical one (4).
        """
        pools, gb_s, on_node = self._pools, self._gb_s, self._on_node(span_s)
        counts, slowdowns = offer.counts, offer.waiting
        if slowdowns is None:
            asked = asked_with(pools, gb_s, counts, dict.fromkeys(counts, each_gb_s))
            slowdowns = slowed(pools, counts, asked, on_node)
        times = {pool: pools.factor[pool] * slowdown for pool, slowdown in slowdowns.items()}
        longest = max(times.values())
        own = {pool: each_gb_s * time / longest for pool, time in times.items()}
        asked = asked_with(pools, gb_s, counts, own)
        levels = [ghz for ghz, _ in self._site.levels]
        found = {}
        for pool, slowdown in slowed(pools, counts, asked, on_node).items():
            least = pools.factor[pool] * slowdown / longest * levels[-1] * (1.0 - 1e-12)
            level = min(bisect_left(levels, least), len(levels) - 1)
            found[pool] = levels[level] / levels[-1]
        return found


class FirstFitShared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first free processors; expected run times know their speed and nothing of bandwidth.

    Attributes:
        power_aware: processes that others of their job keep waiting run at lower frequencies.
        fastest_first: faster kinds of processors are taken before slower ones, not node by node.
    """

    power_aware: bool = False
    fastest_first: bool = False

    shared: ClassVar[bool] = True
    least_bandwidth: ClassVar[bool] = False
    threshold: ClassVar[float] = inf
    forecast: ClassVar[bool] = False

    def alike(self, job: Job, size: int) -> Alike:
        """Return what jobs have in common that would start in the same place."""
        return (size,)

    def __call__(self, state: State) -> SharedRoom:
        """Open the room of a pass."""
        return SharedRoom(state, self)


class LessConsume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The processors where bandwidth slows a job least, which expected run times follow.

    Attributes:
        power_aware, fastest_first: as above.
        threshold: a job waits that bandwidth would slow by more (``LessConsume-Threshold``).
        forecast: what is asked for is expected to change when neighbours are expected to end.
    """

    power_aware: bool = False
    fastest_first: bool = False
    threshold: float = inf
    forecast: bool = False

    shared: ClassVar[bool] = True
    least_bandwidth: ClassVar[bool] = True

    def alike(self, job: Job, size: int) -> Alike:
        """Return what jobs have in common that would start in the same place."""
        span_s = job.spec.expected_s(size) if self.forecast else 0.0
        return size, job.spec.planned_gb_s, span_s

    def __call__(self, state: State) -> SharedRoom:
        """Open the room of a pass."""
        return SharedRoom(state, self)
