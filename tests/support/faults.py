"""What was done to a daemon and what came of it: rows of tests, one table at the end of a run.

A test takes the fixture ``fault`` and calls it once it has seen what it says. Printed are the rows
of tests that passed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

HEADS = ("WHAT WAS DONE", "WHAT HAPPENED", "LOST", "RESTART")

Fault = Callable[..., None]


def entering(item: pytest.Item) -> Fault:
    """Return what enters a row of a test."""

    def enter(done: str, happened: str, *, lost: str = "nothing", restart: str = "works") -> None:
        item.user_properties.append(("fault", "\t".join((done, happened, lost, restart))))

    return enter


def rows_of(reports: list[pytest.TestReport]) -> list[list[str]]:
    """Return the rows of tests that passed."""
    said = [str(v) for each in reports for key, v in each.user_properties if key == "fault"]
    return [row.split("\t") for row in dict.fromkeys(said)]


def table(found: list[list[str]]) -> list[str]:
    """Return rows as lines with aligned columns."""
    lines = [list(HEADS), *found]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
