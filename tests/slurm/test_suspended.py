"""``rms suspend`` and ``rms continue`` on Slurm's nodes: steps of a pilot, jobs of Slurm's own."""

from __future__ import annotations

import time

import pytest
from daemon import Rms
from processes import ROOT, program
from slurm_bed import Slurm
from slurm_daemon import piloted, serving

PACED = f"{' '.join(program('paced'))} {ROOT / 'mpdata' / '__main__.py'}"
RUN = f"PACE_S=0.05 mpirun {PACED} run --case random --grid 24 20 8 --backend numpy --every 2"

pytestmark = pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)


def stops_and_goes_on(rms: Rms) -> None:
    """A job of two nodes stands still while it is suspended; another is cancelled meanwhile."""
    job = rms.submit(f"{RUN} --steps 400", "--nodes", "2", "--time", "10")
    rms.running(job, 5)
    rms.ask("suspend", job)
    rms.until(lambda: stands_still(rms, job), "stop of the job")
    assert rms.row(job)["state"] == "SUSPENDED"
    at = rms.row(job)["step"]
    rms.ask("continue", job)
    rms.running(job, at + 5)
    rms.ask("suspend", job)
    rms.until(lambda: stands_still(rms, job), "second stop of the job")
    rms.ask("cancel", job)
    assert rms.over(job) == ["CANCELLED"]
    rms.nothing_left()


def stands_still(rms: Rms, job: str) -> bool:
    """Return whether a job makes no step in a second."""
    at = rms.row(job)["step"]
    time.sleep(1.0)
    return bool(rms.row(job)["step"] == at)


@pytest.mark.promise("slurm-suspend")
def test_steps_of_a_pilot(slurm: Slurm) -> None:
    with piloted(slurm, 2, "--policy", "fifo", "--grace", "10") as rms:
        stops_and_goes_on(rms)


@pytest.mark.promise("slurm-suspend")
def test_jobs_of_slurm_itself(slurm: Slurm) -> None:
    with serving(slurm, "--policy", "fifo", "--grace", "10") as rms:
        stops_and_goes_on(rms)
