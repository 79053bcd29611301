"""A job was FAILED, not requeued, where its ranks noticed a dead node before Slurm did."""

from __future__ import annotations

from pathlib import Path

import pytest

from rms.launch.slurm.commands import Executor, Slurm
from rms.launch.slurm.jobs import SlurmJobs
from rms.launch.slurm.launcher import SlurmLauncher
from rms.launch.slurm.output import QueuedJob, SiteNode
from rms.launch.slurm.queue import SlurmJob, SubmissionRecord, take_snapshot

NAME = "rms.cafe.1"


def row(state: str) -> QueuedJob:
    return QueuedJob(7, None, None, NAME, "me", state, "", 2, ("n1", "n2"), 60.0, 1.0, 1.0)


def node(name: str, state: str, *, responds: bool = True) -> SiteNode:
    return SiteNode(name, ("all",), state, responds, 2, "", "")


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (node("n2", "completing", responds=False), "lost its nodes: n2"),
        (node("n2", "down"), "lost its nodes: n2"),
        (node("n2", "completing"), ""),
        (node("n2", "idle"), ""),
    ],
)
def test_its_failure_is_that_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: SiteNode, why: str
) -> None:
    slurm = Slurm({}, "me")
    executor = Executor(slurm)
    jobs = SlurmJobs(SlurmLauncher(tmp_path, "cafe", "unix:none", executor))
    jobs._meters = None
    record = SubmissionRecord(number=7)
    job = SlurmJob(
        0, None, tmp_path / "status", name=NAME, record=record, record_file=tmp_path / "slurm.json"
    )
    jobs.jobs["1"] = job

    def see(state: str, other: SiteNode) -> None:
        monkeypatch.setattr(slurm, "jobs", lambda *_, **__: [row(state)])
        monkeypatch.setattr(slurm, "holders", lambda *_: [])
        monkeypatch.setattr(slurm, "nodes", lambda: [node("n1", "idle"), other])
        jobs.update(take_snapshot(slurm, lambda name: name == NAME, {}))

    see("RUNNING", node("n2", "allocated"))
    (tmp_path / "status").write_text("1")  # mpiexec has failed; one node does not end the job
    see("COMPLETING", node("n2", "completing"))
    assert not job.finished
    see("FAILED", second)
    assert job.finished
    assert (job.end_state, job.status()) == ("", 1)
    answer = jobs.diagnose_failure("1", ["n1", "n2"])
    assert answer is not None
    assert answer() == why
    assert job.record.closed == bool(why)
    executor.close()
