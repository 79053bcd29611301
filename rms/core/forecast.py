"""What will be asked of shared nodes, by when running jobs are expected to end.

The table of estimates of Guim et al. (section III-A): requested times and expected bandwidths, in
*windows* between two ends, in each of which what is asked for stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from rms.core.contention import parts
from rms.core.state import State


class Forecast:
    """When neighbours on each node are expected to end, and what is asked for no longer then.

    Who runs longer than expected is expected to go on, since nothing says until when.
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
        """Enter a job that is expected to run for so long from now."""
        factor, node = self._pools.factor, self._pools.node
        for (pool, frequency), number in counts.items():
            asked = left_s, pool, number * each_gb_s * frequency / factor[pool]
            self._ends.setdefault(node[pool], []).append(asked)

    def slowdowns(
        self, node: int, asked_gb_s: Sequence[float], own_gb_s: Sequence[float], span_s: float
    ) -> list[float]:
        """Return how much bandwidth slows a job's processes in each pool of a node, all in all.

        Args:
            asked_gb_s: what is asked for in each pool now, that job included.
            own_gb_s: what the job asks for in each.
            span_s: its run time on the fastest processors; where none is known, what is asked for
                now counts.
        """
        pools = self._pools
        if not 0.0 < span_s < inf:
            return pools.slowdowns(node, asked_gb_s)
        members, asked = pools.members[node], list(asked_gb_s)
        alone_s = [span_s * pools.factor[pool] for pool in members]
        left, found = dict(enumerate(alone_s)), [1.0] * len(members)
        at_s, ends = 0.0, iter(sorted(self._ends.get(node, ())))
        until_s, pool, gone_gb_s = next(ends, _NEVER)
        while left:
            slow = pools.slowdowns(node, asked)
            first = min(left, key=lambda member: left[member] * slow[member])
            own_end_s = at_s + left[first] * slow[first]
            end_s = min(own_end_s, until_s)
            for member in left:
                left[member] -= (end_s - at_s) / slow[member]
            at_s = end_s
            if own_end_s <= until_s:
                del left[first]
                found[first] = max(1.0, at_s / alone_s[first])
                asked[first] = max(0.0, asked[first] - own_gb_s[first])
            else:
                member = members.index(pool)
                asked[member] = max(0.0, asked[member] - gone_gb_s)
                until_s, pool, gone_gb_s = next(ends, _NEVER)
        return found


_NEVER = (inf, -1, 0.0)
