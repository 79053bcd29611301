"""A program whose second world fails: failing_world.py WHERE STRATEGY; its data are ``input``."""

import os
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

WHERE, STRATEGY = sys.argv[1:3]
NEW = "DMR_LISTENER" in os.environ or "DMR_JOIN" in os.environ
LAST = MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1


def at(place):
    """Fail if it is here."""
    if not NEW or not WHERE.startswith(place):
        return
    if "alone" in WHERE and not LAST:
        if WHERE.endswith("wait"):
            MPI.COMM_WORLD.Barrier()
        return
    if WHERE.endswith("exit"):
        sys.exit("expected another day")
    Path("gone").read_text()


class Sums(dmr.Application):
    def fields(self):
        at("fields")
        cells = 1 if NEW and WHERE == "thin" else 40
        return {
            "u": dmr.FieldSpec((cells,), "f8", lambda box: np.arange(box.start[0], box.stop[0]))
        }

    def prepare(self, run):
        at("prepare")

    def build(self, run):
        if run.world.generation or not NEW:
            at("build")

    def steps(self, run):
        return 400

    def step(self, run):
        run.fields["u"].interior[...] *= 1.01
        if "RMS_SERVER" in os.environ and not Path("go").exists():
            time.sleep(0.02 if run.step < 200 else 1.0)  # a slow test has time

    def finish(self, run):
        sums = run.world.comm.allreduce(float(run.fields["u"].interior.sum()))
        run.say(f"sum {sums!r} on {run.world.size} ranks after {len(run.resizes)} resizes")


at("early")
runtime = dmr.Runtime.here(MPI.COMM_WORLD)
at("script")
deadlines = dmr.Deadlines(boot_s=30, answer_s=30)
resizes = {} if runtime.manager is not None or WHERE == "steady" else {10: 2}
dmr.run(Sums(), runtime, dmr.Plan(resizes=resizes, deadlines=deadlines, strategy=STRATEGY))
