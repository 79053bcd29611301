"""A rank that waited for others at dmr.malleable received a message of the program with tag 84."""

from __future__ import annotations

import sys

from processes import MPIEXEC, Run

EARLY = """
import time
from mpi4py import MPI
import dmr

comm = MPI.COMM_WORLD
comm.Barrier()
if comm.rank == 0:
    sent = [comm.isend("own", 1, tag) for tag in (84, 85)]
    time.sleep(4)
with dmr.malleable(comm) as run:
    pass
if comm.rank == 1:
    print([comm.iprobe(0, tag) for tag in (84, 85)])
    print([comm.recv(source=0, tag=tag) for tag in (84, 85) if comm.iprobe(0, tag)])
"""


def test_the_message_stays(run: Run) -> None:
    done = run(MPIEXEC, "-n", "2", sys.executable, "-c", EARLY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[True, True]", "['own', 'own']"]
