"""A world: one generation of MPI ranks of a job; and what surrounds the process it runs in."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from mpi4py import MPI

from dmr.client import Manager
from dmr.errors import UsageError
from dmr.field import Field, FieldSpec
from dmr.layout import GridError, choose_grid
from rms.protocol import COMPLETION_VARIABLE, SLOTS_VARIABLE

LAUNCHER_VARIABLES = ("PMI_RANK", "PMI_FD", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""Set by mpiexec (MPICH, Open MPI, Slurm) for the ranks it starts."""


@dataclass(frozen=True)
class Runtime:
    """What the library needs of the process it runs in, read once in ``__main__``.

    Attributes:
        comm: all ranks of this world.
        parent: the world that spawned this one, or None.
        command: how to start this program again, for the next world.
        clock: monotonic seconds.
        launched: whether mpiexec started this process.
        mpiexec: path of mpiexec, or None where there is none.
        completion: where to write the completion record, or None.
        manager: the RMS that launched this world, or None under bare mpirun.
        log: where rank 0 reports.
    """

    comm: MPI.Intracomm
    parent: MPI.Intercomm | None
    command: tuple[str, ...]
    clock: Callable[[], float]
    launched: bool
    mpiexec: str | None
    completion: Path | None
    log: TextIO
    manager: Manager | None = None

    def forget_completion(self) -> None:
        """Take away the record of an earlier run: from now on none means that this one died."""
        if self.completion is not None and self.parent is None and self.comm.rank == 0:
            self.completion.unlink(missing_ok=True)

    @classmethod
    def here(cls, comm: MPI.Intracomm, env: Mapping[str, str] = os.environ) -> Runtime:
        """Read the surroundings of this process; call it from ``__main__`` only."""
        if SLOTS_VARIABLE in env:
            slots = env[SLOTS_VARIABLE].split()
            if comm.rank < len(slots):
                bind(slots[comm.rank])
        parent = MPI.Comm.Get_parent()
        record = env.get(COMPLETION_VARIABLE)
        beside = str(Path(sys.executable).parent)
        return cls(
            comm=comm,
            parent=None if parent == MPI.COMM_NULL else parent,
            command=(sys.executable, *sys.orig_argv[1:]),
            clock=time.perf_counter,
            launched=any(name in env for name in LAUNCHER_VARIABLES),
            mpiexec=shutil.which("mpiexec", path=env.get("PATH"))
            or shutil.which("mpiexec", path=beside),
            completion=Path(record) if record else None,
            log=sys.stdout,
            manager=Manager.from_env(env),
        )


@dataclass(frozen=True)
class World:
    """The ranks that run the job now.

    Attributes:
        comm: a communicator of the library's own over all ranks.
        generation: 0 for the first world, one more with every resize.
        grid: process grid over the split axes (rows, columns).
    """

    comm: MPI.Intracomm
    generation: int
    grid: tuple[int, ...]

    @property
    def rank(self) -> int:
        """This rank."""
        return int(self.comm.rank)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return int(self.comm.size)

    def allocate(self, specs: Mapping[str, FieldSpec]) -> dict[str, Field]:
        """Return this rank's zeroed block of every field."""
        return {
            name: Field(spec, spec.decompose(self.grid), self.rank) for name, spec in specs.items()
        }


def bind(slot: str) -> None:
    """Keep this process on its slot: ``cpu:N`` a core, ``gpu:N`` a device (before CUDA starts)."""
    kind, _, number = slot.partition(":")
    if kind == "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = number
    elif kind == "cpu" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(number)})


def grid_for(size: int, specs: Sequence[FieldSpec]) -> tuple[int, ...]:
    """Return the process grid on which every field's blocks are thick enough.

    Raises:
        UsageError: no process grid of ``size`` ranks fits.
    """
    axes = {len(spec.split) for spec in specs}
    if len(axes) != 1:
        raise UsageError(f"expected all fields split along as many axes, got {sorted(axes)}")
    extents = [min(spec.shape[spec.split[i]] for spec in specs) for i in range(axes.pop())]
    thinnest = [max(spec.thinnest_blocks()[i] for spec in specs) for i in range(len(extents))]
    try:
        return choose_grid(size, extents, thinnest)
    except GridError as error:
        raise UsageError(str(error)) from None
