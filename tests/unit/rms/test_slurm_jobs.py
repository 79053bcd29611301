"""What the end of a job of Slurm's is to the RMS, and what becomes of a resize that is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from rms.launch.slurm import resizing
from rms.launch.slurm.commands import Meaning, Slurm, SlurmError
from rms.launch.slurm.executor import Executor
from rms.launch.slurm.jobs import JobsLauncher
from rms.launch.slurm.output import JobDetails
from rms.launch.slurm.submitted import VANISHED, SlurmJob, SubmissionRecord


@pytest.mark.parametrize(
    ("state", "left", "end_state", "status"),
    [
        ("COMPLETED", "0", "", 0),
        ("FAILED", "3", "", 3),
        ("FAILED", None, "", 1),
        ("CANCELLED", None, "CANCELLED", 1),
        ("CANCELLED", "143", "CANCELLED", 143),
        ("CANCELLED", "0", "", 0),  # it had ended by itself just before
        ("TIMEOUT", "143", "TIMEOUT", 143),
        ("NODE_FAIL", None, "GONE", 1),
        ("PREEMPTED", None, "GONE", 1),
        (VANISHED, None, "GONE", 1),
        (VANISHED, "0", "", 0),
        (VANISHED, "3", "", 3),
    ],
)
def test_how_a_job_ended(
    tmp_path: Path, state: str, left: str | None, end_state: str, status: int
) -> None:
    file = tmp_path / "status"
    if left is not None:
        file.write_text(left)
    job = SlurmJob(0, None, file, "rms.x.1")
    assert job.status() is None
    job.end(state)
    assert (job.end_state, job.status()) == (end_state, status)


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "NODE_FAIL"])
def test_one_that_was_told_to_end_has_no_other_end(tmp_path: Path, state: str) -> None:
    job = SlurmJob(0, None, tmp_path / "status", "rms.x.1", told=True)
    job.end(state)
    assert (job.end_state, job.status()) == ("", 1)


@pytest.fixture
def executor() -> Iterator[Executor]:
    found = Executor(Slurm({}, "nobody"))
    yield found
    found.close()


JOB = JobDetails(7, "RUNNING", "None", ("n1",), "n1", False, 1.0, None, None)


def answer(errand: object) -> resizing.Answer:
    assert callable(errand)
    deadline = time.monotonic() + 20
    while (found := errand()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert isinstance(found, resizing.Answer)
    return found


@pytest.mark.parametrize(
    ("meaning", "words"),
    [
        (Meaning.NEVER, "refused (NEVER)"),
        (Meaning.DENIED, "refused (DENIED)"),
        (Meaning.GONE, "refused (GONE)"),
    ],
)
def test_a_grow_that_is_refused_for_good_is_not_tried_again(
    executor: Executor, meaning: Meaning, words: str
) -> None:
    asked = []

    def refuse() -> JobDetails:
        asked.append(meaning)
        raise SlurmError(words, meaning)

    assert answer(resizing.patiently(executor, refuse, give_up=True)) == resizing.Answer(
        None, words
    )
    assert len(asked) == 1


def test_a_grow_that_may_go_through_later_is_tried_again(executor: Executor) -> None:
    asked = []

    def act() -> JobDetails:
        asked.append(1)
        if len(asked) < 3:
            raise SlurmError("nodes are busy", Meaning.LATER)
        return JOB

    assert answer(resizing.patiently(executor, act, give_up=True)) == resizing.Answer(JOB)
    assert len(asked) == 3


def test_a_grow_that_is_never_let_through_says_that_it_may_be_later(executor: Executor) -> None:
    def act() -> JobDetails:
        raise SlurmError("nodes are busy", Meaning.LATER)

    found = answer(resizing.patiently(executor, act, give_up=True))
    assert found == resizing.Answer(None, "later: nodes are busy")


def test_a_release_is_tried_until_it_is_done_or_the_job_is_over(executor: Executor) -> None:
    meanings = [Meaning.UNREACHABLE, Meaning.GONE]

    def act() -> JobDetails:
        raise SlurmError("no", meanings.pop(0))

    assert answer(resizing.patiently(executor, act, give_up=False)) == resizing.Answer()
    assert meanings == []


@pytest.mark.parametrize(
    ("state", "resized_s", "entered"),
    [("RUNNING", 6.0, True), ("COMPLETING", 6.0, True), ("COMPLETING", 5.0, False)],
)
def test_nodes_that_a_job_loses_by_ending_are_no_change(
    tmp_path: Path, executor: Executor, state: str, resized_s: float, entered: bool
) -> None:
    found: list[object] = []
    launcher = SimpleNamespace(_growing={}, _holds=lambda *entry: found.append(entry))
    ticket = SubmissionRecord(0.0, number=7, held=[(1.0, ("n1",)), (5.0, ("n1", "n2"))])
    child = SlurmJob(0, None, tmp_path / "status", "rms.1", ticket=ticket)
    now = JobDetails(7, state, "None", ("n1",), "n1", False, 1.0, None, resized_s)
    following = JobsLauncher._following(
        cast("JobsLauncher", launcher), "1", child, lambda: resizing.Answer(now)
    )
    assert following() == ""
    assert found == ([("1", child, ("n1",), 6.0)] if entered else [])
