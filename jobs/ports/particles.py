"""Particles drift through warm air and heat it: mpirun -n 2 python particles.py [STEPS]

The air is a 3D array, cut along its first axis; every rank has the particles that are in its
part. They warm their cell, so both depend on each other.
"""

import hashlib
import sys

import numpy as np
from mpi4py import MPI

import dmr

N, M, L, COUNT = 40, 12, 8, 600
PARTICLE = np.dtype([("id", "i8"), ("x", "f8", 3)])


def swarm(begin, end):
    """Return the particles that start between two planes."""
    n = np.arange(COUNT)
    found = np.zeros(COUNT, PARTICLE)
    found["id"], found["x"] = n, np.stack([n * 0.37 % N, n * 0.73 % M, n * 0.19 % L], axis=1)
    return found[(found["x"][:, 0] >= begin) & (found["x"][:, 0] < end)]


def owner(particles, layout):
    """Return the rank in whose part each particle is."""
    return dmr.rank_of(layout, particles["x"][:, 0].astype(int))


def advance(air, new, particles, begin):
    """Diffuse the air from one array into another; move the particles, then let them heat."""
    inner = air[1:-1]
    sides = sum(np.roll(inner, shift, axis) for shift in (-1, 1) for axis in (1, 2))
    new[1:-1] = 0.7 * inner + 0.05 * (air[:-2] + air[2:] + sides)
    cells = particles["x"].astype(int)
    warmth = inner[cells[:, 0] - begin, cells[:, 1], cells[:, 2]]
    np.add.at(new, (cells[:, 0] - begin + 1, cells[:, 1], cells[:, 2]), 0.25)
    drift = np.stack([0.4 + 0.1 * warmth, 0.3 * np.sin(warmth), 0.2 * np.cos(warmth)], axis=1)
    particles["x"] = (particles["x"] + drift) % (N, M, L)


def main(comm, steps):
    begin, end = dmr.split_range(N, comm.size, comm.rank)
    air, new = np.zeros((2, end - begin + 2, M, L))
    particles = swarm(begin, end)

    fields = {
        "air": dmr.adapt(air, (N, M, L), halo=((1, 1), (0, 0), (0, 0))),
        "particles": dmr.adapt_list(particles, (N,), owner),
    }
    with dmr.malleable(comm, fields) as run:
        particles = run.fields["particles"].items
        for _ in run.loop(steps):
            run.fields["air"].exchange("periodic")
            advance(air, new, particles, begin)
            particles = run.fields["particles"].migrate()
            air, new = new, air
            run.fields["air"].rebind(air)
        air, every = run.fields["air"].gather(), run.fields["particles"].gather()

    if comm.rank == 0:
        every = every[np.argsort(every["id"])]
        digest = hashlib.sha256(air.tobytes() + every.tobytes()).hexdigest()
        print(f"{comm.size} ranks, {len(every)} particles, sha256 {digest}", flush=True)


if __name__ == "__main__":
    main(MPI.COMM_WORLD, int(sys.argv[1]) if len(sys.argv) > 1 else 200)
