"""EASY backfilling on counted processors and nothing else: the yardstick of the engine.

A plain loop over submissions and ends, by lists of numbers, with a pass after every one: no
placement, resizes, power, checks or books, and one policy. It starts every job when ``rms simulate
--policy easy`` does on a trace of fixed jobs; ``scripts/bench/scheduling`` checks that.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple


class BareJob(NamedTuple):
    """A job of a trace."""

    submit_s: float
    size: int
    run_s: float
    requested_s: float


def starts_s(jobs: Sequence[BareJob], processors: int) -> list[float]:
    """Return the starts of jobs, which are rising in ``submit_s`` and fit on ``processors``."""
    starts = [inf] * len(jobs)
    free, arrived = processors, 0
    waiting: list[int] = []  # numbers of jobs, in the order in which they came
    running: list[tuple[float, int]] = []  # when they should end by what they requested, rising
    ends: list[tuple[float, int, int]] = []  # a heap: when they do end, in the order of starts
    begun = 0

    def begin(number: int, now: float) -> None:
        nonlocal free, begun
        _, size, run_s, requested_s = jobs[number]
        starts[number] = now
        free -= size
        begun += 1
        heappush(ends, (now + run_s, begun, number))
        insort(running, (now + requested_s, number))

    while arrived < len(jobs) or ends:
        if arrived < len(jobs) and (not ends or jobs[arrived].submit_s <= ends[0][0]):
            now = jobs[arrived].submit_s
            waiting.append(arrived)
            arrived += 1
        else:
            now, _, number = heappop(ends)
            free += jobs[number].size
            del running[bisect_left(running, (starts[number] + jobs[number].requested_s, number))]
        if not waiting:
            continue
        room, head = _room(jobs, running, free, now), 0
        while head < len(waiting) and jobs[waiting[head]].size <= room:
            room -= jobs[waiting[head]].size
            begin(waiting[head], now)
            head += 1
        del waiting[:head]
        if len(waiting) < 2 or room <= 0:
            continue
        shadow, extra = _reservation(jobs, running, free, jobs[waiting[0]].size, now)
        for number in waiting[1:]:
            _, size, _, requested_s = jobs[number]
            if size > room:
                continue
            if now + requested_s > shadow:
                if size > extra:
                    continue
                extra -= size
            room -= size
            begin(number, now)
            del waiting[bisect_left(waiting, number)]
            if room <= 0:
                break
    return starts


def _room(jobs: Sequence[BareJob], running: list[tuple[float, int]], free: int, now: float) -> int:
    """Return the number of free processors if all jobs end that should by now."""
    for end, number in running:
        if end > now:
            break
        free += jobs[number].size
    return free


def _reservation(
    jobs: Sequence[BareJob], running: list[tuple[float, int]], free: int, need: int, now: float
) -> tuple[float, int]:
    """Return the time at which the first waiting job can start, and the processors left free."""
    shadow = inf
    for end, number in running:
        if end > shadow:
            break
        free += jobs[number].size
        if shadow == inf and free >= need:
            shadow = max(end, now)
    return shadow, free - need if shadow < inf else 0
