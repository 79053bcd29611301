"""A state folder and a client of each recorded version: this one reads them, or refuses in words.

``tests/upgrade/record`` makes the records. Where this version has another format, the number of the
format is another one too, and both numbers are in the sentence of the refusal.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import upgrade
from upgrade import JOURNAL, Session, lacking

from rms.core.model.jobs import JobId, JobState
from rms.daemon.restart.recover import open_journal, restored
from rms.daemon.store.file import FORMAT, JournalError
from rms.wire.messages import CompletionRecord, Poll

REFUSED: dict[tuple[str, str], str] = {}
"""Requests of a version that this one refuses: by version and command, words of the sentence."""

pytestmark = pytest.mark.promise("upgrade")
each_version = pytest.mark.parametrize("version", upgrade.versions())


def copied(version: str, folder: Path) -> Path:
    """Return a copy of a recorded state folder, with the modes that its daemon gave the files."""
    state = shutil.copytree(upgrade.FOLDER / version / "state", folder / "state")
    for path in (state, *state.rglob("*")):
        path.chmod(0o700 if path.is_dir() or path.name == "script" else 0o600)
    return state


@contextlib.contextmanager
def gone_on(version: str, folder: Path) -> Iterator[Session]:
    """Start a daemon on a copy of a recorded folder; skip the test where the format is another."""
    state, end = copied(version, folder), upgrade.recorded(version)
    if (number := upgrade.journal_format(state / JOURNAL)) != FORMAT:
        pytest.skip(f"format {number} of {version} is refused")
    with upgrade.session(state, end["now_s"], end["processes"]) as one:
        yield one


def differences(one: Session, seen: dict[str, Any]) -> list[str]:
    return [line for path in seen for line in lacking(seen[path], one.get(path), path, whole=True)]


@each_version
def test_a_daemon_starts_on_the_folder_with_the_same_jobs_states_and_energies(
    version: str, tmp_path: Path
) -> None:
    with gone_on(version, tmp_path) as one:
        assert one.journal.damage == [], "expected a raised FORMAT where a record has changed"
        assert differences(one, upgrade.recorded(version)["seen"]) == []
        states = {job["state"] for job in one.get("/acct")["jobs"]}
    assert states == {"COMPLETED", "FAILED", "CANCELLED", "RUNNING", "PENDING"}


@each_version
def test_the_journal_has_the_same_jobs_without_its_snapshot(version: str, tmp_path: Path) -> None:
    with gone_on(version, tmp_path) as one:
        assert one.journal.snapshots() and one.journal.begins() == 0
        known = one.server.daemon.context.state
        jobs = {**known.running, **known.waiting}
        one.journal._run("DELETE FROM snapshots")
        again = restored(one.journal).scheduler.engine.state
        found = {**again.running, **again.waiting}
        assert list(found) == list(jobs)
        for job_id, job in jobs.items():
            assert (found[job_id].state, found[job_id].nodes) == (job.state, job.nodes)


@each_version
def test_jobs_of_the_folder_go_on_to_their_ends(version: str, tmp_path: Path) -> None:
    with gone_on(version, tmp_path) as one:
        state = one.server.daemon.context.state
        (launch,) = [n for _, job, n, _ in one.processes() if job == "3" and n is not None]
        one.job("3", "/jobs/3/poll", Poll(60, 100, 1, "warm", ((launch, 2),)))
        one.completion("3", CompletionRecord("COMPLETED", 0, "", 100, 1, 2))
        one.ends("3", launch)
        one.ends("3", None)
        one.ends("4", None)
        one.time(one.now_s + 20.0)
        assert state.ended[JobId("3")].state is JobState.COMPLETED
        assert [str(job_id) for job_id in state.running] == ["5"]
        (row,) = [job for job in one.get("/jobs") if job["id"] == "3"]
        assert [(resize["from"], resize["to"]) for resize in row["resizes"]] == [(3, 2)]


@pytest.mark.parametrize("further", [1, 41])
@each_version
def test_another_format_is_refused_in_one_sentence_that_names_both(
    version: str, further: int, tmp_path: Path
) -> None:
    path = copied(version, tmp_path) / JOURNAL
    number = upgrade.journal_format(path)
    if number == FORMAT:
        number += further
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute(f"PRAGMA user_version = {number}")
    before = path.read_bytes()
    with pytest.raises(JournalError) as refusal:
        open_journal(path)
    expected = f"{path}: expected a journal of format {FORMAT}, got format {number}"
    assert str(refusal.value) == expected
    assert path.read_bytes() == before and not list(path.parent.glob("*.salvag*"))


@each_version
def test_requests_of_its_clients_and_jobs_are_answered_as_before(
    version: str, tmp_path: Path
) -> None:
    upgrade.begin(tmp_path / "state")
    commands, wrong = set[str](), list[str]()
    with upgrade.session(tmp_path / "state") as one:
        for step in upgrade.recorded(version)["steps"]:
            status, answer = one.do(step)
            if step["do"] != "request":
                continue
            command = step.get("command") or f"job: {step['path']}"
            commands.add(command.split()[1])
            wrong += upgrade.changes(step, command, status, answer, REFUSED.get((version, command)))
    assert not wrong, "\n".join(wrong)
    assert commands >= {"submit", "queue", "cancel", "resize", "wait", "acct", "nodes"}


def test_an_answer_without_a_key_or_of_another_type_is_noted() -> None:
    before = {"id": "3", "energy_j": 4.0, "nodes": ["n1"], "reason": "waits"}
    assert lacking(before, {**before, "energy_j": 5, "reason": "", "more": 1}) == []
    assert lacking(before, {**before, "id": "4"}) == ["answer.id: expected '3', got '4'"]
    assert lacking(before, {**before, "nodes": []}) == [
        "answer.nodes: expected 1 entries, got 0",
    ]
    assert lacking(before, {**before, "energy_j": None}) == [
        "answer.energy_j: expected 4.0, got None"
    ]
    del before["reason"]
    assert lacking({**before, "reason": ""}, before) == ["answer: expected 'reason', got none"]
