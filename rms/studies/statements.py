"""What a paper states, beside the result of its study here: one table for each study.

``data/statements/NAME.toml`` lists the statements of a paper in its order. A statement has the
published value, the value of the study, a tolerance and a status:

- ``met``: within the tolerance, or inside the published range;
- ``missed by X``: outside, by so much of the published value (or so far from the range);
- ``fitted``: within the tolerance, but parameters were chosen by this value;
- ``input``: the study takes the value from the paper;
- ``not tried``: no study here computes it.

The study computes its values anew and :func:`compare` computes the status from both. A status
that differs from the recorded one is an error, also where a missed value is suddenly met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isinf
from pathlib import Path
from typing import Any

import msgspec

from rms.wire.terminal import columns

DATA = Path(__file__).parent / "data" / "statements"
STATUSES = ("met", "missed", "fitted", "input", "not tried")
SAME = 1e-3
"""Relative difference between a recorded value of a study and a new one that counts as none."""


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A statement of a paper.

    Attributes:
        where: table, figure or section.
        says: the statement, in words.
        status: see the module.
        key: name of the value among those that the study computes; empty if not tried.
        paper: the published value, or a range ``(low, high)``, open where an end is infinite.
        ours: the value of the study when the status was recorded.
        within_pct: tolerance in per cent of the published value; not used for a range.
        unit: of both values.
        note: reason of a miss, or what else a reader should know.
    """

    where: str
    says: str
    status: str
    key: str = ""
    paper: float | tuple[float, float] | None = None
    ours: float | None = None
    within_pct: float = 0.0
    unit: str = ""
    note: str = ""

    @property
    def kind(self) -> str:
        """The status without the size of a miss."""
        return "missed" if self.status.startswith("missed by ") else self.status

    def computed(self, ours: float) -> str:
        """Return the status for a value of the study."""
        if isinstance(self.paper, tuple):
            low, high = self.paper
            off = ours - low if ours < low else max(0.0, ours - high)
            missed, by = off != 0.0, f"{off:+.3g} {self.unit}".strip()
        else:
            assert self.paper is not None
            off = ours - self.paper
            missed = abs(off) > self.within_pct / 100.0 * abs(self.paper) + 1e-9
            by = f"{100.0 * off / self.paper:+.1f} %" if self.paper else f"{off:+.3g} {self.unit}"
        if missed:
            return f"missed by {by.strip()}"
        return self.kind if self.kind in ("fitted", "input") else "met"


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    statement: list[Statement]


def studies() -> list[str]:
    """Return the names of the studies that have a table."""
    return sorted(path.stem for path in DATA.glob("*.toml"))


def statements(study: str) -> list[Statement]:
    """Return the statements of a study's paper, in the order of the paper."""
    return msgspec.toml.decode((DATA / f"{study}.toml").read_bytes(), type=_Table).statement


def compare(
    stated: Iterable[Statement], ours: Mapping[str, float]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Compare statements with the values of a study.

    Args:
        stated: the statements.
        ours: values by key; statements whose key is missing were not run.

    Returns:
        A row of JSON for each statement, and a sentence for each status or value that differs
        from the recorded one.
    """
    rows, wrong = [], []
    for each in stated:
        row: dict[str, Any] = msgspec.to_builtins(each)
        if isinstance(each.paper, tuple):
            row["paper"] = [None if isinf(end) else end for end in each.paper]
        if each.kind != "not tried":
            value = ours.get(each.key)
            row["ours"] = value
            row["status"] = "not run" if value is None else each.computed(value)
            if value is not None:
                wrong += _differences(each, value)
        rows.append(row)
    return rows, wrong


def column_of(paper: float | None, ours: float, note: str = "") -> dict[str, Any]:
    """Return a column of a row of ``rms reproduce``'s JSON: a published value and ours."""
    deviation = 100.0 * (ours / paper - 1.0) if paper else None
    return {"paper": paper, "ours": ours, "deviation_pct": deviation, "note": note}


def _differences(each: Statement, value: float) -> list[str]:
    """Return what differs from the recorded status and value."""
    name, found, recorded = f"{each.where}, {each.says}", [], each.ours
    status = each.computed(value)
    if status != each.status:
        found.append(f"{name}: expected {each.status}, got {status}")
    if recorded is None or abs(value - recorded) > SAME * max(abs(value), abs(recorded)) + 1e-9:
        known = "none" if recorded is None else f"{recorded:.6g}"
        found.append(f"{name}: expected the recorded value {known}, got {value:.6g}")
    return found


def counts(rows: Iterable[Mapping[str, Any] | Statement]) -> dict[str, int]:
    """Return how many statements have which status."""
    texts = [row.status if isinstance(row, Statement) else str(row["status"]) for row in rows]
    number = Counter("missed" if text.startswith("missed by ") else text for text in texts)
    return {status: number[status] for status in (*STATUSES, "not run") if number[status]}


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of compared statements, in the order of the paper."""
    number = ", ".join(f"{count} {status}" for status, count in counts(rows).items())
    cells = [
        [
            row["where"],
            row["says"],
            _value(row.get("paper"), row.get("unit", "")),
            _value(row.get("ours"), row.get("unit", "")),
            _tolerance(row),
            row["status"],
            row.get("note", ""),
        ]
        for row in rows
    ]
    heads = ("where", "statement", "paper", "ours", "tolerance", "status", "note")
    return [f"{len(rows)} statements of the paper: {number}", "", *columns(heads, cells)]


def _tolerance(row: Mapping[str, Any]) -> str:
    if row["status"] == "not tried" or row.get("paper") is None:
        return ""
    return "range" if isinstance(row["paper"], list) else f"{row.get('within_pct', 0.0):g} %"


def _value(value: float | Sequence[float | None] | None, unit: str) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float):
        return f"{value:,.6g} {unit}".strip()
    low, high = (-inf if value[0] is None else value[0]), (inf if value[1] is None else value[1])
    if isinf(high):
        return f"at least {low:,.6g} {unit}".strip()
    if isinf(low):
        return f"at most {high:,.6g} {unit}".strip()
    return f"{low:,.6g} to {high:,.6g} {unit}".strip()
