"""A program that steps its whole padded array, and so owns the halo at the edge of the domain.

edge_halo.py [merge|save|again]: it prints the sum of all that it has, edge included.
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

N, M = 12, 7
WHAT = sys.argv[1] if len(sys.argv) > 1 else ""
comm = MPI.COMM_WORLD
begin, end = dmr.split_range(N, comm.size, comm.rank)
u = np.zeros((end - begin + 2, M + 3))  # one row below and above, a column below and two above
u[...] = np.arange(begin, end + 2)[:, None] * 100 + np.arange(M + 3)
here = {}


def build(run):
    here["u"] = run.fields["u"].padded


plan = dmr.Plan(
    checkpoint=dmr.Schedule(Path("saved"), 7) if WHAT in ("save", "again") else None,
    restart=WHAT == "again",
)
field = dmr.adapt(u, (N, M), halo=((1, 1), (1, 2)))
with dmr.malleable(comm, {"u": field}, plan, build=build if WHAT == "merge" else None) as run:
    if WHAT != "merge":
        build(run)
    for step in run.loop(20):
        if WHAT == "save" and step == 10:
            raise SystemExit("stopped on purpose")
        here["u"] += 0.125 * (step + here["u"] % 3)
        run.fields["u"].exchange()
    rank, size = run.comm.rank, run.comm.size
    mine = here["u"][0 if rank == 0 else 1 : None if rank == size - 1 else -1]
    parts = run.comm.gather(np.ascontiguousarray(mine))
    if parts is not None:
        whole = np.concatenate(parts)
        print(f"{whole.shape} sum {whole.sum()!r} edge {whole[0].sum() + whole[:, -1].sum()!r}")
