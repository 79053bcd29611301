"""Jobs with ``--survive`` under Slurm: a rank, a node, the node of the script die."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence

import pytest
from cluster_hosts import Cluster, command_line
from daemon import Rms, closing
from hosts_daemon import MPDATA, SMALL, STEPS
from on_demand import OnDemand
from slurm_bed import Slurm, brought_up
from slurm_daemon import Pilot, SlurmRms, bare

from rms.wire.marks import environment

SIZES = ("--nodes", "1-4", "--preferred", "3", "--mode", "malleable", "--time", "30")
SURVIVE = ("--survive", "1")
SAVES = "--checkpoint-dir saved --checkpoint-every 20 --restart"
DEADLINE_S = 150.0  # of waits for Slurm, which notices a dead node after 20 to 40 s
OPTIONS = ("--policy", "fifo", "--grace", "5")

wide = pytest.mark.wide
selections = pytest.mark.parametrize(
    "bed", ["linear", pytest.param("cons_tres", marks=wide)], indirect=True
)
pytestmark = [selections, pytest.mark.promise("survives")]


@pytest.fixture(scope="module")
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


def started(rms: Rms, more: str = "", survive: Sequence[str] = SURVIVE) -> str:
    """Return a job that computes on n1 to n3 and has a copy in memory."""
    line = f"PACE_S=0.1 mpirun {MPDATA} run {SMALL} --steps {STEPS} {more}"
    job = rms.submit(line, *SIZES, *survive)
    rms.running(job, 12)
    rms.until(lambda: "copies in memory: " in rms.output(job), "a copy in memory")
    assert rms.row(job)["nodes"] == ["n1", "n2", "n3"]
    return job


def processes(cluster: Cluster, host: str, own: Callable[[int], bool]) -> list[int]:
    return [pid for pid in cluster.processes(host) if own(pid)]


def is_keeper(pid: int) -> bool:
    return b"dmr.memory.keeper" in command_line(pid)


def is_rank(pid: int) -> bool:
    return any(word.startswith(b"PMI_RANK=") for word in environment(pid) or [])


def keepers(cluster: Cluster) -> list[str]:
    """Return the nodes on which a keeper runs."""
    there = [name.partition("@")[2] for name in cluster.running() if name.startswith("host@n")]
    return sorted(host for host in there for _ in processes(cluster, host, is_keeper))


def nothing_in_memory(cluster: Cluster, *hosts: str) -> None:
    """See that keepers have left no memory on nodes, which may be those of other users now.

    One that Slurm kills leaves its folder, with links to what it held.
    """
    for host in hosts:
        assert not processes(cluster, host, is_keeper), host
        left = cluster.on(host, "find /dev/shm -path '*/dmr-keeper-*' -type f -size +8")
        assert not left.strip(), (host, left)


def goes_on(rms: Rms, job: str, times: int = 1) -> None:
    """Wait until a job has computed again so many times."""
    words = f"job {job}: computes again at step"
    rms.until(lambda: rms.said().count(words) >= times, f"{times} times {words}", DEADLINE_S)


def is_narrower(rms: Rms, job: str, *nodes: str) -> None:
    row = rms.row(job)
    assert (row["state"], row["nodes"]) == ("RUNNING", [*nodes]), rms.said()


def back(cluster: Cluster, bed: Slurm, host: str) -> None:
    """Start a host, and wait until it is Slurm's again."""
    cluster("start", host)
    bed.wait_until(lambda: host in bed.idle(), f"{host} idle")


def ends(cluster: Cluster, rms: Rms, job: str, alone: str, restores: int) -> None:
    """See that a job ends with the right answer, and that nothing of it is left."""
    rms.hurry()
    assert rms.over(job) == ["COMPLETED"], rms.said() + rms.output(job)
    assert rms.row(job)["answer"] == alone
    assert rms.output(job).count("restored from copies in memory at step") == restores
    assert not keepers(cluster)


