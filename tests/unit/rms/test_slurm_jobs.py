"""What the end of a job of Slurm's is to the RMS, and what becomes of a resize that is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
from faults import Fault
from processes import until

from rms.launch.slurm import queue
from rms.launch.slurm.commands import (
    CommandResult,
    Executor,
    Meaning,
    RateLimiter,
    Slurm,
    SlurmError,
)
from rms.launch.slurm.jobs import SlurmJobs
from rms.launch.slurm.launcher import SlurmLauncher
from rms.launch.slurm.output import JobDetails, QueuedJob
from rms.launch.slurm.pilot import OneAllocation
from rms.launch.slurm.queue import (
    VANISHED,
    QueueSnapshot,
    SlurmJob,
    SubmissionRecord,
    submit,
)
from rms.wire.users import SlurmRow


def slurm_job(folder: Path, record: SubmissionRecord | None = None) -> SlurmJob:
    return SlurmJob(
        0,
        None,
        folder / "status",
        name="rms.x.1",
        record=record or SubmissionRecord(),
        record_file=folder / "slurm.json",
    )


def jobs_of(folder: Path, executor: Executor) -> SlurmJobs:
    return SlurmJobs(SlurmLauncher(folder, "cafe", "unix:none", executor))


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
    job = slurm_job(tmp_path)
    assert job.status() is None
    job.end(state)
    assert (job.end_state, job.status()) == (end_state, status)


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "NODE_FAIL"])
def test_one_that_was_told_to_end_has_no_other_end(tmp_path: Path, state: str) -> None:
    job = slurm_job(tmp_path)
    job.end_requested = True
    job.end(state)
    assert (job.end_state, job.status()) == ("", 1)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    monkeypatch.setattr(queue, "LATER_S", 1.0)
    monkeypatch.setattr(queue, "AGAIN_S", 0.05)
    found = Executor(Slurm({}, "nobody"))
    yield found
    found.close()


JOB = JobDetails(7, "rms.x.1", "RUNNING", ("n1",), "n1", False, 1.0, None, None)


def answer(change: queue.Retried) -> queue.ChangeOutcome:
    outcome: list[queue.ChangeOutcome] = until(lambda: [o for o in (change(),) if o is not None])
    return outcome[0]


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

    assert answer(queue.Retried(executor, refuse, give_up=True)) == (None, words)
    assert len(asked) == 1


def test_a_grow_that_may_go_through_later_is_tried_again(executor: Executor) -> None:
    asked = []

    def act() -> JobDetails:
        asked.append(1)
        if len(asked) < 3:
            raise SlurmError("nodes are busy", Meaning.LATER)
        return JOB

    assert answer(queue.Retried(executor, act, give_up=True)) == (JOB, "")
    assert len(asked) == 3


def test_a_grow_that_is_never_let_through_says_that_it_may_be_later(executor: Executor) -> None:
    def act() -> JobDetails:
        raise SlurmError("nodes are busy", Meaning.LATER)

    found = answer(queue.Retried(executor, act, give_up=True))
    assert found == (None, "later: nodes are busy")


def test_a_release_is_tried_until_it_is_done_or_the_job_is_over(executor: Executor) -> None:
    meanings = [Meaning.UNREACHABLE, Meaning.GONE]

    def act() -> JobDetails:
        raise SlurmError("no", meanings.pop(0))

    assert answer(queue.Retried(executor, act, give_up=False)) == (None, "")
    assert meanings == []


@pytest.mark.parametrize(
    ("state", "resized_s", "entered"),
    [("RUNNING", 6.0, True), ("COMPLETING", 6.0, True), ("COMPLETING", 5.0, False)],
)
def test_nodes_that_a_job_loses_by_ending_are_no_change(
    tmp_path: Path, executor: Executor, state: str, resized_s: float, entered: bool
) -> None:
    before = [(1.0, ("n1",)), (5.0, ("n1", "n2"))]
    record = SubmissionRecord(number=7, held=list(before))
    tracker = jobs_of(tmp_path, executor)
    tracker.jobs["1"] = slurm_job(tmp_path, record)
    now = JobDetails(7, "rms.x.1", state, ("n1",), "n1", False, 1.0, None, resized_s)
    assert tracker.resize("1", lambda: (now, ""))() == ""
    assert record.held == ([*before, (6.0, ("n1",))] if entered else before)
    assert SubmissionRecord.read(tmp_path / "slurm.json") == (record if entered else None)
    assert tracker.resizes == {}


def test_queries_ask_slurm_nothing_and_start_no_thread(tmp_path: Path) -> None:
    def refuse(*words: object) -> CommandResult:
        raise AssertionError(f"a query has run {words[0]}")

    threads = set(threading.enumerate())
    executor = Executor(Slurm({}, "nobody", refuse))
    jobs = SlurmLauncher(tmp_path / "jobs", "cafe", "unix:none", executor)
    jobs.nodes = SlurmJobs(jobs)
    pilot = SlurmLauncher(tmp_path / "pilot", "cafe", "unix:none", executor)
    pilot.nodes = OneAllocation(pilot, 7, ())
    for _ in range(2):
        for nodes in (jobs.nodes, pilot.nodes):
            assert nodes.unavailable() is None
            assert nodes.shutdown_reason() == ""
            assert nodes.job_details("1") == SlurmRow()
            assert nodes.controller_answers()
    assert jobs.nodes.allocations("1") == []
    assert set(threading.enumerate()) == threads
    jobs.close()
    pilot.close()


def test_changes_go_one_by_one_and_others_have_as_long() -> None:
    limiter, spans = RateLimiter(share=0.5), []

    def change() -> None:
        with limiter:
            begun = time.monotonic()
            time.sleep(0.05)
            spans.append((begun, time.monotonic()))

    threads = [threading.Thread(target=change) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans.sort()
    for (begun, ended), (following, _) in pairwise(spans):
        assert following - ended >= ended - begun - 1e-3


def test_a_change_that_fails_gives_its_turn_back() -> None:
    limiter = RateLimiter()
    with pytest.raises(ValueError, match="refused"), limiter:
        raise ValueError("refused")
    with limiter:
        pass


# --- faults stay with the job, or the question, that they belong to -----------------------------


class Away(Slurm):
    """A site whose controller does not answer."""

    asked = 0

    def submit(self, *arguments: str, **_: object) -> int:
        raise SlurmError("Unable to contact slurm controller", Meaning.UNREACHABLE)

    def jobs(self, *arguments: str) -> list[QueuedJob]:
        Away.asked += 1
        raise SlurmError("Unable to contact slurm controller", Meaning.UNREACHABLE)


def test_a_submission_ends_with_the_daemon_and_the_next_one_looks_for_it(tmp_path: Path) -> None:
    executor, job = Executor(Away({}, "nobody")), slurm_job(tmp_path)
    job.submission = executor.ask(lambda: submit(executor, job, [], {}, tmp_path, search=True))
    deadline = time.monotonic() + 120
    while not Away.asked:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    executor.close()  # it waits for all threads
    assert job.submission.done() and job.number is None
    left = SubmissionRecord.read(job.record_file)
    assert left is not None and left.open


def test_an_answer_of_no_use_ends_its_own_job(
    tmp_path: Path, executor: Executor, fault: Fault
) -> None:
    tracker, wrong, right = jobs_of(tmp_path, executor), slurm_job(tmp_path), slurm_job(tmp_path)
    tracker.jobs = {"1": wrong, "2": right}
    wrong.submission, right.submission = Future(), Future()
    wrong.submission.set_exception(KeyError("JobId"))
    right.submission.set_result(7)
    tracker.take_answers()
    assert (wrong.finished, wrong.end_reason, wrong.status()) == (True, "'JobId'", 1)
    assert (right.finished, right.record.number) == (False, 7)
    fault("an exception in a Slurm answer", "that job FAILED with the reason", lost="that job")


def test_a_snapshot_of_no_use_is_asked_for_again(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(*_: object) -> QueueSnapshot:
        raise KeyError("jobs")

    monkeypatch.setattr(queue, "take_snapshot", take)
    found = queue.QueuePoller(executor, bool, dict)
    deadline = time.monotonic() + 120
    while not found.trouble:
        assert found.poll(urgent=True) is None and time.monotonic() < deadline
        time.sleep(0.01)
    assert found.trouble == "'jobs'"


def test_a_record_that_finds_no_room_is_written_later(
    tmp_path: Path, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker, job = jobs_of(tmp_path, executor), slurm_job(tmp_path)
    tracker.jobs["1"], job.submission = job, Future()
    job.submission.set_result(7)
    with monkeypatch.context() as full:
        full.setattr(queue, "write_whole", Mock(side_effect=OSError("No space left")))
        tracker.take_answers()
    assert job.unsaved and not job.record_file.exists()
    tracker._checked_s = 0.0
    tracker.take_answers()
    left = SubmissionRecord.read(job.record_file)
    assert left is not None and left.number == 7 and not job.unsaved
