"""A smoothing that notes when each step begins and ends: ring.py CELLS STEPS FILE"""

import csv
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

comm = MPI.COMM_WORLD
cells, steps, file = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
begin, end = dmr.split_range(cells, comm.size, comm.rank)
u = np.zeros((end - begin + 2, 500))
u[1:-1] = np.sin(np.arange(begin, end))[:, None]

with dmr.malleable(comm, {"u": dmr.adapt(u, (cells, 500), halo=((1, 1), (0, 0)))}) as run:
    with file.with_suffix(f".{comm.size}.{comm.rank}.csv").open("w", newline="") as out:
        writer = csv.writer(out)
        for step in run.loop(steps):
            begun = time.time()
            run.fields["u"].exchange("periodic")
            u[1:-1] = 0.5 * u[1:-1] + 0.25 * (u[:-2] + u[2:])
            writer.writerow([step, comm.rank, comm.size, begun, time.time()])
