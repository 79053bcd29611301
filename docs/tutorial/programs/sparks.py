"""Random sparks on a plate; all of it travels: mpirun -n 2 python sparks.py"""

import numpy as np
from mpi4py import MPI

import dmr

comm = MPI.COMM_WORLD
N, M, steps = 96, 80, 200
rows = N // comm.size + (comm.rank < N % comm.size)
t = np.zeros((rows + 2, M + 2))
begin, end = dmr.split_range(N, comm.size, comm.rank)

rng = np.random.default_rng(7)
sparks = []

fields = {"t": dmr.adapt(t, (N, M), halo=1)}
with dmr.malleable(comm, fields, state={"rng": rng, "sparks": sparks}) as run:
    for step in run.loop(steps):
        i, j = rng.integers(N), rng.integers(M)
        sparks.append((int(i), int(j)))
        if begin <= i < end:
            t[i - begin + 1, j + 1] += 100.0
        run.fields["t"].exchange()
        t[1:-1, 1:-1] = (t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:]) / 4
    plate = run.fields["t"].gather()

if comm.rank == 0:
    print(f"{len(sparks)} sparks, the hottest cell has {plate.max():.6f}", flush=True)
