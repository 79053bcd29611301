"""A disk without room: no job is taken in, those that run are looked after, nothing is lost."""

from __future__ import annotations

import errno
from itertools import count
from pathlib import Path

import pytest
from faults import Fault
from routed import SCRIPT, Routed
from said import Said
from submissions import filler

from rms.core.model.jobs import JobId
from rms.daemon.jobs import submit
from rms.daemon.restart.recover import replay
from rms.daemon.store.journal import Journal


def fill(journal: Journal) -> None:
    """Leave no room in a journal."""
    journal._db.execute("PRAGMA max_page_count = 1")  # as many as there are
    numbers = count()
    while not journal._late:
        journal.note(filler(next(numbers)))


@pytest.mark.promise("full-disk")
def test_jobs_are_refused_and_looked_after_until_there_is_room(
    server: Routed, fault: Fault
) -> None:
    daemon, said = server.daemon, Said()
    runs, waits = server.submit(nodes=[2, 2]), server.submit(nodes=[2, 2])
    fill(daemon.journal)
    for _ in range(3):  # the script of the first is seen to have ended
        status, answer = server.ask("POST", "/jobs", SCRIPT | {"options": {}})
        assert status == 503 and "database or disk is full" in answer["error"], answer
        daemon.tick()
        server.loop.run_until_complete(daemon.flush())
    rows = {row["id"]: row["state"] for row in server.ask("GET", "/jobs")[1]}
    assert rows == {runs: "FAILED", waits: "CONFIGURING"}
    assert daemon.jobs[JobId(waits)].script is None  # decided, but not written down yet
    assert [words for words in said if "jobs go on but none is taken in" in words] == said[1:]
    daemon.journal._db.execute("PRAGMA max_page_count = 100000")
    daemon.tick()
    server.loop.run_until_complete(daemon.flush())
    assert "the journal can be written again" in said[2:]
    assert daemon.jobs[JobId(waits)].script is not None
    after = server.submit()
    found = replay(daemon.journal.read())
    assert (found.differing, found.unrecorded, found.refused) == ([], {}, [])
    state = found.engine.state
    assert [*state.ended, *state.running, *state.pending] == [runs, waits, after]
    fault("no room on the disk", "submissions refused (503), jobs go on, written when there is")


@pytest.mark.promise("full-disk")
@pytest.mark.parametrize("path", ["/hold", "/cancel", "/drain"])
def test_a_command_that_could_be_lost_is_not_confirmed(server: Routed, path: str) -> None:
    server.submit(nodes=[2, 2])
    job = server.submit(nodes=[2, 2])
    fill(server.daemon.journal)
    status, answer = server.ask("POST", path, {"node": "n1"} if path == "/drain" else {"id": job})
    assert status == 503 and "database or disk is full" in answer["error"], answer
    assert server.ask("GET", "/jobs")[0] == 200


def test_a_script_that_finds_no_room_is_refused(
    server: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(submit, "_keep", keep)
    status, answer = server.ask("POST", "/jobs", SCRIPT | {"options": {}})
    assert status == 503 and "No space left on device" in answer["error"]
