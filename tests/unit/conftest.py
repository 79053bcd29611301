"""Hypothesis for all unit tests: the machine's speed decides nothing, nothing is left on disk."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES, EXAMPLES_OF_ALL = 30, 80


def pytest_configure(config: pytest.Config) -> None:
    """Draw more examples with ``--all``."""
    settings.register_profile(
        "unit",
        deadline=None,
        database=None,
        max_examples=EXAMPLES_OF_ALL if config.getoption("--all") else EXAMPLES,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("unit")
