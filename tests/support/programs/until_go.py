"""A malleable program that makes short steps until there is a file ``go``."""

import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

first, end = dmr.split_range(32, MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank)
field = np.ones((end - first + 2, 34))
with dmr.malleable(MPI.COMM_WORLD, {"t": dmr.adapt(field, (32, 32), halo=1)}) as run:
    for _ in run.loop(100_000):
        run.fields["t"].exchange("edge")
        time.sleep(0.01)
        if run.comm.bcast(Path("go").exists()):  # all ranks leave in one step
            break
