"""A sum that does not depend on the ranks: mpirun -n 2 python sums.py"""

import numpy as np
from mpi4py import MPI

import dmr

comm = MPI.COMM_WORLD
N, M = 90, 30
begin, end = dmr.split_range(N, comm.size, comm.rank)
u = np.sin(np.arange(begin, end)[:, None] + np.arange(M) ** 2)


def total(run, u):
    """Return the sum of all cells: of each row first, then of all rows in their order."""
    rows = run.comm.allgather(u.sum(axis=1))
    return float(np.concatenate(rows).sum())


with dmr.malleable(comm, {"u": dmr.adapt(u, (N, M))}) as run:
    for step in run.loop(60):
        by_rows = total(run, u)
        by_ranks = run.comm.allreduce(float(u.sum()))
        u *= 1.0 + 1e-3 * by_rows
    if run.comm.rank == 0:
        print(f"by rows {by_rows!r}")
        print(f"by ranks {by_ranks!r}")
