"""Shares of a device's energy by the measured activity of its owners.

The power of a device is fitted to the activity of all processes on its host, by least squares with
coefficients that are not negative::

    power = base + a cpu + b log(1 + cpu) + c instructions + d cycles + e misses + f gpu

with all figures per second; ``gpu`` is the time in which GPUs compute, which counts for a meter of
the whole node.

``base`` is the power without any activity. It belongs to the nodes, as their idle power does; the
rest is the owners', each with the fitted power of its own activity: by all figures (*counters*)
where the kernel counts instructions, else by processor time. The logarithm is for the parts of a
processor that any core wakes for all; owners share its power by processor time. What no job has
caused belongs to the idle nodes.

**The difference** between the measured energy of an interval and the fitted one is divided over the
base and the owners in proportion to the variances of their fitted energies: that of an owner is
``spread`` times it, squared, that of the base :data:`BASE_SPREAD` times it, squared. With ``v`` the
variance of a part and ``V`` the sum of all, the uncertainty that is left is ``v (1 - v / V)``. The
half-width is twice its root, at least the difference between the two ways. The spread of owners is
:data:`SPREADS`, or that of the fit's own residuals where it is larger.
No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log1p, sqrt
from typing import Literal, NamedTuple

import msgspec

from rms.wire.messages import Activity

Way = Literal["counters", "cpu time", "gpu time"]
"""What shares rest on."""

FEATURES: Mapping[Way, tuple[int, ...]] = {
    "counters": (0, 1, 2, 3, 4, 5, 6),
    "cpu time": (0, 1, 2, 6),
    "gpu time": (0, 1),
}
"""Places of the terms of a way, in the order of the law.

For the meter of a GPU the time in which it computes takes the place of processor time.
"""

FITTED: Sequence[Way] = ("counters", "cpu time")
"""Ways with residuals of their own; that by the time of a GPU is as by processor time."""

SPREADS: Mapping[Way, float] = {"counters": 0.07, "cpu time": 0.4, "gpu time": 0.4}
"""Least spread of the power of owners about the fit. Programs differ in power per second of a
processor by a third, as those of ``scripts/bench/shares`` do; less about a fit to counters."""

MOST_SPREAD = 10.0
"""Largest spread: above it the fit says nothing about the power of owners."""

BASE_SPREAD = 0.01
"""Spread of the base about the fitted one, as by temperature, and of readings of the meter."""

HALF_S = 1800.0
"""Half-life of observations in a fit."""

PRIOR_S = 4.0
"""Weight of the model's idle power in a fit, as of an idle host that was observed for so long."""

NUMBER, CURVED = 7, 2
"""Of terms, and the place of the logarithm."""

CURVED_PRIOR = 0.02
"""Growth of the diagonal element of the logarithm in a fit, which favours the linear terms: few
programs use less than a core, and those with more cannot tell its power from the base."""

SINGULAR = 1e-9
"""A pivot below this part of its diagonal element means that terms are linearly dependent."""

LEAST = 1e-12
"""A pivot below this value means that there is nearly nothing of a term."""


class Work(NamedTuple):
    """Activity in an interval.

    Attributes:
        counters: instructions, cycles and misses; None where they were not counted.
        gpu_s: time in which GPUs of the host compute, their sum.
    """

    cpu_s: float
    counters: tuple[float, float, float] | None
    gpu_s: float = 0.0

    @classmethod
    def sum(cls, works: Sequence[Work]) -> Work:
        """Return the sum of some activity, with counters if all have them."""
        counted = [each.counters for each in works if each.counters is not None]
        sums = [sum(column) for column in zip(*counted, strict=True)]
        whole = (sums[0], sums[1], sums[2]) if len(counted) == len(works) else None
        return cls(sum(each.cpu_s for each in works), whole, sum(each.gpu_s for each in works))


def terms_of(works: Iterable[Work], seconds: float) -> list[Sequence[float]]:
    """Return the terms of each owner without the base, in units in which they are about 1.

    Those of all owners are their sums.
    """
    works = list(works)
    cpu = sum(each.cpu_s for each in works) / seconds
    curved = log1p(cpu) / cpu if cpu else 1.0
    rows = list[Sequence[float]]()
    for each in works:
        own = each.cpu_s / seconds
        counted = [figure / seconds for figure in each.counters or (0.0, 0.0, 0.0)]
        counted = [counted[0] * 1e-9, counted[1] * 1e-9, counted[2] * 1e-7]
        rows.append((own, curved * own, *counted, each.gpu_s / seconds))
    return rows


