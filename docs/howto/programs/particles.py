"""Particles that move through a line of cells: mpirun -n 2 python particles.py"""

import numpy as np
from mpi4py import MPI

import dmr

comm = MPI.COMM_WORLD
N, COUNT = 50, 400
PARTICLE = np.dtype([("id", "i8"), ("x", "f8"), ("v", "f8")])


def owner(particles, decomposition):
    """Return the rank of each particle: that of its cell."""
    return dmr.rank_of(decomposition, particles["x"].astype(int))


ids = np.arange(COUNT)
p = np.zeros(COUNT, PARTICLE)
p["id"], p["x"], p["v"] = ids, ids * 0.37 % N, 0.2 + ids % 7 * 0.1
begin, end = dmr.split_range(N, comm.size, comm.rank)
p = p[(p["x"] >= begin) & (p["x"] < end)]

with dmr.malleable(comm, {"p": dmr.adapt_list(p, (N,), owner)}) as run:
    p = run.fields["p"].items
    for step in run.loop(150):
        p["x"] = (p["x"] + p["v"]) % N
        p = run.fields["p"].migrate()
    everyone = run.fields["p"].gather()

if comm.rank == 0:
    everyone = everyone[np.argsort(everyone["id"])]
    print(f"{len(everyone)} particles, particle 7 at {everyone['x'][7]:.9f}")
