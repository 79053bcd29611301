"""Placements on nodes whose processes share memory bandwidth (Guim et al., section IV-A).

``first-fit-shared`` takes the first free processors, ``less-consume`` those where the bandwidth
expected to be asked for slows the job least. Both may set frequencies (``power_aware``): a process
that would wait for slower ones of its job runs slower itself.

What a placement expects of bandwidth is what is asked for now, by what is said of each job: it
does not look ahead to the ends of neighbours.
"""

from __future__ import annotations

from itertools import accumulate
from math import inf
from typing import ClassVar, NamedTuple

import msgspec

from rms.core.contention import Pools
from rms.core.model import Job, Node, Site
from rms.core.state import State

Counts = dict[int, int]
"""Processes by pool."""


class Offer(NamedTuple):
    """Where a job could start now.

    Attributes:
        slowdown: how much longer than stated it is expected to run.
    """

    counts: Counts
    slowdown: float


class SharedRoom:
    """Free processors of shared nodes during one pass."""

    __slots__ = (
        "_asleep",
        "_free",
        "_gb_s",
        "_how",
        "_offers",
        "_pools",
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
        self._offers: dict[tuple[int, float], Offer] = {}

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` processors now."""
        if size > self.free:
            return False
        most = self._how.threshold
        # On an empty cluster it starts however slow: it would never be faster.
        return most == inf or self._bandwidth_fits(job, size, most)

    def _bandwidth_fits(self, job: Job, size: int, most: float) -> bool:
        offer = self.offer(job, size)
        slowest = max(self._slowdowns(offer.counts, job.spec.planned_gb_s).values())
        return slowest <= most or self.free == self._site.nodes

    @property
    def tiers(self) -> list[tuple[int, float]]:
        """How many processors are free that are at least so fast, and that factor, rising."""
        found: dict[float, int] = {}
        for factor, free in zip(self._pools.factor, self._free, strict=True):
            found[factor] = found.get(factor, 0) + free
        rising = sorted(found)
        return list(zip(accumulate([found[factor] for factor in rising]), rising, strict=True))

    def offer(self, job: Job, size: int) -> Offer:
        """Return where the job would start now and what is expected of it there."""
        how, each_gb_s = self._how, job.spec.planned_gb_s
        found = self._offers.get((size, each_gb_s))
        if found is None:
            counts = self._first(size, how.fastest_first)
            if how.least_bandwidth:
                self._improve(counts, each_gb_s)
            factor = self._pools.factor
            slowdown = max([factor[pool] for pool in counts])
            if how.least_bandwidth:
                slowdown = max(self._times(counts, each_gb_s).values())
            found = Offer(counts, slowdown)
            self._offers[size, each_gb_s] = found
        return found

    def slowdown(self, job: Job, size: int) -> float:
        """Return how much longer than stated a job is expected to run that starts now."""
        return self.offer(job, size).slowdown

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take processors for a job that fits."""
        return self.take(job, size)[0]

    def take(self, job: Job, size: int) -> tuple[tuple[Node, ...], tuple[float, ...]]:
        """Take processors for a job that fits; return the frequency on each too (see ``Start``)."""
        counts, pools, each_gb_s = self.offer(job, size).counts, self._pools, job.spec.planned_gb_s
        shares = self._frequencies(counts, each_gb_s) if self.power_aware else {}
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
        self._vacant = vacant
        self.free -= size
        self._offers.clear()
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

    def _improve(self, counts: Counts, each_gb_s: float) -> None:
        """Move processes from where they wait most for memory to where they wait less.

        Pools with free processors are tried once each, in order, until all have been or nobody
        waits (section IV-A-1).
        """
        pools, found = self._pools, self._slowdowns(counts, each_gb_s)
        node, worst = pools.node, max(found, key=found.__getitem__)
        for pool, free in enumerate(self._free):
            if not free:
                continue
            moved = 1
            while moved and (spare := free - counts.get(pool, 0)):
                most = found[worst]
                if most <= 1.0:
                    return
                asked = (
                    self._gb_s[pool] + (counts.get(pool, 0) + 1) * each_gb_s / pools.factor[pool]
                )
                if worst == pool or asked >= most * pools.least_gb_s[pool]:
                    break
                moved = min(moved, spare, counts[worst])
                _move(counts, worst, pool, moved)
                there = self._slowdowns(counts, each_gb_s, (node[pool],))
                if max(there.values()) >= most:
                    _move(counts, pool, worst, moved)
                    moved //= 2  # twice as many at once as long as that helps, then half as many
                    continue
                found.update(there)
                found.update(self._slowdowns(counts, each_gb_s, (node[worst],)))
                if worst not in counts:
                    del found[worst]
                worst = max(found, key=found.__getitem__)
                moved *= 2

    # --- how slow ----------------------------------------------------------------------------

    def _slowdowns(
        self, counts: Counts, each_gb_s: float, nodes: tuple[int, ...] | None = None
    ) -> dict[int, float]:
        """Return how much bandwidth slows a job's processes, by pool, all nodes or some."""
        return self._asking(counts, dict.fromkeys(counts, each_gb_s), nodes)

    def _asking(
        self, counts: Counts, each_gb_s: dict[int, float], nodes: tuple[int, ...] | None = None
    ) -> dict[int, float]:
        """The same where processes of each pool ask for another bandwidth (factor 1)."""
        pools, gb_s, found = self._pools, self._gb_s, {}
        for node in nodes or dict.fromkeys([pools.node[pool] for pool in counts]):
            members = pools.members[node]
            if len(members) == 1:
                pool = members[0]
                if pool not in counts:
                    continue  # its last process has just been moved away
                asked = gb_s[pool] + counts[pool] * each_gb_s[pool] / pools.factor[pool]
                if asked <= pools.least_gb_s[pool]:
                    found[pool] = 1.0  # the most frequent case
                    continue
            demands = [
                gb_s[pool] + counts[pool] * each_gb_s[pool] / pools.factor[pool]
                if pool in counts
                else gb_s[pool]
                for pool in members
            ]
            for pool, slowdown in zip(members, pools.slowdowns(node, demands), strict=True):
                if pool in counts:
                    found[pool] = slowdown
        return found

    def _times(self, counts: Counts, each_gb_s: float) -> dict[int, float]:
        """Return the run time of a job's processes over what is stated, by pool."""
        factor = self._pools.factor
        found = self._slowdowns(counts, each_gb_s)
        return {pool: factor[pool] * slowdown for pool, slowdown in found.items()}

    def _frequencies(self, counts: Counts, each_gb_s: float) -> dict[int, float]:
        """Return the frequencies at which all processes of a job end together (section IV-A-2).

        The steps: the critical process has the longest run time (1). The others ask for as much
        less as they are faster (2), by which neighbours may wait less (3). Each runs at the lowest
        level at which it is not later than the critical one (4).
        """
        times = self._times(counts, each_gb_s)
        longest = max(times.values())
        asked = {pool: each_gb_s * time / longest for pool, time in times.items()}
        factor, levels = self._pools.factor, self._site.levels
        highest = levels[-1][0]
        found = {}
        for pool, slowdown in self._asking(counts, asked).items():
            share = factor[pool] * slowdown / longest
            least = share * highest * (1.0 - 1e-12)
            found[pool] = next((ghz for ghz, _ in levels if ghz >= least), highest) / highest
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

    def __call__(self, state: State) -> SharedRoom:
        """Open the room of a pass."""
        return SharedRoom(state, self)


class LessConsume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The processors where bandwidth slows a job least, which expected run times follow.

    Attributes:
        power_aware, fastest_first: as above.
        threshold: a job waits that bandwidth would slow by more (``LessConsume-Threshold``).
    """

    power_aware: bool = False
    fastest_first: bool = False
    threshold: float = inf

    shared: ClassVar[bool] = True
    least_bandwidth: ClassVar[bool] = True

    def __call__(self, state: State) -> SharedRoom:
        """Open the room of a pass."""
        return SharedRoom(state, self)
