"""Lower bounds of the mean turnaround of a stream of jobs, of schedules with full foresight too.

On n of its allowed sizes a job holds n nodes and does 1 / t(n) of itself a second. Let W be the
least of n t(n) over these sizes, in node-seconds, and T the least of t(n). A job that does the
share p of itself a second then has p <= 1 / T and holds at least W p nodes, whatever its sizes
over time, and what a resize costs only adds to that. Every schedule on N nodes is thus one of this
relaxation: shares p_j(t) >= 0 from the submission r_j on, whose integral is 1, with p_j <= 1 / T_j
and the sum of W_j p_j at most N. The bounds are optima of further relaxations of it, or values of
feasible solutions of a dual; the largest holds. They are of sums: the largest of a single job would
not hold, as it may be small for one job because it is large for others.

- :func:`alone`: without the capacity N.
- :func:`shortest_remaining`: without p <= 1 / T.
- :func:`mean_busy`: all of it, by mean busy times.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Collection, Sequence
from statistics import fmean
from typing import NamedTuple

from rms.core.model.jobs import JobSpec


class Work(NamedTuple):
    """A job's submission, least node-seconds (W) and least run time (T) over its sizes."""

    submit_s: float
    node_s: float
    time_s: float


def turnaround_bound_s(specs: Sequence[JobSpec], nodes: int) -> float:
    """Return the largest of the bounds on the mean turnaround, 0 if no job can start.

    Jobs that are too large for the cluster do not count, as they never start.
    """
    return max(turnaround_bounds_s(specs, nodes).values())


def turnaround_bounds_s(specs: Sequence[JobSpec], nodes: int) -> dict[str, float]:
    """Return the bounds by name."""
    works = least_works(specs, nodes)
    return {
        "alone": alone(works),
        "shortest remaining": shortest_remaining(works, nodes),
        "mean busy": max(mean_busy(works, nodes, speed) for speed in SPEEDS),
    }


def least_works(specs: Sequence[JobSpec], nodes: int) -> list[Work]:
    """Return the least work of the jobs that can start, by their submissions."""
    return sorted(_least_work(spec, nodes) for spec in specs if spec.smallest_start <= nodes)


def _least_work(spec: JobSpec, nodes: int) -> Work:
    pairs = []
    for size in _extreme_sizes(spec, nodes):
        time_s = spec.time_s(size)
        if time_s is None:
            raise ValueError(f"expected a run time of job {spec.id} for a bound, got none")
        pairs.append((size * time_s, time_s))
    return Work(spec.submit_s, min(node_s for node_s, _ in pairs), min(s for _, s in pairs))


def _extreme_sizes(spec: JobSpec, nodes: int) -> Collection[int]:
    """Return sizes that contain those of the least n t(n) and of the least t(n).

    Between two of them t(n) = a + b / n: it is monotone, and n t(n) linear.
    """
    if not (spec.mode.any_start or spec.mode.resizable):
        return (spec.preferred,)
    sizes = spec.sizes()
    largest = sizes[bisect_right(sizes, nodes) - 1]
    stated = () if spec.speedup is None else spec.speedup.nodes
    return {sizes[0], largest, *(n for n in stated if n <= nodes and n in sizes)}


def alone(works: Sequence[Work]) -> float:
    """Return the mean turnaround of jobs that have the cluster to themselves: that of T."""
    return fmean(work.time_s for work in works) if works else 0.0


def shortest_remaining(works: Sequence[Work], nodes: int) -> float:
    """Return the mean turnaround on one machine that does N node-seconds a second.

    Its jobs can be interrupted at no cost: the shortest remaining first is optimal (Schrage,
    Operations Research 16(3), 1968, 687-690).
    """
    waiting: list[tuple[float, float]] = []
    turnarounds: list[float] = []
    now = 0.0
    for at, (submit_s, node_s, _) in enumerate(works):
        now = max(now, submit_s)
        heapq.heappush(waiting, (node_s, submit_s))
        until = works[at + 1].submit_s if at + 1 < len(works) else float("inf")
        while waiting and now < until:
            left, since_s = heapq.heappop(waiting)
            end = now + left / nodes
            if end > until:
                heapq.heappush(waiting, (left - (until - now) * nodes, since_s))
                break
            now = end
            turnarounds.append(end - since_s)
    return fmean(turnarounds) if turnarounds else 0.0


