"""A Fortran array, padded above only, cut along its last axis: mpirun -n 2 python fortran.py"""

import numpy as np
from mpi4py import MPI

import dmr

comm = MPI.COMM_WORLD
N, M = 40, 60
begin, end = dmr.split_range(M, comm.size, comm.rank)
# 0 rows of halo, 2 columns below, 1 column above.
a = np.zeros((N, 2 + end - begin + 1), order="F")
a[:, 2:-1] = np.arange(N)[:, None] + np.arange(begin, end)

field = dmr.adapt(a, (N, M), halo=((0, 0), (2, 1)), split=(1,))
with dmr.malleable(comm, {"a": field}) as run:
    for step in run.loop(100):
        run.fields["a"].exchange("edge")
        a[:, 2:-1] = (a[:, :-3] + 2 * a[:, 2:-1] + a[:, 3:]) / 4
    whole = run.fields["a"].gather()

if comm.rank == 0:
    print(f"corner cells {whole[0, 0]:.9f} {whole[-1, -1]:.9f}")
