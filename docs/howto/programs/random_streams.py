"""Noise that depends on cell and step alone: mpirun -n 2 python random_streams.py"""

import numpy as np
from mpi4py import MPI

import dmr

comm = MPI.COMM_WORLD
N, SEED = 64, 42
begin, end = dmr.split_range(N, comm.size, comm.rank)
u = np.zeros(end - begin)
rng = np.random.default_rng(SEED)  # the same on all ranks


def noise(step, cell):
    """Return the random number of a cell in a step."""
    counter = [0, 0, step, cell]
    return np.random.Generator(np.random.Philox(key=SEED, counter=counter)).standard_normal()


with dmr.malleable(comm, {"u": dmr.adapt(u, (N,))}, state={"rng": rng}) as run:
    for step in run.loop(40):
        u += [noise(step, cell) for cell in range(begin, end)]
        u *= rng.uniform(0.9, 1.1)
    whole = run.fields["u"].gather()

if comm.rank == 0:
    print(f"first {whole[0]:.9f}, last {whole[-1]:.9f}")
