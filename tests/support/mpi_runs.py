"""An advection run on some of a world's ranks."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

import dmr
from mpdata.parallel.app import Advection, RunConfig

COUNTS = (1, 2, 3, 4, 6)
Counts = Callable[[int], list[int]]
"""The fixture ``counts``: on how many ranks a row of so many takes its turn."""


def runtime_on(comm: MPI.Intracomm) -> dmr.Runtime:
    """Return what the library needs of a process that nobody launched."""
    return dmr.Runtime(
        comm=comm,
        parent=None,
        command=(),
        clock=time.perf_counter,
        launched=True,
        mpiexec=None,
        completion=None,
        log=io.StringIO(),
    )


def run_on(
    world: MPI.Intracomm, ranks: int, wanted: RunConfig, plan: dmr.Plan | None = None
) -> dict[str, Any]:
    """Run on the first ranks of the world; return the result on all of them."""
    part = world.Split(0 if world.rank < ranks else MPI.UNDEFINED, world.rank)
    result = None
    if part != MPI.COMM_NULL:
        app = Advection(wanted)
        dmr.run(app, runtime_on(part), plan)
        result = app.result
        part.Free()
    # Those that wait for the others leave them the cores: in a broadcast they would spin.
    all_there = world.Ibarrier()
    while not all_there.Test():
        time.sleep(1e-3)
    found: dict[str, Any] | None = world.bcast(result)
    assert found is not None
    return found
