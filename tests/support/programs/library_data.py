"""A library that holds its data itself: library_data.py [merge|save|again].

It makes a new read-only array in each step, and has rows on any rank, which it sorts by itself.
A run stops after 25 steps (save), or goes on from a checkpoint (again).
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

WHAT = sys.argv[1] if len(sys.argv) > 1 else ""
N, STEPS = 24, 40
comm = MPI.COMM_WORLD


class Library:
    """Its arrays cannot be written, and are others in each step."""

    def __init__(self):
        begin, end = dmr.split_range(N, comm.size, comm.rank)
        self.put(np.pad(np.arange(begin, end, dtype=float), 1))
        self.rows = np.stack([np.arange(begin, end), np.arange(begin, end) ** 2], axis=1)
        self.steps = 0

    def put(self, u):
        self.u = u.copy()
        self.u.flags.writeable = False

    def create(self, rows):
        self.rows = rows + 0

    def step(self):
        u = self.u.copy()
        u[1:-1] = (self.u[:-2] + self.u[2:]) / 2 + self.steps
        self.put(u)
        self.rows = self.rows + np.array([0, self.steps])
        self.steps += 1


library = Library()
fields = {
    "u": dmr.adapt(get=lambda: library.u, set=library.put, shape=(N,), halo=1),
    "rows": dmr.adapt_list(get=lambda: library.rows, set=library.create, deliver="any"),
}
plan = dmr.Plan(
    checkpoint=dmr.Schedule(Path("saved"), 10) if WHAT in ("save", "again") else None,
    restart=WHAT == "again",
)


def save(run):
    run.state.steps = library.steps


def load(run):
    library.steps = run.state.steps


hooks = {"build": lambda run: None} if WHAT == "merge" else {}
with dmr.malleable(comm, fields, plan, state={"steps": 0}, save=save, load=load, **hooks) as run:
    for step in run.loop(STEPS):
        assert library.steps == step
        if WHAT == "save" and step == 25:
            raise SystemExit("stopped on purpose")
        run.fields["u"].exchange("periodic")
        library.step()
    u, rows = run.fields["u"].gather(), run.fields["rows"].gather()
    counts = run.comm.gather(len(library.rows))
    if u is not None:
        assert rows[np.argsort(rows[:, 0]), 0].tolist() == list(range(N))
        run.say(f"u {u.sum():.12f} {u[5]!r} rows {rows[:, 1].sum()} even {max(counts) <= 13}")
