"""A program with an array and a long state that are the same on every rank."""

import numpy as np
from mpi4py import MPI

import dmr

SHAPE = (300, 400)


def main() -> None:
    """Add to both, twelve times."""
    comm = MPI.COMM_WORLD
    weights, state = np.zeros(SHAPE), {"long": np.zeros(50_000), "count": 0}
    fields = {"weights": dmr.adapt(weights, SHAPE, split=())}
    with dmr.malleable(comm, fields, dmr.Plan(every=1), state=state) as run:
        for step in run.loop(12):
            weights += step
            run.state.long += step
            run.state.count += step
        good = bool((weights == 66).all() and (run.state.long == 66).all())
        alike = run.comm.allreduce(good and run.state.count == 66, MPI.LAND)
        moved = [resize.bytes // weights.nbytes for resize in run.resizes]
        run.say(f"moved {moved}, good {alike}")


main()
