"""A hot edge warms a plate: rows over the ranks, which may change at each step."""

import sys
import time

import numpy as np
from mpi4py import MPI

import dmr

N, STEPS = 200, int(sys.argv[1])
comm = MPI.COMM_WORLD
first, last = comm.rank * N // comm.size, (comm.rank + 1) * N // comm.size
t = np.zeros((last - first + 2, N + 2))
if comm.rank == 0:
    t[0] = 100.0

with dmr.malleable(comm, {"t": dmr.adapt(t, (N, N), halo=1)}) as run:
    for _ in run.loop(STEPS):
        run.fields["t"].exchange()
        t[1:-1, 1:-1] = (t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:]) / 4
        time.sleep(0.02)  # stands for work that takes longer
    plate = run.fields["t"].gather()
if plate is not None:
    print(f"mean {plate.mean():.6f}", flush=True)
