"""A 2D heat solver, rows cut over the ranks: mpirun -n 2 python heat.py [STEPS]

The plate is cold but for its hot upper edge; Jacobi sweeps from one array into another.
"""

import hashlib
import sys

import numpy as np
from mpi4py import MPI

import dmr

N, M = 96, 80


def main(comm, steps):
    rank, size = comm.rank, comm.size
    up = rank - 1 if rank > 0 else MPI.PROC_NULL
    down = rank + 1 if rank < size - 1 else MPI.PROC_NULL
    rows = N // size + (rank < N % size)
    t = np.zeros((rows + 2, M + 2))
    new = np.zeros((rows + 2, M + 2))
    if rank == 0:
        t[0, :] = new[0, :] = 100.0

    with dmr.malleable(dmr.Runtime.here(comm), {"t": dmr.adapt(t, (N, M), halo=1)}) as run:
        for _ in run.loop(steps):
            comm.Sendrecv(t[1], up, recvbuf=t[-1], source=down)
            comm.Sendrecv(t[-2], down, recvbuf=t[0], source=up)
            new[1:-1, 1:-1] = (t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:]) / 4
            t, new = new, t
            run.fields["t"].rebind(t)

    parts = comm.gather(t[1:-1, 1:-1].copy())
    if rank == 0:
        plate = np.concatenate(parts)
        digest = hashlib.sha256(plate.tobytes()).hexdigest()
        print(f"{size} ranks, mean {plate.mean():.6f}, sha256 {digest}", flush=True)


if __name__ == "__main__":
    main(MPI.COMM_WORLD, int(sys.argv[1]) if len(sys.argv) > 1 else 300)
