"""The answer does not depend on the number of ranks, nor on an interruption.

``dmr.run`` runs here on parts of COMM_WORLD, so one mpirun covers every rank count.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from mpi_runs import COUNTS, run_on, runtime_on

import dmr
from dmr.checkpoint.store import Schedule
from mpdata.cases import Request, make_setup
from mpdata.options import Scheme, parse_boundaries
from mpdata.parallel.app import Advection, RunConfig

Together = Callable[..., None]
pytestmark = pytest.mark.mpi


def config(boundary: str, dtype: str, limiter: bool, iterations: int = 2) -> RunConfig:
    request = Request(grid=(48, 40, 16), seed=7, steps=30, boundaries=parse_boundaries(boundary))
    setup = make_setup("random", request)
    return RunConfig(setup, Scheme(iterations, limiter), np.dtype(dtype), "numba")


@pytest.mark.parametrize(
    "boundary", ["periodic", "open", "wall", "fixed:1", "periodic,pole/fixed:1,open/wall"]
)
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("limiter", [True, False])
@pytest.mark.promise("bits-ranks")
@pytest.mark.covering(1)
def test_same_bits_on_any_number_of_ranks(
    world: MPI.Intracomm, together: Together, boundary: str, dtype: str, limiter: bool
) -> None:
    wanted = config(boundary, dtype, limiter)
    found = [run_on(world, n, wanted) for n in COUNTS if n <= world.size]
    hashes = {result["sha256"] for result in found if result is not None}
    together(len(hashes) == 1 and len(found) > 0, f"{hashes}")


@pytest.mark.wide
def test_same_bits_with_three_iterations(world: MPI.Intracomm, together: Together) -> None:
    wanted = config("open,wall,periodic", "f8", True, iterations=3)
    found = [run_on(world, n, wanted) for n in COUNTS if n <= world.size]
    together(len({result["sha256"] for result in found if result is not None}) == 1, "bits")


@pytest.mark.parametrize(
    "boundary", ["periodic", "open", "wall", "fixed:1.5", "periodic,pole,wall/fixed:1.5"]
)
@pytest.mark.promise("constants")
def test_a_constant_stays_constant(world: MPI.Intracomm, together: Together, boundary: str) -> None:
    wanted = config(boundary, "f8", True)
    level = 1.5
    still = replace(wanted.setup, initial=lambda i, j, k: level + 0.0 * (i + j + k))
    found = run_on(world, world.size, replace(wanted, setup=still))
    assert found is not None
    worst = max(abs(found["max"] - level), abs(found["min"] - level))
    together(worst <= 1e-14 * level, f"{worst:g}")


def test_restart_on_another_number_of_ranks(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    folder = shared_folder
    wanted = config("periodic", "f8", True)
    whole = run_on(world, 1, wanted)
    short = replace(wanted, setup=replace(wanted.setup, steps=17))
    saving = dmr.Plan(checkpoint=Schedule(folder, 5), options=wanted.options)
    run_on(world, min(4, world.size), short, saving)
    names = sorted(path.name for path in folder.glob("*.h5")) if world.rank == 0 else None
    parts = len(list(folder.glob("*.parts")))
    # From another field: only what the checkpoint holds can lead to the same bits.
    other = replace(wanted.setup, initial=lambda i, j, k: 1.0 + 0.0 * (i + j + k))
    resumed = replace(wanted, setup=other)
    again = run_on(world, min(3, world.size), resumed, replace(saving, restart=True))
    assert whole is not None and again is not None
    together(again["sha256"] == whole["sha256"], "bits after restart")
    together(
        world.rank > 0 or names == ["checkpoint-0000000010.h5", "checkpoint-0000000015.h5"],
        f"{names}",
    )
    together(
        world.rank > 0 or parts == 2,
        f"{parts} folders of parts",
    )


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[: len(data) // 2]
    else:
        middle = len(data) // 2
        data[middle : middle + 4096] = bytes(4096)
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["cut", "zeroed"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    world: MPI.Intracomm, together: Together, shared_folder: Path, how: str
) -> None:
    folder = shared_folder
    wanted = config("wall", "f8", True)
    saving = dmr.Plan(checkpoint=Schedule(folder, 10), options=wanted.options)
    whole = run_on(world, world.size, wanted, saving)
    if world.rank == 0:
        parts = sorted(folder.glob("checkpoint-0000000020-*.parts/*.h5"))
        damage(parts[-1], how)
    world.Barrier()
    app = Advection(wanted)
    runtime = runtime_on(world)
    dmr.run(app, runtime, replace(saving, restart=True))
    result = world.bcast(app.result)
    assert whole is not None and result is not None
    together(result["sha256"] == whole["sha256"], "bits")
    said = runtime.log.getvalue() if isinstance(runtime.log, io.StringIO) else ""
    together(world.rank > 0 or ("not whole" in said and "at step 10" in said), said)


def test_a_checkpoint_of_another_grid_is_refused(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    folder = shared_folder
    wanted = config("periodic", "f8", True)
    saving = dmr.Plan(checkpoint=Schedule(folder, 10), options=wanted.options, restart=True)
    run_on(world, world.size, wanted, saving)
    other = make_setup("random", Request(grid=(40, 40, 16), seed=7, steps=30))
    with pytest.raises(dmr.UsageError, match=r"expected field psi of shape \(40, 40, 16\)"):
        dmr.run(Advection(replace(wanted, setup=other)), runtime_on(world), saving)
    upwind = replace(wanted, scheme=Scheme(1, True))
    with pytest.raises(dmr.UsageError, match="expected iterations 1, got a checkpoint of"):
        dmr.run(Advection(upwind), runtime_on(world), replace(saving, options=upwind.options))
    together(True)


def test_what_one_rank_finds_all_ranks_raise(world: MPI.Intracomm, together: Together) -> None:
    with pytest.raises(dmr.UsageError, match="found by the last"):
        dmr.raise_on_all(world, "found by the last" if world.rank == world.size - 1 else None)
    together(True)