def work(now: Activity, before: Activity | None) -> Work:
    """Return the activity of an owner between two reports of one agent."""
    figures = [(now.instructions, now.cycles, now.misses)]
    if before is not None:
        figures.append((before.instructions, before.cycles, before.misses))
    cpu_s, gpu_s = now.cpu_s, sum(now.gpu_s.values())
    if before is not None:
        cpu_s, gpu_s = cpu_s - before.cpu_s, gpu_s - sum(before.gpu_s.values())
    cpu_s, gpu_s = max(0.0, cpu_s), max(0.0, gpu_s)
    if any(figure is None for row in figures for figure in row):
        return Work(cpu_s, None, gpu_s)
    counted = [
        max(0.0, (own or 0.0) - sum(row[at] or 0.0 for row in figures[1:]))
        for at, own in enumerate(figures[0])
    ]
    return Work(cpu_s, (counted[0], counted[1], counted[2]), gpu_s)


class Fit(msgspec.Struct):
    """The fit of a device, kept between jobs and daemons.

    Attributes:
        xx: weighted sums of the products of two terms, row by row; weights are seconds.
        xy: of a term and the power, W.
        residuals: weighted sum of squared residuals, by way.
        dynamics: weighted sum of the squared fitted powers of owners, by way.
        seconds: sum of the weights.
        counted_s: of those with counters.
    """

    xx: list[list[float]] = msgspec.field(
        default_factory=lambda: [[0.0] * NUMBER for _ in range(NUMBER)]
    )
    xy: list[float] = msgspec.field(default_factory=lambda: [0.0] * NUMBER)
    residuals: dict[str, float] = {}
    dynamics: dict[str, float] = {}
    seconds: float = 0.0
    counted_s: float = 0.0

    def observe(self, seconds: float, joules: float, works: Iterable[Work], idle_w: float) -> None:
        """Take in an interval: the energy, and the activity of all processes by owner."""
        works = list(works)
        rows = terms_of(works, seconds)
        terms = [1.0, *(sum(column) for column in zip(*rows, strict=True))]
        terms += [0.0] * (NUMBER - len(terms))
        watts, counted = joules / seconds, all(each.counters is not None for each in works)
        kept = 0.5 ** (seconds / HALF_S)
        for way in FITTED if counted else FITTED[1:]:
            fitted = self.coefficients(way, idle_w)
            error_w = watts - sum(a * x for a, x in zip(fitted, terms, strict=True))
            own = [_dynamic(fitted, row) for row in rows]
            for sums, value in (
                (self.residuals, error_w**2),
                (self.dynamics, sum(each**2 for each in own)),
            ):
                sums[way] = kept * sums.get(way, 0.0) + seconds * value
        for at, own_term in enumerate(terms):
            self.xy[at] = kept * self.xy[at] + seconds * own_term * watts
            for other, term in enumerate(terms):
                self.xx[at][other] = kept * self.xx[at][other] + seconds * own_term * term
        self.seconds = kept * self.seconds + seconds
        self.counted_s = kept * self.counted_s + (seconds if counted else 0.0)

    def coefficients(self, way: Way, idle_w: float) -> list[float]:
        """Return the coefficients of all terms, those outside a way 0.

        Args:
            idle_w: the model's idle power, which counts where no idle time was observed.
        """
        xx, xy = [list(row) for row in self.xx], list(self.xy)
        xx[0][0] += PRIOR_S
        xy[0] += PRIOR_S * idle_w
        xx[CURVED][CURVED] *= 1.0 + CURVED_PRIOR
        return least_squares(xx, xy, FEATURES[way])

    def spread(self, way: Way) -> float:
        """Return the spread of the power of owners about the fit, as a part of it."""
        own = way if way in FITTED else FITTED[1]
        dynamics = self.dynamics.get(own, 0.0)
        seen = sqrt(self.residuals.get(own, 0.0) / dynamics) if dynamics else 0.0
        return max(SPREADS[way], min(seen, MOST_SPREAD))


def least_squares(
    xx: Sequence[Sequence[float]], xy: Sequence[float], terms: Sequence[int]
) -> list[float]:
    """Return the coefficients >= 0 with the least sum of squares, from the normal equations.

    The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23).
    Terms that depend linearly on others have 0.
    """
    best, used, left = [0.0] * len(xy), list[int](), [a for a in terms if xx[a][a] > LEAST]
    for _ in range(3 * len(terms)):  # rounding could let it go in circles
        if not left:
            break
        falls = {a: xy[a] - sum(xx[a][b] * best[b] for b in used) for a in left}
        term = max(left, key=lambda a: falls[a] / sqrt(xx[a][a]))
        if falls[term] <= SINGULAR * abs(xy[term]):
            break
        left.remove(term)
        solved = _solve_for(xx, xy, [*used, term])
        if solved is None or solved[-1] <= 0.0:
            continue
        used.append(term)
        while solved and min(solved) <= 0.0:  # go as far as no coefficient is below 0
            pairs = list(zip(used, solved, strict=True))
            steps = {a: best[a] / (best[a] - own) for a, own in pairs if own <= 0.0}
            step = min(steps.values())
            for a, own in pairs:
                best[a] += step * (own - best[a])
                if best[a] <= LEAST or steps.get(a) == step:
                    best[a] = 0.0
                    used.remove(a)
                    left.append(a)
            solved = _solve_for(xx, xy, used)
        for a, own in zip(used, solved or (), strict=True):
            best[a] = own
    return best


