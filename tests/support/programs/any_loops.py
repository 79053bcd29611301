"""Loops of all kinds in one program: any_loops.py [merge|runtime]. Prints what it computed, once.

One after another, one done once, nested, left early, and a ``while`` with a resize point; with
arrays that are cut, an array that every rank has, a list, and state of several types. With
``runtime`` its ranks may be several launches that have met.
"""

import dataclasses
import hashlib
import sys

import numpy as np
from mpi4py import MPI

import dmr

N = 40
RUNTIME = "runtime" in sys.argv
MERGE = "merge" in sys.argv or RUNTIME


@dataclasses.dataclass(frozen=True)
class Notes:
    text: str = "none"


def joined(lists):
    return [one for part in lists for one in part]


def rest_to_the_last(cells, parts):
    return [cells // parts * part for part in range(parts)] + [cells]


def main(comm, around):
    begin, end = dmr.split_range(N, comm.size, comm.rank)
    u = np.arange(begin, end, dtype="i8")
    cuts = rest_to_the_last(N, comm.size)
    v = np.arange(cuts[comm.rank], cuts[comm.rank + 1], dtype="i8")
    whole = np.arange(5.0)
    random, notes, history = np.random.default_rng(7), Notes(), []
    here = {"u": u, "v": v, "whole": whole, "comm": comm}

    def build(run):
        here.update({name: block.padded for name, block in run.fields.items()}, comm=run.comm)

    def step(number):
        drawn = int(random.integers(1000))
        mine[:] = [number + drawn + one for one in mine]
        history.append(drawn)
        here["u"][...] = (here["u"] * 31 + number + drawn) % 1000003
        here["v"][...] = (here["v"] * 17 + number) % 1000003
        here["whole"] += drawn / 7

    fields = {
        "u": dmr.adapt(u, (N,)),
        "v": dmr.adapt(v, (N,), ranges=rest_to_the_last),
        "whole": dmr.adapt(whole, whole.shape, split=()),
    }
    # The ranks' own: so many numbers each, dealt again as they are merged.
    mine = list(range(begin, end))
    own = dmr.PerRank(
        mine,
        merge=joined,
        split=lambda whole, ranks: [
            whole[slice(*dmr.split_range(N, ranks, rank))] for rank in range(ranks)
        ],
    )
    state = {
        "mine": own,
        "random": random,
        "notes": notes,
        "history": history,
        "k": 0,
        "residual": None,
    }
    with dmr.malleable(
        around, fields, dmr.Plan(every=1), state=state, build=build if MERGE else None
    ) as run:
        for number in run.loop(6):
            step(number)
        for _ in run.loop(1):
            here["u"] += 1
            vars(notes).update(text="first loop done")
        for i in run.loop(3):
            for j in run.loop(2):
                step(10 * i + j)
            for j in run.loop(2):
                step(100 * i + j)
        for number in run.loop(50):
            if number == 3:
                break
            step(number)
        while run.state.k < 5:
            step(run.state.k)
            run.state.k += 1
            run.state.residual = np.float64(here["whole"].sum())
            run.resize_point()
        for number in run.loop(2):
            step(number)
        parts = [here["comm"].gather(here[name]) for name in ("u", "v")]
        numbers = here["comm"].gather(mine)
        if here["comm"].rank == 0:
            text = repr((joined(numbers), history, notes, run.state.residual, here["whole"]))
            cells = b"".join(np.concatenate(part).tobytes() for part in parts)
            digest = hashlib.sha256(cells + text.encode()).hexdigest()
            sizes = [[r.step, r.from_ranks, r.to_ranks] for r in run.resizes]
            print(f"{sizes} in {run.step} steps, {len(history)} draws, sha256 {digest}", flush=True)


if RUNTIME:
    runtime = dmr.Runtime.here(MPI.COMM_WORLD)
    main(runtime.comm, runtime)
else:
    main(MPI.COMM_WORLD, MPI.COMM_WORLD)
