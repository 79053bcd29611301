"""A job that prints and writes from rank 0: merged_output.py [fail]; its ranks are of two launches.

With ``fail`` it ends by an error that all ranks raise.
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

FAILS = "fail" in sys.argv


class Job(dmr.Application):
    def fields(self):
        return {"u": dmr.FieldSpec((12,), "f8", lambda box: np.arange(box.start[0], box.stop[0]))}

    def steps(self, run):
        return 30

    def step(self, run):
        if run.runtime.comm.rank == 0 and run.step in (5, 15, 25):
            print(f"step {run.step}: rank 0 of {run.runtime.comm.size}", flush=True)
        if FAILS and run.step == 28:
            raise dmr.UsageError("expected an end, got an error")


runtime = dmr.Runtime.here(MPI.COMM_WORLD)
plan = dmr.Plan(resizes={10: 3, 20: 4}, strategy="merge")
try:
    dmr.run(Job(), runtime, plan)
except dmr.UsageError as error:
    if runtime.comm.rank == 0:
        print(f"error of one rank: {error}", flush=True)
    sys.exit(2)
if runtime.comm.rank == 0:
    print(f"after the run: rank 0 of {runtime.comm.size}", flush=True)
    with Path("out").open("a") as file:
        file.write("written\n")
