"""A library that has the loop, calls back after each step, and cleans up in the end.

library_loop.py [merge|raise|exit|term]: raise and exit: its clean-up raises RuntimeError or
SystemExit where the ranks have been replaced; term: rank 0 sends itself SIGTERM in step 5.
"""

import os
import signal
import sys

import numpy as np
from mpi4py import MPI

import dmr

WHAT = sys.argv[1] if len(sys.argv) > 1 else ""
N, STEPS = 24, 12


class Solver:
    """It does not let exceptions pass: it counts them, as libraries do that write a report."""

    def __init__(self, comm):
        self.ranks, self.steps, self.errors = comm, 0, 0

    def run(self, after_step):
        try:
            while self.steps < STEPS:
                self.u += 1 + self.steps
                self.steps += 1
                if after_step():
                    break
        except BaseException:
            self.errors += 1
        self.clean_up(complete=self.steps == STEPS)

    def clean_up(self, *, complete):
        if WHAT != "merge":  # there other ranks go on with their loop
            self.ranks.Barrier()
        if comm.rank == 0:
            print(f"cleaned up after {self.steps} steps, {self.errors} errors", flush=True)
        if not complete and WHAT in ("raise", "exit"):
            raise RuntimeError("not complete") if WHAT == "raise" else SystemExit(3)


def main():
    begin, end = dmr.split_range(N, comm.size, comm.rank)
    solver = Solver(comm)
    solver.u = np.arange(begin, end, dtype=float)

    def save(run):
        run.state.steps = solver.steps

    def load(run):
        solver.steps, solver.ranks = run.state.steps, run.comm.Dup()

    fields = {
        "u": dmr.adapt(get=lambda: solver.u, set=lambda u: setattr(solver, "u", u), shape=(N,))
    }
    build = (lambda run: None) if WHAT == "merge" else None
    hooks = {"save": save, "load": load, "build": build}
    with dmr.malleable(comm, fields, state={"steps": 0}, **hooks) as run:

        def after_step():
            if WHAT == "term" and solver.steps == 5 and comm.rank == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            return run.resize_point(leave=False)

        solver.run(after_step)
        if run.resize_point(leave=False):
            return
        u = run.fields["u"].gather()
        if u is not None:
            run.say(f"sum {u.sum()} in {len(run.resizes)} resizes")
    print("after the block", flush=True)


comm = MPI.COMM_WORLD
main()
