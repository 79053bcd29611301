"""A job with a receive of its own pending all the while: pending_receive.py STRATEGY.

Rank 0 takes any message from any rank on the application's communicator. Nothing of the library's
may arrive there: not at resize points, in checkpoints, or in a resize that is rolled back or done.
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

STRATEGY = sys.argv[1]
N = 4000


def owner(items, layout):
    return dmr.rank_of(layout, items)


class Job(dmr.Application):
    def fields(self):
        return {
            "u": dmr.FieldSpec((N,), "f8", lambda box: np.arange(box.start[0], box.stop[0])),
            "list": dmr.ListSpec(
                (N,), "i8", lambda box: np.arange(box.start[0], box.stop[0]), owner=owner
            ),
        }

    def build(self, run):
        if run.step == 10 and run.world.size == 3:
            raise dmr.UsageError("expected another number of ranks, got 3")
        if run.world.generation != self.generation:  # else it is pending already
            self.generation = run.world.generation
            if run.world.rank == 0:
                self.request = run.world.comm.Irecv(self.taken, MPI.ANY_SOURCE, MPI.ANY_TAG)

    generation = -1
    request = None
    taken = bytearray(100_000)

    def check(self):
        """Have nothing taken yet."""
        assert self.request is None or not self.request.Test(), f"taken: {self.taken[:80]}"

    def hear(self, run):
        """Have the last rank send; check that it is what rank 0 takes."""
        self.check()
        run.world.comm.Barrier()
        sent = f"to rank 0 of {run.world.size}".encode()
        if run.world.rank == run.world.size - 1:
            run.world.comm.Send(sent, 0, 5)
        if self.request is not None:
            status = MPI.Status()
            self.request.Wait(status)
            said = bytes(self.taken[: status.Get_count(MPI.BYTE)])
            assert said == sent, f"expected {sent}, got {said[:80]}"

    def steps(self, run):
        return 30

    def step(self, run):
        run.fields["u"].interior[...] += 1

    def save(self, run):
        self.check()
        ends = run.step == 20 and run.world.size != 4  # else a checkpoint is written
        if self.request is not None and ends:  # the world that it belongs to
            self.request.Cancel()
            self.request.Wait()

    def load(self, run):
        self.check()

    def finish(self, run):
        self.hear(run)
        right = bool((run.fields["u"].interior == np.arange(N)[slice(*self.ends(run))] + 30).all())
        assert run.world.comm.allreduce(right, MPI.LAND)
        run.say(f"rank 0 of {run.world.size} has taken what was sent to it alone")

    def ends(self, run):
        box = run.fields["u"].box
        return box.start[0], box.stop[0]


plan = dmr.Plan(
    every=2,
    resizes={10: 3, 20: 4},
    strategy=STRATEGY,
    checkpoint=dmr.Schedule(Path("saved"), 4),
)
dmr.run(Job(), dmr.Runtime.here(MPI.COMM_WORLD), plan)
