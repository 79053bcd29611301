"""A program that does not end once it is resized: it counts by a variable that does not travel."""

import time
from pathlib import Path

from mpi4py import MPI

import dmr

count = 0
with dmr.malleable(MPI.COMM_WORLD) as run:
    while run.step < 8 or count < 8:
        if run.restored:
            Path("resized").touch()
            time.sleep(0.1)
            count = 0
        count += 1
        run.resize_point()
