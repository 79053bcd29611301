"""A task farm that grows and shrinks: mpirun -n 1 python farm.py [TASKS] [MOST RANKS]

Tasks differ in length; within a round whoever is free gets the next one (mpi4py.futures). Between
rounds ranks may come and go: by themselves, where the farm asks for as many as its tasks can use,
under the RMS, or by DMR_RESIZE_AT=ROUND:RANKS. What is done and what is left travels as state.
"""

import sys

from mpi4py import MPI
from mpi4py.futures import MPICommExecutor

import dmr

PER_RANK = 4  # tasks of a round, for each rank


def work(task):
    """Return how many steps Collatz's sequence has from some numbers: more for later tasks."""
    steps = 0
    for n in range(1, 20 + 10 * task):
        while n > 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
    return steps


def main(comm, tasks, most):
    state = {"todo": list(range(tasks)), "done": {}, "ranks": []}
    with dmr.malleable(comm, state=state) as run:
        now = run.state
        while now.todo:
            batch = now.todo[: PER_RANK * run.comm.size]
            with MPICommExecutor(run.comm) as pool:  # None on all ranks but 0
                found = None if pool is None else list(pool.map(work, batch))
            now.done.update(zip(batch, run.comm.bcast(found), strict=True))
            now.todo = now.todo[len(batch) :]
            now.ranks.append(run.comm.size)
            if now.todo:
                run.request(min(most, -(-len(now.todo) // PER_RANK)))
            run.resize_point()
        run.say(
            f"{len(now.done)} tasks, sum {sum(now.done.values())}, "
            f"{len(run.resizes)} resizes, ranks of each round {now.ranks}"
        )


if __name__ == "__main__":
    main(MPI.COMM_WORLD, *(int(word) for word in (sys.argv[1:] + ["48", "3"][len(sys.argv) - 1 :])))
