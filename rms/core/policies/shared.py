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
from itertools import accumulate
from math import inf
from typing import ClassVar, NamedTuple

import msgspec

from rms.core.contention import Pools
from rms.core.forecast import Forecast
from rms.core.model import Job, Node, Site
from rms.core.policies.waiting import ByPool, Waiting
from rms.core.state import State

Alike = tuple[float, ...]
"""What jobs have in common that would start in the same place."""

Counts = dict[int, int]
"""Processes by pool."""


class Offer(NamedTuple):
    """Where a job could start now.

    Attributes:
        slowdown: how much longer than stated it is expected to run.
        waiting: how much longer by bandwidth alone, where the placement looks at that.
    """

    counts: Counts
    slowdown: float
    waiting: float = 1.0


class SharedRoom:
    """Free processors of shared nodes during one pass."""

    __slots__ = (
        "_asleep",
        "_forecast",
        "_free",
        "_gb_s",
        "_how",
        "_offers",
        "_open",
        "_pools",
        "_refused",
        "_site",
        "_vacant",
        "free",
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
        self._how, self.free, self.passed = how, state.free_count, 0
        self.power_aware = how.power_aware and state.settable_frequencies
        self._forecast = Forecast(state) if how.forecast else None
        self._offers: dict[Alike, Offer] = {}
        self._refused: list[tuple[int, float]] = []
        self._open: list[tuple[int, float, float, float]] | None = None

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` processors now."""
        if size > self.free:
            return False
        most = self._how.threshold
        # On an empty cluster it starts however slow: it would never be faster.
        if most == inf or self.free == self._site.nodes:
            return True
        each_gb_s = job.spec.planned_gb_s
        if any(size >= other and each_gb_s >= gb_s for other, gb_s in self._refused):
            return False  # less than that was too much before in this pass
        if self.may_hold(size, each_gb_s, inf):
            return self.offer(job, size).waiting <= most
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
        if not self._how.least_bandwidth:
            return True
        if self._open is None:
            pools, now = self._pools, self._forecast is None
            self._open = [
                (number, pools.factor[pool], pools.least_gb_s[pool], now * self._gb_s[pool])
                for pool, number in enumerate(self._free)
                if number
            ]
        most_waiting = self._how.threshold
        for number, factor, least_gb_s, gb_s in self._open:
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

    def offer(self, job: Job, size: int) -> Offer:
        """Return where the job would start now and what is expected of it there."""
        how, alike = self._how, self._how.alike(job, size)
        found = self._offers.get(alike)
        if found is None:
            counts = self._first(size, how.fastest_first)
            factor = self._pools.factor
            if how.least_bandwidth:
                slowdowns = self._improve(counts, job.spec.planned_gb_s, job.spec.expected_s(size))
                longest = max([factor[pool] * slow for pool, slow in slowdowns.items()])
                found = Offer(counts, longest, max(slowdowns.values()))
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
        shares = self._frequencies(counts, each_gb_s, span_s) if self.power_aware else {}
        vacant, nodes, frequencies = self._vacant[:], [], []
        for pool, number in counts.items():
            at, share = pools.first[pool] - 1, shares.get(pool, 1.0)
            for _ in range(number):
                at = vacant.find(1, at + 1)
                vacant[at] = 0
                nodes.append(Node(at))
            frequencies += [share] * number
            self._free[pool] -= number
            self._gb_s[pool] += number * each_gb_s * share / pools.factor[pool]
        if self._forecast is not None:
            parts = {(pool, shares.get(pool, 1.0)): number for pool, number in counts.items()}
            self._forecast.add(parts, each_gb_s, span_s * offer.slowdown)
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
        pools, gb_s = self._pools, self._gb_s
        node, factor, least_gb_s = pools.node, pools.factor, pools.least_gb_s
        stays = self._forecast is None  # what is asked for now
        asked = self._asked(counts, dict.fromkeys(counts, each_gb_s))
        waiting = Waiting(self._slowdowns(asked, counts, span_s))
        for pool, free in enumerate(self._free):
            if not waiting.heap:
                break
            moved = min(free, 1)
            while moved and (spare := free - counts.get(pool, 0)) and waiting.heap:
                least, _, worst = waiting.heap[0]
                one_more = (counts.get(pool, 0) + 1) * each_gb_s / factor[pool]
                if stays:
                    one_more = gb_s[pool] + one_more
                if worst == pool or one_more >= -least * least_gb_s[pool]:
                    break
                moved = min(moved, spare, counts[worst])
                before = asked[worst], asked[pool]
                _move(counts, worst, pool, moved)
                for at in (worst, pool):
                    asked[at] = gb_s[at] + counts.get(at, 0) * each_gb_s / factor[at]
                there = self._slowdowns(asked, counts, span_s, (node[pool],))
                if max(there.values()) >= -least:
                    _move(counts, pool, worst, moved)
                    asked[worst], asked[pool] = before
                    moved //= 2  # twice as many at once as long as that helps, then half as many
                    continue
                if node[worst] != node[pool]:
                    there.update(self._slowdowns(asked, counts, span_s, (node[worst],)))
                waiting.update(there, None if worst in counts else worst)
                moved *= 2
        return waiting.slowdowns

    # --- how slow ----------------------------------------------------------------------------

    def _asked(self, counts: Counts, each_gb_s: ByPool) -> list[float]:
        """Return what is asked for in all pools, with the processes of a job (at factor 1)."""
        asked, factor = list(self._gb_s), self._pools.factor
        for pool, number in counts.items():
            asked[pool] += number * each_gb_s[pool] / factor[pool]
        return asked

    def _slowdowns(
        self, asked: Sequence[float], counts: Counts, span_s: float, nodes: Iterable[int] = ()
    ) -> ByPool:
        """Return how much bandwidth slows a job's processes, by pool, all nodes or some.

        Args:
            asked: in all pools, that job included.
            span_s: its run time on the fastest processors, by which neighbours may have ended.
        """
        pools, found = self._pools, {}
        for node in nodes or dict.fromkeys([pools.node[pool] for pool in counts]):
            members = pools.members[node]
            if len(members) == 1 and self._forecast is None:  # the most frequent case
                pool = members[0]
                if pool in counts:
                    found[pool] = pools.slowdowns(node, (asked[pool],))[0]
                continue
            all_gb_s = [asked[pool] for pool in members]
            slowdowns = pools.slowdowns(node, all_gb_s)
            if self._forecast is not None and max(slowdowns) > 1.0:
                own_gb_s = [asked[pool] - self._gb_s[pool] for pool in members]
                slowdowns = self._forecast.slowdowns(node, all_gb_s, own_gb_s, span_s)
            for pool, slowdown in zip(members, slowdowns, strict=True):
                if pool in counts:
                    found[pool] = slowdown
        return found

    def _frequencies(self, counts: Counts, each_gb_s: float, span_s: float) -> ByPool:
        """Return the frequencies at which all processes of a job end together (section IV-A-2).

        The steps: the critical process has the longest run time (1). The others ask for as much
        less as they are faster (2), by which neighbours may wait less (3). Each runs at the lowest
        level at which it is not later than the critical one (4).
        """
        factor = self._pools.factor
        asked = self._asked(counts, dict.fromkeys(counts, each_gb_s))
        slowdowns = self._slowdowns(asked, counts, span_s)
        times = {pool: factor[pool] * slowdown for pool, slowdown in slowdowns.items()}
        longest = max(times.values())
        own = {pool: each_gb_s * time / longest for pool, time in times.items()}
        levels = [ghz for ghz, _ in self._site.levels]
        found = {}
        for pool, slowdown in self._slowdowns(self._asked(counts, own), counts, span_s).items():
            least = factor[pool] * slowdown / longest * levels[-1] * (1.0 - 1e-12)
            level = min(bisect_left(levels, least), len(levels) - 1)
            found[pool] = levels[level] / levels[-1]
        return found


def _move(counts: Counts, source: int, target: int, number: int) -> None:
    """Move some processes."""
    counts[source] -= number
    if not counts[source]:
        del counts[source]
    counts[target] = counts.get(target, 0) + number


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
