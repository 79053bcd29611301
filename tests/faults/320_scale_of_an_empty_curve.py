"""The curve of power of a daemon without events had a scale up to 1e-09 W."""

from __future__ import annotations

from rms import plots


def test_a_curve_without_points_has_a_scale_of_whole_watts() -> None:
    drawn = plots.power([], plots.TimeWindow(0.0, 60.0))
    assert ">1 W<" in drawn and "e-" not in drawn
