"""Energy out of readings of power, against what a sensor with known faults was shown."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rms.power.meter import GAIN, PowerIntegral, UpdatePeriod

BEGUN_S, END_S = 5.0, 70.0
"""Between them all happens; the load begins at 7 s."""


class Load:
    """True power: idle, but from a start to an end busy now and then.

    Args:
        period_s: from one busy time to the next, s; with ``seed``, anything around that.
        duty: how much of it is busy.
    """

    def __init__(
        self, idle_w: float, busy_w: float, period_s: float, duty: float, seed: int | None = None
    ) -> None:
        self.idle_w, self.busy_w = idle_w, busy_w
        rng = Random(seed)
        at_s, joules = 7.0, 7.0 * idle_w
        self._times_s, self._joules = [0.0, at_s], [0.0, joules]
        while at_s < END_S:
            for watts, part in ((busy_w, duty), (idle_w, 1.0 - duty)):
                seconds = part * period_s * (1.0 if seed is None else rng.uniform(0.2, 1.8))
                at_s, joules = at_s + seconds, joules + watts * seconds
                self._times_s.append(at_s)
                self._joules.append(joules)

    def joules(self, until_s: float) -> float:
        """Return the true energy from time 0."""
        n = bisect_right(self._times_s, until_s)
        seconds = self._times_s[n] - self._times_s[n - 1]
        joules = self._joules[n] - self._joules[n - 1]
        return self._joules[n - 1] + joules * (until_s - self._times_s[n - 1]) / seconds


@dataclass(frozen=True)
class Sensor:
    """Renews its reading every ``period_s``: a mean over ``averaged_s``, ``lag_s`` ago."""

    period_s: float
    averaged_s: float
    lag_s: float
    gain: float = 1.0

    def watts(self, at_s: float, load: Load) -> float:
        end_s = math.floor(at_s / self.period_s + 1e-9) * self.period_s - self.lag_s
        joules = load.joules(end_s) - load.joules(end_s - self.averaged_s)
        return self.gain * joules / self.averaged_s


def integral(
    name: str, load: Load, end_s: float, area: PowerIntegral | None = None
) -> PowerIntegral:
    """Integrate what a sensor shows, read ten times a second, or go on with that."""
    sensor = SENSORS[name]
    begun_s = BEGUN_S if area is None else area._last[0] + 0.1
    area = area or PowerIntegral(max(sensor.averaged_s, 0.1))
    for n in range(round((end_s - begun_s) / 0.1) + 1):
        at_s = begun_s + n * 0.1
        area.add(at_s, sensor.watts(at_s, load))
    return area


def error_j(area: PowerIntegral, load: Load, end_s: float) -> float:
    return abs(area.joules - (load.joules(end_s) - load.joules(BEGUN_S)))


SENSORS = {
    "a quarter of the time": Sensor(0.1, 0.025, 0.0),
    "a quarter, late": Sensor(0.1, 0.025, 0.1),
    "half of the time": Sensor(0.02, 0.01, 0.0),
    "mean of a second": Sensor(0.1, 1.0, 0.0),
    "renewed every second": Sensor(1.0, 1.0, 0.0),
    "5 % too much": Sensor(0.1, 0.1, 0.0, 1.05),
    "5 % too little": Sensor(0.1, 0.1, 0.05, 0.95),
}


@pytest.mark.parametrize("name", SENSORS)
@pytest.mark.parametrize("seconds", [1.0, 10.0, 60.0])
def test_a_steady_kernel_by_every_sensor(name: str, seconds: float) -> None:
    load = Load(60.0, 400.0, 100.0, 1.0)
    area = integral(name, load, 7.0 + seconds)
    assert error_j(area, load, 7.0 + seconds) <= area.uncertainty_j()
    if seconds == 60.0:
        assert area.uncertainty_j() < 0.1 * area.joules


def test_a_short_window_is_uncertain() -> None:
    def part(seconds: float) -> float:
        area = integral("a quarter of the time", Load(60.0, 400.0, 100.0, 1.0), 7.0 + seconds)
        return area.uncertainty_j() / area.joules

    parts = [part(seconds) for seconds in (0.5, 1.0, 10.0, 60.0)]
    assert parts == sorted(parts, reverse=True)
    assert parts[0] > 0.3 and parts[-1] < 0.07


LOADS = st.builds(
    Load,
    st.floats(20.0, 100.0),
    st.floats(100.0, 700.0),
    st.floats(0.02, 3.0),
    st.floats(0.2, 0.8),
    st.integers(0, 10**6),
)


@settings(max_examples=60)
@given(st.sampled_from(sorted(SENSORS)), LOADS)
def test_the_uncertainty_holds_the_error(name: str, load: Load) -> None:
    area = integral(name, load, 30.0)
    error = error_j(area, load, 30.0)
    assert error <= area.uncertainty_j() or error <= 0.01 * area.joules


@settings(max_examples=60)
@given(st.sampled_from(sorted(SENSORS)), LOADS, st.floats(8.0, 20.0))
def test_what_it_rises_by_is_of_the_time_between(name: str, load: Load, start_s: float) -> None:
    """A job's part of a meter that has been read for long is as uncertain as it is by itself."""
    area = integral(name, load, start_s)
    begun_s, joules, uncertainty_j = area._last[0], area.joules, area.uncertainty_j()
    area = integral(name, load, begun_s + 10.0, area)
    true_j = load.joules(area._last[0]) - load.joules(begun_s)
    assert abs(area.joules - joules - true_j) <= area.uncertainty_j() - uncertainty_j


