"""The whole run on device arrays, with a stand-in for CuPy whose streams are late (tests/stand_in).

Kernels are the CUDA source compiled for the host; the answer must have the reference's bits for any
number of ranks.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
import stand_in
from cuda_on_host import compiler
from mpi4py import MPI
from mpi_runs import Counts, run_on, runtime_on
from selection import all_wide_but
from velocity_files import levels_of, swinging, write_levels

import dmr
from dmr.checkpoint.store import Schedule
from dmr.data.exchange import DeviceHaloExchange
from dmr.wire import tags
from mpdata.cases import Request, make_setup, with_velocities
from mpdata.numerics.cuda.job import GpuTile
from mpdata.numerics.cuda.stepper import CudaStepper
from mpdata.options import Scheme, parse_boundaries
from mpdata.parallel.app import Advection, RunConfig
from mpdata.parallel.devices import take_device

Together = Callable[..., None]
Triple = tuple[int, int, int]
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine"),
]
GRID: Triple = (20, 18, 5)
STEPS = 5


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Have the stand-in found as CuPy."""
    module = stand_in.cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    # Threads of a block take turns on the host, so small blocks are what it can do.
    monkeypatch.setattr("mpdata.numerics.cuda.stepper.CudaStepper.__init__", _with_small_tiles)
    yield module
    module.Device().synchronize()


_ordinary = CudaStepper.__init__


def _with_small_tiles(self: CudaStepper, *given: Any) -> None:
    *others, tile = given
    _ordinary(self, *others, tile or GpuTile(12, 11, chunk=6))


def config(boundary: str = "periodic", dtype: str = "f8", **changed: Any) -> RunConfig:
    grid, tracers = changed.pop("grid", GRID), changed.pop("tracers", 1)
    request = Request(
        grid=grid, seed=7, steps=STEPS, boundaries=parse_boundaries(boundary), tracers=tracers
    )
    wanted = RunConfig(make_setup("random", request), Scheme(2), np.dtype(dtype), "cupy")
    return replace(wanted, **changed)


def by_numpy(world: MPI.Intracomm, wanted: RunConfig, folder: Path) -> np.ndarray:
    """Return the reference's final field."""
    final = folder / "reference.npy"
    run_on(world, 1, replace(wanted, backend="numpy", final=final))
    world.Barrier()
    return np.load(final)


CASES = [
    ("periodic", "f8", {}),
    ("periodic", "f4", {}),
    ("open,wall,fixed:1.5", "f8", {}),
    ("periodic,pole/open,wall/fixed:1.5", "f8", {}),
    ("fixed:1.2,periodic,wall", "f8", {"scheme": Scheme(1)}),
    ("wall,open,periodic", "f8", {"scheme": Scheme(3, third_order=True), "grid": (36, 36, 1)}),
    ("periodic", "f8", {"overlap": "off"}),
]
QUICK = 4
"""Both types, all boundaries; further schemes and messages without overlap wait for ``--all``."""


@pytest.mark.parametrize(
    "number", all_wide_but(range(len(CASES)), *range(QUICK)), ids=lambda n: str(CASES[n])
)
@pytest.mark.promise("cuda-run")
def test_the_bits_of_the_reference_on_any_number_of_ranks(
    world: MPI.Intracomm,
    together: Together,
    shared_folder: Path,
    counts: Counts,
    number: int,
) -> None:
    boundary, dtype, changed = CASES[number]
    final = shared_folder / "final.npy"
    wanted = config(boundary, dtype, final=final, **changed)
    found = [run_on(world, n, wanted) for n in counts(number)]
    assert all(result is not None and result["backend"] == "cupy" for result in found)
    hashes = {result["sha256"] for result in found if result is not None}
    together(len(hashes) == 1, f"{hashes}")
    world.Barrier()
    expected = by_numpy(world, wanted, shared_folder)
    together(np.load(final).tobytes() == expected.tobytes(), "as the reference")


def test_layers_are_computed_while_messages_are_under_way(
    world: MPI.Intracomm, together: Together
) -> None:
    app = Advection(config(grid=(60, 10, 5)))
    dmr.run(app, runtime_on(world))
    result = world.bcast(app.result)
    together(app.overlaps == (world.size > 1), f"{app.overlaps}")
    alone = run_on(world, 1, config(grid=(60, 10, 5)))
    together(alone is not None and alone["sha256"] == result["sha256"], "bits")


