"""A loop of which one resize has a wrong bit in every message of its data: wrong_bytes.py STEP.

Printed are the resizes, and whether all cells and all items of the ranks' own lists are right.
"""

import sys

import numpy as np
from mpi4py import MPI

import dmr
from dmr.data import streams
from dmr.wire import tags

AT, STEPS, N = int(sys.argv[1]), 40, 64
send_chunks, wrong = streams.send_chunks, []


class Noisy:
    """A communicator that changes a bit of every chunk that it sends."""

    def __init__(self, comm):
        self.comm = comm

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def Isend(self, values, dest, tag):  # noqa: N802
        if tag == tags.CHUNK:
            values = values.copy()
            values.view(np.uint8).flat[0] ^= 1
            wrong.append(values)  # MPI reads it until the message is complete
        return self.comm.Isend(values, dest=dest, tag=tag)


def noisy(comm, *arguments):
    return send_chunks(Noisy(comm) if run.step == AT else comm, *arguments)


def join(parts):
    return [item for part in parts for item in part]


def deal(items, ranks):
    return [items[slice(*dmr.split_range(N, ranks, rank))] for rank in range(ranks)]


streams.send_chunks = noisy
comm = MPI.COMM_WORLD
begin, end = dmr.split_range(N, comm.size, comm.rank)
fields = {"u": dmr.adapt(np.arange(float(begin), float(end)), (N,))}
state = {"own": dmr.PerRank(list(range(begin, end)), join, deal)}
with dmr.malleable(comm, fields, dmr.Plan(every=1), state=state, build=lambda run: None) as run:
    for _ in run.loop(STEPS):
        run.fields["u"].interior[...] += 1.0
        run.state["own"][:] = [item + 1 for item in run.state["own"]]
    box = run.fields["u"].box
    expected = np.arange(box.start[0], box.stop[0]) + STEPS
    right = (
        np.array_equal(run.fields["u"].interior, expected),
        run.state["own"] == expected.tolist(),
    )
    cells, items = (all(each) for each in zip(*run.comm.allgather(right), strict=True))
    resizes = [[one.step, one.from_ranks, one.to_ranks] for one in run.resizes]
    run.say(f"{resizes} cells {cells}, items {items}")
