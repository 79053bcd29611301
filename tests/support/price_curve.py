"""A curve of prices that is compressed to seconds: dear, then cheap, then dear."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from daemon import Rms

CHEAP, DEAR = 0.1, 0.4
SLOT_S = 20.0
CHEAP_SLOTS = 2, 4
"""The slots of a curve from the first cheap one on, up to the first dear one after it."""


def write_curve(path: Path) -> float:
    """Write prices from now on; return the time."""
    begin, (first, last) = datetime.now(UTC), CHEAP_SLOTS
    rows = [
        f"{(begin + timedelta(seconds=SLOT_S * n)).isoformat()},"
        f"{CHEAP if first <= n < last else DEAR}"
        for n in range(24)
    ]
    path.write_text("\n".join(["time,EUR/kWh", *rows]) + "\n")
    return begin.timestamp()


def check_cheap(rms: Rms, tasks: list[str], begin_s: float) -> None:
    """Wait for tasks, which run in the cheap time, at its price in the books."""
    for task in tasks:
        assert rms.over(task) == ["COMPLETED"]
    for row in map(rms.row, tasks):
        assert begin_s + CHEAP_SLOTS[0] * SLOT_S <= row["start_s"] + 1.0
        assert row["end_s"] <= begin_s + CHEAP_SLOTS[1] * SLOT_S
        assert row["resizes"] == []
    priced = [row for row in rms.ask("acct", "--cost")["jobs"] if row["id"] in tasks]
    assert len(priced) == len(tasks)
    for row in priced:
        assert row["cost"] == pytest.approx(row["energy_j"] / 3.6e6 * CHEAP, rel=1e-6)
        assert row["energy_j"] > 0.0
