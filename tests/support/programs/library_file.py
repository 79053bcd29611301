"""A library whose state only a file has: library_file.py WHAT [MIB].

WHAT is plain, merge, save (stopped after 7 steps), again (from a checkpoint), die (rank 1 is killed
once after 9 steps), or a fault: empty (write makes no file), raise (rank 0 fails in write), kill
(rank 0 is killed in write), kill-read (in read). It prints the paths that it gets.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import dmr

WHAT = sys.argv[1]
MIB = float(sys.argv[2]) if len(sys.argv) > 2 else 0.001
comm = MPI.COMM_WORLD


class Library:
    """The same on every rank; all have to call its functions."""

    hidden = np.arange(int(MIB * 2**17), dtype="i8")

    def write(self, path):
        self.ranks.Barrier()
        if WHAT == "empty":
            return
        if self.ranks.rank == 0:
            print(f"path {path}", flush=True)
            Path(path).write_bytes(self.hidden.tobytes()[: 100 if WHAT == "raise" else None])
            if WHAT == "raise":
                raise OSError("expected a licence")
            if WHAT == "kill":
                os.kill(os.getpid(), signal.SIGKILL)

    def read(self, path):
        print(f"path {path}", flush=True)
        if WHAT == "kill-read":
            os.kill(os.getpid(), signal.SIGKILL)
        self.hidden = np.fromfile(path, "i8")
        self.ranks.Barrier()


library = Library()


def build(run):
    library.ranks = run.comm


plan = dmr.Plan(
    every=2,
    memory=dmr.Schedule(every=4) if WHAT == "die" else None,
    checkpoint=dmr.Schedule(Path("saved"), 5) if WHAT in ("save", "again", "empty") else None,
    restart=WHAT == "again",
)
state = {"count": 0, "library": dmr.File(write=library.write, read=library.read)}
hook = build if WHAT == "merge" else None
library.ranks = comm
with dmr.malleable(comm, {}, plan, state=state, build=hook) as run:
    for step in run.loop(12):
        if WHAT == "save" and step == 7:
            raise SystemExit("stopped on purpose")
        if WHAT == "die" and step == 9 and comm.rank == 1 and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if WHAT == "die":
            time.sleep(0.2)  # a copy is complete a little later
        library.hidden = library.hidden * 3 + step
        run.state.count += 1
    digests = run.comm.gather(hashlib.sha256(library.hidden).hexdigest())
    if digests is not None:
        print(f"{len(set(digests))} hash {digests[0]} count {run.state.count}")
