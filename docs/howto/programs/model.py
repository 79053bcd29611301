"""A model that is a class, with the library's loop: mpirun -n 2 python model.py"""

import numpy as np
from mpi4py import MPI

import dmr


class Wave(dmr.Application):
    """A wave on a ring."""

    N = 200

    def fields(self):
        """Say what is distributed, and what it starts from."""
        start = dmr.FieldSpec((self.N,), "f8", self.start, halo=1)
        return {"now": start, "before": start}

    def start(self, box):
        """Return the initial values of a block, by global indices."""
        return np.exp(-((np.arange(box.start[0], box.stop[0]) - 100) ** 2) / 50)

    def build(self, run):
        """Make what belongs to the present ranks; called in every world."""
        self.courant = 0.5

    def steps(self, run):
        """Return the number of steps."""
        return 150

    def step(self, run):
        """Advance by one step."""
        run.fields["now"].exchange("periodic")
        u, v = run.fields["now"].padded, run.fields["before"].padded
        inner = u[1:-1].copy()
        u[1:-1] = 2 * inner - v[1:-1] + self.courant**2 * (u[:-2] - 2 * inner + u[2:])
        v[1:-1] = inner

    def finish(self, run):
        """Print the result, in the last world."""
        whole = run.fields["now"].gather()
        if whole is not None:
            run.say(f"largest {whole.max():.9f} after {len(run.resizes)} resizes")


dmr.run(Wave(), dmr.Runtime.here(MPI.COMM_WORLD))
