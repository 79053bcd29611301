"""Placements on nodes whose processes share memory bandwidth (Guim et al., section IV-A).

``first-fit-shared`` takes the first free processors, ``less-consume`` those where the expected
demand of bandwidth slows the job least. Both may set frequencies (``power_aware``): a process that
would wait for slower ones of its job runs slower itself.

The expected demand is that which users state for jobs: the present demand, or (``forecast``) the
demand until the expected ends of neighbours.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import compress, islice
from math import inf
from typing import ClassVar, NamedTuple, cast

import msgspec

from rms.core.model.contention import Pools, parts
from rms.core.model.jobs import Job, Node, Site
from rms.core.policies.placement import Placement, Room
from rms.core.state import State

ByPool = dict[int, float]
"""A figure of processes by pool."""

Counts = dict[int, int]
"""Processes by pool."""

OnNode = Callable[[int, Sequence[float]], Sequence[float]]
"""Slowdowns by bandwidth by pool of a node, for the demands on all pools."""

Alike = tuple[float, ...]
"""Properties of jobs that would start in the same place."""


# --- the placements ------------------------------------------------------------------------------


class SharedPlacement(Placement):
    """A placement on nodes whose processes share memory bandwidth."""

    __slots__ = ()

    shared: ClassVar[bool] = True

    @property
    def fastest_first(self) -> bool:
        """Whether faster kinds of processors are taken before slower ones, not node by node."""
        return False

    @property
    def threshold(self) -> float:
        """The largest slowdown by bandwidth of a job that starts."""
        return inf

    @property
    def forecast(self) -> bool:
        """Whether the demand is expected to change when neighbours are expected to end."""
        return False

    def __call__(self, state: State) -> SharedRoom:
        """Open the room of a pass."""
        return SharedRoom(state, self)

    def alike(self, job: Job, size: int) -> Alike:
        """Return the properties of jobs that would start in the same place."""
        return (size,)


class FirstFitShared(SharedPlacement, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first free processors; expected run times follow their speed, but not bandwidth.

    Attributes:
        power_aware: processes that wait for others of their job run at lower frequencies.
        fastest_first: faster kinds of processors are taken before slower ones, not node by node.
    """

    power_aware: bool = False
    fastest_first: bool = False


