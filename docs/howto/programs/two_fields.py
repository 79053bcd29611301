"""Two fields with other halos and cuts: mpirun -n 2 python two_fields.py"""

import numpy as np
from mpi4py import MPI

import dmr

comm = MPI.COMM_WORLD
N, M = 60, 48
begin, end = dmr.split_range(N, comm.size, comm.rank)
rho = np.ones((end - begin + 4, M + 4))  # 2 cells of halo on each side
wind = np.full((end - begin, M), 0.3)  # none
weights = np.linspace(0.9, 1.1, M)  # whole on every rank
rho[2:-2, 2:-2] += np.sin(np.arange(begin, end))[:, None]

fields = {
    "rho": dmr.adapt(rho, (N, M), halo=2),
    "wind": dmr.adapt(wind, (N, M)),
    "weights": dmr.adapt(weights, (M,), split=()),
}
with dmr.malleable(comm, fields) as run:
    for step in run.loop(80):
        run.fields["rho"].exchange("periodic")
        inner = rho[2:-2, 2:-2]
        far = rho[:-4, 2:-2] - 4 * rho[1:-3, 2:-2] + 3 * inner
        inner -= 0.1 * wind * weights * far
        wind *= 0.99
        weights *= 0.999
    whole = run.fields["rho"].gather()

if comm.rank == 0:
    print(f"first {whole[0, 0]:.9f}, last {whole[-1, -1]:.9f}")
