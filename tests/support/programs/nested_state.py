"""A program whose state is arrays and a generator within a list, a dictionary and an object."""

import numpy as np
from mpi4py import MPI

import dmr


class Model:
    """Weights, as a program has them."""

    def __init__(self) -> None:
        self.weights = np.zeros(2)


data = [np.full(2, float(n)) for n in range(4)]
centers = [data[1], data[2]]  # replaced in each step, so that the data stays
a, d, model, rng = np.zeros(2), np.zeros(2), Model(), np.random.default_rng(3)
state = {"w": [a, rng], "m": {"d": d}, "model": model, "centers": centers}
with dmr.malleable(MPI.COMM_WORLD, state=state) as run:
    drawn = 0.0
    for _ in run.loop(20):
        a += 1
        d += 1
        model.weights += 1
        drawn = rng.random()
        centers[:] = [one + data[3] for one in centers]
    run.say(f"data {np.array(data).sum()} centers {np.array(centers).sum()}")
    run.say(f"a {a[0]} d {d[0]} model {model.weights[0]} drawn {drawn}")
