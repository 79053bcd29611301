"""A job that Slurm had twice, as the answer to its submission was lost, ran twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from rms.launch.slurm.commands import Executor, Slurm
from rms.launch.slurm.jobs import SlurmJobs
from rms.launch.slurm.launcher import SlurmLauncher
from rms.launch.slurm.output import QueuedJob
from rms.launch.slurm.queue import QueueSnapshot, SlurmJob, SubmissionRecord

NAME = "rms.cafe.1"


def row(number: int, state: str) -> QueuedJob:
    return QueuedJob(number, None, None, NAME, "me", state, "Resources", 1, ("n1",), 60.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("states", "kept"),
    [
        (("RUNNING", "PENDING"), 7),
        (("PENDING", "RUNNING"), 8),
        (("RUNNING", "RUNNING"), 7),
        (("COMPLETED", "PENDING"), 7),
    ],
)
def test_one_is_kept_and_the_other_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: tuple[str, str], kept: int
) -> None:
    cancelled: list[int] = []
    executor = Executor(Slurm({}, "me"))
    tracker = SlurmJobs(SlurmLauncher(tmp_path, "cafe", "unix:none", executor))
    monkeypatch.setattr(tracker, "cancel", lambda number, **_: cancelled.append(number))
    tracker._meters = None
    record = SubmissionRecord(number=7)
    tracker.jobs["1"] = SlurmJob(
        0, None, tmp_path / "status", name=NAME, record=record, record_file=tmp_path / "slurm.json"
    )
    own = {number: row(number, state) for number, state in zip((7, 8), states, strict=True)}
    nothing = frozenset[str]()
    tracker.update(QueueSnapshot(1.0, 2.0, own, nothing, nothing))
    assert set(cancelled) == {15 - kept}
    assert tracker.jobs["1"].record.number == kept
    executor.close()
