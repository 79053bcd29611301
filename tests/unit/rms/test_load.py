"""Large arrays and many who ask: what a daemon does once, not for each task."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from routed import routed

from rms.core.model.events import Withdrawn
from rms.core.model.jobs import JobId
from rms.daemon.store.journal import Seen
from rms.daemon.store.notes import SubmissionNote


@pytest.mark.promise("large-arrays")
def test_an_array_is_entered_and_cancelled_as_one(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        assert server.submit(array="1-600", output="%A-%a.out") == "1_1"
        before = server.ask("GET", "/jobs")[1]
        assert [row["output"] for row in before[:2]] == ["/1-1.out", "/1-2.out"]
        assert {row["state"] for row in before[:2]} == {"RUNNING"}
        assert list(server.daemon.journal.notes(SubmissionNote)) == ["1"]
        folders = {path.name for path in (tmp_path / "jobs").iterdir() if path.is_dir()}
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


def test_rows_come_by_pages_and_only_of_those_that_are_asked_for(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        server.submit(array="1-12")
        assert server.submit() == "2"
        server.ask("POST", "/cancel", {"id": "1_[4-5]"})
        ids = [row["id"] for row in server.ask("GET", "/jobs?limit=5")[1]]
        assert ids == ["1_1", "1_2", "1_3", "1_4", "1_5"]
        query = "state=PENDING&limit=5"
        ids = [row["id"] for row in server.ask("GET", f"/jobs?{query}&after=1_5")[1]]
        assert ids == ["1_6", "1_7", "1_8", "1_9", "1_10"]
        rest = server.ask("GET", f"/jobs?{query}&after=1_10")[1]
        assert [row["id"] for row in rest] == ["1_11", "1_12", "2"]
        assert server.ask("GET", "/jobs?after=2") == (200, [])
        assert server.ask("GET", "/jobs?limit=0")[0] == 400
        assert server.ask("GET", "/jobs?after=x")[0] == 400


def test_a_wait_is_answered_when_all_are_over_or_after_a_while(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        waits = [server.submit(nodes=[2, 2]), server.submit(nodes=[2, 2])][1]
        assert server.ask("POST", "/wait", {"id": waits}) == (200, {"left": 1})
        withdrawn = Withdrawn(server.clock[0], (JobId(waits),))
        server.loop.call_later(0.1, server.daemon.handle, withdrawn)
        asked = {"id": waits, "hold_s": 120.0, "lines": True}
        assert server.ask("POST", "/wait", asked) == (200, {"left": 0})
        assert server.ask("POST", "/wait", {"id": "7"})[0] == 404
