"""Which processes of a job wait most for bandwidth, while a placement moves them about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from rms.core.contention import Pools

ByPool = dict[int, float]
"""A figure of the processes in each pool."""

Counts = dict[int, int]
"""Processes by pool."""

OnNode = Callable[[int, Sequence[float]], Sequence[float]]
"""How much bandwidth slows the processes in each pool of a node, given what is asked of all."""


def asked_with(
    pools: Pools, gb_s: Sequence[float], counts: Counts, each_gb_s: ByPool
) -> list[float]:
    """Return what is asked for in all pools, with the processes of a job (at factor 1)."""
    asked, factor = list(gb_s), pools.factor
    for pool, number in counts.items():
        asked[pool] += number * each_gb_s[pool] / factor[pool]
    return asked


def slowed(pools: Pools, counts: Counts, asked: Sequence[float], on_node: OnNode) -> ByPool:
    """Return how much bandwidth slows a job's processes, by pool."""
    found = {}
    for node in dict.fromkeys([pools.node[pool] for pool in counts]):
        for pool, slowdown in zip(pools.members[node], on_node(node, asked), strict=True):
            if pool in counts:
                found[pool] = slowdown
    return found


class Waiting:
    """How much bandwidth slows the processes of a job, and where it does most.

    Args:
        pools: the processors.
        counts: where its processes are; kept up to date.
        each_gb_s: what each asks for on the fastest processors.
        gb_s: what others ask for in each pool.
        on_node: how slow that makes them.

    Attributes:
        slowdowns: by pool.
        heap: those above 1, the highest first (negated; of equal ones the pool that is longest in
            ``slowdowns``); the first is valid.
    """

    __slots__ = (
        *("_asked", "_counts", "_each_gb_s", "_gb_s", "_number", "_on_node", "_pools", "_since"),
        *("heap", "slowdowns"),
    )

    def __init__(
        self, pools: Pools, counts: Counts, each_gb_s: float, gb_s: list[float], on_node: OnNode
    ) -> None:
        self._pools, self._counts, self._each_gb_s = pools, counts, each_gb_s
        self._gb_s, self._on_node = gb_s, on_node
        self._asked = asked_with(pools, gb_s, counts, dict.fromkeys(counts, each_gb_s))
        self.slowdowns = known = slowed(pools, counts, self._asked, on_node)
        self._since = {pool: at for at, pool in enumerate(known)}
        self._number = len(known)
        self.heap = [(-s, self._since[p], p) for p, s in known.items() if s > 1.0]
        heapify(self.heap)

    def move(self, source: int, target: int, number: int) -> bool:
        """Move processes if those of the target's node wait less then than who waits most now."""
        counts, asked, gb_s, pools = self._counts, self._asked, self._gb_s, self._pools
        each_gb_s, least, before = self._each_gb_s, self.heap[0][0], (asked[source], asked[target])
        here, left, node = counts.get(target, 0), counts[source] - number, pools.node[target]
        if left:
            counts[source] = left
        else:
            del counts[source]
        counts[target] = here + number
        asked[source] = gb_s[source] + left * each_gb_s / pools.factor[source]
        asked[target] = gb_s[target] + (here + number) * each_gb_s / pools.factor[target]
        found = self._on_node(node, asked)
        if max(found) >= -least:  # else that of no pool is, whoever is there
            for pool, slowdown in zip(pools.members[node], found, strict=True):
                if slowdown >= -least and pool in counts:
                    asked[source], asked[target] = before
                    if here:
                        counts[target] = here
                    else:
                        del counts[target]
                    counts[source] = left + number
                    return False
        heap, known, since = self.heap, self.slowdowns, self._since
        if not left:
            del known[source]
        self._enter(node, found)
        if pools.node[source] != node:
            node = pools.node[source]
            self._enter(node, self._on_node(node, asked))
        while heap:
            least, at, pool = heap[0]
            if known.get(pool) == -least and since[pool] == at:
                break
            heappop(heap)
        return True

    def _enter(self, node: int, slowdowns: Sequence[float]) -> None:
        """Enter how slow the processes of a node are now."""
        counts, known = self._counts, self.slowdowns
        for pool, slowdown in zip(self._pools.members[node], slowdowns, strict=True):
            if pool in counts:
                was = known.get(pool)
                if was != slowdown:
                    known[pool] = slowdown
                    if was is None:
                        self._since[pool] = self._number
                        self._number += 1
                    if slowdown > 1.0:
                        heappush(self.heap, (-slowdown, self._since[pool], pool))