def _solve_for(
    xx: Sequence[Sequence[float]], xy: Sequence[float], terms: Sequence[int]
) -> list[float] | None:
    return _solve([[xx[a][b] for b in terms] for a in terms], [xy[a] for a in terms])


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Return the solution of a symmetric, positive system, None if it is singular."""
    size, lower = len(right), [[0.0] * len(right) for _ in right]
    for i in range(size):
        for j in range(i + 1):
            rest = matrix[i][j] - sum(lower[i][k] * lower[j][k] for k in range(j))
            if i != j:
                lower[i][j] = rest / lower[j][j]
            elif rest <= max(LEAST, SINGULAR * matrix[i][i]):
                return None
            else:
                lower[i][i] = sqrt(rest)
    half = list(right)
    for i in range(size):
        half[i] = (half[i] - sum(lower[i][k] * half[k] for k in range(i))) / lower[i][i]
    for i in reversed(range(size)):
        half[i] = (half[i] - sum(lower[k][i] * half[k] for k in range(i + 1, size))) / lower[i][i]
    return half


def _dynamic(coefficients: Sequence[float], figures: Sequence[float]) -> float:
    return sum(a * x for a, x in zip(coefficients[1:], figures, strict=True))


class Split(NamedTuple):
    """The energy of a device in an interval, by owner.

    Attributes:
        way: what it rests on.
        base_j: energy that no activity has caused.
        base_error_j: its half-width, about 95 %, without that of the meter.
        dynamic_j: the rest by owner, "" for the activity of no job.
        errors_j: its half-widths.
    """

    way: Way
    base_j: float
    base_error_j: float
    dynamic_j: dict[str, float]
    errors_j: dict[str, float]


def split(
    fit: Fit,
    seconds: float,
    joules: float,
    works: Mapping[str, Work],
    idle_w: float,
    *,
    gpu: bool = False,
) -> Split:
    """Split the energy of an interval over the base and the owners.

    Args:
        works: activity by owner, "" for that of no job.
        gpu: whether it is the time of a GPU, not of processors.
    """
    counted = fit.counted_s > 0.0 and all(each.counters is not None for each in works.values())
    ways: Sequence[Way] = ("gpu time",) if gpu else FITTED if counted else FITTED[1:]
    best, *others = [_split(fit, way, seconds, joules, works, idle_w) for way in ways]
    for other in others:
        for owner, own_j in best.dynamic_j.items():
            apart_j = abs(own_j - other.dynamic_j[owner])
            best.errors_j[owner] = min(joules, max(best.errors_j[owner], apart_j))
    return best


def _split(
    fit: Fit, way: Way, seconds: float, joules: float, works: Mapping[str, Work], idle_w: float
) -> Split:
    fitted = fit.coefficients(way, idle_w)
    if not fit.seconds:  # nothing is fitted yet: all above the base is of processor time
        cpu_s = sum(own.cpu_s for own in works.values())
        fitted[1] = max(0.0, joules - fitted[0] * seconds) / cpu_s if cpu_s else 0.0
    rows = terms_of(works.values(), seconds)
    parts_j = [fitted[0] * seconds, *(_dynamic(fitted, own) * seconds for own in rows)]
    spreads = [BASE_SPREAD] + [fit.spread(way)] * len(works)
    variances = [(spread * own_j) ** 2 for spread, own_j in zip(spreads, parts_j, strict=True)]
    left_j, variance = joules - sum(parts_j), sum(variances)
    if variance:
        pairs = zip(parts_j, variances, strict=True)
        parts_j = [max(0.0, own_j + left_j * own / variance) for own_j, own in pairs]
    whole_j = sum(parts_j)
    if whole_j <= SINGULAR * joules:  # no base is fitted, and no process was active
        parts_j[0] = whole_j = joules
    scale = joules / whole_j
    errors_j = [2.0 * sqrt(own * (1.0 - own / variance)) if own else 0.0 for own in variances]
    return Split(
        way,
        scale * parts_j[0],
        min(joules, errors_j[0]),
        {owner: scale * own_j for owner, own_j in zip(works, parts_j[1:], strict=True)},
        {owner: min(joules, own_j) for owner, own_j in zip(works, errors_j[1:], strict=True)},
    )