def test_a_load_with_the_sensors_own_period_is_not_seen() -> None:
    """What no reading tells, as the module says: here a quarter is seen, always the same."""
    load = Load(60.0, 400.0, 0.1, 0.25)
    area = integral("a quarter of the time", load, 60.0)
    assert error_j(area, load, 60.0) > area.uncertainty_j()


WATTS = st.floats(0.0, 1500.0)
STEPS_S = st.floats(0.001, 1.9)


@given(WATTS, st.lists(STEPS_S, min_size=1))
def test_constant_power(watts: float, steps_s: list[float]) -> None:
    area, at_s = PowerIntegral(0.1), 5.0
    area.add(at_s, watts)
    for step_s in steps_s:
        at_s += step_s
        area.add(at_s, watts)
    assert area.joules == pytest.approx(watts * (at_s - 5.0), rel=1e-9, abs=1e-9)
    assert area.uncertainty_j() == pytest.approx(area.joules * GAIN / (1 - GAIN))
    assert area.unseen_s(at_s) == 0.0


@given(st.lists(st.tuples(st.floats(-1.0, 5.0), WATTS)))
def test_joules_never_fall_and_time_is_seen_or_not(steps: list[tuple[float, float]]) -> None:
    area, at_s, last_j = PowerIntegral(0.1), 0.0, 0.0
    area.add(at_s, 100.0)
    seen_s, latest_s = 0.0, 0.0
    for step_s, watts in steps:
        at_s += step_s
        area.add(at_s, watts)
        assert area.joules >= last_j
        last_j = area.joules
        if at_s > latest_s:
            seen_s += at_s - latest_s if at_s - latest_s <= 2.0 else 0.0
            latest_s = at_s
    assert area.unseen_s(latest_s) + seen_s == pytest.approx(latest_s, abs=1e-6)


def test_a_gap_is_unseen_and_has_no_joules() -> None:
    area = PowerIntegral(0.1)
    for at_s in (0.0, 1.0, 11.0, 12.0):
        area.add(at_s, 100.0)
    assert (area.joules, area.unseen_s(12.0)) == (200.0, 10.0)
    assert area.unseen_s(13.0) == 10.0
    assert area.unseen_s(17.0) == 15.0
    area.add(17.0, 100.0)
    assert (area.joules, area.unseen_s(17.0)) == (200.0, 15.0)


def test_nothing_read_nothing_known() -> None:
    area = PowerIntegral(0.1)
    assert (area.joules, area.unseen_s(9.0), area.uncertainty_j()) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("true_s", "every_s", "told_s"), [(0.1, 0.01, 0.1), (0.02, 0.005, 0.02), (0.02, 0.1, 0.1)]
)
def test_the_period_of_a_sensor(true_s: float, every_s: float, told_s: float) -> None:
    """It is told by the changes; where it is shorter than readings are apart, as that."""
    changes = [n * true_s for n in range(1000)]
    level: Callable[[float], int] = lambda at_s: bisect_right(changes, at_s + 1e-9)  # noqa: E731
    period = UpdatePeriod()
    assert period.seconds is None
    for n in range(100):
        at_s = n * every_s
        period.add(at_s, 100.0 + level(at_s))
    assert period.seconds == pytest.approx(told_s, abs=every_s * 0.6)


def test_a_sensor_that_never_changes_has_no_period() -> None:
    period = UpdatePeriod()
    for n in range(100):
        period.add(n * 0.1, 61.0)
    assert period.seconds is None
