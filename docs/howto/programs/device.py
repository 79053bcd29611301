"""An array on a GPU, or on the host where there is none: mpirun -n 2 python device.py"""

import importlib

import numpy as np
from mpi4py import MPI

import dmr

runtime = dmr.Runtime.here(MPI.COMM_WORLD)
backend = runtime.backend_of("numpy", "cupy")
xp = importlib.import_module(backend)
N, M = 96, 64


def start(box):
    """Return the initial values of a block, by global indices."""
    rows, columns = np.ogrid[box.start[0] : box.stop[0], box.start[1] : box.stop[1]]
    return np.sin(rows) + columns % 3


field = dmr.FieldSpec((N, M), "f8", start, halo=1, split=(0,), xp=xp)
with dmr.malleable(runtime, {"t": field}, backends=("numpy", "cupy")) as run:
    t = run.fields["t"].padded
    for step in run.loop(100):
        run.fields["t"].exchange("periodic")
        t[1:-1, 1:-1] = (t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:]) / 4
    whole = run.fields["t"].gather()
    if run.comm.rank == 0:
        print(f"{backend}: largest {float(whole.max()):.9f}")
