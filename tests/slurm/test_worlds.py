"""MPICH's launcher inside an allocation: worlds of ranks on nodes of our choice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from slurm_bed import Slurm

# One way of selecting nodes is enough for these: nothing here depends on it.
pytestmark = pytest.mark.parametrize("session_slurm", ["linear"], indirect=True)

MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
TELL = """\
import os, sys, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
names = comm.gather(os.environ["SLURMD_NODENAME"])
if comm.rank == 0:
    print(*names, flush=True)
if len(sys.argv) > 1:
    end = time.monotonic() + 60
    while not os.path.exists(sys.argv[1]) and time.monotonic() < end:
        time.sleep(0.05)
comm.Barrier()
"""


def world(slurm: Slurm, job: str, hosts: str, *arguments: str) -> subprocess.Popen[str]:
    """Start one rank on each of the hosts."""
    (slurm.folder / "tmp" / "tell.py").write_text(TELL)
    return slurm.start(
        *[MPIEXEC, "-launcher", "slurm", "-hosts", hosts, "-ppn", "1"],
        *[sys.executable, "tell.py", *arguments],
        SLURM_JOB_ID=job,
        SLURM_OVERLAP="1",
    )


def test_ranks_run_on_the_chosen_nodes(slurm: Slurm) -> None:
    job = slurm.allocate("--nodes=4")
    with world(slurm, job, "n1,n3") as ranks:
        try:
            out, _ = ranks.communicate(timeout=300)
        finally:
            ranks.kill()
    assert out.splitlines() == ["n1 n3"]
    assert ranks.returncode == 0


def test_two_worlds_share_a_node_at_once(slurm: Slurm) -> None:
    job = slurm.allocate("--nodes=4")
    stop = slurm.folder / "tmp" / "stop"
    with world(slurm, job, "n1,n3", str(stop)) as old:
        try:
            assert old.stdout is not None
            assert old.stdout.readline() == "n1 n3\n"
            with world(slurm, job, "n1,n2,n4") as new:
                try:
                    out, _ = new.communicate(timeout=300)
                finally:
                    new.kill()
            assert out.splitlines() == ["n1 n2 n4"]
            assert old.poll() is None
            stop.touch()
            assert old.wait(timeout=300) == 0
        finally:
            stop.touch()
            old.kill()
    stop.unlink()


def test_a_world_starts_on_a_node_that_joined_the_job(slurm: Slurm) -> None:
    job = slurm.submit("--nodes=1")
    slurm.grow(job, 1)
    hosts = slurm.hosts(job)
    with world(slurm, job, ",".join(hosts)) as ranks:
        try:
            out, _ = ranks.communicate(timeout=300)
        finally:
            ranks.kill()
    assert out.split() == hosts
