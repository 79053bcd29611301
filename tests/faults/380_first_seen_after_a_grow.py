"""A job that had grown before Slurm's queue was read had held its new nodes from its start on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rms.launch.slurm.commands import Executor, Slurm
from rms.launch.slurm.jobs import SlurmJobs
from rms.launch.slurm.launcher import SlurmLauncher
from rms.launch.slurm.output import JobDetails, QueuedJob
from rms.launch.slurm.queue import QueueSnapshot, SlurmJob, SubmissionRecord

NAME = "rms.cafe.1"


FOUR = ("n1", "n2", "n3", "n4")


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[SlurmJobs]:
    executor = Executor(Slurm({}, "me"))
    jobs = SlurmJobs(SlurmLauncher(tmp_path, "cafe", "unix:none", executor))
    jobs._meters = None
    job = jobs.jobs["1"] = SlurmJob(
        0,
        None,
        tmp_path / "status",
        name=NAME,
        record=SubmissionRecord(number=7),
        record_file=tmp_path / "slurm.json",
    )
    job.hosts = ("n1", "n2")
    yield jobs
    executor.close()


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
def test_its_first_nodes_are_those_of_its_submission(jobs: SlurmJobs, state: str) -> None:
    row = QueuedJob(7, None, None, NAME, "me", state, "", 4, FOUR, 60.0, 1.0, 5.0)
    nothing = frozenset[str]()
    jobs.update(QueueSnapshot(1.0, 2.0, {7: row}, nothing, nothing))
    assert jobs.jobs["1"].record.held[0] == (5.0, ("n1", "n2"))


def test_a_grow_that_ends_before_the_first_look(jobs: SlurmJobs) -> None:
    grown = JobDetails(7, NAME, "RUNNING", FOUR, "n1", False, 5.0, None, 9.0)
    assert jobs.resize("1", lambda: (grown, ""))() == ""
    assert jobs.jobs["1"].record.held == [(5.0, ("n1", "n2")), (9.0, FOUR)]


def test_an_answer_after_the_end_does_not_repeat_the_start(jobs: SlurmJobs) -> None:
    nothing = frozenset[str]()

    def seen(begun_s: float, state: str) -> None:
        row = QueuedJob(7, None, None, NAME, "me", state, "", 2, FOUR[1:3], 60.0, 1.0, 5.0)
        jobs.update(QueueSnapshot(begun_s, begun_s, {7: row}, nothing, nothing))

    seen(1.0, "RUNNING")
    grown = JobDetails(7, NAME, "RUNNING", FOUR, "n1", False, 5.0, None, 9.0)
    assert jobs.resize("1", lambda: (grown, ""))() == ""
    seen(2.0, "COMPLETED")
    assert jobs.resize("1", lambda: (grown, ""))() == ""
    *held, (_, at_its_end) = jobs.jobs["1"].record.held
    assert held == [(5.0, ("n1", "n2")), (9.0, FOUR)] and at_its_end == ()
