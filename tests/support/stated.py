"""Checks of a study's table of statements: every status holds, and knows its published value."""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf

from msgspec import structs

from rms.studies.experiment import Statement, compare, statements


def assert_statements(study: str, ours: Mapping[str, float], *, whole: bool = True) -> None:
    """Check each recorded status of a study, then each again with its published value changed.

    Args:
        study: name of its table.
        ours: values of a run of the study, by key.
        whole: the run was of the whole study; if not, only statements with a value are checked,
            and every value must be one of a statement.
    """
    stated = statements(study)
    if not whole:
        stated = [each for each in stated if each.key in ours]
        assert {each.key for each in stated} == set(ours) != set()
    rows, wrong = compare(stated, ours)
    assert not wrong, "\n".join(wrong)
    assert [row["says"] for row in rows if row["status"] == "not run"] == []
    unseen = [
        f"{each.where}, {each.says}: {each.paper} changed to {changed.paper}"
        for each in stated
        if each.kind != "not tried"
        for changed in [with_another_value(each)]
        if not compare([changed], ours)[1]
    ]
    assert not unseen, "\n".join(unseen)


def with_another_value(each: Statement) -> Statement:
    """Return a statement with another published value or range."""
    if isinstance(each.paper, tuple):
        low, high = each.paper
        by = 1.0 + 1.5 * sum(abs(end) for end in each.paper if not isinf(end))
        by = -by if isinf(low) else by
        return structs.replace(each, paper=(low + by, high + by))
    assert each.paper is not None
    return structs.replace(each, paper=1.5 * each.paper + (1.0 if each.paper >= 0.0 else -1.0))
