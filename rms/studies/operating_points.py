"""What a measured profile says: the laws it follows, how well, and where to run the program.

t(n) = tc + t1 / n is the law of Iserte & Rojek (section 3), and P(n, f) = n (P_S + P_D Eff(n)
(f / f_max)^3) that of their equations 1 and 2, with dynamic power proportional to frequency times
the square of the voltage (Ge, Feng & Cameron 2005, after Chauhan et al., section III), the voltage
to the frequency. An optimal operating point is a size, and a frequency, at which a program needs
least energy (Chauhan et al., section III), least energy times time, or least energy among those
at which it is not slower than it may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from rms.formats.profiles import Point

Vector = NDArray[np.float64]

SAME = 1e-3
"""What differs by less than this part is taken to be the same."""


@dataclass(frozen=True)
class Law:
    """Two coefficients by least squares, and how far what was measured is off.

    Attributes:
        first, second: of time t1 in s and tc in s; of power P_D and P_S in W of a node.
        first_error, second_error: their standard errors; nan where two runs leave none.
        mean_off, most_off: relative deviation of the runs, mean and largest.
    """

    first: float
    second: float
    first_error: float
    second_error: float
    mean_off: float
    most_off: float


def fit_time(points: Sequence[Point]) -> Law:
    """Return t1 and tc of t(n) = tc + t1 / n through all runs.

    Raises:
        ValueError: fewer than two sizes.
    """
    sizes = len({point.nodes for point in points})
    if sizes < 2:
        raise ValueError(f"expected times at two sizes or more, got {sizes}")
    runs = [(1.0 / point.nodes, time_s) for point in points for time_s in point.time_s]
    inverse, time_s = np.asarray(runs).T
    return _least_squares(inverse, time_s)


def fit_power(points: Sequence[Point]) -> Law | None:
    """Return P_D and P_S of the power of a node, P_S + P_D Eff(n) (f / f_max)^3, through all runs.

    Where power is the same at all points, P_S is all and P_D none. None where the points do not
    tell the two apart: all are of one size and frequency, or of the same efficiency.
    """
    smallest = {point.mhz: point for point in sorted(points, key=lambda p: -p.nodes)}
    highest = max((point.mhz for point in points if point.mhz is not None), default=None)
    runs = []
    for point in points:
        first = smallest[point.mhz]
        efficiency = first.nodes * first.run_s / (point.nodes * point.run_s)
        clock = 1.0 if point.mhz is None or highest is None else point.mhz / highest
        for time_s, joules in zip(point.time_s, point.energy_j, strict=True):
            runs.append((efficiency * clock**3, joules / time_s / point.nodes))
    load, watts = np.asarray(runs).T
    if len(points) < 2 or np.ptp(load) < SAME * np.max(load):
        return None
    if np.ptp(watts) < SAME * np.max(watts):
        return Law(0.0, float(watts.mean()), nan, nan, 0.0, 0.0)
    return _least_squares(load, watts)


def _least_squares(x: Vector, y: Vector) -> Law:
    """Return the line y = second + first x, each run relative to itself in the deviations."""
    design = np.column_stack([x, np.ones_like(x)])
    found, _, _, _ = np.linalg.lstsq(design, y, rcond=None)
    off = design @ found - y
    errors = np.full(2, nan)
    if len(y) > 2:
        variance = float(off @ off) / (len(y) - 2)
        errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    relative = np.abs(off) / np.abs(y)
    (first, second), (of_first, of_second) = found.tolist(), errors.tolist()
    return Law(first, second, of_first, of_second, float(relative.mean()), float(relative.max()))


@dataclass(frozen=True)
class OperatingPoints:
    """Where to run a program.

    Attributes:
        fastest: least time.
        energy: least energy.
        delay_product: least energy times time.
        bounded: least energy of those no slower than ``slowdown`` times the fastest.
    """

    fastest: Point
    energy: Point
    delay_product: Point
    bounded: Point
    slowdown: float


def operating_points(points: Sequence[Point], slowdown: float) -> OperatingPoints:
    """Return the best of the measured points; of equals the one with fewer nodes.

    Args:
        slowdown: run time over that of the fastest point, 1 or more.
    """
    ordered = sorted(points, key=lambda point: point.nodes)
    fastest = min(ordered, key=lambda point: point.run_s)
    allowed = [point for point in ordered if point.run_s <= slowdown * fastest.run_s]
    return OperatingPoints(
        fastest,
        min(ordered, key=lambda point: point.run_j),
        min(ordered, key=lambda point: point.run_j * point.run_s),
        min(allowed, key=lambda point: point.run_j),
        slowdown,
    )


@dataclass(frozen=True)
class Difference:
    """One size measured both ways: malleable over separate, less 1."""

    nodes: int
    time: float
    power: float
    energy: float


def differences(separate: Sequence[Point], malleable: Sequence[Point]) -> list[Difference]:
    """Return how far the malleable run is from the separate ones, at sizes that both have."""
    by_size = {point.nodes: point for point in malleable}
    return [
        Difference(
            point.nodes,
            _ratio(other.run_s, point.run_s),
            _ratio(other.node_w, point.node_w),
            _ratio(other.run_j, point.run_j),
        )
        for point in separate
        if (other := by_size.get(point.nodes)) is not None
    ]


def _ratio(value: float, base: float) -> float:
    return value / base - 1.0 if base else nan
