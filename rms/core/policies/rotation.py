"""Rotation: which jobs should be large now, so that all end together; a look ahead on a few jobs.

Where sizes are coarse, nodes are left over that no equal share can use, or some jobs have less left
to do than others. If the jobs take turns at the larger size, all end together: nine jobs on 20
nodes at sizes 1, 2, 4 take 1,248 s at 2 nodes each, 1,177 s if each has four nodes for a ninth of
the time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class RotationJob:
    """A running job as far as a rotation looks at it.

    Attributes:
        remaining: share still to be done, from 0 to 1.
        size: nodes it has.
        time_s: run time of the whole job at each size, sizes rising.
        resize_price_s: what a resize costs it.
        resize_delay_s: how long it takes until the job is at a resize point.
    """

    remaining: float
    size: int
    time_s: dict[int, float]
    resize_price_s: float
    resize_delay_s: float = 0.0


def rotation_sizes(jobs: Sequence[RotationJob], free: int, since_last_resize_s: float) -> list[int]:
    """Return the size each job should have now: its own, unless an exchange pays and is due.

    Args:
        jobs: all running jobs.
        free: nodes nobody holds.
        since_last_resize_s: time since the last of them changed its size.
    """
    present = [job.size for job in jobs]
    nodes = free + sum(present)
    remaining = [job.remaining for job in jobs]
    if largest_to_longest(jobs, remaining, nodes) == present:
        return present
    unchanged_s = _time_to_last_end(jobs, nodes, inf)
    most = max(remaining)
    longest = sum(share > most - 1e-6 for share in remaining)
    turns = sorted({longest, longest + 1, len(jobs), 2 * len(jobs)})
    # One after the other: first the shrinks, then the expansions into the nodes they free.
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
    """Return the sizes if all start at their smallest and the job with longest to go is expanded.

    Args:
        remaining: share of each job that is still to be done.
        nodes: how many nodes the jobs have together.
    """
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
            # The exchange looked at is due now, not when it is looked at next.
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
    # Of each: how long it runs at its old size, when it runs at the new one, and when it ends.
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
    """Return sizes grown into what is spare, longest to go first, where it saves the price."""
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
