"""``rms serve --reach ssh``: jobs resized over hosts; hosts that are lost, and come back."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_hosts import Cluster, command_line
from daemon import closing
from hosts_daemon import SMALL, STEPS, HostsRms, PbsRms
from powercap import Counters
from processes import RMS, ROOT
from slurm_daemon import bare

from rms.launch.processes import children

SIZES = ("--nodes", "1-3", "--preferred", "1", "--mode", "malleable")
WAYS = ("warm", "spawn", "merge", "restart")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, asked: None) -> str:
    return bare(tmp_path_factory.mktemp("alone"), *SMALL.split(), "--steps", str(STEPS))


@pytest.fixture
def rms(cluster: Cluster) -> Iterator[HostsRms]:
    with closing(HostsRms(cluster, "--policy", "fifo")) as rms:
        rms.up("n1", "n2", "n3", "n4")
        yield rms


@pytest.mark.promise("hosts")
@pytest.mark.parametrize("way", WAYS)
def test_a_job_grows_and_shrinks_across_hosts(rms: HostsRms, way: str, alone: str) -> None:
    job = rms.submit(rms.mpdata("--strategy", way), *SIZES)
    rms.running(job)
    rms.resized(job, 3)
    row = rms.running(job, rms.row(job)["step"] + 1)
    assert len(set(row["nodes"])) == 3
    rms.resized(job, 1)
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    assert rms.resizes(job) == [(1, 3), (3, 1)]
    assert rms.row(job)["answer"] == alone
    rms.ends_well()


# --- lost hosts ---------------------------------------------------------------------------------


def saving(rms: HostsRms, pace_s: float = 0.1) -> str:
    """Return a launcher line of a run that goes on from its checkpoint."""
    words = ("--checkpoint-dir", "saved", "--checkpoint-every", "20", "--restart")
    return rms.mpdata(*words, pace_s=pace_s)


@pytest.mark.promise("network-faults")
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_job_goes_on_without_a_lost_host(
    cluster: Cluster, rms: HostsRms, fault: str, alone: str
) -> None:
    """A host is down after some seconds; its job waits again, and goes on from its checkpoint.

    Ranks of a paused host are ended as soon as it goes on.
    """
    job = rms.submit(saving(rms), "--nodes", "2", "--time", "10")
    rms.running(job, 21)
    lost = rms.row(job)["nodes"][1]
    old = {pid for pid in cluster.processes(lost) if b"mpdata" in command_line(pid)}
    assert old
    cluster(fault, lost)
    rms.up(*{"n1", "n2", "n3", "n4"} - {lost})
    rms.until(lambda: f"lost its nodes: {lost}" in rms.said(), f"lost nodes of job {job}")
    begun = rms.running(job)
    assert lost not in begun["nodes"]
    assert f"{lost} is down: no answer within 15 s" in rms.said()
    cluster("start" if fault == "kill" else "continue", lost)
    rms.up("n1", "n2", "n3", "n4")
    rms.until(lambda: f"{lost} answers" in rms.said(), "a line for the host that is back")
    assert not [pid for pid in old if b"mpdata" in command_line(pid)]
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    assert rms.row(job)["answer"] == alone
    rms.ends_well()


def test_a_daemon_that_was_killed_takes_its_jobs_back(rms: HostsRms, alone: str) -> None:
    job = rms.submit(rms.mpdata("--strategy", "warm"), *SIZES)
    rms.running(job)
    rms.resized(job, 2)
    ranks = rms.ranks()
    rms.end(signal.SIGKILL)
    rms.start()
    rms.up("n1", "n2", "n3", "n4")
    rms.resized(job, 3)
    assert ranks and rms.row(job)["step"] > 0
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    assert rms.resizes(job) == [(1, 2), (2, 3)]
    assert rms.row(job)["answer"] == alone
    rms.ends_well()


def test_a_script_without_a_launcher_line_runs_on_its_node(cluster: Cluster, rms: HostsRms) -> None:
    """Its output, status and cancellation; what it leaves behind ends."""
    well = rms.submit("hostname; setsid sleep 600 & exit 3", "--nodelist", "n3")
    assert rms.over(well) == ["FAILED"]
    assert rms.output(well) == "n3\n"
    assert rms.row(well)["exit_code"] == 3
    long = rms.submit("trap 'echo leaving; exit 0' TERM; touch there; sleep 600 & wait")
    rms.until((rms.work / "there").exists, "a script that runs")
    rms.ask("cancel", long)
    assert rms.over(long) == ["CANCELLED"]
    assert rms.output(long) == "leaving\n"
    rms.nothing_left()
    assert not [p for p in cluster.processes("n3") if b"sleep" in command_line(p)]


def test_hosts_that_do_not_see_the_state_folder(cluster: Cluster, tmp_path: Path) -> None:
    """They are down, and the log has the reason."""
    file = tmp_path / "hosts.toml"
    file.write_text('name = "h"\n[[nodes]]\nname = "n[1-2]"\n')
    words = [f"PYTHONPATH={ROOT}", *RMS, "serve", "--cluster", str(file), "--reach", "ssh"]
    line = shlex.join(["exec", "env", *words, "--state", "/dev/shm/s"])
    with cluster.popen("login", "sh", "-c", f"{line} 2>&1") as daemon:
        assert daemon.stdout is not None
        lines = (line for line in daemon.stdout if "cannot be used" in line)
        reasons = {line.split("warning: ")[1].strip() for line in (next(lines), next(lines))}
        why = "cannot be used: it does not see /dev/shm/s"
        assert reasons == {f"n1 {why}", f"n2 {why}"}
        os.kill(children(daemon.pid)[0], signal.SIGTERM)
        daemon.wait(60)


def test_meters_of_hosts_are_read(cluster: Cluster, tmp_path: Path) -> None:
    """An agent on each host reports over the network; the energy of a job is theirs."""

    class Metered(HostsRms):
        def environment(self) -> dict[str, str]:
            return {**super().environment(), "RMS_POWERCAP": str(tmp_path)}

    with Counters(tmp_path, 40.0), closing(Metered(cluster)) as rms:

        def sources() -> list[str]:
            return [row["power_source"] for row in rms.get("/nodes")]

        rms.until(lambda: sources() == ["rapl"] * 4, "readings of all hosts")
        job = rms.submit("sleep 3", "--nodes", "2", "--mode", "fixed")
        assert rms.over(job) == ["COMPLETED"]
        rms.until(lambda: rms.row(job)["energy_source"] == "rapl", "its energy by meters")
        assert rms.end() == 0
        rms.nothing_left()


# --- a job of PBS -------------------------------------------------------------------------------


def test_a_job_array_is_resized_in_pbs(cluster: Cluster, alone: str) -> None:
    """By pbs_tmrsh, and with the time that qstat prints; both are stand-ins."""
    with closing(PbsRms(cluster, "--policy", "fifo")) as rms:
        rms.up("n1", "n2", "n3", "n4")
        array = rms.submit(rms.mpdata("--strategy", "warm"), "--array", "1-2", *SIZES)
        first, second = f"{array}_1", f"{array}_2"
        for job in (first, second):
            rms.running(job)
        rms.resized(first, 3)
        rms.resized(first, 1)
        rms.resized(second, 3)
        rms.hurry()
        assert rms.over(first, second) == ["COMPLETED"] * 2, rms.output(first)
        assert rms.resizes(first) == [(1, 3), (3, 1)] and rms.resizes(second) == [(1, 3)]
        assert rms.row(first)["answer"] == rms.row(second)["answer"] == alone
        called = rms.calls.read_text().splitlines()
        assert {"qstat -f", *(f"pbs_tmrsh n{n}" for n in range(1, 5))} <= {*called}
        rms.ends_well()


def test_jobs_end_before_their_job_of_pbs(cluster: Cluster) -> None:
    """The pilot ends by its margin before the walltime; its jobs wait for the next one."""
    with closing(PbsRms(cluster, "--grace", "2", "--margin", "600")) as rms:
        assert rms.process is not None
        assert rms.process.wait(60) == 0
        assert "the allocation pbs:7.ctl ends in" in rms.said()
        rms.nothing_left()
