"""A program whose sums depend on the number of ranks, not on resizes: rank_sums.py [forgets].

It writes them to a file; "forgets" has the output depend on a variable that is not declared.
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

comm = MPI.COMM_WORLD
begin, end = dmr.split_range(1001, comm.size, comm.rank)
u = np.sqrt(np.arange(begin, end))
shown = 0
state = {"sum": 0.0, "shown": 0}
with dmr.malleable(comm, {"u": dmr.adapt(u, (1001,))}, state=state) as run:
    shown = run.state.shown
    for _ in run.loop(10):
        run.state.sum = comm.allreduce(float((u**1.5).sum()))
        u *= 1 + run.state.sum / 1e6
        shown += 1
        if "forgets" not in sys.argv:
            run.state.shown = shown
    if comm.rank == 0:
        Path("sums.txt").write_text(
            f"sum {run.state.sum!r}\n" if "forgets" not in sys.argv else "the same\n"
        )
    run.say(f"in the output: {shown}")
