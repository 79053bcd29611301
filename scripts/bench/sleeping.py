"""A resizable program that sleeps instead of computing: mpirun python sleeping.py SECONDS TASK

It has work for half to one and a half times SECONDS on one rank, as its TASK of an array has it,
and takes an n-th of that on n ranks: scheduling can be looked at where nodes share a core.
"""

import sys
import time
from random import Random

import numpy as np
from mpi4py import MPI

import dmr

STEP_S = 0.2
"""A step on one rank."""


def numbers(box):
    return np.arange(box.start[0], box.stop[0], dtype="f8")


class Sleeping(dmr.Application):
    def __init__(self, work_s):
        self.work_s = work_s

    def fields(self):
        return {"x": dmr.FieldSpec((4096,), "f8", numbers, halo=0, split=(0,))}

    def steps(self, run):
        return max(1, round(self.work_s / STEP_S))

    def step(self, run):
        time.sleep(STEP_S / run.world.size)

    def finish(self, run):
        parts = run.world.comm.gather(run.fields["x"].interior.copy())
        if run.world.rank == 0 and not np.array_equal(np.concatenate(parts), np.arange(4096.0)):
            sys.exit("expected the numbers that were there at the start")


if __name__ == "__main__":
    work_s = float(sys.argv[1]) * Random(int(sys.argv[2])).uniform(0.5, 1.5)
    dmr.run(Sleeping(work_s), dmr.Runtime.here(MPI.COMM_WORLD), dmr.Plan())
