"""Faults of hosts and networks under a daemon: what becomes of jobs, what a user is told, how long.

Every test is a row of the table in ``docs/rms/network-faults.md``. Times are of this run:
``pytest --slurm -s tests/slurm/test_network_faults.py`` prints them as lines of JSON.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from cluster_hosts import Cluster
from daemon import closing
from faulty_hosts import CASE, STEPS, Faulty, entered, nothing_on
from slurm_bed import Slurm, brought_up
from slurm_daemon import SlurmRms, bare, piloted, serving

from rms.launch.processes import children

HOSTS = 10
STALL_S = 8.0


@pytest.fixture(scope="module")
def bed(asked: None) -> Iterator[Slurm]:
    with brought_up("--hosts", str(HOSTS), "--served-home") as found:
        yield found


@pytest.fixture
def cluster(bed: Slurm) -> Iterator[Cluster]:
    """The hosts, all well before and after."""
    bed.clear()
    found = Cluster(bed.folder, bed.record)
    yield found
    found("heal")
    bed.clear()


@pytest.fixture(scope="module")
def answer(asked: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the field that every job has to end with."""
    return bare(tmp_path_factory.mktemp("bare"), *CASE.split(), "--steps", str(STEPS))


@pytest.mark.promise("network-faults")
def test_the_network_between_two_hosts(cluster: Cluster, bed: Slurm, answer: str) -> None:
    """Cut, one way or both: MPI waits; past --stall-limit the job runs again, on other hosts."""
    with serving(bed, "--policy", "fifo", "--grace", "2", "--stall-limit", f"{STALL_S:g}") as rms:
        both, one_way = Faulty(rms, "both"), Faulty(rms, "one_way")
        cluster("cut", *both.hosts)
        both.since = time.monotonic()
        cluster("cut", *one_way.hosts, "--one-way")
        one_way.since = time.monotonic()
        for job, fault in ((both, "cut between two hosts"), (one_way, "one-way loss")):
            again_s = job.runs_again()
            assert any("no step for" in words for words in job.heard), job.heard
            assert not set(rms.row(job.id)["nodes"]) & {*both.hosts, *one_way.hosts}
            entered(fault, again_s=again_s, told=job.heard[0])
        both.ends(answer, runs=2)
        one_way.ends(answer, runs=2)
        cluster("heal")
        nothing_on(cluster, *both.hosts, *one_way.hosts)
        rms.nothing_left()


@pytest.mark.promise("network-faults")
def test_hosts_that_fall_silent(cluster: Cluster, bed: Slurm, answer: str) -> None:
    """Power lost, or cut off from the daemon, or slow; Slurm notices the first."""
    with serving(bed, "--policy", "fifo", "--grace", "2") as rms:
        power, cut, slow = (Faulty(rms, name) for name in ("power", "cut", "slow"))
        cluster("kill", power.hosts[0])
        power.since = time.monotonic()
        cluster("cut", "login", cut.hosts[0])
        cut.since = time.monotonic()
        cluster("slow", slow.hosts[1], "100ms")
        slow.since = time.monotonic()
        entered("200 ms of delay", told_s="", again_s=slow.steps_after(slow.row["step"] + 1))
        told_s = cut.told("no message of its ranks")
        step = cut.row["step"]
        cluster("heal")
        rms.until(lambda: not cut.row["reason"], "no reason any more")
        again_s = cut.steps_after(step)
        entered("cut between daemon and host", told_s=told_s, again_s=again_s, told=cut.heard[0])
        slow.ends(answer, runs=1)
        cut.ends(answer, runs=1)
        again_s = power.runs_again()
        assert power.hosts[0] not in power.row["nodes"]
        assert any("NODE_FAIL" in words for words in power.heard), power.heard
        entered("power of a host lost", again_s=again_s, told=power.heard[-1])
        power.ends(answer, runs=2)
        cluster("start", power.hosts[0])
        nothing_on(cluster, *power.hosts, *cut.hosts, *slow.hosts)
        rms.nothing_left()


class OnLogin(SlurmRms):
    """A daemon on host login, which sees no process of another host."""

    def serve_command(self) -> list[str]:
        cluster = Cluster(self.bed.folder, self.bed.record)
        return cluster.command("login", *super().serve_command())

    def close(self) -> None:
        if self.process is not None:
            for pid in children(self.process.pid):
                os.kill(pid, signal.SIGTERM)
        super().close()


@pytest.mark.wide
@pytest.mark.parametrize("pause_s", [60.0, 130.0])
def test_a_host_that_comes_back(cluster: Cluster, bed: Slurm, answer: str, pause_s: float) -> None:
    """Paused; after the longer time the job's next run computes, when the old ranks go on."""
    with closing(OnLogin(bed, "--policy", "fifo", "--grace", "2")) as rms:
        job = Faulty(rms, "paused")
        cluster("pause", job.hosts[0])
        job.since = time.monotonic()
        if pause_s > 100:
            again_s = job.runs_again()
            assert job.hosts[0] not in job.row["nodes"]
            before = sorted(path.name for path in (job.folder / "ck").glob("*.h5"))
        time.sleep(max(0.0, job.since + pause_s - time.monotonic()))
        cluster("continue", job.hosts[0])
        if pause_s < 100:
            again_s = job.runs_again()
        else:
            rms.running(job.id, 30)
            after = sorted(path.name for path in (job.folder / "ck").glob("*.h5"))
            assert after >= before
        entered(f"host paused for {pause_s:.0f} s", again_s=again_s, told=job.heard[-1])
        job.ends(answer, runs=2)
        nothing_on(cluster, *job.hosts)
        # Refused where it is up already.
        bed.run("scontrol", "update", f"nodename={job.hosts[0]}", "state=resume")
        rms.nothing_left()


