"""Programs in which a rank does not come to a collective call: missing_rank.py WHAT.

The last rank does not come to run.resize_point() (point; reordered: the last one of a communicator
of the ranks in reverse), to the block (enter; the first rank: first), to exchange() (exchange) or
gather() of a list (gather), to a checkpoint whose hook save= calls exchange() (hook), leaves the
loop alone (end), or comes 3 s later (late).
All ranks wait for a message that no rank sends (deaf), in save= (deaf-hook), or sleep (wait).
Rank 0 sends a message that is received only after the loop (send). The halo differs by rank (halo).
Only the other ranks have a plan with checkpoints (checkpoint), or rank 0 takes 10 s to read the
one that all restart from (restart).
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import dmr
from dmr.checkpoint import store
from dmr.loop.driver import Driver
from dmr.system import watch

WHAT = sys.argv[1]
watch.REPLY_S, watch.ABORT_S = 5.0, 30.0  # the machine may have other work
comm = MPI.COMM_WORLD
if WHAT == "reordered":
    comm = comm.Split(0, -comm.rank)
comm.Barrier()  # the limit of a call does not include the start of a rank
last = comm.rank == comm.size - 1
begin, end = dmr.split_range(9, comm.size, comm.rank)
sides = (int(comm.rank > 0), int(not last)) if WHAT == "halo" else (1, 1)
u = np.zeros(end - begin + sum(sides))
if comm.rank == {"enter": comm.size - 1, "first": 0}.get(WHAT):
    time.sleep(600)
folder = Path("checkpoints")
plan = dmr.Plan(every=1)
if WHAT == "restart":
    plan = dmr.Plan(every=1, checkpoint=dmr.Schedule(folder, 2), restart=folder.exists())
if WHAT in ("hook", "deaf-hook") or (WHAT == "checkpoint" and not last):
    plan = dmr.Plan(every=1, checkpoint=dmr.Schedule(folder, 2))
if WHAT == "hook" and last:
    Driver._save = lambda *_: time.sleep(600)
if plan.restart and comm.rank == 0:
    read = store.read_checkpoint

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(10)
        return read(*args, **options)

    store.read_checkpoint = slow


def begun(run):
    """Create the file that BEGUN names, once all ranks are here."""
    run.comm.Barrier()
    if run.comm.rank == 0 and "BEGUN" in os.environ:
        Path(os.environ["BEGUN"]).touch()


def save(run):
    """Exchange the halo before a checkpoint."""
    if WHAT == "hook":
        run.fields["u"].exchange()
    if WHAT == "deaf-hook":
        wait_in_vain(run)


def wait_in_vain(run):
    """Wait for a message that no rank sends."""
    begun(run)
    run.comm.Recv(np.zeros(1), source=run.comm.rank, tag=7)


fields: dict[str, Any] = {"u": dmr.adapt(u, (9,), halo=(sides,))}
fields["p"] = dmr.adapt_list(np.arange(begin, end), (9,), lambda p, cut: dmr.rank_of(cut, p))
with dmr.malleable(comm, fields, plan, save=save) as run:
    if WHAT in ("point", "reordered"):
        while True:
            if last:
                time.sleep(600)
            run.resize_point()
    for step in run.loop(6):
        if WHAT == "halo":
            run.fields["u"].exchange()
        if WHAT == "exchange":
            if last and step == 2:
                time.sleep(600)
            run.fields["u"].exchange("periodic")
        if WHAT == "gather" and step == 2:
            if last:
                time.sleep(600)
            run.fields["p"].gather()
        if WHAT == "end" and last and step == 2:
            break
        if WHAT == "deaf":
            wait_in_vain(run)
        if WHAT == "wait":
            begun(run)
            time.sleep(600)
        if WHAT == "late" and last and step == 2:
            time.sleep(3)
        if WHAT == "send" and step == 2 and run.comm.rank == 0:
            sent = run.comm.Isend(np.zeros(1), dest=1, tag=5)
    if WHAT == "send" and run.comm.rank == 1:
        run.comm.Recv(np.zeros(1), source=0, tag=5)
    run.say(f"{run.step} steps on {run.comm.size} ranks")
