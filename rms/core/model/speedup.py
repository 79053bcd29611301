"""Run time and power of a job against its number of nodes, and against their frequency."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple


@dataclass(frozen=True)
class Speedup:
    """Run time and power of a job against its number of nodes.

    Attributes:
        nodes: sizes with figures, rising.
        time_s: run times of the whole job at these sizes.
        power_w_per_node: power of a node while it runs, or empty.
        law: ``(t1_s, tc_s)`` of t(n) = tc + t1 / n (Iserte & Rojek, section 3), or None.
        interpolate: whether sizes in between may be used, linear in 1/n.
        peak_w_per_node: highest power of a node above idle, or empty.
    """

    nodes: tuple[int, ...] = ()
    time_s: tuple[float, ...] = ()
    power_w_per_node: tuple[float, ...] = ()
    law: tuple[float, float] | None = None
    interpolate: bool = False
    peak_w_per_node: tuple[float, ...] = ()

    def allows(self, n: int) -> bool:
        """Return whether a job may run on ``n`` nodes."""
        if self.law is not None:
            return n >= 1
        return n in self.nodes or (self.interpolate and self.nodes[0] <= n <= self.nodes[-1])

    def allowed_size(self, n: int) -> int:
        """Return ``n`` if a job may run on ``n`` nodes, else the next smaller size it allows."""
        if self.law is not None or self.allows(n):
            return n
        return self.nodes[max(0, bisect_left(self.nodes, n) - 1)]

    def time(self, n: int) -> float:
        """Return the run time of the whole job on ``n`` nodes."""
        if self.law is not None:
            return self.law[1] + self.law[0] / n
        return self._at(self.time_s, n)

    def scaled(self, factor: float) -> Speedup:
        """Return the speedup of a job that takes ``factor`` times as long at every size."""
        law = None if self.law is None else (factor * self.law[0], factor * self.law[1])
        return replace(self, law=law, time_s=tuple(factor * time_s for time_s in self.time_s))

    def power(self, n: int) -> float | None:
        """Return the power of one of ``n`` nodes, None where it is not stated."""
        return self._at(self.power_w_per_node, n) if self.power_w_per_node else None

    def peak(self, n: int) -> float:
        """Return the highest power of one of ``n`` nodes above idle, 0 where none is stated."""
        return self._at(self.peak_w_per_node, n) if self.peak_w_per_node else 0.0

    def efficiency(self, n: int) -> float:
        """Return Eff(n) = t(1) / (n t(n)) (Iserte & Rojek, section 3)."""
        smallest = 1 if self.law is not None else self.nodes[0]
        return smallest * self.time(smallest) / (n * self.time(n))

    def _at(self, values: tuple[float, ...], n: int) -> float:
        at = bisect_left(self.nodes, n)
        if at < len(self.nodes) and self.nodes[at] == n:
            return values[at]
        if not self.interpolate or not 0 < at < len(self.nodes):
            raise ValueError(f"expected a size of {self.nodes}, got {n}")
        low, high = self.nodes[at - 1], self.nodes[at]
        share = (1 / n - 1 / low) / (1 / high - 1 / low)
        return values[at - 1] + share * (values[at] - values[at - 1])


def fit_law(nodes: Sequence[int], time_s: Sequence[float]) -> tuple[float, float]:
    """Return ``(t1_s, tc_s)`` of t(n) = tc + t1 / n by least squares, of two sizes or more."""
    inverse = [1.0 / n for n in nodes]
    middle, mean_s = fmean(inverse), fmean(time_s)
    spread = sum((x - middle) ** 2 for x in inverse)
    t1_s = sum((x - middle) * t for x, t in zip(inverse, time_s, strict=True)) / spread
    return t1_s, mean_s - t1_s * middle


def some_sizes(sizes: Sequence[int], *more: int) -> Sequence[int]:
    """Return all of a few sizes; of a long range its ends, doublings between, and ``more``."""
    if len(sizes) <= 16:
        return sizes
    some = {sizes[0], sizes[-1], *more}
    n = sizes[0]
    while n < sizes[-1]:
        some.add(n)
        n *= 2
    return sorted(n for n in some if n in sizes)


def corrected(
    stated: Speedup | None, sizes: Sequence[int], measured_s: Mapping[int, float]
) -> Speedup | None:
    """Return run time against nodes, corrected by measurements.

    At sizes without a measurement it is the stated time, times the ratio of measured to stated
    time, linear in 1/n between measured sizes. Where nothing is stated, t(n) = tc + t1 / n through
    two sizes or more takes its place.

    Args:
        stated: the speedup from before the job ran, or None.
        sizes: at which the job may run, rising.
        measured_s: run time of the whole job at sizes at which it ran.

    Returns:
        The stated speedup, where measurements do not suffice for other sizes.
    """
    measured_s = {n: measured_s[n] for n in sorted(measured_s) if n in sizes}
    if not measured_s or (stated is None and len(measured_s) < 2):
        return stated
    if stated is None:
        t1_s, tc_s = fit_law(list(measured_s), list(measured_s.values()))
        if t1_s < 0.0:
            t1_s, tc_s = 0.0, fmean(measured_s.values())
        elif tc_s < 0.0:
            t1_s, tc_s = fmean([n * time_s for n, time_s in measured_s.items()]), 0.0
        stated = Speedup(law=(t1_s, tc_s))
    ratios = tuple(time_s / stated.time(n) for n, time_s in measured_s.items())
    ratio = Speedup(tuple(measured_s), ratios, interpolate=True)
    first, last = ratio.nodes[0], ratio.nodes[-1]
    nodes = sorted({*some_sizes(sizes), *measured_s})
    time_s = tuple(
        measured_s[n] if n in measured_s else stated.time(n) * ratio.time(min(max(n, first), last))
        for n in nodes
    )
    return Speedup(tuple(nodes), time_s, interpolate=True)


# --- frequency -----------------------------------------------------------------------------------

Levels = Sequence[tuple[float, float]]
"""Frequencies (GHz) and voltages (V), rising."""


class OperatingPoint(NamedTuple):
    """A row of a job's PET matrix (Chauhan et al., section III).

    Attributes:
        ghz: the frequency.
        time, power: run time, and power above idle, over those at the highest frequency.
    """

    ghz: float
    time: float
    power: float


def at_frequency(points: Sequence[OperatingPoint], ghz: float) -> OperatingPoint:
    """Return a row by linear interpolation between rising ones, the outermost beyond them."""
    at = bisect_left(points, ghz, key=lambda point: point.ghz)
    if at == 0 or at == len(points):
        return points[min(at, len(points) - 1)]
    low, high = points[at - 1], points[at]
    share = (ghz - low.ghz) / (high.ghz - low.ghz)
    return OperatingPoint(
        ghz,
        low.time + share * (high.time - low.time),
        low.power + share * (high.power - low.power),
    )


def longer(levels: Levels, points: Sequence[OperatingPoint], share: float) -> float:
    """Return run time at a frequency over that at the highest level; 1 without operating points."""
    if not points or not levels or share == 1.0:
        return 1.0
    highest = levels[-1][0]
    return at_frequency(points, share * highest).time / at_frequency(points, highest).time


def drawn(levels: Levels, points: Sequence[OperatingPoint], share: float) -> float:
    """Return power above idle at a frequency over that at the highest; V^2 f if not measured."""
    if share == 1.0:
        return 1.0
    if not points or not levels:
        return dynamic_power(levels, share)
    highest = levels[-1][0]
    return at_frequency(points, share * highest).power / at_frequency(points, highest).power


def dynamic_power(levels: Levels, share: float) -> float:
    """Return V^2 f of a processor over that at its highest level: energy is c V^2 f t.

    Args:
        levels: frequencies and voltages, rising; empty where frequencies are not set.
        share: its frequency over the highest one, which is that of a level.
    """
    if not levels:
        return share
    highest, most_v = levels[-1]
    ghz, volt = min(levels, key=lambda level: abs(level[0] - share * highest))
    return (volt / most_v) ** 2 * ghz / highest