@pytest.mark.wide
def test_a_pilots_hosts(cluster: Cluster, bed: Slurm, answer: str) -> None:
    """The network between two of them is cut; another one loses its power."""
    options = ("--policy", "fifo", "--grace", "2", "--stall-limit", f"{STALL_S:g}")
    with piloted(bed, HOSTS, *options) as pilot:
        between, power = Faulty(pilot, "between"), Faulty(pilot, "power")
        cluster("cut", *between.hosts)
        between.since = time.monotonic()
        cluster("kill", power.hosts[1])
        power.since = time.monotonic()
        faults = {"cut between two hosts": between, "power of a host lost": power}
        for fault, job in faults.items():
            again_s = job.runs_again()
            gone = {power.hosts[1], *(between.hosts if job is between else ())}
            assert not set(pilot.row(job.id)["nodes"]) & gone
            entered(f"pilot: {fault}", again_s=again_s, told=job.heard)
            job.ends(answer, runs=2)
            cluster("heal")  # nodes of a run that was given up are left alone for 60 s only
        cluster("start", power.hosts[1])
        nothing_on(cluster, *between.hosts, *power.hosts)
        # Slurm 22.05 lists the step of a lost node until the allocation ends.
        pilot.nothing_left(but=f".{power.id}.0")


@pytest.mark.wide
@pytest.mark.parametrize("when", ["before", "moving"])
def test_the_network_in_a_resize(cluster: Cluster, bed: Slurm, answer: str, when: str) -> None:
    """Cut before it, or as the worlds meet: rolled back by deadlines, of the kernel at last.

    MPI's own connections have the kernel's deadline of about 130 s, where they are just opened.
    """
    options = ("--policy", "fifo", "--grace", "2", "--boot-deadline", "12")
    with serving(bed, *options) as rms:
        job, other = Faulty(rms, "grows", 1, 2), "n10"
        wanted = {"id": job.id, "nodes": 2, "on": f"{job.hosts[0]},{other}"}

        def resize() -> None:
            rms.until(lambda: rms.post("/resize", wanted)["decision"] == "Resize", "resize")

        if when == "moving":
            cluster("slow", other, "100ms")
            resize()
            rms.until(lambda: rms.row(job.id)["resizing"] == when, when, every_s=0.005)
        cluster("cut", job.hosts[0], other)
        job.since = time.monotonic()
        if when != "moving":
            resize()
        rms.until(lambda: rms.rolled_back(job.id), f"rollback {when}")
        told_s, words = time.monotonic() - job.since, rms.rolled_back(job.id)[0]
        again_s = job.steps_after(job.row["step"])
        entered(f"cut between two hosts, {when}", told_s=told_s, again_s=again_s, told=words)
        cluster("heal")
        rms.until(lambda: not rms.row(job.id)["resizing"], "end of the resize")
        resize()
        rms.settled(job.id, 1)
        job.ends(answer, runs=1, resizes=1)
        nothing_on(cluster, other)
        rms.nothing_left()


def test_the_controller_cut_off_from_the_daemon(cluster: Cluster, bed: Slurm, answer: str) -> None:
    """A running job goes on; one that is submitted meanwhile waits, and says for what."""
    with serving(bed, "--policy", "fifo", "--grace", "2") as rms:
        job = Faulty(rms, "running")
        cluster("cut", "login", "ctl")
        job.since = time.monotonic()
        step = job.row["step"]
        later = rms.submit("echo once >> once", "--nodes", "1", "--time", "5")
        told_s = rms.until(
            lambda: "SlurmctldDown" in rms.row(later)["reason"] and time.monotonic() - job.since,
            "reason of the job that waits",
        )
        job.steps_after(step + 5)
        cluster("heal")
        healed = time.monotonic()
        assert rms.over(later) == ["COMPLETED"], rms.said()
        again_s = time.monotonic() - healed
        assert (rms.work / "once").read_text() == "once\n"
        entered("controller cut off", told_s=told_s, after_heal_s=again_s, told="SlurmctldDown")
        job.ends(answer, runs=1)
        rms.nothing_left()


class InHome(SlurmRms):
    """A daemon whose jobs, and whose own folder, are in the home that all hosts share."""

    def prepare(self) -> None:
        home = self.folder = self.bed.folder / "home" / self.folder.name
        home.mkdir()
        self.state, self.work = home / "s", home / "w"
        self.work.mkdir()
        self.server = f"unix:{self.state / 'socket'}"
        super().prepare()


@pytest.mark.parametrize("hang_s", [8.0, pytest.param(32.0, marks=pytest.mark.wide)])
def test_the_shared_file_system_is_away(
    cluster: Cluster, bed: Slurm, answer: str, hang_s: float
) -> None:
    """Ranks wait for it, as for a server of files that is mounted hard, and go on."""
    with closing(InHome(bed, "--policy", "fifo", "--grace", "2")) as rms:
        job = Faulty(rms, "files")
        cluster("hang-home")
        job.since = time.monotonic()
        told_s = job.told("no step for") if hang_s > 30 else 0.0
        time.sleep(max(0.0, job.since + hang_s - time.monotonic()))
        step = job.row["step"]
        cluster("heal")
        healed = time.monotonic()
        job.steps_after(step)
        again_s = time.monotonic() - healed
        entered(f"shared files away for {hang_s:.0f} s", told_s=told_s, after_heal_s=again_s)
        job.ends(answer, runs=1)
        rms.nothing_left()
