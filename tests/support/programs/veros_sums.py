"""Run a Veros set-up and print what it has computed: veros_sums.py PROGRAM [OPTIONS]

PROGRAM is a program that runs Veros, or ``run`` for ``veros run`` itself. Rank 0 prints a line of
JSON at the last step: for each variable that Veros writes to a restart file the digest of the whole
array, the digest without the overlap beyond the edges of the grid, and the sum of the latter. The
wheels of h5py have no MPI: one rank after the other writes its part of a restart file, and no
diagnostic is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import runpy
import sys
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
from mpi4py import MPI
from veros import VerosSetup
from veros.diagnostics.base import VerosDiagnostic
from veros.io_tools import hdf5
from veros.variables import remove_ghosts

comm = MPI.COMM_WORLD
runs: list[Any] = []
true_setup = VerosSetup.setup


def setup(sim: Any) -> None:
    true_setup(sim)
    runs.append(sim)


@contextlib.contextmanager
def in_turn(path: str, mode: str) -> Iterator[h5py.File]:
    turn = comm.rank if mode == "w" else 0
    for _ in range(turn):
        comm.Barrier()
    with h5py.File(path, "r+" if turn else mode) as file:
        yield file
    for _ in range(turn, comm.size):
        comm.Barrier()


def variables(sim: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the variables of a restart file and their dimensions, each whole on rank 0."""
    from veros.distributed import gather

    for title, part in {"core": sim.state, **sim.state.diagnostics}.items():
        for name, meta in (part.var_meta or {}).items():
            if meta.active and meta.write_to_restart:
                local = getattr(part.variables, name)
                array = np.asarray(gather(local, sim.state.dimensions, meta.dims))
                yield f"{title}-{name}", array, meta.dims or ()


def digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


VerosSetup.setup = setup
hdf5.threaded_io = in_turn
VerosDiagnostic.initialize_output = VerosDiagnostic.write_output = lambda *_: None
program, *options = sys.argv[1:]
sys.argv = [program, *options]
status: Any = 0
try:
    if program == "run":
        from veros.cli.veros_run import cli

        cli(["-n", "1", str(comm.size), *options])
    else:
        runpy.run_path(program, run_name="__main__")
except SystemExit as end:
    status = end.code
for sim in runs if not status else ():
    settings = sim.state.settings
    if float(sim.state.variables.time) < settings.runlen:
        continue  # its ranks were replaced
    found = {name: (array, remove_ghosts(array, dims)) for name, array, dims in variables(sim)}
    if comm.rank == 0:
        values = {
            name: [digest(array), digest(cells), math.fsum(cells.ravel().tolist())]
            for name, (array, cells) in found.items()
        }
        print(json.dumps(values), flush=True)
sys.exit(status)
