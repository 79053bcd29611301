"""A program with an array that never changes: constant_field.py [RANKS WITH OTHER DATA]."""

import sys

import numpy as np
from mpi4py import MPI

import dmr

N, M = 300, 64


def main() -> None:
    """Add a constant array to another, ten times."""
    comm = MPI.COMM_WORLD
    wrong = len(sys.argv) > 1 and int(sys.argv[1]) == comm.size
    begin, end = dmr.split_range(N, comm.size, comm.rank)
    k = np.sqrt(np.arange(begin * M, end * M, dtype="f8")).reshape(-1, M)
    k[:, 3] += wrong
    u, weights = np.zeros_like(k), np.full(7, 2.0 + (wrong and comm.rank == 1))
    fields = {
        "u": dmr.adapt(u, (N, M)),
        "k": dmr.adapt(k, (N, M), constant=True),
        "weights": dmr.adapt(weights, (7,), split=(), constant=True),
    }
    with dmr.malleable(comm, fields, dmr.Plan(every=1)) as run:
        for _ in run.loop(10):
            u += k * weights[0]
        whole = run.fields["u"].gather()
        moved = [resize.bytes for resize in run.resizes]
        run.say(f"{comm.size} ranks, moved {moved}, sum {None if whole is None else whole.sum()}")


main()