SPEEDS = (1.0, 1.1, 1.5)
"""Speeds of the machines whose prices are tried, over the cluster's."""


def mean_busy(works: Sequence[Work], nodes: int, speed: float = 1.0) -> float:
    """Return a bound by mean busy times, which takes account of how wide jobs can be.

    A job has the mean busy time M, the integral of t p(t). Its last share ends at C, and p is at
    most 1 / T, so C >= M + T / 2 (Eastman, Even, Isaacs, Management Science 11(2), 1964, 268-279).
    For every price b(t) >= 0 of a node-second at t, the sum of all M is at least

        sum over j of min { integral of p_j(t) g_j(t) } - N integral of b, g_j(t) = t + W_j b(t),

    since the integral of b(t) (N - sum of W_j p_j(t)) is not negative (a Lagrangian relaxation).

    Prices come from a machine that always serves the job of the least W, of the whole and not of
    the rest. Without p <= 1 / T that makes the sum of all M least (Goemans, Queyranne, Schulz,
    Skutella, Wang, SIAM Journal on Discrete Mathematics 15(2), 2002, 165-192). Let E_j be the end
    of j there. Then b(E_j) = b(E_k) + (E_k - E_j) / W_k, where k has the least W of those that wait
    at E_j and came before it, and 0 where none does; b falls by 1 / W_j a second while j is served.
    No g_j(t) from r_j on is below G_j = E_j + W_j b(E_j): before E_j only jobs of at most W_j are
    served, so b falls at least as fast as j lets it fall; after E_j those that waited are of at
    least W_j, so it falls at most as fast, and a job that comes later can only raise it. The
    integral of b times the machine's speed is the sum of G_j - M_j there.

    With p <= 1 / T the minimum is larger than G_j: g_j(t) >= max(G_j, t), which does not fall, so p
    is 1 / T from r_j to r_j + T. That adds (r_j + T - G_j)^2 / (2 T) where r_j + T is above G_j.

    Args:
        speed: of the machine whose prices are taken, over that of the cluster. At 1 they are the
            optimum without p <= 1 / T; the higher, the more the bound is that of :func:`alone`.
    """
    served = [work for work in works if work.node_s > 0.0]
    if not served:
        return 0.0
    ends = _serve_least(served, speed * nodes)
    price: dict[int, float] = {}
    total = 0.0
    for job in reversed(ends):
        end_s, after, mean_s = ends[job]
        submit_s, node_s, time_s = served[job]
        if after is None:
            price[job] = 0.0
        else:
            price[job] = price[after] + (ends[after].end_s - end_s) / served[after].node_s
        least_s = end_s + node_s * price[job]
        capped_s = max(0.0, submit_s + time_s - least_s)
        total += least_s - submit_s + time_s / 2.0 + capped_s * capped_s / (2.0 * time_s)
        total -= (least_s - mean_s) / speed
    return total / len(works)


class _End(NamedTuple):
    """The end of a job, the next job among those that wait then, and its mean busy time."""

    end_s: float
    after: int | None
    mean_s: float


def _serve_least(works: Sequence[Work], nodes: float) -> dict[int, _End]:
    """Serve the job of the least W, which can be interrupted; return the ends in their order."""
    waiting: list[tuple[float, int]] = []
    left = [work.node_s for work in works]
    moments = [0.0] * len(works)  # integrals of t p(t) so far
    ends: dict[int, _End] = {}
    now = 0.0
    for at, work in enumerate(works):
        now = max(now, work.submit_s)
        heapq.heappush(waiting, (work.node_s, at))
        until = works[at + 1].submit_s if at + 1 < len(works) else float("inf")
        while waiting and now < until:
            whole, job = waiting[0]
            end = now + left[job] / nodes
            stop = min(end, until)
            moments[job] += (stop - now) * nodes / whole * (now + stop) / 2.0
            if end > until:
                left[job] -= (until - now) * nodes
                break
            heapq.heappop(waiting)
            after = waiting[0][1] if waiting else None
            ends[job] = _End(end, after, moments[job])
            now = end
    return ends
