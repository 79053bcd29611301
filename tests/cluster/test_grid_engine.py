"""``rms pilot`` in a job of Grid Engine: hosts by ``qrsh -inherit``, its time, and its end."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator

import pytest
from cluster_hosts import Cluster, hosts_up
from daemon import closing
from hosts_daemon import SMALL, STEPS, GridEngineRms
from slurm_daemon import bare


@pytest.fixture(scope="module")
def engine(asked: None) -> Iterator[Cluster]:
    """Three hosts with Grid Engine, which see the folder of temporary files."""
    words = ("--hosts", "3", "--slurm", "none", "--gridengine", "--share", tempfile.gettempdir())
    with hosts_up(*words) as cluster:
        yield cluster


@pytest.mark.promise("grid-engine")
def test_an_array_is_resized_in_a_parallel_environment(
    engine: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One slot on each host: so Grid Engine starts one process there, the agent."""
    alone = bare(tmp_path_factory.mktemp("alone"), *SMALL.split(), "--steps", str(STEPS))
    with closing(GridEngineRms(engine, 3, "--policy", "fifo")) as rms:
        rms.up("n1", "n2", "n3")
        options = ("--nodes", "1-2", "--preferred", "1", "--mode", "malleable", "--array", "1-2")
        array = rms.submit(rms.mpdata("--strategy", "warm"), *options)
        tasks = [f"{array}_1", f"{array}_2"]
        for task in tasks:
            rms.running(task)
        for task in tasks:
            rms.resized(task, 2)
            rms.resized(task, 1)
        rms.hurry()
        assert rms.over(*tasks) == ["COMPLETED"] * 2
        for task in tasks:
            assert rms.resizes(task) == [(1, 2), (2, 1)]
            assert rms.row(task)["answer"] == alone
        rms.ends_well()


def test_jobs_end_before_their_allocation(engine: Cluster) -> None:
    """The pilot ends by its margin before ``h_rt``; its jobs wait for the next one."""
    with closing(GridEngineRms(engine, 2, "--grace", "2", "--margin", "50", limit_s=110)) as rms:
        # Grid Engine chooses the hosts.
        rms.until(
            lambda: ["down" in row["state"] for row in rms.get("/nodes")] == [False] * 2, "hosts"
        )
        job = rms.submit("sleep 600", "--nodes", "1")
        rms.until(lambda: rms.row(job)["state"] == "RUNNING", "a running job")
        assert rms.process is not None
        assert rms.process.wait(120) == 0
        assert "the allocation sge:" in rms.said()
        rms.nothing_left()


def test_a_script_runs_on_its_node(engine: Cluster) -> None:
    """Its outputs, status and signals are as anywhere; what it leaves behind ends."""
    with closing(GridEngineRms(engine, 3)) as rms:
        rms.up("n1", "n2", "n3")
        errors = rms.work / "errors"
        lines = "hostname; echo bad >&2; setsid sleep 600 & exit 3"
        job = rms.submit(lines, "--nodelist", "n3", "--error", str(errors))
        assert rms.over(job) == ["FAILED"]
        assert rms.row(job)["exit_code"] == 3
        assert (rms.output(job), errors.read_text()) == ("n3\n", "bad\n")
        long = rms.submit("trap 'echo leaving; exit 0' TERM; touch there; sleep 600 & wait")
        rms.until((rms.work / "there").exists, "a script that runs")
        rms.ask("cancel", long)
        assert rms.over(long) == ["CANCELLED"]
        assert rms.output(long) == "leaving\n"
        rms.ends_well()


def test_a_lost_host_costs_its_jobs_only(
    engine: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They wait again, and go on from their checkpoints on the other hosts of the allocation."""
    alone = bare(tmp_path_factory.mktemp("alone"), *SMALL.split(), "--steps", str(STEPS))
    with closing(GridEngineRms(engine, 3, "--policy", "fifo")) as rms:
        rms.up("n1", "n2", "n3")
        words = ("--checkpoint-dir", "saved", "--checkpoint-every", "20", "--restart")
        job = rms.submit(rms.mpdata(*words, pace_s=0.1), "--nodes", "2", "--time", "10")
        rms.running(job, 21)
        match = re.search(r"serving at http://(n\d):", rms.said())
        assert match is not None
        nodes = {"n1", "n2", "n3"}
        lost = next(host for host in rms.row(job)["nodes"] if host != match[1])
        engine("kill", lost)
        try:
            rms.up(*nodes - {lost})
            rms.until(lambda: "lost its nodes: " in rms.said(), f"lost nodes of job {job}")
            begun = rms.running(job)
            assert set(begun["nodes"]) == nodes - {lost}
            rms.hurry()
            assert rms.over(job) == ["COMPLETED"], rms.output(job)
            assert rms.row(job)["answer"] == alone
            rms.ends_well()
        finally:
            engine("start", lost)


def test_outside_of_an_allocation(engine: Cluster) -> None:
    done = engine.run("login", "env", "-u", "SLURM_JOB_ID", "rms", "pilot")
    assert done.returncode == 2
    assert "an allocation (SLURM_JOB_ID, PE_HOSTFILE, PBS_NODEFILE), got none" in done.stderr
