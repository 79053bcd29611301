"""Energy out of readings of power, with what is not known of it. Knows no device.

A sensor of power is not what it seems (Yang, Adamek, Armour: Part-time Power Measurements:
nvidia-smi's Lack of Attention, arXiv:2312.02741, and the same authors at SC24): it is read more
often than it changes, its readings are means over some time before, and on A100 and H100 that time
is a quarter of the whole, so three quarters of a run are in no reading. What that may amount to is
added up beside the energy, as half of an interval that holds the true value in about 95 of 100
cases. One thing no reading tells: a load that repeats with the very period of the sensor, or a
whole part of it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

GAIN = 0.05
"""The sensor's own error, as a part of the power: NVML's documentation states 5 % for Fermi and
Kepler, and the same was found on later ones."""
GAP_S = 2.0
"""Longer than this between two readings nothing is taken to be known."""
WINDOW_S = 1.0
"""Over so long the range of the readings is taken for that of what is in none of them."""
UNREAD = 0.4
"""The part of half of that range by which the mean of all the time may differ from the readings':
of ten of them, each off by any part of it on its own (about 1 / sqrt(10)), and some more."""
LONGEST_PERIOD_S = 1.0
"""No sensor is known that brings new readings less often."""
FEWEST_CHANGES = 4


def gain_j(joules: float) -> float:
    """Return by how much the true energy may be above what a sensor of this gain has told, J."""
    return joules * GAIN / (1 - GAIN)


@dataclass
class UpdatePeriod:
    """How often a sensor brings a new reading, from the times at which readings changed.

    It can be told no finer than readings are taken: then it is the time between two of them.
    """

    _value: float | None = None
    _changed_s: float | None = None
    _gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=64))

    def add(self, at_s: float, value: float) -> None:
        """Take a reading; times must not go back."""
        if self._value is not None and value != self._value:
            if self._changed_s is not None:
                self._gaps_s.append(at_s - self._changed_s)
            self._changed_s = at_s
        self._value = value

    @property
    def seconds(self) -> float | None:
        """The period, s; None before a few changes were seen.

        The lower quartile of the times between changes: readings in a row may be the same.
        """
        if len(self._gaps_s) < FEWEST_CHANGES:
            return None
        return sorted(self._gaps_s)[len(self._gaps_s) // 4]


@dataclass
class PowerIntegral:
    """The energy of one device since its first reading, by the trapezoidal rule.

    Args:
        averaged_s: over how long at most a reading is the mean of what was before, s.

    Attributes:
        joules: the energy of the times that were seen; never falls.
    """

    averaged_s: float
    joules: float = 0.0
    period: UpdatePeriod = field(default_factory=UpdatePeriod)
    _last: tuple[float, float] | None = None
    _unseen_s: float = 0.0
    _interval_s: float = 0.0
    """The longest time between two readings that were not a gap."""
    _extremes_w: tuple[float, float] = (math.inf, -math.inf)
    _window: _Window = field(default_factory=lambda: _Window())
    _mean_w: float | None = None
    """Of the last window."""
    _error_j: float = 0.0
    """Beside the sensor's gain, of all windows that are over."""
    _told_j: float = 0.0

    def add(self, at_s: float, watts: float) -> None:
        """Take a reading; one that is not later than the last is left out.

        Args:
            at_s: when, on a clock that never goes back, s.
            watts: the power, W.
        """
        if self._last is not None:
            seconds = at_s - self._last[0]
            if seconds <= 0:
                return
            if seconds > GAP_S:
                self._unseen_s += seconds
                self._close_window()
            else:
                self._see(seconds, watts)
        self._last = at_s, watts
        low, high = self._extremes_w
        self._extremes_w = min(low, watts), max(high, watts)
        self._window.take(watts)
        self.period.add(at_s, watts)

    def unseen_s(self, now_s: float) -> float:
        """Return for how long nothing was known since the first reading, s."""
        since_s = 0.0 if self._last is None else now_s - self._last[0]
        return self._unseen_s + (since_s if since_s > GAP_S else 0.0)

    def uncertainty_j(self) -> float:
        """Return half of the interval around the energy in which it truly is, J; never falls.

        Three parts, each added up, so that what it rises by is that of the time between: the
        sensor's gain; where the power changes from second to second, that times how long readings
        are behind (by what they are a mean of, by their period, and by when they are taken); and
        what is in no reading. At first, at least the whole range for as long as they are behind.
        """
        low, high = self._extremes_w
        if high < low:
            return 0.0
        error_j = max(self._error_j + self._window_error_j(), self.behind_s * (high - low))
        self._told_j = max(self._told_j, gain_j(self.joules) + error_j)
        return self._told_j

    def _window_error_j(self) -> float:
        window = self._window
        if not window.seconds:
            return 0.0
        changed_w = 0.0 if self._mean_w is None else abs(window.mean_w - self._mean_w)
        unread_j = UNREAD * window.seconds * (window.high_w - window.low_w) / 2
        return self.behind_s * changed_w + unread_j

    @property
    def behind_s(self) -> float:
        """By how much readings are behind at most, s."""
        period_s = min(self.period.seconds or 0.0, LONGEST_PERIOD_S)
        return self.averaged_s + period_s + self._interval_s

    def _see(self, seconds: float, watts: float) -> None:
        assert self._last is not None
        joules = seconds * (self._last[1] + watts) / 2
        self.joules += joules
        self._interval_s = max(self._interval_s, seconds)
        self._window.take(watts)
        self._window.seconds += seconds
        self._window.joules += joules
        if self._window.seconds >= WINDOW_S:
            self._close_window()

    def _close_window(self) -> None:
        if self._window.seconds:
            self._error_j += self._window_error_j()
            self._mean_w = self._window.mean_w
        self._window = _Window()


@dataclass
class _Window:
    """A short time, and the power in it."""

    seconds: float = 0.0
    joules: float = 0.0
    low_w: float = math.inf
    high_w: float = -math.inf

    def take(self, watts: float) -> None:
        self.low_w, self.high_w = min(self.low_w, watts), max(self.high_w, watts)

    @property
    def mean_w(self) -> float:
        return self.joules / self.seconds