class LessConsume(SharedPlacement, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The processors where bandwidth slows a job least, which expected run times follow.

    Attributes:
        power_aware: processes that wait for others of their job run at lower frequencies.
        fastest_first: faster kinds of processors are taken before slower ones, not node by node.
        threshold: largest slowdown by bandwidth at which a job starts; above it the job waits
            (``LessConsume-Threshold``).
        forecast: the demand is expected to change when neighbours are expected to end.
    """

    power_aware: bool = False
    fastest_first: bool = False
    threshold: float = inf
    forecast: bool = False

    least_bandwidth: ClassVar[bool] = True

    def alike(self, job: Job, size: int) -> Alike:
        """Return the properties of jobs that would start in the same place."""
        span_s = job.spec.expected_s(size) if self.forecast else 0.0
        return size, job.spec.planned_gb_s, span_s


# --- the room of a pass --------------------------------------------------------------------------


class Offer(NamedTuple):
    """Processors on which a job could start now.

    Attributes:
        slowdown: expected run time over the stated one.
        waiting: slowdowns by bandwidth alone, by pool, where the placement goes by them.
    """

    counts: Counts
    slowdown: float
    waiting: ByPool | None = None


class SharedRoom(Room):
    """Free processors of shared nodes during one pass."""

    __slots__ = (
        *("_asleep", "_forecast", "_free", "_gb_s", "_offers", "_open", "_pools", "_refused"),
        *("_site", "_vacant", "free", "how", "passed", "power_aware"),
    )

    free: int
    passed: int

    contended: ClassVar[bool] = True
    varies = True

    def __init__(self, state: State, how: SharedPlacement) -> None:
        assert state.pools is not None  # the engine has checked it
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
        # On an empty cluster it always starts: it would never be faster.
        if most == inf or self.free == self._site.nodes:
            return True
        each_gb_s = job.spec.planned_gb_s
        if any(size >= other and each_gb_s >= gb_s for other, gb_s in self._refused):
            return False  # a smaller demand was too much before in this pass
        if self.may_hold(size, each_gb_s, inf):
            waiting = self.offer(job, size).waiting
            return waiting is None or max(waiting.values()) <= most
        self._refused.append((size, each_gb_s))
        return False

    def may_hold(self, size: int, each_gb_s: float, slowdown: float) -> bool:
        """Return whether there may be processors with a smaller slowdown for all processes.

        And with no longer waits for bandwidth than the threshold allows. False is certain, true is
        not, since sockets and nodes are checked one by one.
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

        As tuples of number, free processors, factor, least bandwidth between them and memory, and
        demand (0 with a forecast).
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
        """Return the processors on which the job would start now."""
        how, alike = self.how, self.how.alike(job, size)
        offer = self._offers.get(alike)
        if offer is None:
            counts = self._first(size, how.fastest_first)
            factor = self._pools.factor
            if how.least_bandwidth:
                slowdowns = self._improve(counts, job.spec.planned_gb_s, job.spec.expected_s(size))
                longest = max([factor[pool] * slow for pool, slow in slowdowns.items()])
                offer = Offer(counts, longest, slowdowns)
            else:
                offer = Offer(counts, max([factor[pool] for pool in counts]))
            self._offers[alike] = offer
        return offer

    def slowdown(self, job: Job, size: int) -> float:
        """Return the expected run time of a job that starts now over the stated one."""
        return self.offer(job, size).slowdown

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take processors for a job that fits."""
        return self.take(job, size)[0]

    def take(self, job: Job, size: int) -> tuple[tuple[Node, ...], tuple[float, ...]]:
        """Take processors for a job that fits; return frequencies too (see ``Start``)."""
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

        Further ones are placed as for a job that starts; those of one node stay together.
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
        if self._asleep:  # pools that are on are taken first
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

        Pools with free processors are tried once, in order, until no process waits (section
        IV-A-1). Returns the slowdowns by bandwidth by pool.
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
        """Return a function of the slowdowns on a node, with the expected ends of neighbours."""
        pools, forecast, base = self._pools, self._forecast, self._gb_s

        def on_node(node: int, demand: Sequence[float]) -> Sequence[float]:
            slowdowns = pools.slowdowns_among(node, demand)
            if forecast is None or max(slowdowns) <= 1.0:
                return slowdowns
            members = pools.members[node]
            own_gb_s = [demand[pool] - base[pool] for pool in members]
            return forecast.slowdowns(node, [demand[pool] for pool in members], own_gb_s, span_s)

        return pools.slowdowns_among if forecast is None else on_node

    def _frequencies(self, offer: Offer, each_gb_s: float, span_s: float) -> ByPool:
        """Return the frequencies at which all processes of a job end together (section IV-A-2).

        The steps: the critical process has the longest run time (1). The others demand less in
        proportion to their speed (2), by which neighbours may wait less (3). They run at the lowest
        levels at which they are not later than the critical one (4).
        """
        pools, gb_s, on_node = self._pools, self._gb_s, self._on_node(span_s)
        counts, slowdowns = offer.counts, offer.waiting
        if slowdowns is None:
            demand = demand_with(pools, gb_s, counts, dict.fromkeys(counts, each_gb_s))
            slowdowns = slowed(pools, counts, demand, on_node)
        times = {pool: pools.factor[pool] * slowdown for pool, slowdown in slowdowns.items()}
        longest = max(times.values())
        own = {pool: each_gb_s * time / longest for pool, time in times.items()}
        demand = demand_with(pools, gb_s, counts, own)
        levels = [ghz for ghz, _ in self._site.levels]
        shares = {}
        for pool, slowdown in slowed(pools, counts, demand, on_node).items():
            least = pools.factor[pool] * slowdown / longest * levels[-1] * (1.0 - 1e-12)
            level = min(bisect_left(levels, least), len(levels) - 1)
            shares[pool] = levels[level] / levels[-1]
        return shares


# --- the processes of a job that wait most for bandwidth -----------------------------------------


def demand_with(
    pools: Pools, gb_s: Sequence[float], counts: Counts, each_gb_s: ByPool
) -> list[float]:
    """Return the demand by pool with the processes of a job (at factor 1)."""
    demand, factor = list(gb_s), pools.factor
    for pool, number in counts.items():
        demand[pool] += number * each_gb_s[pool] / factor[pool]
    return demand


def slowed(pools: Pools, counts: Counts, demand: Sequence[float], on_node: OnNode) -> ByPool:
    """Return the slowdowns of a job's processes by bandwidth, by pool."""
    by_pool = {}
    for node in dict.fromkeys([pools.node[pool] for pool in counts]):
        for pool, slowdown in zip(pools.members[node], on_node(node, demand), strict=True):
            if pool in counts:
                by_pool[pool] = slowdown
    return by_pool


class Waiting:
    """The slowdowns by bandwidth of the processes of a job, and the largest of them.

    Args:
        pools: the processors.
        counts: its processes by pool; kept up to date.
        each_gb_s: demand of a process on the fastest processors.
        gb_s: demand of other jobs by pool.
        on_node: the slowdowns for a demand.

    Attributes:
        slowdowns: by pool.
        heap: slowdowns above 1, the highest first (negated; of equal ones the pool that is longest
            in ``slowdowns``); the first is valid.
    """

    __slots__ = (
        *("_demand", "_counts", "_each_gb_s", "_gb_s", "_number", "_on_node", "_pools", "_since"),
        *("heap", "slowdowns"),
    )

    def __init__(
        self, pools: Pools, counts: Counts, each_gb_s: float, gb_s: list[float], on_node: OnNode
    ) -> None:
        self._pools, self._counts, self._each_gb_s = pools, counts, each_gb_s
        self._gb_s, self._on_node = gb_s, on_node
        self._demand = demand_with(pools, gb_s, counts, dict.fromkeys(counts, each_gb_s))
        self.slowdowns = slowed(pools, counts, self._demand, on_node)
        self._since = {pool: at for at, pool in enumerate(self.slowdowns)}
        self._number = len(self._since)
        self.heap = [(-s, self._since[p], p) for p, s in self.slowdowns.items() if s > 1.0]
        heapify(self.heap)

    def move(self, source: int, target: int, number: int) -> bool:
        """Move processes if the target's node then has no process as slow as the slowest now."""
        counts, demand, gb_s, pools = self._counts, self._demand, self._gb_s, self._pools
        each_gb_s, least = self._each_gb_s, self.heap[0][0]
        before = demand[source], demand[target]
        here, left, node = counts.get(target, 0), counts[source] - number, pools.node[target]
        if left:
            counts[source] = left
        else:
            del counts[source]
        counts[target] = here + number
        demand[source] = gb_s[source] + left * each_gb_s / pools.factor[source]
        demand[target] = gb_s[target] + (here + number) * each_gb_s / pools.factor[target]
        slowdowns = self._on_node(node, demand)
        if max(slowdowns) >= -least:  # else no pool is as slow as before
            for pool, slowdown in zip(pools.members[node], slowdowns, strict=True):
                if slowdown >= -least and pool in counts:
                    demand[source], demand[target] = before
                    if here:
                        counts[target] = here
                    else:
                        del counts[target]
                    counts[source] = left + number
                    return False
        heap, present, since = self.heap, self.slowdowns, self._since
        if not left:
            del present[source]
        self._enter(node, slowdowns)
        if pools.node[source] != node:
            node = pools.node[source]
            self._enter(node, self._on_node(node, demand))
        while heap:
            least, at, pool = heap[0]
            if present.get(pool) == -least and since[pool] == at:
                break
            heappop(heap)
        return True

    def _enter(self, node: int, slowdowns: Sequence[float]) -> None:
        """Enter the slowdowns on a node."""
        counts, present = self._counts, self.slowdowns
        for pool, slowdown in zip(self._pools.members[node], slowdowns, strict=True):
            if pool in counts:
                was = present.get(pool)
                if was != slowdown:
                    present[pool] = slowdown
                    if was is None:
                        self._since[pool] = self._number
                        self._number += 1
                    if slowdown > 1.0:
                        heappush(self.heap, (-slowdown, self._since[pool], pool))


# --- demand until the expected ends of neighbours ------------------------------------------------
#
# The table of estimates of Guim et al. (section III-A): requested times and expected bandwidths, in
# *windows* between two ends, in which the demand stays the same.


class Forecast:
    """The expected ends of jobs by node, and the demand that ends with them.

    A job that runs longer than expected is expected to go on.
    """

    def __init__(self, state: State) -> None:
        assert state.pools is not None
        self._pools = state.pools
        self._ends: dict[int, list[tuple[float, int, float]]] = {}
        for job in state.running.values():
            if (left_s := job.expected_end_s - state.now_s) > 0.0:
                counts = parts(self._pools, job.nodes, job.frequencies)
                self.add(counts, job.spec.planned_gb_s, left_s)

    def add(self, counts: Mapping[tuple[int, float], int], each_gb_s: float, left_s: float) -> None:
        """Add a job that is expected to end in ``left_s``."""
        factor, node = self._pools.factor, self._pools.node
        for (pool, frequency), number in counts.items():
            demand_gb_s = number * each_gb_s * frequency / factor[pool]
            self._ends.setdefault(node[pool], []).append((left_s, pool, demand_gb_s))

    def slowdowns(
        self, node: int, demand_gb_s: Sequence[float], own_gb_s: Sequence[float], span_s: float
    ) -> list[float]:
        """Return the mean slowdowns of a job by bandwidth, by pool of a node.

        Args:
            demand_gb_s: the present demand by pool, that job included.
            own_gb_s: the demand of the job by pool.
            span_s: its run time on the fastest processors; if it is not positive and finite, the
                present demand counts.
        """
        pools = self._pools
        if not 0.0 < span_s < inf:
            return pools.slowdowns(node, demand_gb_s)
        members, demand = pools.members[node], list(demand_gb_s)
        alone_s = [span_s * pools.factor[pool] for pool in members]
        left, means = dict(enumerate(alone_s)), [1.0] * len(members)
        at_s, ends = 0.0, iter(sorted(self._ends.get(node, ())))
        until_s, pool, gone_gb_s = next(ends, _NEVER)
        while left:
            slow = pools.slowdowns(node, demand)
            first = min(left, key=lambda member: left[member] * slow[member])
            own_end_s = at_s + left[first] * slow[first]
            end_s = min(own_end_s, until_s)
            for member in left:
                left[member] -= (end_s - at_s) / slow[member]
            at_s = end_s
            if own_end_s <= until_s:
                del left[first]
                means[first] = max(1.0, at_s / alone_s[first])
                demand[first] = max(0.0, demand[first] - own_gb_s[first])
            else:
                member = members.index(pool)
                demand[member] = max(0.0, demand[member] - gone_gb_s)
                until_s, pool, gone_gb_s = next(ends, _NEVER)
        return means


_NEVER = (inf, -1, 0.0)
