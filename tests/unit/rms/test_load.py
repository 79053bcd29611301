"""Large arrays and many who ask: what a daemon does once, not for each task."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from routed import routed

from rms.daemon.journal import Seen


def test_an_array_is_entered_and_cancelled_as_one(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        assert server.submit(array="1-600", output="%A-%a.out") == "1_1"
        before = server.ask("GET", "/jobs")[1]
        assert [row["output"] for row in before[:2]] == ["/1-1.out", "/1-2.out"]
        assert {row["state"] for row in before[:2]} == {"RUNNING"}
        assert list(server.daemon.journal.notes("job/")) == ["job/1"]
        folders = {path.name for path in (tmp_path / "jobs").iterdir()}
        assert folders == {"1", "1_1", "1_2"}  # of those that run
        ids = [row["id"] for row in before]
        assert set(server.ask("POST", "/cancel", {"id": "1"})[1]["ids"]) == set(ids)
        entries = server.daemon.journal.read()
        kinds = Counter(type(e.event).__name__ for e in entries if isinstance(e, Seen))
        assert kinds["Submitted"] == kinds["Withdrawn"] == 1 and not kinds["Ended"]
        rows = server.ask("GET", "/jobs?state=CANCELLED")[1]
        assert [row["id"] for row in rows] == ids[2:]
    with routed(tmp_path) as server:  # it was killed
        rows = server.ask("GET", "/jobs?state=CANCELLED")[1]
        assert [row["output"] for row in rows] == [row["output"] for row in before]