def test_layers_wait_for_the_halo_that_they_reach(
    world: MPI.Intracomm,
    together: Together,
    gpu: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = config("periodic,periodic,open", grid=(60, 10, 5))
    expected = run_on(world, 1, wanted)
    # Now the step is not late, and what the halo's stream has to do is.
    monkeypatch.setattr(gpu.Stream.null, "at_once", True)
    found = run_on(world, world.size, wanted)
    assert expected is not None and found is not None
    together(found["sha256"] == expected["sha256"], "bits")


def test_a_message_is_not_overwritten_before_it_has_left_the_host(
    world: MPI.Intracomm, together: Together, gpu: ModuleType
) -> None:
    if world.size == 1:
        pytest.skip("needs a neighbour")
    layers = 8.0 + np.arange(2 * 2 * 2 * 8 * 8).reshape(2, 2, 2, 8, 8)  # round, side, box
    if world.rank == 1:
        # A neighbour far ahead: its messages of two rounds are there before they are asked for.
        box = [np.ascontiguousarray(layers[n, side]) for n in range(2) for side in range(2)]
        sent = [world.Isend(one, dest=0, tag=tags.HALO + at % 2) for at, one in enumerate(box)]
    world.Barrier()
    good = True
    if world.rank == 0:
        spec = dmr.FieldSpec(
            (16, 4, 4), "f8", lambda box: 0.0, halo=2, split=(0,), xp=gpu, order=(0, 1, 2)
        )
        field = spec.block(spec.decompose((2,)), 0)
        place = (world, field.decomposition, 0, field.memory_layout, spec.halos)
        exchange = DeviceHaloExchange(*place, "periodic", (field.dtype, gpu))
        arrays = [field.padded, field.spare]
        for array in arrays:
            exchange.start(array)
            exchange.finish()
        exchange.free()
        gpu.Device().synchronize()
        for array, expected in zip(arrays, layers, strict=True):
            found = array.get()
            good &= np.array_equal(found[10:12], expected[0])  # what goes down comes from above
            good &= np.array_equal(found[:2], expected[1])
    if world.rank == 1:
        for at in range(4):
            world.Recv(np.empty((2, 8, 8)), source=0, tag=tags.HALO + at % 2)
        MPI.Request.Waitall(sent)
    together(good)


def test_tracers_in_a_flow_from_a_file(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    flow = shared_folder / "v.h5"
    if world.rank == 0:
        swing = swinging(make_setup("random", Request(grid=GRID, seed=7)))
        write_levels(flow, levels_of(GRID, [0.25, 2.5, 6.0], swing))
    world.Barrier()
    wanted = config(tracers=2, final=shared_folder / "final.npy")
    wanted = replace(wanted, setup=with_velocities(wanted.setup, flow))
    found = [run_on(world, n, wanted) for n in {1, world.size}]
    hashes = {
        tuple(tracer["sha256"] for tracer in result["tracers"])
        for result in found
        if result is not None
    }
    together(len(hashes) == 1 and None not in found, f"{hashes}")
    world.Barrier()
    final = np.load(shared_folder / "final.npy")
    together(final.tobytes() == by_numpy(world, wanted, shared_folder).tobytes(), "reference")


def test_a_flow_that_is_a_function_of_time(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    def face_at(axis: int, time: float, *index: Any) -> Any:
        return (0.2, -0.1, 0.15)[axis] * np.cos(0.3 * time) + 0.0 * sum(index)

    wanted = config(final=shared_folder / "final.npy")
    setup = replace(wanted.setup, face_at=face_at, courant=None, duration=None)
    wanted = replace(wanted, setup=setup)
    found = [run_on(world, n, wanted) for n in {1, world.size}]
    together(len({result["sha256"] for result in found if result is not None}) == 1, "bits")
    world.Barrier()
    final = np.load(shared_folder / "final.npy")
    together(final.tobytes() == by_numpy(world, wanted, shared_folder).tobytes(), "reference")
    fast = replace(setup, face_at=lambda axis, time, *index: 0.2 * time + 0.0 * sum(index))
    with pytest.raises(dmr.UsageError, match="unstable: expected outgoing"):
        dmr.run(Advection(replace(wanted, setup=fast)), runtime_on(world))
    together(True)


def test_restart_on_another_number_of_ranks(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    folder = shared_folder / "saved"
    wanted = config("wall,periodic,open")
    whole = run_on(world, 1, wanted)
    saving = dmr.Plan(checkpoint=Schedule(folder, 2), options=wanted.options)
    short = replace(wanted, setup=replace(wanted.setup, steps=3))
    run_on(world, world.size, short, saving)
    # From another field: only what the checkpoint holds can lead to the same bits.
    other = replace(wanted.setup, initial=lambda i, j, k: 1.0 + 0.0 * (i + j + k))
    resumed = replace(wanted, setup=other)
    again = run_on(world, max(1, world.size - 1), resumed, replace(saving, restart=True))
    assert whole is not None and again is not None
    together(again["sha256"] == whole["sha256"], "bits after restart")


def test_frames_hold_what_the_device_held(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    frames, final = shared_folder / "out.h5", shared_folder / "final.npy"
    run_on(world, world.size, config(output=frames, output_every=2, final=final))
    good = True
    if world.rank == 0:
        with h5py.File(frames) as file:
            good = list(file["step"]) == [0, 2, 4, 5]
            good &= np.array_equal(file["psi"][-1], np.load(final))
    together(good)


@pytest.mark.parametrize(
    "scheme", all_wide_but([Scheme(2), Scheme(3, third_order=True)], Scheme(2)), ids=str
)
def test_a_run_takes_no_more_memory_than_was_foreseen(
    world: MPI.Intracomm,
    together: Together,
    gpu: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    scheme: Scheme,
) -> None:
    grid = (40, 36, 7)
    app = Advection(config(scheme=scheme, grid=grid))
    dmr.run(app, runtime_on(world))
    foreseen = app.device_bytes(world.size, world.rank)
    # Messages, and slabs on their way to a file, are small beside a real field.
    slab = grid[0] * grid[1] * grid[2] * 8
    monkeypatch.setenv("STAND_IN_GPU_BYTES", str(foreseen + 2 * slab))
    del app
    gc.collect()
    app = Advection(config(scheme=scheme, grid=grid))
    dmr.run(app, runtime_on(world))
    parts = (app.flow, app.velocities, app.stepper)
    held = sum(part.nbytes for part in parts)
    together(0.3 * foreseen < held < foreseen, f"{held} of {foreseen}")
    monkeypatch.setenv("STAND_IN_GPU_BYTES", str(foreseen // 2))
    with pytest.raises(gpu.OutOfMemoryError):
        gpu.empty(foreseen // 2 + 1, np.uint8)


def test_every_rank_takes_a_gpu_of_its_own(
    world: MPI.Intracomm,
    together: Together,
    gpu: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAND_IN_GPUS", str(world.size))
    together(take_device(world, 1 << 20, share=False) is None, "enough of them")
    taken = world.allgather(gpu.Device().id)
    together(taken == list(range(world.size)), f"{taken}")
    # As a launcher does that shows each rank its own.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(world.rank))
    together(take_device(world, 1 << 20, share=False) is None and gpu.Device().id == 0, "its own")


def test_more_ranks_than_gpus_are_refused_unless_they_share(
    world: MPI.Intracomm, together: Together
) -> None:
    said = take_device(world, 1 << 20, share=False)
    if world.size == 1:
        assert said is None
        return
    wanted = f"expected a GPU for every rank of a node, got {world.size} ranks and 1 GPU; "
    together(said is not None and said.startswith(wanted), f"{said}")
    together(take_device(world, 1 << 20, share=True) is None, "sharing")


def test_memory_is_asked_for_before_it_is_taken(world: MPI.Intracomm, together: Together) -> None:
    # The stand-in has 1 GiB; what fits one rank may not fit all that share.
    each = (1 << 30) // world.size
    together(take_device(world, each, share=True) is None, "just enough")
    said = take_device(world, each + 1, share=True)
    ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
    wanted = f"expected 1 GiB of free memory on a GPU for {ranks}, got 1 GiB"
    together(said == wanted, f"{said}")


def test_the_stand_in_does_nothing_before_it_has_to(gpu: ModuleType) -> None:
    stream, other = gpu.Stream(non_blocking=True), gpu.Stream(non_blocking=True)
    with stream:
        array = gpu.zeros(3)
        array[...] = 1.0
    with other:
        assert np.isnan(array.get()).all()
    other.wait_event(stream.record())
    with other:
        assert (array.get() == 1).all()
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(array)
    with pytest.raises(TypeError, match="Unsupported type"):
        array[...] = np.ones(3)
