"""Iterate until nothing changes: mpirun -n 2 python converges.py"""

import numpy as np
from mpi4py import MPI

import dmr

comm = MPI.COMM_WORLD
N = 24
begin, end = dmr.split_range(N, comm.size, comm.rank)
u = np.zeros(end - begin + 2)
if comm.rank == 0:
    u[0] = 1.0

state = {"change": np.inf, "rounds": 0}
with dmr.malleable(comm, {"u": dmr.adapt(u, (N,), halo=1)}, state=state) as run:
    while run.state.change > 1e-8:
        run.fields["u"].exchange()
        new = (u[:-2] + u[2:]) / 2
        change = float(np.abs(new - u[1:-1]).max())
        u[1:-1] = new
        run.state.change = run.comm.allreduce(change, op=MPI.MAX)
        run.state.rounds += 1
        run.resize_point()
    if run.comm.rank == 0:
        print(f"{run.state.rounds} rounds, change {run.state.change:.3e}")
