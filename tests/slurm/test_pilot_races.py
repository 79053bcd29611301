"""Races under a pilot, in an allocation and on demand, each held open by a shim of a command."""

from __future__ import annotations

import pytest
from daemon import Rms
from on_demand import on_demand
from shims import ODD
from slurm_bed import Slurm
from slurm_daemon import piloted

# What happens between two commands is the same under either selection of nodes.
pytestmark = pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)

ONCE = "echo $SLURM_JOB_ID >> runs"
SCRIPT_STEP = r"--job-name=rms\.\w+\.{} "
"""The step of a job's script: ``{}`` is the job."""


def ran_once(rms: Rms, *jobs: str) -> None:
    """Jobs have completed, each ran once; the journal replays."""
    assert set(rms.over(*jobs)) == {"COMPLETED"}, rms.said()
    assert sorted((rms.work / "runs").read_text().split()) == sorted(jobs)
    assert not [pair for job in jobs for pair in rms.resizes(job)]
    rms.books_balance()
    rms.nothing_left()
    assert rms.end() == 0
    rms.replays()


def test_a_node_of_a_pilot_takes_no_step_yet(slurm: Slurm) -> None:
    """A script whose step is refused is started again, and runs once."""
    with piloted(slurm, 2) as rms:
        unready = "srun: error: Unable to create step: Requested nodes are not available"
        with rms.shims.rule("srun", SCRIPT_STEP.format(1), message=unready, times=1) as rule:
            job = rms.submit(ONCE, "--nodes", "1")
            rms.over(job)
            assert rule.met() == 1
        ran_once(rms, job)


def test_a_node_of_a_pilot_dies_between_mapping_and_launch(slurm: Slurm) -> None:
    """The script starts on another node of the allocation, once."""
    with piloted(slurm, 2) as rms:
        with rms.shims.held("srun", SCRIPT_STEP.format(1), times=1) as reached:
            job = rms.submit(ONCE, "--nodes", "1")
            reached()
            (dead,) = rms.row(job)["nodes"]
            slurm.stop(dead)
            slurm("scontrol", "update", f"nodename={dead}", "state=down", "reason=test")
        ran_once(rms, job)
        slurm.repair()


def test_names_with_characters_of_a_shell_in_a_pilot(slurm: Slurm) -> None:
    with piloted(slurm, 1) as rms:
        folder = rms.work / ODD
        folder.mkdir()
        script = folder / f"{ODD} job.sh"
        script.write_text(f"#!/bin/sh\n{ONCE}\n")
        options = "--job-name", ODD, "--output", f"{ODD}.out"
        job = rms.ask("submit", *options, str(script), folder=folder)["id"]
        rms.over(job)
        (folder / "runs").rename(rms.work / "runs")
        ran_once(rms, job)
        assert not list(rms.folder.rglob("pwned"))


@pytest.mark.promise("races")
def test_an_allocation_is_cancelled_from_outside_as_it_is_joined(slurm: Slurm) -> None:
    """Another one is requested, and the job runs there, once."""
    with on_demand(slurm, "--on-demand", "--max-nodes", "2") as rms:
        with rms.shims.held("sbatch", hold="after", times=1) as reached:
            job = rms.submit(ONCE, "--nodes", "1")
            reached()
            (first,) = rms.allocations()
            slurm("scancel", first)
        rms.over(job)
        rms.all_let_go()
        assert len(rms.shims.calls("sbatch")) == 2
        ran_once(rms, job)


def test_a_job_is_not_mapped_to_an_allocation_that_is_leaving(slurm: Slurm) -> None:
    """It waits for another allocation."""
    with on_demand(slurm, "--on-demand", "--max-nodes", "2") as rms:
        with rms.shims.held("scancel") as reached:
            first = rms.submit(ONCE, "--nodes", "1")
            reached()
            later = rms.submit(ONCE, "--nodes", "1")
            assert rms.row(later)["state"] == "PENDING"
        rms.over(first, later)
        rms.all_let_go()
        assert len(rms.shims.calls("sbatch")) == 2
        ran_once(rms, first, later)


def test_cut_lists_of_allocations(slurm: Slurm) -> None:
    """No allocation has ended because a list lacks it."""
    with on_demand(slurm, "--on-demand", "--max-nodes", "2") as rms:
        wait = f"while ! [ -e {rms.work / 'go'} ]; do sleep 0.1; done"
        job = rms.submit(f"{ONCE}\n{wait}", "--nodes", "1")
        rms.until((rms.work / "runs").exists, "a job that runs")
        for cut in (0.0, 0.6):
            with rms.shims.rule("squeue", "--name=", cut=cut) as rule:
                rms.until(lambda rule=rule: rule.met() >= 2, "lists that are cut")
        rms.hurry()
        rms.over(job)
        rms.all_let_go()
        assert "squeue gave no clear answer" in rms.said()
        assert len(rms.shims.calls("sbatch")) == 0  # before the shims were there
        ran_once(rms, job)
