"""Jobs that survive the loss of a node under Slurm's engines: what Slurm is asked, and tells."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from processes import until

from rms.launch.base import LaunchError, ScriptLaunch
from rms.launch.local import keepers_of
from rms.launch.slurm.commands import CommandResult, Executor, Slurm
from rms.launch.slurm.jobs import SlurmJobs
from rms.launch.slurm.launcher import SlurmLauncher, end_steps, is_part_of
from rms.launch.slurm.output import JobDetails, QueuedJob
from rms.launch.slurm.pilot import OneAllocation
from rms.launch.slurm.queue import QueueSnapshot, SlurmJob, SubmissionRecord

NODES = ("n1", "n2", "n3")
NAME = "rms.cafe.1"


class Site:
    """Answers of Slurm's commands by name, and all that was called."""

    def __init__(self, **answers: str) -> None:
        self.answers, self.called = answers, list[Sequence[str]]()

    def __call__(self, command: Sequence[str], _: Mapping[str, str], __: float) -> CommandResult:
        self.called.append(command)
        name = "stranded" if "--format=%i|%N" in command else Path(command[0]).name
        answer = self.answers.get(name, "")
        failed = answer.startswith("error: ")
        return CommandResult(int(failed), "" if failed else answer, answer if failed else "")


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def jobs(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmJobs]:
    monkeypatch.setattr(shutil, "which", lambda name, **_: f"/usr/bin/{name}")
    executor = Executor(Slurm({"SLURM_CONF": "c", "SLURM_NNODES": "9", "LANG": "C"}, "me", site))
    launcher = SlurmLauncher(tmp_path, "cafe", "unix:none", executor)
    launcher.nodes = found = SlurmJobs(launcher)
    found._meters = None
    yield found
    executor.close()


def tracked(jobs: SlurmJobs, folder: Path, *, survives: bool = True) -> SlurmJob:
    """Return a job of three nodes that Slurm runs under number 7."""
    record = SubmissionRecord(number=7, survives=survives, held=[(1.0, NODES)])
    job = SlurmJob(
        0, None, folder / "status", name=NAME, record=record, record_file=folder / "slurm.json"
    )
    jobs.jobs["1"] = job
    return job


def seen(jobs: SlurmJobs, hosts: Sequence[str], *down: str, begun_s: float | None = None) -> None:
    """Take in a snapshot in which the job has these nodes."""
    count, own = len(hosts), tuple(hosts)
    row = QueuedJob(7, None, None, NAME, "me", "RUNNING", "", count, own, 60.0, 1.0, 1.0)
    begun_s = time.monotonic() if begun_s is None else begun_s
    dead = frozenset(down)
    jobs.update(QueueSnapshot(begun_s, begun_s, {7: row}, dead, frozenset(), dead, dead))


def test_the_name_of_keepers_is_not_part_of_their_jobs(jobs: SlurmJobs) -> None:
    name = jobs._launcher.name
    keeper = name(keepers_of("1"), 2)
    assert keeper == "rms.cafe.keepers.1.2"
    assert not is_part_of(keeper, name("1"))
    assert is_part_of(keeper, name(keepers_of("1")))
    assert not is_part_of(name("1", 2), name(keepers_of("1")))


def test_a_keeper_is_a_step_on_its_node(jobs: SlurmJobs, tmp_path: Path) -> None:
    launcher = jobs._launcher
    with pytest.raises(LaunchError, match="expected n2 to be held by job 1, got none"):
        launcher.keeper_command("n2", 0, "1")
    tracked(jobs, tmp_path)
    command = launcher.keeper_command("n2", 0, "1")
    assert command[:2] == ["/usr/bin/srun", "--jobid=7"]
    assert {"--nodelist=n2", "--overlap", "--job-name=rms.cafe.keepers.1.0"} <= {*command}
    assert command[command.index("-m") :][:3] == ["-m", "dmr.memory.keeper", "n2"]
    assert launcher.keeper_env() == {"SLURM_CONF": "c", "LANG": "C"}


def test_a_keeper_of_a_pilot_is_in_its_allocation(tmp_path: Path) -> None:
    pilot = SlurmLauncher(tmp_path, "cafe", "unix:none", Executor(Slurm({}, "me", Site())))
    pilot.nodes = OneAllocation(pilot, 9, ("n1", "n2"))
    assert pilot.nodes.allocation_of("1", "n2") == 9
    assert pilot.nodes.allocation_of("1", "n3") is None
    pilot.close()


