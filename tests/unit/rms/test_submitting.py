"""What ``rms submit`` takes in and refuses, and what is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from routed import SCRIPT, Routed, routed

from rms.core.model import JobId
from rms.daemon.journal import Journal, JournalFullError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Routed]:
    with routed(tmp_path) as found:
        yield found


@pytest.mark.promise("submitting")
def test_a_refused_submission_uses_no_number_and_leaves_no_folder(
    server: Routed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing"
    for bad in ({"options": {"array": "x"}}, {"options": {"preferred": 9}}, {"text": "true"}):
        assert server.ask("POST", "/jobs", SCRIPT | bad)[0] == 400
    status, answer = server.ask("POST", "/jobs", SCRIPT | {"cwd": str(missing)})
    expected = {"error": f"expected an existing folder to run in, got {str(missing)!r}"}
    assert (status, answer) == (400, expected) and not missing.exists()
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", _no_room)
        assert server.ask("POST", "/jobs", SCRIPT | {"options": {"array": "0-2"}})[0] == 503
    jobs = server.daemon.launcher.state / "jobs"
    assert not server.daemon.jobs and not list(jobs.glob("*"))
    assert server.submit() == "1" and (jobs / "1" / "script").read_text() == SCRIPT["text"]
    assert server.submit() == "2"
    assert JobId("2") in server.daemon.jobs


def _no_room(*_: object) -> int:
    raise JournalFullError("expected room, got none")
