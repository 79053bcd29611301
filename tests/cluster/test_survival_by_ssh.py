"""Jobs with ``--survive`` on hosts: a rank, a host, the host of the script, two hosts die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from cluster_hosts import Cluster, command_line
from daemon import closing
from hosts_daemon import SMALL, STEPS, HostsRms
from slurm_daemon import bare

from rms.wire.marks import environment

wide = pytest.mark.wide
SIZES = ("--nodes", "1-4", "--preferred", "4", "--mode", "malleable", "--survive", "1")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, asked: None) -> str:
    return bare(tmp_path_factory.mktemp("alone"), *SMALL.split(), "--steps", str(STEPS))


@pytest.fixture
def rms(cluster: Cluster) -> Iterator[HostsRms]:
    with closing(HostsRms(cluster, "--policy", "fifo", "--silent", "5")) as rms:
        rms.up("n1", "n2", "n3", "n4")
        yield rms


def keepers(cluster: Cluster) -> list[str]:
    """Return the hosts on which a keeper runs."""
    hosts = [name.partition("@")[2] for name in cluster.running() if name.startswith("host@n")]
    words = b"dmr.memory.keeper"
    return [h for h in hosts if any(words in command_line(p) for p in cluster.processes(h))]


def rank_on(cluster: Cluster, host: str) -> int:
    """Return a rank on a host."""
    ranks = [
        pid
        for pid in cluster.processes(host)
        if any(word.startswith(b"PMI_RANK=") for word in environment(pid) or [])
    ]
    return ranks[0]


def copied(rms: HostsRms, job: str) -> None:
    """Wait until a job computes and has a copy in memory."""
    rms.running(job, 12)
    rms.until(lambda: "copies in memory: " in rms.output(job), "a copy in memory")


def goes_on(rms: HostsRms, job: str, times: int = 1) -> None:
    """Wait until a job has computed again so many times."""
    words = f"job {job}: computes again at step"
    rms.until(lambda: rms.said().count(words) >= times, f"{times} times {words}")


def ends(cluster: Cluster, rms: HostsRms, job: str, alone: str, restores: int) -> None:
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"], rms.output(job)
    assert rms.row(job)["answer"] == alone
    assert rms.output(job).count("restored from copies in memory at step") == restores
    assert not keepers(cluster)
    rms.ends_well()


@pytest.mark.promise("survives")
@pytest.mark.parametrize(
    "lost, fault",
    [
        ("n3", "kill"),
        ("n1", "pause"),
        pytest.param("n3", "pause", marks=wide),
        pytest.param("n1", "kill", marks=wide),
    ],
)
def test_a_job_goes_on_without_a_host(
    cluster: Cluster, rms: HostsRms, fault: str, lost: str, alone: str
) -> None:
    """Narrower, without waiting in the queue; wider again with the host that comes back.

    The script runs on n1; it runs again on another host.
    """
    job = rms.submit(rms.mpdata(pace_s=0.1), *SIZES)
    copied(rms, job)
    assert rms.row(job)["nodes"] == ["n1", "n2", "n3", "n4"]
    cluster(fault, lost)
    goes_on(rms, job)
    row = rms.row(job)
    assert row["state"] == "RUNNING"
    assert {*row["nodes"]} == {"n1", "n2", "n3", "n4"} - {lost}
    cluster("start" if fault == "kill" else "continue", lost)
    rms.up("n1", "n2", "n3", "n4")
    rms.resized(job, 4)
    copied(rms, job)
    os.kill(rank_on(cluster, lost), signal.SIGKILL)  # copies are on the host that came back, too
    goes_on(rms, job, 2)
    ends(cluster, rms, job, alone, 2)


@wide
def test_two_hosts_that_are_no_partners_die(cluster: Cluster, rms: HostsRms, alone: str) -> None:
    job = rms.submit(rms.mpdata(pace_s=0.1), *SIZES)
    copied(rms, job)
    cluster("kill", "n3")
    cluster("kill", "n4")
    goes_on(rms, job)
    assert rms.row(job)["nodes"] == ["n1", "n2"]
    ends(cluster, rms, job, alone, 1)


def test_two_partners_die(cluster: Cluster, rms: HostsRms, alone: str) -> None:
    """The copies of both are lost: the job goes on from its checkpoint, or ends."""
    saves = ("--checkpoint-dir", "saved", "--checkpoint-every", "5", "--restart")
    job = rms.submit(rms.mpdata(*saves, pace_s=0.1), *SIZES)
    copied(rms, job)
    cluster("kill", "n2")
    cluster("kill", "n4")
    goes_on(rms, job)
    assert "the copies in memory are lost with their hosts" in rms.output(job)
    ends(cluster, rms, job, alone, 0)


def test_a_daemon_is_killed_with_the_host(cluster: Cluster, rms: HostsRms, alone: str) -> None:
    """A daemon that is back before the hosts end what is there goes on."""
    rms.end()
    rms.start("--silent", "30")
    rms.up("n1", "n2", "n3", "n4")
    job = rms.submit(rms.mpdata(pace_s=0.1), *SIZES)
    copied(rms, job)
    rms.end(signal.SIGKILL)
    cluster("kill", "n3")
    rms.start("--silent", "30")
    goes_on(rms, job)
    ends(cluster, rms, job, alone, 1)


@wide
def test_a_killed_rank_and_a_cancelled_job(cluster: Cluster, rms: HostsRms) -> None:
    job = rms.submit(rms.mpdata(pace_s=0.1), *SIZES)
    copied(rms, job)
    os.kill(rank_on(cluster, "n2"), signal.SIGKILL)
    goes_on(rms, job)
    assert rms.row(job)["nodes"] == ["n1", "n2", "n3", "n4"]
    os.kill(rank_on(cluster, "n4"), signal.SIGKILL)
    rms.ask("cancel", job)
    assert rms.over(job) == ["CANCELLED"]
    assert not keepers(cluster)
    rms.ends_well()
