"""A real cluster's accounting as a workload: what ``sacct`` prints goes into ``rms simulate``."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from slurm_bed import Slurm

from rms.cli.main import main
from rms.formats.joblog import COMMAND, JobLog, read_log

one_select = pytest.mark.parametrize("session_slurm", ["linear"], indirect=True)
STEPS = (
    "sacct --allusers --duplicates --parsable2"
    " --format=JobName,JobID,State,Elapsed,Timelimit,Start,End,Submit,NNodes,NCPUS"
)
"""With steps, local times and the name first."""

IN_QUEUE = ("squeue", "--noheader", "--states=PENDING,RUNNING")
"""A donor whose nodes were merged into another job may stay COMPLETING, without any."""


def batch(slurm: Slurm, *options: str, script: str) -> str:
    return slurm("sbatch", "--parsable", "--exclusive", *options, "--wrap", script).strip()


def has_records(slurm: Slurm, job: str, *states: str) -> bool:
    """Return whether accounting has records of a job in just these states."""
    return [state.split()[0] for name, state, _ in slurm.rows(job) if "." not in name] == [*states]


def recorded(slurm: Slurm, job: str, *states: str) -> None:
    """Wait until accounting, which lags behind, has records of a job in just these states."""
    slurm.wait_until(
        lambda: has_records(slurm, job, *states),
        lambda: f"job {job} is {states}, got {slurm.rows(job)}",
    )


def of_two_parts(slurm: Slurm) -> str:
    """Return a heterogeneous job that is over.

    The backfill scheduler alone starts one, all parts at once, so it comes when nothing else runs.
    Once the queue was empty and accounting had not entered both parts as completed after three
    minutes, for reasons unknown: then another job is made, and at last what there is is shown.
    """
    parts = ["--nodes=1", "--exclusive", ":", "--nodes=2", "--exclusive"]
    for _ in range(3):
        done = slurm.run("sbatch", "--parsable", *parts, "--wrap", "sleep 1")
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()
        slurm.wait_until(lambda: not slurm(*IN_QUEUE).strip(), f"end of {job}")
        end = time.monotonic() + 20.0
        while time.monotonic() < end:
            if has_records(slurm, job, "COMPLETED", "COMPLETED"):
                return job
            time.sleep(0.1)
    pytest.fail(f"no record of the end of job {job}: {slurm.rows(job)}")


@pytest.fixture
def jobs(slurm: Slurm) -> dict[str, str]:
    """Every kind of job, by what it is: those that are to be over are."""
    made = {
        "two": batch(slurm, "--nodes=2", "--job-name=a|b", "--time=5", script="srun sleep 2"),
        "array": batch(slurm, "--nodes=1", "--array=1-3%2", script="sleep 1"),
        "failed": batch(slurm, "--nodes=1", script="exit 3"),
    }
    recorded(slurm, made["two"], "COMPLETED")
    recorded(slurm, made["array"], *["COMPLETED"] * 3)
    recorded(slurm, made["failed"], "FAILED")
    made["parts"] = of_two_parts(slurm)
    shrunk = slurm.folder / "tmp" / "shrunk"
    waits = f"sleep 2; until [ -e {shrunk} ]; do sleep 0.1; done"
    made["resized"] = slurm.submit("--nodes=3", script=waits)
    slurm.shrink(made["resized"], slurm.hosts(made["resized"])[0])
    shrunk.touch()
    recorded(slurm, made["resized"], "RESIZING", "COMPLETED")
    made["again"] = slurm.submit("--nodes=1", "--requeue", script="sleep 600")
    slurm.next_second()
    slurm("scontrol", "requeue", made["again"])
    recorded(slurm, made["again"], "REQUEUED", "PENDING")
    slurm("scancel", made["again"])  # Slurm starts it again only after two minutes
    recorded(slurm, made["again"], "REQUEUED", "CANCELLED")
    made["held"] = batch(slurm, "--hold", "--array=5-9", "--nodes=1", script="true")
    made["never"] = batch(slurm, "--hold", "--nodes=1", script="true")
    slurm("scancel", made["never"])
    made["running"] = slurm.submit("--nodes=1")
    recorded(slurm, made["never"], "CANCELLED")
    recorded(slurm, made["held"], "PENDING")
    recorded(slurm, made["running"], "RUNNING")
    return made


def printed(slurm: Slurm, folder: Path, command: str, jobs: dict[str, str]) -> Path:
    path = folder / "jobs.txt"
    path.write_text(slurm("sh", "-c", f"{command} --jobs={','.join(jobs.values())}"))
    return path


def sizes(log: JobLog, jobs: dict[str, str]) -> dict[str, int]:
    """Return the size of each job, its id by what it is."""
    names = {job: name for name, job in jobs.items()}
    found = {}
    for job in log.jobs:
        number, rest = re.fullmatch(r"(\d+)(.*)", job.id).groups()  # type: ignore[union-attr]
        found[names[number] + rest] = job.size
    return found


@one_select
@pytest.mark.promise("site-log-slurm")
def test_a_clusters_accounting_is_simulated(
    slurm: Slurm, jobs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = printed(slurm, tmp_path, COMMAND, jobs)
    log = read_log([path])
    assert sizes(log, jobs) == {
        "two": 2,
        **{f"array_{task}": 1 for task in (1, 2, 3)},
        "failed": 1,
        "parts": 3,
        "resized": pytest.approx(2, abs=1),
        "again": 1,
    }, path.read_text()
    counts = {"heterogeneous": 1, "still_running": 1, "waiting": 5}
    assert counts.items() <= log.counts.items(), path.read_text()
    assert log.counts["cancelled_before_start"] == 2
    assert log.counts["resizes_in_the_log"] == 1
    assert "steps" not in log.counts
    run_s = {job.id: job.run_s for job in log.jobs}
    assert run_s[jobs["two"]] >= 2 and run_s[jobs["resized"]] >= 2
    assert {job.name for job in log.jobs} >= {"a|b", "wrap"}
    assert min(job.start_s - job.submit_s for job in log.jobs) >= 0
    assert 3 <= log.largest <= 4

    command = ["simulate", "--sacct", str(path), "--processors", "4", "--policy", "easy"]
    assert main([*command, "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["jobs"], found["refused"]) == (len(log.jobs), 0)
    assert found["log"]["cluster"] == 4
    assert main([*command, "--malleable", "0,100", "--mode", "flexible"]) == 0
    assert "by class of job" in capsys.readouterr().out

    again = read_log([printed(slurm, tmp_path, STEPS, jobs)])
    assert sizes(again, jobs) == sizes(log, jobs)
    assert {job.id: job.run_s for job in again.jobs} == run_s
    assert again.counts["steps"] >= 8
