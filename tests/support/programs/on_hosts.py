"""A stencil that records the hosts of its ranks after each resize: on_hosts.py STEPS [CHECKPOINTS].

Rank 0 prints, as JSON: the hosts of every world, the strategy and sizes of every resize, and a
hash of the field. ``CHECKPOINTS`` is a folder for a checkpoint every fifth step.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import dmr

SIZE = 64


def build(run: Any) -> None:
    """Nothing is derived from the number of ranks; strategy merge needs to know that."""


comm, words = MPI.COMM_WORLD, sys.argv[2:]
first, end = dmr.split_range(SIZE, comm.size, comm.rank)
field = np.zeros((end - first + 2, SIZE + 2))
field[1:-1, 1:-1] = np.sin(np.arange(first * SIZE, end * SIZE)).reshape(-1, SIZE)
saved = dmr.Schedule(Path(words[0]), every=5) if words else None
adapted = {"t": dmr.adapt(field, (SIZE, SIZE), halo=1)}
with dmr.malleable(comm, adapted, dmr.Plan(every=1, checkpoint=saved), build=build) as run:
    run.state.setdefault("hosts", [])
    for _ in run.loop(int(sys.argv[1])):
        run.fields["t"].exchange("edge")
        t = run.fields["t"].storage
        t[1:-1, 1:-1] = 0.25 * (t[:-2, 1:-1] + t[2:, 1:-1] + t[1:-1, :-2] + t[1:-1, 2:])
        here = run.comm.allgather(socket.gethostname())
        if run.state["hosts"][-1:] != [here]:
            run.state["hosts"].append(here)
    whole = run.fields["t"].gather()
    if run.comm.rank == 0:
        done = {
            "hosts": run.state["hosts"],
            "resizes": [(one.strategy, one.from_ranks, one.to_ranks) for one in run.resizes],
            "sha256": hashlib.sha256(whole.tobytes()).hexdigest(),
        }
        Path("hosts.json").write_text(json.dumps(done))
        print(json.dumps(done), flush=True)
