"""A vector of PETSc's DMDA, malleable: mpirun -n 2 python dmda.py [STEPS]

The heat equation on a structured grid. DMDA cuts the rows evenly, as dmr does, so that the memory
of the vector is the field.
"""

import sys
from hashlib import sha256

import numpy as np
from mpi4py import MPI
from petsc4py import PETSc

import dmr

STEPS, N, M = int((*sys.argv[1:], "200")[0]), 96, 80
comm = MPI.COMM_WORLD
da = PETSc.DMDA().create(sizes=(M, N), proc_sizes=(1, comm.size), stencil_width=1, comm=comm)
u, ghosted = da.createGlobalVec(), da.createLocalVec()
(low, high), (bottom, top) = da.getRanges()[1], da.getGhostRanges()[1]
y, x = np.mgrid[low:high, :M]
u.array = (np.sin(2 * np.pi * x / M) + np.cos(6 * np.pi * y / N)).ravel()


def put(values):
    u.array = values.ravel()


rows = dmr.adapt(get=lambda: u.array.reshape(-1, M), set=put, shape=(N, M), split=(0,))
with dmr.malleable(comm, {"u": rows}) as run:
    for _ in run.loop(STEPS):
        da.globalToLocal(u, ghosted)
        edges = ((bottom == low, top == high), (1, 1))  # no flux through the edge of the domain
        t = np.pad(ghosted.array.reshape(-1, M), edges, mode="edge")
        around = t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:]
        u.array = (t[1:-1, 1:-1] + 0.2 * (around - 4 * t[1:-1, 1:-1])).ravel()
    values = run.fields["u"].gather()

if values is not None:
    digest = sha256(values.tobytes()).hexdigest()
    print(f"sum {values.sum():.12g} of {values.size} points, {digest[:16]}", flush=True)
