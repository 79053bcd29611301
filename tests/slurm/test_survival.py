"""Jobs with ``--survive`` under Slurm: a rank, a node, the node of the script die."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from cluster_hosts import Cluster, command_line
from daemon import Rms, closing
from hosts_daemon import MPDATA, SMALL, STEPS
from slurm_bed import Slurm, brought_up
from slurm_daemon import Pilot, SlurmRms, bare

from rms.launch.processes import environment

SIZES = ("--nodes", "1-4", "--preferred", "3", "--mode", "malleable", "--survive", "1")
DEADLINE_S = 150.0  # of waits for Slurm, which notices a dead node after 20 to 40 s


@pytest.fixture(scope="module", params=["linear", "cons_tres"])
def bed(asked: None, request: pytest.FixtureRequest) -> Iterator[Slurm]:
    with brought_up("--hosts", "4", "--select", request.param) as found:
        yield found


@pytest.fixture
def cluster(bed: Slurm) -> Iterator[Cluster]:
    """The hosts, all well before and after."""
    bed.clear()
    yield Cluster(bed.folder, bed.record)
    bed.repair()
    bed.clear()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, asked: None) -> str:
    return bare(tmp_path_factory.mktemp("alone"), *SMALL.split(), "--steps", str(STEPS))


def serving(engine: str, bed: Slurm) -> Rms:
    """Return a daemon with four nodes."""
    options = ("--policy", "fifo", "--grace", "5")
    return SlurmRms(bed, *options) if engine == "slurm" else Pilot(bed, 4, *options)


both = pytest.mark.parametrize("engine", ["slurm", "slurm-pilot"])


def started(rms: Rms, *more: str) -> str:
    """Return a job that computes on n1 to n3 and has a copy in memory."""
    line = f"PACE_S=0.1 mpirun {MPDATA} run {SMALL} --steps {STEPS} {' '.join(more)}"
    job = rms.submit(line, *SIZES)
    rms.running(job, 12)
    copied(rms, job)
    assert rms.row(job)["nodes"] == ["n1", "n2", "n3"]
    return job


def copied(rms: Rms, job: str) -> None:
    rms.until(lambda: "copies in memory: " in rms.output(job), "a copy in memory")


def processes(cluster: Cluster, *hosts: str, own: Callable[[int], bool]) -> list[tuple[str, int]]:
    return [(host, pid) for host in hosts for pid in cluster.processes(host) if own(pid)]


def is_keeper(pid: int) -> bool:
    return b"dmr.memory.keeper" in command_line(pid)


def is_rank(pid: int) -> bool:
    return any(word.startswith(b"PMI_RANK=") for word in environment(pid) or [])


def keepers(cluster: Cluster) -> list[str]:
    """Return the nodes on which a keeper runs."""
    there = [name.partition("@")[2] for name in cluster.running() if name.startswith("host@n")]
    return sorted(host for host, _ in processes(cluster, *there, own=is_keeper))


def kill_rank(cluster: Cluster, host: str) -> None:
    os.kill(processes(cluster, host, own=is_rank)[0][1], signal.SIGKILL)


def goes_on(rms: Rms, job: str, times: int = 1) -> None:
    """Wait until a job has computed again so many times."""
    words = f"job {job}: computes again at step"
    rms.until(lambda: rms.said().count(words) >= times, f"{times} times {words}", DEADLINE_S)


def ends(cluster: Cluster, rms: Rms, job: str, alone: str, restores: int) -> None:
    """See that a job ends with the right answer, and that nothing of it is left."""
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"], rms.said() + rms.output(job)
    assert rms.row(job)["answer"] == alone
    assert rms.output(job).count("restored from copies in memory at step") == restores
    assert not keepers(cluster)


@both
def test_a_node_dies(cluster: Cluster, bed: Slurm, engine: str, alone: str) -> None:
    """And a rank before: the job goes on, on fewer nodes, then on more.

    The node that returns is Slurm's again: under engine slurm the job gets it, a pilot's job
    gets another one of its allocation.
    """
    with closing(serving(engine, bed)) as rms:
        job = started(rms)
        assert keepers(cluster) == ["n1", "n2", "n3"]
        kill_rank(cluster, "n2")
        goes_on(rms, job)
        assert rms.row(job)["nodes"] == ["n1", "n2", "n3"]
        copied(rms, job)
        cluster("kill", "n3")
        goes_on(rms, job, 2)
        row = rms.row(job)
        assert (row["state"], row["nodes"]) == ("RUNNING", ["n1", "n2"])
        number = str(rms.number(job)) if isinstance(rms, SlurmRms) else rms.allocation
        assert "n3" not in bed.hosts(number)
        cluster("start", "n3")
        bed.wait_until(lambda: "n3" in bed.idle(), "n3 back")
        rms.resized(job, 4 if engine == "slurm" else 3)
        assert ("n3" in rms.row(job)["nodes"]) == (engine == "slurm")
        ends(cluster, rms, job, alone, 2)
        if isinstance(rms, SlurmRms):
            rms.nothing_left()
        else:  # Slurm 22.05 lists the step of a lost node until the allocation ends
            rms.nothing_left(but=f".keepers.{job}.2")
