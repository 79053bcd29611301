"""A newer Slurm, as a whole: both engines resize jobs there, and faults are survived.

The other tests start the version of ``SLURM_VERSION``, so all of them can be run with another one;
this is what a site's first day needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cluster_hosts import Cluster
from processes import program
from slurm_bed import Slurm, brought_up
from slurm_daemon import CASE, MPDATA, STEPS, Pilot, SlurmRms, bare, piloted, serving, write_script

from rms.launch.slurm.output import version_from_text

NEWER = os.environ.get("SLURM_VERSION", "24.11")
"""The version tried here; it is not the one of this machine."""


@pytest.fixture(scope="module")
def session_slurm(asked: None) -> Iterator[Slurm]:
    """One cluster for the file, in place of the session's."""
    with brought_up("--hosts", "4", "--slurm", NEWER, "--select", "cons_tres") as slurm:
        yield slurm


@pytest.fixture(scope="module")
def answer(asked: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the field that every job has to end with."""
    return bare(tmp_path_factory.mktemp("bare"), *CASE.split(), "--steps", str(STEPS))


@pytest.fixture
def rms(slurm: Slurm) -> Iterator[SlurmRms]:
    with serving(slurm, "--policy", "fifo", "--grace", "5") as found:
        yield found


def started(rms: SlurmRms, *lines: str, preferred: int = 2) -> str:
    """Have a malleable job compute on so many nodes."""
    write_script(
        rms, "#SBATCH --nodes=1-4", f"#RMS --mode=malleable --preferred={preferred}", *lines
    )
    job = rms.submit_file()
    rms.running(job)
    return job


def ended(rms: SlurmRms | Pilot, job: str, answer: str, resizes: list[tuple[int, int]]) -> None:
    """Let a job compute to its end: the resizes of its life, and the same bits."""
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"], rms.said()
    row = rms.row(job)
    assert [(r["from"], r["to"]) for r in row["resizes"]] == resizes
    assert row["answer"] == answer
    rms.nothing_left()


@pytest.mark.promise("slurm-check")
def test_the_check_names_the_version_and_its_faults(rms: SlurmRms) -> None:
    done = rms.rms("serve", "--engine", "slurm", "--check")
    assert done.returncode == 0, done.stderr
    number = version_from_text(rms.bed("sinfo", "--version"))
    assert done.stdout.startswith(f"Slurm {number[0]}.{number[1]:02d}.{number[2]}, cluster ")
    assert "yes  growing a running job, tried" in done.stdout
    assert "yes  shrinking a running job, tried" in done.stdout
    assert "fault  nodes merged into a job that ends" in done.stdout
    rms.nothing_left()


@pytest.mark.promise("slurm-versions")
def test_a_job_grows_and_shrinks(rms: SlurmRms, answer: str) -> None:
    job = started(rms)
    rms.resize(job, 4)
    rms.settled(job, 1)
    assert len(rms.row(job)["nodes"]) == 4
    rms.resize(job, 1)
    rms.settled(job, 2)
    assert len(rms.bed.hosts(str(rms.number(job)))) == 1
    ended(rms, job, answer, [(2, 4), (4, 1)])


@pytest.mark.promise("slurm-versions")
def test_scancel_in_a_resize(rms: SlurmRms) -> None:
    job = started(rms)
    rms.resize(job, 4)
    rms.until(lambda: rms.row(job)["resizing"] == "booting", f"boot of job {job}", every_s=0.002)
    rms.bed("scancel", str(rms.number(job)))
    rms.hurry()
    assert rms.over(job) == ["CANCELLED"]
    rms.nothing_left()


@pytest.mark.promise("slurm-versions")
def test_a_node_without_power(rms: SlurmRms, answer: str) -> None:
    """It falls silent in the middle of a job, which starts again on the others."""
    job = started(rms, "#SBATCH --requeue")
    cluster = Cluster(rms.bed.folder, rms.bed.record)
    before, lost = rms.number(job), rms.row(job)["nodes"][-1]
    cluster("kill", lost)
    try:
        rms.until(
            lambda: rms.row(job)["state"] == "RUNNING" and rms.number(job) != before,
            "job on other nodes",
        )
        rms.running(job)
        assert lost not in rms.row(job)["nodes"]
    finally:
        cluster("start", lost)
    ended(rms, job, answer, [])


@pytest.mark.promise("slurm-versions")
def test_the_controller_without_power(rms: SlurmRms, answer: str) -> None:
    """A running job goes on; a resize and a submission go through on its return."""
    job = started(rms, preferred=1)
    cluster = Cluster(rms.bed.folder, rms.bed.record)
    rms.bed.stop("slurmctld")  # in order, as its last seconds are lost otherwise
    cluster("kill", "ctl")
    try:
        rms.resize(job, 2)
        write_script(rms, "#SBATCH --nodes=1")
        other = rms.submit_file()
        rms.running(job, rms.row(job)["step"] + 20)
    finally:
        cluster("start", "ctl")
    rms.settled(job, 1)
    rms.running(other)
    rms.hurry()
    assert rms.over(other) == ["COMPLETED"]
    ended(rms, job, answer, [(1, 2)])


@pytest.mark.promise("slurm-versions")
def test_the_pilot_grows_and_shrinks_a_job(slurm: Slurm, answer: str) -> None:
    paced = f"PACE_S=0.1 mpirun {' '.join(program('paced'))} {MPDATA}"
    with piloted(slurm, 4, "--policy", "fifo") as pilot:
        run = f"{paced} run {CASE} --steps {STEPS}"
        job = pilot.submit(run, "--nodes", "1-4", "--mode", "malleable", "--preferred", "2")
        pilot.running(job)
        pilot.resized(job, 4)
        pilot.resized(job, 1)
        ended(pilot, job, answer, [(2, 4), (4, 1)])
