"""A ring of cells with messages of its own: mpirun -n 2 python own_exchange.py"""

import numpy as np
from mpi4py import MPI

import dmr

comm = MPI.COMM_WORLD
N = 120
begin, end = dmr.split_range(N, comm.size, comm.rank)
u = np.zeros(end - begin + 2)
u[1:-1] = np.sin(np.arange(begin, end))

with dmr.malleable(comm, {"u": dmr.adapt(u, (N,), halo=1)}) as run:
    left, right = (run.comm.rank - 1) % run.comm.size, (run.comm.rank + 1) % run.comm.size
    for step in run.loop(200):
        run.comm.Sendrecv(u[-2:-1], right, recvbuf=u[:1], source=left)
        run.comm.Sendrecv(u[1:2], left, recvbuf=u[-1:], source=right)
        u[1:-1] = 0.5 * u[1:-1] + 0.25 * (u[:-2] + u[2:])
    whole = run.fields["u"].gather()

if comm.rank == 0:
    print(f"largest {whole.max():.12f}")
