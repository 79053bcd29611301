"""Which processes of a job wait most for bandwidth, while a placement moves them about."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

ByPool = dict[int, float]
"""A figure of the processes in each pool."""


class Waiting:
    """How much bandwidth slows the processes of a job, and where it does most.

    Attributes:
        slowdowns: by pool.
        heap: those above 1, the highest first (negated; of equal ones the pool that is longest in
            ``slowdowns``); the first is valid.
    """

    __slots__ = ("_number", "_since", "heap", "slowdowns")

    def __init__(self, slowdowns: ByPool) -> None:
        self.slowdowns = slowdowns
        self._since = {pool: at for at, pool in enumerate(slowdowns)}
        self._number = len(slowdowns)
        self.heap = [(-s, self._since[p], p) for p, s in slowdowns.items() if s > 1.0]
        heapify(self.heap)

    def update(self, slowdowns: ByPool, gone: int | None) -> None:
        """Enter what is new of some pools; one may have no process any more."""
        heap, known, since = self.heap, self.slowdowns, self._since
        if gone is not None:
            del known[gone]
        for pool, slowdown in slowdowns.items():
            if pool not in known:
                since[pool] = self._number
                self._number += 1
            known[pool] = slowdown
            if slowdown > 1.0:
                heappush(heap, (-slowdown, since[pool], pool))
        while heap:
            slowdown, at, pool = heap[0]
            if known.get(pool) == -slowdown and since[pool] == at:
                break
            heappop(heap)
