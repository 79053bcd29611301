"""Faults of networks without a batch system: ``rms serve --reach ssh``, and bare mpirun.

Every test is a row of the table in ``docs/rms/network-faults.md``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_hosts import Cluster
from faulty_hosts import CASE, CHECKPOINTS, PACED, STEPS, Faulty, entered, nothing_on
from hosts_daemon import HostsRms
from processes import BIN, ROOT
from slurm_daemon import bare

HOSTS = ("n1", "n2", "n3", "n4")
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def answer(asked: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the field that every run has to end with."""
    return bare(tmp_path_factory.mktemp("bare"), *CASE.split(), "--steps", str(STEPS))


@pytest.fixture
def rms(cluster: Cluster) -> Iterator[HostsRms]:
    found = HostsRms(cluster, "--policy", "fifo", "--grace", "2", "--stall-limit", "8")
    try:
        found.up(*HOSTS)
        yield found
    finally:
        found.close()


def test_the_daemon_cut_off_from_a_host(cluster: Cluster, rms: HostsRms, answer: str) -> None:
    """Its agent has ended the ranks there before the job runs again: while it is cut off."""
    job = Faulty(rms, "cut")
    lost = job.hosts[0]
    cluster("cut", "login", lost)
    job.since = time.monotonic()
    rms.up(*set(HOSTS) - {lost})
    nothing_on(cluster, lost)
    again_s = job.runs_again()
    assert lost not in job.row["nodes"]
    entered("ssh: cut between daemon and host", again_s=again_s, told=job.heard)
    cluster("heal")
    rms.up(*HOSTS)
    job.ends(answer, runs=2)
    rms.ends_well()


def test_the_network_between_two_hosts(cluster: Cluster, rms: HostsRms, answer: str) -> None:
    """MPI waits; past --stall-limit the job runs again."""
    job = Faulty(rms, "between")
    cluster("cut", *job.hosts)
    job.since = time.monotonic()
    rms.until(lambda: len(job.runs) > 1, "second run", deadline_s=DEADLINE_S)
    cluster("heal")
    again_s = job.runs_again()
    entered("ssh: cut between two hosts", again_s=again_s, told=job.heard)
    job.ends(answer, runs=2)
    rms.ends_well()


@pytest.mark.parametrize("heals", [True, False])
def test_bare_mpirun(cluster: Cluster, answer: str, heals: bool) -> None:
    """It waits for the network; DMR_COLLECTIVE_S says for how long."""
    folder = Path(tempfile.mkdtemp(prefix="bare-"))
    mpiexec = [str(Path(BIN) / "mpiexec"), "-launcher", "ssh", "-hosts", "n1,n2", "-n", "2"]
    run = [*PACED.split(), "run", *CASE.split(), "--steps", str(STEPS), *CHECKPOINTS.split()]
    limit = f"DMR_COLLECTIVE_S={60 if heals else 4}"
    variables = ["-C", str(folder), f"PYTHONPATH={ROOT}", "PACE_S=0.05", limit]
    command = cluster.command("login", "env", *variables, *mpiexec, *run)
    try:
        with (folder / "out").open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out)
        until = time.monotonic() + DEADLINE_S
        while not list(folder.glob("ck/*.h5")):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        cluster("cut", "n1", "n2")
        since = time.monotonic()
        if heals:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(5)
            cluster("heal")
        (folder / "go").touch()
        status = process.wait(DEADLINE_S)
        said = (folder / "out").read_text()
        entered(f"mpirun: cut, {'healed' if heals else limit}", ends_s=time.monotonic() - since)
        assert (status == 0) == heals and (answer in said) == heals, said
        assert heals or re.search(
            r"waits in (exchange\(\)|a resize point|a checkpoint) for rank", said
        ), said
        cluster("heal")
        nothing_on(cluster, "n1", "n2")
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)
