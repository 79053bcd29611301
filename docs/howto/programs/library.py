"""Use a library that communicates over MPI_COMM_WORLD: mpirun -n 2 python library.py"""

import numpy as np
from mpi4py import MPI

import dmr


def norm(values):
    """Return a norm over all ranks, as a library that knows only MPI.COMM_WORLD does."""
    return MPI.COMM_WORLD.allreduce(float(np.abs(values).max()), op=MPI.MAX)


comm = MPI.COMM_WORLD
N = 80
begin, end = dmr.split_range(N, comm.size, comm.rank)
u = np.cos(np.arange(begin, end))

with dmr.malleable(comm, {"u": dmr.adapt(u, (N,))}) as run:
    for step in run.loop(60):
        u *= 1.01 / norm(u)
    result = norm(u)

if comm.rank == 0:
    print(f"norm {result:.9f}")
