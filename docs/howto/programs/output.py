"""A log and an array file of the program's own: mpirun -n 2 python output.py"""

from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

comm = MPI.COMM_WORLD
N = 60
begin, end = dmr.split_range(N, comm.size, comm.rank)
u = np.arange(begin, end, dtype=float)
log = Path("log.txt")

with dmr.malleable(comm, {"u": dmr.adapt(u, (N,))}, state={"lines": 0}) as run:
    if run.comm.rank == 0 and not run.restored:
        log.write_text("step ranks\n")  # in the first world only
    for step in run.loop(40):
        u *= 0.9
        if step % 10 == 0:
            if run.comm.rank == 0:
                with log.open("a") as file:
                    file.write(f"{step} {run.comm.size}\n")
            run.state.lines += 1
    whole = run.fields["u"].gather()
    if run.comm.rank == 0:
        np.save("u.npy", whole)
        print(f"{run.state.lines} lines, {whole.size} cells")
