"""A loop of one's own: own_loop.py WHAT. A Fortran-ordered array, cut along its second axis."""

import hashlib
import os
import signal
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

N, M = 23, 29
SCRIPTS = {
    "merge": {10: 4, 20: 2, 30: 3},
    "room": {10: 4, 20: 2, 30: 1},
    **{what: {10: 3, 20: 1} for what in ("veto", "script", "owner")},
}
WHAT, STEPS = sys.argv[1], int(sys.argv[2])


def save(run):
    run.state["saves"] = [*run.state.get("saves", []), run.world.size]
    if WHAT == "veto" and run.step == 10:
        raise dmr.UsageError("expected another step than 10")
    if WHAT == "ask-in-vain":
        raise dmr.UsageError("expected no resize at all")


def load(run):
    run.state["loads"] = [*run.state.get("loads", []), run.world.size]


def owner(items, layout):
    if WHAT == "owner" and layout.size == 3:
        return items[:, 0] + 1000
    return dmr.rank_of(layout, items[:, 0])


def fail(run):
    """Find something wrong in a world of four: FAULT says on which rank, and whether in words."""
    who, _, how = os.environ.get("FAULT", "").partition(" ")
    if not who or run.world.size != (2 if WHAT == "ask-rms-merge" else 4):
        return
    mine = run.world.rank == {"new": run.world.size - 1, "old": 1, "first": 0}[who]
    if how == "agreed":
        dmr.raise_on_all(run.world.comm, f"rank {run.world.rank} cannot build" if mine else None)
    elif mine:
        raise ValueError("cannot build")
    elif how == "while others wait":
        run.world.comm.Barrier()


class Here:
    """What belongs to the present world."""

    def build(self, run):
        fail(run)
        self.world = run.world.comm
        rank, size = self.world.rank, self.world.size
        left = rank - 1 if rank else MPI.PROC_NULL
        right = rank + 1 if rank < size - 1 else MPI.PROC_NULL
        self.ways = ((2, -1, left, right), (-2, 1, right, left))
        self.u = run.fields["u"].padded
        self.v = np.zeros_like(self.u)


def main(comm):
    begin, end = dmr.split_range(M, comm.size, comm.rank)
    if WHAT == "misfit" and comm.rank == 1:
        end += 1
    u = np.zeros((N + 3, end - begin + 3), order="F")
    u[1:-2, 2:-1] = (np.arange(N)[:, None] * 7 + np.arange(begin, end) * 3) % 11
    numbers = np.stack([np.arange(begin, end), np.arange(begin, end) ** 2], axis=1)
    fields = {
        "u": dmr.adapt(u, (N, M), halo=((1, 2), (2, 1)), split=(1,)),
        "numbers": dmr.adapt_list(numbers, (M,), owner),
    }
    plan = dmr.Plan(
        every=5,
        limits=(1, 4),
        sizes=(1, 3, 4),
        strategy="merge" if "merge" in WHAT else "auto",
        deadlines=dmr.Deadlines(answer_s=20.0 if "FAULT" in os.environ else 60.0),
        resizes=SCRIPTS.get(WHAT, {}),
        checkpoint=dmr.Schedule(Path("saved"), 8) if WHAT in ("kill", "again") else None,
        restart=WHAT == "again",
    )
    runtime = dmr.Runtime.here(comm)
    here = Here()
    stays = "merge" in WHAT or WHAT == "room"
    build = here.build if stays else None
    hooks = {"build": build, "save": save, "load": load}
    with dmr.malleable(runtime, fields, plan, backends=("abacus", "rule"), **hooks) as run:
        run.state["backends"] = [*run.state.get("backends", []), runtime.backend]
        if not stays:
            here.build(run)
            assert np.shares_memory(u, here.u)
        asked = False
        for step in run.loop(STEPS):
            if WHAT == "kill" and step == 19:
                os.kill(os.getpid(), signal.SIGKILL)
            if WHAT == "ask" and step == 7 and here.world.rank == here.world.size - 1:
                run.request(2)  # the largest preferred size below is 1
            if WHAT == "ask" and step == 22:
                run.request(9)  # the most is 4
            if WHAT == "ask-in-vain" and step in (7, 22):
                run.request(1)
            if WHAT == "ask-rms" and step >= 7 and not asked and here.world.size > 1:
                run.request(3 if here.world.size == 2 else 1)
                asked = True
            u, v = here.u, here.v
            for sent, filled, there, back in here.ways:
                edge = np.zeros(N)
                column = np.ascontiguousarray(u[1:-2, sent])
                here.world.Sendrecv(column, there, recvbuf=edge, source=back)
                u[1:-2, filled] = edge
            v[1:-2, 2:-1] = (u[1:-2, 1:-2] + u[1:-2, 3:] + u[:-3, 2:-1] + u[2:-1, 2:-1]) / 4
            here.u, here.v = v, u
            run.fields["u"].rebind(v)
            run.fields["numbers"].items[:, 1] += 1
        parts = here.world.gather((run.fields["u"].interior.copy(), run.fields["numbers"].items))
        if here.world.rank == 0:
            whole = np.concatenate([part for part, _ in parts], axis=1)
            rows = np.concatenate([items for _, items in parts])
            rows = rows[np.argsort(rows[:, 0])]
            digest = hashlib.sha256(np.ascontiguousarray(whole).tobytes() + rows.tobytes())
            sizes = [[r.step, r.from_ranks, r.to_ranks] for r in run.resizes]
            print("bytes", *(r.bytes for r in run.resizes))
            print(f"{sizes} {run.state} sha256 {digest.hexdigest()}", flush=True)
    print("after the block", flush=True)


main(MPI.COMM_WORLD)
