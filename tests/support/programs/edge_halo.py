"""A program that steps its whole padded array, and so owns the halo at the edge of the domain.

edge_halo.py [merge|save|again] [wide]: it prints the sum of all that it has, edge included. With
"wide" the edge has two rows more than the halo between ranks.
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

N, M = 12, 7
WHAT = sys.argv[1] if len(sys.argv) > 1 else ""
ROWS = 3 if "wide" in sys.argv else 1
comm = MPI.COMM_WORLD
begin, end = dmr.split_range(N, comm.size, comm.rank)
below, above = (ROWS if at_edge else 1 for at_edge in (begin == 0, end == N))
u = np.zeros((end - begin + below + above, M + 3))  # a column below and two above
u[...] = np.arange(begin - below, end + above)[:, None] * 100 + np.arange(M + 3)
here = {}


def build(run):
    here["u"] = run.fields["u"].padded


plan = dmr.Plan(
    checkpoint=dmr.Schedule(Path("saved"), 7) if WHAT in ("save", "again") else None,
    restart=WHAT == "again",
)
edge = (ROWS, (1, 2)) if ROWS > 1 else None
field = dmr.adapt(u, (N, M), halo=((1, 1), (1, 2)), edge=edge)
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
