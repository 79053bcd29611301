"""A program that makes a new array in every step and names it in ``save=`` only.

late_rebind.py [save|again]: it stops after 25 steps, or goes on from a checkpoint.
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

WHAT = sys.argv[1] if len(sys.argv) > 1 else ""
comm = MPI.COMM_WORLD
begin, end = dmr.split_range(8, comm.size, comm.rank)
u = np.zeros(end - begin)
plan = dmr.Plan(
    checkpoint=dmr.Schedule(Path("saved"), 10) if WHAT in ("save", "again") else None,
    restart=WHAT == "again",
)


def save(run):
    run.fields["u"].rebind(u)


with dmr.malleable(comm, {"u": dmr.adapt(u, (8,))}, plan, save=save) as run:
    for step in run.loop(40):
        if WHAT == "save" and step == 25:
            raise SystemExit("stopped on purpose")
        u = u + 1.0
    run.say(f"u is {u[0]}")
