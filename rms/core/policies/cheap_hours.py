"""Widths of a job over hours whose electricity differs in price or in carbon.

A job that has to be over by its deadline runs wide in cheap hours, and narrow or not at all in dear
ones. The cost of a node in an hour is its power times the value of the hour (its price, or carbon
intensity); a further node is worth taking where the work that it adds costs least: the *marginal
throughput* for each node and hour (Hanafy et al., "CarbonScaler", POMACS 7(3) 57, 2023, section 4).

:func:`cheapest` takes these steps in rising order of their cost until the work is done. A step of
an efficient size is never cheaper than the one before it (:func:`efficient_sizes`), so no other
schedule costs less: it is the greedy solution of a fractional knapsack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import inf
from typing import NamedTuple

DONE = 1e-9
"""Share of a job that counts as rounding."""


class Width(NamedTuple):
    """A size at which a job may run.

    Attributes:
        nodes: the size.
        rate: share of the whole job that it does in a second.
        watts: power of all its nodes, or their number where no power is stated.
    """

    nodes: int
    rate: float
    watts: float


class Hour(NamedTuple):
    """A time with one price or carbon intensity."""

    begin_s: float
    end_s: float
    value: float


class Piece(NamedTuple):
    """A time in which a job has one size."""

    begin_s: float
    end_s: float
    width: Width


@dataclass(frozen=True)
class HourlySizes:
    """The sizes of a job over time.

    Attributes:
        pieces: by time; there are none where the job pauses.
        cost: sum of watts x seconds x value.
        done: share of the whole job.
    """

    pieces: tuple[Piece, ...]
    cost: float
    done: float

    @property
    def end_s(self) -> float:
        """The end of the last piece; -inf without one."""
        return self.pieces[-1].end_s if self.pieces else -inf

    @property
    def resizes(self) -> int:
        """The number of changes of size, pauses included."""
        return sum(
            old.width.nodes != new.width.nodes or old.end_s != new.begin_s
            for old, new in pairwise(self.pieces)
        )

    def size_at(self, at_s: float) -> int:
        """Return the number of nodes at a time, 0 for none."""
        for begin_s, end_s, width in self.pieces:
            if begin_s <= at_s < end_s:
                return width.nodes
        return 0


# --- sizes ---------------------------------------------------------------------------------------


def efficient_sizes(widths: Iterable[Width]) -> tuple[Width, ...]:
    """Return the sizes of which none is slower and draws no less than a mixture of others.

    Throughput over power is concave over them, from no node on, so the step to the next larger one
    adds less work per joule than the step before it.
    """
    hull: list[Width] = []
    for width in sorted(widths, key=lambda width: (width.watts, -width.rate)):
        if hull and width.rate <= hull[-1].rate:
            continue
        while hull and _slope(width, hull[-1]) >= _slope(hull[-1], hull[-2] if hull[1:] else None):
            hull.pop()
        hull.append(width)
    return tuple(hull)


def _slope(width: Width, before: Width | None) -> float:
    """Return the throughput that a step adds for each watt."""
    if before is None:
        return width.rate / width.watts if width.watts > 0.0 else inf
    watts = width.watts - before.watts
    return (width.rate - before.rate) / watts if watts > 0.0 else inf


# --- the greedy ----------------------------------------------------------------------------------


def cheapest(
    widths: Sequence[Width], hours: Sequence[Hour], work: float = 1.0, *, pauses: bool = True
) -> HourlySizes | None:
    """Return the sizes at which the work is done in these hours at the least cost, or None.

    Args:
        widths: efficient sizes, rising.
        hours: by time, none overlaps; the last one ends at the deadline. A value below 0 counts
            as 0.
        work: share of the whole job.
        pauses: the job may stop and go on later; else it runs from its start to its end.
    """
    if work <= DONE:
        return HourlySizes((), 0.0, 0.0)
    if pauses:
        return _greedy(widths, hours, work)
    best: HourlySizes | None = None
    for first in range(len(hours)):
        for last in range(first, len(hours)):
            window = hours[first : last + 1]
            if _most(widths[0], window[1:-1]) > work:
                break  # it is over before, however narrow
            made = _greedy(widths, window, work, runs=True)
            if made is not None and (best is None or made.cost < best.cost - DONE * abs(best.cost)):
                best = made
    return best


def _most(width: Width, hours: Sequence[Hour]) -> float:
    """Return the work of all of these hours at one size."""
    return width.rate * sum(end_s - begin_s for begin_s, end_s, _ in hours)


def _greedy(
    widths: Sequence[Width], hours: Sequence[Hour], work: float, *, runs: bool = False
) -> HourlySizes | None:
    """Return the cheapest sizes; with ``runs`` the job does not pause but in the outer hours."""
    if _most(widths[-1], hours) < work - DONE:
        return None
    inner = range(1, len(hours) - 1) if runs else range(0)
    levels = [int(at in inner) for at in range(len(hours))]
    done = _most(widths[0], hours[1:-1]) if inner else 0.0
    steps: list[tuple[float, int, int, float]] = []
    for at, (_, _, value) in enumerate(hours):
        least = levels[at]
        before = widths[0] if least else None
        for level, width in enumerate(widths[least:], least + 1):
            slope = _slope(width, before)
            steps.append((max(0.0, value) / slope, level, at, width.rate))
            before = width
    steps.sort()
    share = 1.0
    last: int | None = None
    for _, level, at, rate in steps:
        if done >= work - DONE:
            break
        begin_s, end_s, _ = hours[at]
        more = (rate - (widths[level - 2].rate if level > 1 else 0.0)) * (end_s - begin_s)
        levels[at], last = level, at
        share = min(1.0, (work - done) / more)
        done += more * share
    pieces: list[Piece] = []
    for at, (begin_s, end_s, _) in enumerate(hours):
        level = levels[at]
        if not level:
            continue
        if at != last or share == 1.0:
            pieces.append(Piece(begin_s, end_s, widths[level - 1]))
            continue
        lower = widths[level - 2] if level > 1 else None
        wide_s = share * (end_s - begin_s)
        # Beside the size of the neighbour a change is saved.
        after = levels[at + 1] if at + 1 < len(hours) else 0
        if lower is not None and after == level and (at == 0 or levels[at - 1] != level):
            pieces.append(Piece(begin_s, end_s - wide_s, lower))
            pieces.append(Piece(end_s - wide_s, end_s, widths[level - 1]))
        elif lower is None and after and not (at and levels[at - 1]):
            pieces.append(Piece(end_s - wide_s, end_s, widths[level - 1]))
        else:
            pieces.append(Piece(begin_s, begin_s + wide_s, widths[level - 1]))
            if lower is not None:
                pieces.append(Piece(begin_s + wide_s, end_s, lower))
    return _joined(pieces, hours)


def _joined(pieces: Iterable[Piece], hours: Sequence[Hour]) -> HourlySizes:
    """Return sizes with their cost; pieces of one size that follow one another become one."""
    joined: list[Piece] = []
    cost = done = 0.0
    at = 0
    for piece in pieces:
        span_s = piece.end_s - piece.begin_s
        if span_s <= 0.0:
            continue
        while hours[at].end_s <= piece.begin_s:
            at += 1
        cost += span_s * piece.width.watts * hours[at].value
        done += span_s * piece.width.rate
        if joined and joined[-1].end_s == piece.begin_s and joined[-1].width is piece.width:
            joined[-1] = Piece(joined[-1].begin_s, piece.end_s, piece.width)
        else:
            joined.append(piece)
    return HourlySizes(tuple(joined), cost, done)


# --- a price of resizes --------------------------------------------------------------------------


def carried_out(
    levels: Sequence[Width | None],
    hours: Sequence[Hour],
    work: float,
    price_s: float = 0.0,
    before: Width | None = None,
) -> HourlySizes:
    """Return what a job does at one size an hour, until the work is done.

    A change of size, a restart after a pause included, holds its nodes for ``price_s`` without
    progress; the first start costs nothing.

    Args:
        levels: the size by hour, None for a pause.
        before: the size that the job has at first; None where it has not started.
    """
    pieces, cost, done = list[Piece](), 0.0, 0.0
    now, started = before, before is not None
    for (begin_s, end_s, value), width in zip(hours, levels, strict=True):
        if done >= work - DONE:
            break
        if width is not None:
            stall_s = price_s if started and now != width else 0.0
            span_s = min(end_s - begin_s, stall_s + (work - done) / width.rate)
            cost += span_s * width.watts * value
            done += max(0.0, span_s - stall_s) * width.rate
            pieces.append(Piece(begin_s, begin_s + span_s, width))
            started = True
        now = width
    return HourlySizes(tuple(pieces), cost, done)


def cheapest_by_hour(
    widths: Sequence[Width],
    hours: Sequence[Hour],
    work: float = 1.0,
    *,
    price_s: float = 0.0,
    before: Width | None = None,
    pauses: bool = True,
) -> HourlySizes | None:
    """Return one size an hour, at a low cost that includes a price of resizes, or None.

    Solutions without that price, of all widths, of the narrowest ones and of each alone, are the
    first tries. While another size in one hour, or in a row of hours that have one size, makes a
    try cheaper, the best such change is made.

    Args:
        price_s, before: as for :func:`carried_out`.
    """
    cost = partial(carried_out, hours=hours, work=work, price_s=price_s, before=before)
    best: HourlySizes | None = None
    subsets = [*(widths[:n] for n in range(len(widths), 1, -1)), *((width,) for width in widths)]
    for some in subsets:
        made = cheapest(some, hours, work, pauses=pauses)
        if made is None:
            continue
        levels = _complete(_by_hour(made, hours), widths, cost, work, pauses=pauses)
        if levels is not None:
            made = _improved(levels, widths, cost, work, pauses=pauses)
            if best is None or made.cost < best.cost - DONE * abs(best.cost):
                best = made
    return best


Levels = list[Width | None]
"""The size by hour; None for a pause."""


def _by_hour(made: HourlySizes, hours: Sequence[Hour]) -> Levels:
    """Return the largest size in each hour."""
    levels: Levels = [None] * len(hours)
    for at, (begin_s, end_s, _) in enumerate(hours):
        there = [p.width for p in made.pieces if p.begin_s < end_s and p.end_s > begin_s]
        levels[at] = max(there, key=lambda width: width.rate, default=None)
    return levels


def _complete(
    levels: Levels,
    widths: Sequence[Width],
    cost: Callable[[Levels], HourlySizes],
    work: float,
    *,
    pauses: bool,
) -> Levels | None:
    """Widen sizes, where that costs least for its work, until the work is done; None if never."""
    now = cost(levels)
    while now.done < work - DONE:
        tries: list[tuple[float, int, HourlySizes, Levels]] = []
        for changed in _changes(levels, widths, pauses=pauses, wider=True):
            made = cost(changed)
            if (more := made.done - now.done) > DONE:
                tries.append(((made.cost - now.cost) / more, len(tries), made, changed))
        if not tries:
            return None
        _, _, now, levels = min(tries)
    return levels


def _improved(
    levels: Levels,
    widths: Sequence[Width],
    cost: Callable[[Levels], HourlySizes],
    work: float,
    *,
    pauses: bool,
) -> HourlySizes:
    """Return the sizes after all changes that make them cheaper, the best first."""
    best = cost(levels)
    while True:
        better: Levels | None = None
        for changed in _changes(levels, widths, pauses=pauses):
            made = cost(changed)
            if made.done >= work - DONE and made.cost < best.cost - DONE * abs(best.cost):
                best, better = made, changed
        if better is None:
            return best
        levels = better


def _changes(
    levels: Sequence[Width | None],
    widths: Sequence[Width],
    *,
    pauses: bool,
    wider: bool = False,
) -> Iterable[Levels]:
    """Yield levels with another size in one hour or in a row of hours of one size."""
    rows = [(at, at + 1) for at in range(len(levels))]
    begin = 0
    for at in range(1, len(levels) + 1):
        if at == len(levels) or levels[at] != levels[begin]:
            if at - begin > 1:
                rows.append((begin, at))
            begin = at
    choices: Levels = [None, *widths]
    for first, last in rows:
        for width in choices:
            old = levels[first]
            if width == old or (wider and (width is None or (old and width.rate < old.rate))):
                continue
            changed = [*levels]
            changed[first:last] = [width] * (last - first)
            if pauses or _whole(changed):
                yield changed


def _whole(levels: Sequence[Width | None]) -> bool:
    """Return whether a job runs from its start to its end."""
    there = [at for at, width in enumerate(levels) if width is not None]
    return not there or there[-1] - there[0] == len(there) - 1
