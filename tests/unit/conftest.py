"""Hypothesis for all unit tests: the machine's speed decides nothing, nothing is left on disk."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "unit",
    deadline=None,
    database=None,
    max_examples=80,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unit")
