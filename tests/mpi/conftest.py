"""Under mpirun: every rank runs every test; a deadline ends all of them rather than hang."""

from __future__ import annotations

import faulthandler
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mpi4py import MPI
from mpi_runs import COUNTS, Counts

DEADLINE_S = 600.0


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """End this rank, and so the whole mpirun, if a test takes too long."""
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def world() -> Iterator[MPI.Intracomm]:
    """All ranks, on a communicator of the test's own."""
    comm = MPI.COMM_WORLD.Dup()
    yield comm
    comm.Free()


@pytest.fixture
def counts(request: pytest.FixtureRequest, world: MPI.Intracomm) -> Counts:
    """Return which numbers of ranks a row runs on: all with ``--all``, else the others in turns."""

    def chosen(row: int) -> list[int]:
        between = [n for n in COUNTS if 1 < n < world.size]
        if not request.config.getoption("--all"):
            between = between[row % len(between) :][:1] if between else []
        return [1, *between, *([world.size] if world.size > 1 else [])]

    return chosen


@pytest.fixture
def shared_folder(world: MPI.Intracomm) -> Iterator[Path]:
    """Return one empty folder for all ranks; rank 0 makes it and takes it away."""
    name = world.bcast(tempfile.mkdtemp() if world.rank == 0 else None)
    yield Path(name)
    world.Barrier()
    if world.rank == 0:
        shutil.rmtree(name)


@pytest.fixture
def together(world: MPI.Intracomm) -> Callable[[bool, str], None]:
    """Return an assertion that fails on all ranks if it fails on one, so that none hangs."""

    def check(good: bool, what: str = "") -> None:
        verdicts = world.allgather((bool(good), what))
        wrong = [f"rank {rank}: {text}" for rank, (ok, text) in enumerate(verdicts) if not ok]
        assert not wrong, "; ".join(wrong)

    return check
