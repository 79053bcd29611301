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


def owner(particles, size):
    """Return the rank in whose part each particle is."""
    plane, base, extra = particles["x"][:, 0].astype(int), N // size, N % size
    fat = extra * (base + 1)
    return np.where(plane < fat, plane // (base + 1), extra + (plane - fat) // base)


def migrate(comm, particles):
    """Send the particles that have left this part to where they are now."""
    ranks = owner(particles, comm.size)
    return np.concatenate(comm.alltoall([particles[ranks == r] for r in range(comm.size)]))


def exchange(comm, air):
    """Fill the halo along the cut axis; the air goes round."""
    up, down = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    comm.Sendrecv(air[1], up, sendtag=1, recvbuf=air[-1], source=down, recvtag=1)
    comm.Sendrecv(air[-2], down, sendtag=2, recvbuf=air[0], source=up, recvtag=2)


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
    base, extra = N // comm.size, N % comm.size
    begin = base * comm.rank + min(comm.rank, extra)
    planes = base + (comm.rank < extra)
    air, new = np.zeros((planes + 2, M, L)), np.zeros((planes + 2, M, L))
    particles = swarm(begin, begin + planes)

    fields = {
        "air": dmr.adapt(air, (N, M, L), halo=((1, 1), (0, 0), (0, 0))),
        "particles": dmr.adapt_list(particles, (N,), lambda p, cut: owner(p, cut.size)),
    }
    with dmr.malleable(dmr.Runtime.here(comm), fields) as run:
        particles = run.fields["particles"].items
        for _ in run.loop(steps):
            exchange(comm, air)
            advance(air, new, particles, begin)
            particles = run.fields["particles"].items = migrate(comm, particles)
            air, new = new, air
            run.fields["air"].rebind(air)

    planes, swarms = comm.gather(air[1:-1].copy()), comm.gather(particles)
    if comm.rank == 0:
        every = np.concatenate(swarms)
        every = every[np.argsort(every["id"])]
        digest = hashlib.sha256(np.concatenate(planes).tobytes() + every.tobytes()).hexdigest()
        print(f"{comm.size} ranks, {len(every)} particles, sha256 {digest}", flush=True)


if __name__ == "__main__":
    main(MPI.COMM_WORLD, int(sys.argv[1]) if len(sys.argv) > 1 else 200)
