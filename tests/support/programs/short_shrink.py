"""A shrink by merge that rank 1 has no memory for the first time, in the middle of the move."""

import dataclasses
import sys
from itertools import islice

import numpy as np
from mpi4py import MPI

import dmr
from dmr.data import streams

true = streams.sending
struck = []


def short(comm, block, new, *, on_host):
    fails = block.rank == 1 and block.decomposition.size == 2 and not struck
    steps = true(comm, block, new, on_host=on_host)
    if not fails:
        return (yield from steps)
    struck.append(True)
    yield from islice(steps, 2)
    next(steps)
    raise MemoryError


def numbers(box):
    return np.arange(box.start[0], box.stop[0], dtype="f8")[:, None] * np.ones(box.shape)


streams.sending = short
spec = dmr.FieldSpec((1024, 1024), "f8", numbers, split=(0,))
plan = dmr.Plan(every=1, resizes={10: 2, 20: 1, 30: 1}, strategy="merge")
plan = dataclasses.replace(plan, deadlines=dmr.Deadlines(move_s=10.0))
with dmr.malleable(
    dmr.Runtime.here(MPI.COMM_WORLD), {"x": spec}, plan, build=lambda run: None
) as run:
    for _ in run.loop(40):
        pass
right = np.array_equal(run.fields["x"].interior, numbers(run.fields["x"].box))
print([[one.step, one.from_ranks, one.to_ranks] for one in run.resizes], "right", right)
sys.exit()
