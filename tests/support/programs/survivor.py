"""A heat diffusion whose ranks are killed: survivor.py STEPS [WHERE:STEP:RANK ...].

At a step a rank kills itself once, in the life of the job, at a place: ``step``, ``copy`` (the
blocks are in shared memory, the head is not), ``sent`` (before the piece is sent), ``restore``,
``resize`` (before the commit), ``taken`` (a new world, before it answers the commit),
``checkpoint`` or ``end``. Prints the CRC of all that it has computed.
"""

import os
import signal
import sys
import time
import zlib
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr
from dmr.checkpoint import format as checkpoint_format
from dmr.memory import copies
from dmr.resize import replace

N, M = 48, 20
PAUSE_S = float(os.environ.get("SURVIVOR_PAUSE", "0"))
SAVED = os.environ.get("SURVIVOR_SAVED", "")
NO_MEMORY = "SURVIVOR_PLAIN" in os.environ
steps, *kills = sys.argv[1:]
kills = [kill.split(":") for kill in kills]
comm = MPI.COMM_WORLD
now = {"step": 0}


def kill(place, rank=comm.rank):
    for at, (where, step, number) in enumerate(kills):
        if (where, int(number)) == (place, rank) and now["step"] >= int(step):
            try:
                os.close(os.open(f"killed-{at}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)


def before(module, name, place):
    usual = getattr(module, name)

    def killing(*words, **options):
        kill(place)
        return usual(*words, **options)

    setattr(module, name, killing)


before(copies.Transfer, "seal", "copy")
before(copies.Sender, "_to", "sent")
before(copies, "fill", "restore")
before(replace, "commit_old", "resize")
before(replace, "commit_new", "taken")
before(checkpoint_format, "new_hdf5", "checkpoint")

begin, end = dmr.split_range(N, comm.size, comm.rank)
u = np.zeros((end - begin + 2, M + 2))
u[1:-1, 1:-1] = np.sin(np.arange(begin, end))[:, None] + np.arange(M) / 7
whole, random = np.arange(5.0), np.random.default_rng(3)
material = 1 + np.cos(np.arange(begin, end))[:, None] * np.ones(M)
marks = np.arange(begin, end, dtype="i8")


def owner(items, decomposition):
    return dmr.rank_of(decomposition, items % N)


fields = {
    "u": dmr.adapt(u, (N, M), halo=1),
    "whole": dmr.adapt(whole, whole.shape, split=()),
    "material": dmr.adapt(material, (N, M), constant=True),
    "marks": dmr.adapt_list(marks, (N,), owner),
}
plan = dmr.Plan(
    every=2,
    checkpoint=dmr.Schedule(Path(SAVED), 10) if SAVED else None,
    memory=None if NO_MEMORY else dmr.Schedule(every=4),
)


def build(run):
    pass


state = {"random": random, "sum": 0.0}
with dmr.malleable(comm, fields, plan, state=state, build=build) as run:
    if run.restored and not run.resizes and comm.rank == 0:
        print(f"restored at step {run.step}", flush=True)
    for step in run.loop(int(steps)):
        now["step"] = step
        kill("step", run.comm.rank)
        run.fields["u"].exchange("edge")
        p = run.fields["u"].padded
        flux = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * p[1:-1, 1:-1]
        p[1:-1, 1:-1] += 0.1 * flux * run.fields["material"].interior + random.random() / 1e3
        run.fields["whole"].interior[:] += random.random()
        run.fields["marks"].items += N
        run.state.sum += float(run.fields["whole"].interior[0])
        time.sleep(PAUSE_S)
    kill("end", run.comm.rank)
    parts = [run.fields["u"].gather(), run.fields["marks"].gather()]
    if run.comm.rank == 0:
        every = run.fields["whole"].interior
        data = b"".join(part.tobytes() for part in [parts[0], np.sort(parts[1]), every])
        text = repr((run.state.sum, random.random()))
        print(f"CRC {zlib.crc32(data + text.encode()):08x} on {run.comm.size} ranks", flush=True)
