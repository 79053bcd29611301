"""Exchanging narrow and wide: a look ahead on a handful of jobs.

Where sizes are coarse, nodes are left over that no equal share can use, or some jobs are ahead of
others. If the wide places go round, all end together: nine jobs on 20 nodes at sizes 1, 2, 4 take
1,248 s at 2 nodes each, 1,177 s if each has four nodes for a ninth of the time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class RotationJob:
    """A job as far as a rotation looks at it.

    Attributes:
        left: share still to be done.
        size: nodes it has.
        times: run time of the whole job at each size, sizes rising.
        price_s: what a resize costs it.
        lag_s: how long it takes until a job stands where it can be resized.
    """

    left: float
    size: int
    times: dict[int, float]
    price_s: float
    lag_s: float = 0.0


def rotates(lanes: Sequence[RotationJob], free: int, since_s: float) -> list[int]:
    """Return the size each job should have now: its own, but where an exchange pays and is due.

    Args:
        lanes: all running jobs.
        free: nodes nobody holds.
        since_s: time since the last of them changed its size.
    """
    stay = [lane.size for lane in lanes]
    nodes = free + sum(stay)
    ahead = [lane.left for lane in lanes]
    if fill(lanes, ahead, nodes) == stay:
        return stay
    still_s = _span(lanes, nodes, inf)
    most = max(ahead)
    behind = sum(left > most - 1e-6 for left in ahead)
    shares = sorted({behind, behind + 1, len(lanes), 2 * len(lanes)})
    # One after the other: who is ahead gives nodes away, then who is behind takes them.
    change_s = 2 * max(lane.price_s for lane in lanes) + max(lane.lag_s for lane in lanes)
    if since_s + change_s < still_s / shares[-1] - 1e-6:
        return stay
    best_s, every_s = min((_span(lanes, nodes, still_s / k), still_s / k) for k in shares)
    if best_s >= still_s - 1e-6 or since_s + change_s < every_s * best_s / still_s - 1e-6:
        return stay
    return fill(lanes, ahead, nodes)


def fill(lanes: Sequence[RotationJob], left: Sequence[float], nodes: int) -> list[int]:
    """Return the sizes if all start narrow and whoever has longest to go is widened."""
    sizes = [next(iter(lane.times)) for lane in lanes]
    spare = nodes - sum(sizes)
    heap = [(-left[at] * lanes[at].times[size], at) for at, size in enumerate(sizes)]
    heapq.heapify(heap)
    while heap and spare > 0:
        _, at = heap[0]
        wider = _wider(lanes[at], sizes[at])
        if wider is None or wider - sizes[at] > spare or left[at] <= 0:
            heapq.heappop(heap)
            continue
        spare -= wider - sizes[at]
        sizes[at] = wider
        heapq.heapreplace(heap, (-left[at] * lanes[at].times[wider], at))
    return sizes


def _span(lanes: Sequence[RotationJob], nodes: int, every_s: float) -> float:
    """Return the time to the last end if sizes are dealt out anew that often.

    Without an interval, sizes only grow, when a job ends and where that pays.
    """
    left = [lane.left for lane in lanes]
    sizes = [lane.size for lane in lanes]
    alive = list(range(len(lanes)))
    at_s, first = 0.0, True
    while alive:
        some = [lanes[at] for at in alive]
        if every_s < inf:
            # The exchange looked at is due now, not when it is looked at next.
            wanted = fill(some, [left[at] for at in alive], nodes)
        else:
            wanted = (
                [sizes[at] for at in alive] if first else _grow(some, alive, left, sizes, nodes)
            )
        first = False
        shrink_s = max(
            [lanes[at].price_s for at, n in zip(alive, wanted, strict=True) if n < sizes[at]],
            default=0.0,
        )
        # Of each: how long it goes on as it is, when it is at its new size, when it ends.
        plans = {}
        for at, size in zip(alive, wanted, strict=True):
            lane, old = lanes[at], lanes[at].times[sizes[at]]
            waits = size > sizes[at] and shrink_s > 0
            on_s = shrink_s + lane.lag_s if waits else 0.0
            there_s = 0.0 if size == sizes[at] else on_s + lane.price_s
            rest = max(0.0, left[at] - on_s / old)
            plans[at] = on_s, there_s, there_s + rest * lane.times[size], old
        step = min(every_s, min(plan[2] for plan in plans.values()))
        for at, size in zip(alive, wanted, strict=True):
            on_s, there_s, _, old = plans[at]
            left[at] -= min(step, on_s) / old + max(0.0, step - there_s) / lanes[at].times[size]
            sizes[at] = size
        at_s += step
        alive = [at for at in alive if left[at] > 1e-9]
    return at_s


def _grow(
    some: Sequence[RotationJob],
    alive: Sequence[int],
    left: Sequence[float],
    sizes: list[int],
    nodes: int,
) -> list[int]:
    """Return sizes grown into what is spare, longest to go first, where it saves the price."""
    now = [sizes[at] for at in alive]
    spare = nodes - sum(now)
    for at in sorted(range(len(some)), key=lambda i: -left[alive[i]] * some[i].times[now[i]]):
        while (wider := _wider(some[at], now[at])) is not None and wider - now[at] <= spare:
            times = some[at].times
            if left[alive[at]] * (times[now[at]] - times[wider]) <= some[at].price_s:
                break
            spare -= wider - now[at]
            now[at] = wider
    return now


def _wider(lane: RotationJob, size: int) -> int | None:
    sizes = list(lane.times)
    at = bisect_right(sizes, size)
    return sizes[at] if at < len(sizes) else None
