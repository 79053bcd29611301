"""A program that forgets what its argument says: forgetful.py nothing|rebind|counter|vector."""

import sys

import numpy as np
from mpi4py import MPI

import dmr

FORGETS, N, STEPS = sys.argv[1], 24, 12
comm = MPI.COMM_WORLD
begin, end = dmr.split_range(N, comm.size, comm.rank)
u, v, w = np.arange(begin, end, dtype=float), np.zeros(end - begin), np.zeros(end - begin)
fields = {"u": dmr.adapt(u, (N,)), "w": dmr.adapt(w, (N,))}
if FORGETS == "vector":
    del fields["w"]
state = {} if FORGETS == "counter" else {"count": [0]}
count = state.get("count", [0])
with dmr.malleable(comm, fields, state=state) as run:
    for _ in run.loop(STEPS):
        count[0] += 1
        v[:] = u + count[0]
        w += v
        u, v = v, u
        if FORGETS != "rebind":
            run.fields["u"].rebind(u)
    if "w" in run.fields and FORGETS != "rebind":
        w = run.fields["w"].interior
    parts = run.comm.gather((u.sum(), w.sum()))
    run.say(f"sums {sum(a for a, _ in parts or [])} {sum(b for _, b in parts or [])}")
