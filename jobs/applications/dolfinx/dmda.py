"""A structured grid of PETSc's DMDA, malleable: mpirun -n 2 python dmda.py [STEPS] [N]

The heat equation by explicit steps. The N rows are cut over the ranks.
"""

import sys
from hashlib import sha256
from math import fsum

import numpy as np
from mpi4py import MPI
from petsc4py import PETSc

import dmr

STEPS, N = (int(word) for word in (*sys.argv[1:], "200", "96")[:2])
M = 80
comm = MPI.COMM_WORLD
da = PETSc.DMDA().create(sizes=(M, N), proc_sizes=(1, comm.size), stencil_width=1, comm=comm)
u, ghosted = da.createGlobalVec(), da.createLocalVec()
(low, high), (bottom, top) = da.getRanges()[1], da.getGhostRanges()[1]
y, x = np.mgrid[low:high, :M]
u.array = (np.sin(2 * np.pi * x / M) + np.cos(6 * np.pi * y / N) + 1).ravel()
edges = ((bottom == low, top == high), (1, 1))  # no flux through the edge of the domain


def take(rows):
    u.array = rows.ravel()


rows = dmr.adapt(get=lambda: u.array.reshape(-1, M), set=take, shape=(N, M))
with dmr.malleable(comm, {"u": rows}) as run:
    for _ in run.loop(STEPS):
        da.globalToLocal(u, ghosted)
        v = np.pad(ghosted.array.reshape(-1, M), edges, mode="edge")
        around = v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, :-2] + v[1:-1, 2:]
        u.array = (v[1:-1, 1:-1] + 0.2 * (around - 4 * v[1:-1, 1:-1])).ravel()

values = comm.gather(u.array)
if comm.rank == 0:
    values = np.concatenate(values)
    digest = sha256(values.tobytes()).hexdigest()
    print(f"sum {fsum(values):.16g} of {values.size} points, {digest[:16]}", flush=True)