def test_engine_slurm(cluster: Cluster, bed: Slurm, alone: str) -> None:
    """The daemon, a rank, a node and that of the script die; the node comes back in between.

    Without the node of its script a job waits again: Slurm would let it give back no node.
    """
    with closing(SlurmRms(bed, *OPTIONS)) as rms:
        job = started(rms, SAVES, survive=["--no-kill"])
        number = rms.number(job)
        assert keepers(cluster) == ["n1", "n2", "n3"]
        rms.end(signal.SIGKILL)
        rms.start()
        os.kill(processes(cluster, "n2", is_rank)[0], signal.SIGKILL)
        goes_on(rms, job)
        is_narrower(rms, job, "n1", "n2", "n3")
        cluster("kill", "n3")
        goes_on(rms, job, 2)
        is_narrower(rms, job, "n1", "n2")
        assert bed.hosts(str(number)) == ["n1", "n2"]
        back(cluster, bed, "n3")
        rms.resized(job, 4)
        assert keepers(cluster) == ["n1", "n2", "n3", "n4"]
        held = [tuple(entry["nodes"]) for entry in rms.row(job)["slurm"]["held"]]
        assert held == [("n1", "n2", "n3"), ("n1", "n2"), ("n1", "n2", "n3", "n4")]
        rms.resized(job, 3)
        rms.until(lambda: not rms.row(job)["resizing"], "end of the resize")
        assert keepers(cluster) == ["n1", "n2", "n3"]
        nothing_in_memory(cluster, "n4")
        cluster("kill", "n1")
        rms.until(lambda: "lost its nodes: n1" in rms.said(), "the loss of n1", DEADLINE_S)
        rms.until(lambda: rms.row(job)["state"] == "RUNNING" and rms.number(job) != number, "again")
        ends(cluster, rms, job, alone, 2)
        nothing_in_memory(cluster, "n2", "n3", "n4")
        back(cluster, bed, "n1")
        rms.nothing_left()


@wide
def test_a_pilot(cluster: Cluster, bed: Slurm, alone: str) -> None:
    """The daemon, a rank, a node and that of the script die; Slurm takes nodes for good."""
    with closing(Pilot(bed, 4, *OPTIONS)) as rms:
        job = started(rms)
        assert keepers(cluster) == ["n1", "n2", "n3"]
        rms.end(signal.SIGKILL)
        rms.start()
        os.kill(processes(cluster, "n2", is_rank)[0], signal.SIGKILL)
        goes_on(rms, job)
        is_narrower(rms, job, "n1", "n2", "n3")
        cluster("kill", "n3")
        goes_on(rms, job, 2)
        is_narrower(rms, job, "n1", "n2")
        back(cluster, bed, "n3")
        rms.resized(job, 3)
        assert rms.row(job)["nodes"] == ["n1", "n2", "n4"]
        cluster("kill", "n1")
        goes_on(rms, job, 3)
        is_narrower(rms, job, "n2", "n4")
        ends(cluster, rms, job, alone, 3)
        nothing_in_memory(cluster, "n2", "n3", "n4")
        assert bed.hosts(rms.allocation) == ["n2", "n4"]
        # Slurm 22.05 lists the steps on lost nodes until the allocation ends.
        rms.slurm.wait_until(lambda: not rms.processes(), "no process left")
        left = [nodes for name, (_, nodes) in rms.steps().items() if ".meter-" not in name]
        assert all(nodes <= {"n1", "n3"} for nodes in left), rms.steps()


@wide
def test_a_pilot_on_demand(cluster: Cluster, bed: Slurm, alone: str) -> None:
    """A node dies; the job gets one of another allocation."""
    with closing(OnDemand(bed, "--on-demand", "--keep", "3", "--max-nodes", "4")) as rms:
        rms.until(lambda: rms.held() == {"n1", "n2", "n3"}, "three nodes")
        job = started(rms)
        cluster("kill", "n3")
        goes_on(rms, job)
        is_narrower(rms, job, "n1", "n2")
        rms.until(lambda: rms.held() >= {"n1", "n2", "n4"}, "another node", DEADLINE_S)
        rms.resized(job, 3)
        assert {*rms.row(job)["nodes"]} == {"n1", "n2", "n4"}
        ends(cluster, rms, job, alone, 1)