@pytest.mark.parametrize("survives", [False, True])
def test_slurm_leaves_such_a_job_its_other_nodes(
    jobs: SlurmJobs, tmp_path: Path, site: Site, survives: bool
) -> None:
    site.answers["sbatch"] = "7\n"
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n#SBATCH --no-kill\ntrue\n")
    nodes = [[f"{host}/core:0"] for host in NODES]
    launch = ScriptLaunch(script, "/", {}, tmp_path / "out", nodes, survives=survives)
    jobs.start("1", launch)
    until(lambda: site.called)
    assert ("--no-kill" in site.called[0]) == survives
    until(lambda: jobs.number("1") == 7)
    jobs.take_answers()
    record = SubmissionRecord.read(tmp_path / "jobs" / "1" / "slurm.json")
    assert record is not None and record.survives == survives


def test_nodes_that_slurm_takes_away_are_lost(jobs: SlurmJobs, tmp_path: Path) -> None:
    tracked(jobs, tmp_path)
    seen(jobs, NODES)
    assert jobs.lost() == frozenset()
    seen(jobs, NODES, "n3", "n9")
    assert jobs.lost() == {"n3"}
    seen(jobs, NODES[:2])  # it is back, and not the job's any more
    assert jobs.lost() == {"n3"}
    given = JobDetails(7, NAME, "RUNNING", NODES[:2], "n1", False, 1.0, None, 5.0)
    before_s = time.monotonic()
    assert jobs.resize("1", lambda: (given, ""))() == ""
    seen(jobs, NODES, begun_s=before_s)  # older than the change
    assert jobs.lost() == {"n3"}
    seen(jobs, NODES[:2])
    assert jobs.lost() == frozenset()


def test_nodes_of_a_resize_are_not_lost(jobs: SlurmJobs, tmp_path: Path) -> None:
    tracked(jobs, tmp_path)
    jobs.resize("1", lambda: None)
    seen(jobs, NODES[:2])
    assert jobs.lost() == frozenset()


def test_slurm_ends_other_jobs_itself(jobs: SlurmJobs, tmp_path: Path) -> None:
    tracked(jobs, tmp_path, survives=False)
    seen(jobs, NODES[:2], "n3")
    assert jobs.lost() == frozenset()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", ""),
        ("error: task launch for n3 failed on node n3: no answer", "lost its nodes: n3"),
        ("error: no node is reached", ""),
    ],
)
def test_ranks_notice_a_dead_node_first(
    jobs: SlurmJobs, tmp_path: Path, site: Site, answer: str, why: str
) -> None:
    """A step tells which; the job keeps its record, as it goes on."""
    site.answers.update(scontrol="Slurmctld(primary) at ctl is UP\n", srun=answer)
    job = tracked(jobs, tmp_path)
    seen(jobs, NODES)
    found = jobs.diagnose_failure("1", NODES)
    assert until(lambda: [words for words in (found(),) if words is not None]) == [why]
    assert set(jobs.unavailable() or ()) == ({"n3"} if why else set())
    assert not job.record.closed


def test_a_silent_node_is_named_at_once(jobs: SlurmJobs, tmp_path: Path, site: Site) -> None:
    tracked(jobs, tmp_path)
    seen(jobs, NODES, "n2")
    found = jobs.diagnose_failure("1", NODES)
    assert until(found) == "lost its nodes: n2"
    assert not site.called


DETAILS = """\
JobId=7 JobName=rms.cafe.1
   JobState=RUNNING NodeList=n[1-2] StartTime=1 EndTime=2

"""


def test_steps_on_lost_nodes_are_not_waited_for(site: Site) -> None:
    site.answers.update(
        squeue="7.0|rms.cafe.1.0\n7.1|rms.cafe.2\n",
        stranded="7.0|n3\n7.1|n1\n",
        scontrol=DETAILS,
    )
    executor = Executor(Slurm({}, "me", site))
    begun_s = time.monotonic()
    end_steps(executor, [7], "rms.cafe.1", 30.0)
    assert time.monotonic() < begun_s + 10.0
    assert [words for words in site.called if words[0] == "scancel"] == [
        ("scancel", "--signal=KILL", "7.0")
    ]
    executor.close()
