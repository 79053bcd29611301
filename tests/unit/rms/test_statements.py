"""Tables of statements: what a status is, and what differs from a recorded one."""

from __future__ import annotations

from math import inf

import pytest
from stated import with_another_value

from rms.studies.experiment import STATUSES, Statement, compare, statements, studies, table


@pytest.mark.parametrize(
    ("paper", "within_pct", "ours", "status"),
    [
        (100.0, 2.0, 102.0, "met"),
        (100.0, 2.0, 97.9, "missed by -2.1 %"),
        (0.0, 2.0, 0.5, "missed by +0.5 s"),
        ((1.0, 2.0), 0.0, 2.0, "met"),
        ((1.0, 2.0), 0.0, 2.5, "missed by +0.5 s"),
        ((1.0, 2.0), 0.0, 0.5, "missed by -0.5 s"),
        ((40.0, inf), 0.0, 39.0, "missed by -1 s"),
        ((-inf, 1.0), 0.0, 0.7, "met"),
    ],
)
def test_a_status_follows_from_both_values(
    paper: float | tuple[float, float], within_pct: float, ours: float, status: str
) -> None:
    each = Statement("table 1", "time", status, "t", paper, ours, within_pct, "s")
    rows, wrong = compare([each], {"t": ours})
    assert not wrong and rows[0]["status"] == status
    assert compare([with_another_value(each)], {"t": ours})[1]


def test_a_missed_value_that_is_suddenly_met_is_an_error() -> None:
    each = Statement("table 1", "time", "missed by +5.0 %", "t", 100.0, 105.0, 2.0, "s")
    assert compare([each], {"t": 105.0})[1] == []
    found = compare([each], {"t": 101.0})[1]
    assert "expected missed by +5.0 %, got met" in found[0]
    assert "expected the recorded value 105, got 101" in found[1]


def test_fitted_and_input_values_are_checked_too() -> None:
    for status in ("fitted", "input"):
        each = Statement("table 1", "time", status, "t", 100.0, 100.0, 1.0)
        assert compare([each], {"t": 100.0})[0][0]["status"] == status
        assert "got missed by +20.0 %" in compare([each], {"t": 120.0})[1][0]


def test_what_was_not_run_or_not_tried_is_printed_as_such() -> None:
    stated = [
        Statement("table 1", "time", "met", "t", 1.0, 1.0),
        Statement("table 2", "power profile", "not tried", note="no GPU"),
    ]
    rows, wrong = compare(stated, {})
    assert not wrong and [row["status"] for row in rows] == ["not run", "not tried"]
    text = table(rows)
    assert text[0] == "2 statements of the paper: 1 not tried, 1 not run"
    assert "no GPU" in text[-1]


@pytest.mark.parametrize("study", studies())
def test_every_table_is_complete(study: str) -> None:
    """A statement that was tried has a key of its own, a published value and ours."""
    stated = statements(study)
    keys = [each.key for each in stated if each.kind != "not tried"]
    assert len(set(keys)) == len(keys) and all(keys)
    for each in stated:
        assert each.kind in STATUSES, each
        assert (each.paper is None) == (each.ours is None) == (each.kind == "not tried"), each
        assert each.kind != "missed" or each.note, f"{each.says}: expected a reason, got none"
