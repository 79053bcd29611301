"""Several tracers on a flow that changes in time, with and without overlapped messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from mpi_runs import Counts, run_on, runtime_on

import dmr
from dmr.checkpoint.store import Schedule
from mpdata.cases import Request, make_setup, with_velocities
from mpdata.flow.faces import held_bytes
from mpdata.numerics.step import Layers, ReferenceStepper
from mpdata.options import LARGEST, Scheme, parse_boundaries
from mpdata.parallel.app import Advection, RunConfig

Together = Callable[..., None]
pytestmark = pytest.mark.mpi
GRID = (24, 20, 6)
STEPS = 12
TIMES = (0.25, 3.0, 4.5, 11.75)


class Splitting(ReferenceStepper):
    """Advances only the layers asked for, and sees only what those are allowed to need."""

    splits = True
    calls: list[Layers | None]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls = []

    def advance(self, psi: Any, out: Any, C: list[Any], layers: Layers | None = None) -> None:
        self.calls.append(layers)
        if layers is None:
            super().advance(psi, out, C)
            return
        low, high = layers
        halo = self.geo.halo
        seen, whole = np.full_like(psi, np.nan), np.zeros_like(psi)
        seen[low : high + 2 * halo] = psi[low : high + 2 * halo]
        super().advance(seen, whole, C)
        out[halo + low : halo + high] = whole[halo + low : halo + high]


@pytest.fixture
def splitting(monkeypatch: pytest.MonkeyPatch) -> list[Splitting]:
    made: list[Splitting] = []

    def make(name: str, geometry: Any, scheme: Any, flow: Any, allocate: Any, *_: Any) -> Any:
        made.append(Splitting(geometry, scheme, flow.h, allocate))
        return made[-1]

    monkeypatch.setattr("mpdata.parallel.app.make_stepper", make)
    return made


def write(path: Path, times: tuple[float, ...] = TIMES) -> Path:
    """Write a flow that is periodic in space and rough in time."""
    rng = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        file["time"] = times
        for axis in range(3):
            shape = [n + (a == axis) for a, n in enumerate(GRID)]
            c = rng.uniform(-0.1, 0.1, (len(times), *shape))
            ends = c.swapaxes(1, axis + 1)
            ends[:, -1] = ends[:, 0]
            file[f"c{axis + 1}"] = c
    return path


def config(
    folder: Path, world: MPI.Intracomm, boundary: str, dtype: str = "f8", tracers: int = 2
) -> RunConfig:
    """Write the velocities and return the run on them."""
    boundaries = parse_boundaries(boundary)
    request = Request(grid=GRID, seed=7, steps=STEPS, boundaries=boundaries, tracers=tracers)
    path = folder / "v.h5"
    if world.rank == 0:
        write(path)
    world.Barrier()
    setup = with_velocities(make_setup("random", request), path)
    return RunConfig(setup, Scheme(), np.dtype(dtype), "numpy")


def hashes(result: dict[str, Any]) -> list[str]:
    return [tracer["sha256"] for tracer in result["tracers"]]


BOUNDARIES = ["periodic", "open", "wall", "fixed:1,periodic,wall"]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.covering(1)
def test_same_bits_on_any_number_of_ranks(
    world: MPI.Intracomm,
    together: Together,
    shared_folder: Path,
    counts: Counts,
    boundary: str,
    dtype: str,
) -> None:
    wanted = config(shared_folder, world, boundary, dtype)
    found = [run_on(world, n, wanted) for n in counts(BOUNDARIES.index(boundary))]
    together(all(hashes(one) == hashes(found[0]) for one in found), f"{found}")
    together(found[0]["tracers"][0]["sha256"] == found[0]["sha256"], "psi on top")
    together(len(set(hashes(found[0]))) == 2, "two tracers")


def test_a_tracer_has_the_bits_it_has_alone(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    wanted = config(shared_folder, world, "periodic", tracers=3)
    found = run_on(world, world.size, wanted)
    for (name, initial), one in zip(wanted.setup.tracers.items(), found["tracers"], strict=True):
        setup = replace(wanted.setup, initial=initial, further_tracers=())
        alone = run_on(world, world.size, replace(wanted, setup=setup))
        same = one == {
            "name": name,
            **{key: alone[key] for key in ("mass_initial", "mass_final", "min", "max", "sha256")},
        }
        together(same and "tracers" not in alone, f"{name}: {one}")


def test_restart_between_two_times_on_another_number_of_ranks(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    wanted = config(shared_folder, world, "periodic")
    whole = run_on(world, 1, wanted)
    # A run of 7 steps on the same file, which covers more.
    short = replace(wanted, setup=replace(wanted.setup, steps=7))
    folder = shared_folder / "saved"
    saving = dmr.Plan(checkpoint=Schedule(folder, 3), options=wanted.options)
    run_on(world, min(4, world.size), short, saving)
    fresh = replace(wanted.setup, initial=lambda i, j, k: 1.0 + 0.0 * (i + j + k))
    again = run_on(
        world,
        min(3, world.size),
        replace(wanted, setup=replace(fresh, further_tracers=(fresh.initial,))),
        replace(saving, restart=True),
    )
    together(hashes(again) == hashes(whole), "bits after restart")
    alone = replace(wanted, setup=replace(wanted.setup, further_tracers=()))
    with pytest.raises(dmr.UsageError, match="expected tracers 1, got a checkpoint of tracers 2"):
        restarting = replace(saving, restart=True, options=alone.options)
        dmr.run(Advection(alone), runtime_on(world), restarting)


@pytest.mark.parametrize("boundary", ["periodic", "open", "wall,fixed:1,periodic"])
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.covering(1)
def test_overlap_changes_no_bit(
    world: MPI.Intracomm,
    together: Together,
    shared_folder: Path,
    splitting: list[Splitting],
    counts: Counts,
    boundary: str,
    iterations: int,
) -> None:
    wanted = config(shared_folder, world, boundary)
    wanted = replace(wanted, scheme=Scheme(iterations), overlap="on")
    plain = run_on(world, 1, replace(wanted, overlap="off"))
    for ranks in counts(iterations):
        splitting.clear()
        found = run_on(world, ranks, wanted)
        together(hashes(found) == hashes(plain), f"{ranks} ranks")
        calls = splitting[0].calls if splitting else []
        split = [layers for layers in calls if layers is not None]
        thick = GRID[0] // min(ranks, 3) > 2 * wanted.scheme.halo
        overlapped = ranks > 1 and world.rank < ranks and thick
        together(not overlapped or len(split) > 2 * STEPS, f"{ranks} ranks: {calls[:4]}")
        together(ranks > 1 or not split, "nothing to overlap on one rank")
        splitting.clear()
        run_on(world, ranks, replace(wanted, overlap="off"))
        never = all(layers is None for stepper in splitting for layers in stepper.calls)
        together(never, "overlap off")


def test_memory_stays_within_twelve_fields(
    world: MPI.Intracomm, together: Together, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[float] = []
    finish = Advection.finish

    def counting(self: Advection, run: dmr.Run) -> None:
        one = self.flow.h.base.nbytes
        fields = sum(held_bytes(f.padded) + held_bytes(f.spare) for f in run.fields.values())
        held.append((fields + self.flow.nbytes + self.velocities.nbytes) / one)
        finish(self, run)

    monkeypatch.setattr(Advection, "finish", counting)
    wanted = config(shared_folder, world, "periodic", tracers=1)
    dmr.run(Advection(wanted), runtime_on(world))
    together(held == [12.0], f"{held}")


def test_a_flow_found_unstable_on_one_rank_ends_all(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    wanted = config(shared_folder, world, "periodic")

    def face_at(axis: int, t: float, i: Any, j: Any, k: Any) -> Any:
        wild = (t > 5) & (i == GRID[0] // 2) & (axis == 0)
        return np.where(wild, 3.0, 0.1) + 0.0 * (j + k)

    setup = replace(wanted.setup, time_levels=None, face_at=face_at)
    app = Advection(replace(wanted, setup=setup))
    with pytest.raises(dmr.UsageError, match=r"unstable: .* at time 5\.5"):
        dmr.run(app, runtime_on(world))
    together(app.result is None)


@pytest.mark.parametrize("tracers", [1, 2])
def test_what_is_not_finite_at_the_end_is_a_failure(
    world: MPI.Intracomm,
    together: Together,
    shared_folder: Path,
    tracers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = config(shared_folder, world, "periodic", tracers=tracers)
    monkeypatch.setitem(LARGEST, "infinite gauge", {8: 1.7e308})

    def huge(i: Any, j: Any, k: Any) -> Any:
        """Two neighbours whose difference is no number, in a field of finite mass."""
        return 1.4e308 * ((j == 3) & (k == 3)) * (1.0 * (i == 4) - 1.0 * (i == 5))

    wanted = replace(wanted, scheme=Scheme(infinite_gauge=True))
    final, report = shared_folder / "final.npy", str(shared_folder / "x.json")
    setup = replace(wanted.setup, initial=huge)
    app = Advection(replace(wanted, setup=setup, final=final, json=report))
    with pytest.raises(dmr.CollectiveError, match=r"NaN or inf in \d+ cells of psi$") as caught:
        dmr.run(app, runtime_on(world))
    together(caught.value.exit_code == 1 and app.result is None, "exit 1")
    world.Barrier()
    left = sorted(path.name for path in shared_folder.iterdir())
    together(left == ["v.h5"], f"{left}")


def test_a_field_of_no_finite_mass_is_refused(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    wanted = config(shared_folder, world, "periodic")
    huge = replace(wanted.setup, initial=lambda i, j, k: 9e306 + 0.0 * (i + j + k))
    wanted = replace(wanted, scheme=Scheme(iterations=1))
    with pytest.raises(dmr.UsageError, match="expected a finite mass at the start, got inf"):
        dmr.run(Advection(replace(wanted, setup=huge)), runtime_on(world))
    together(True)


def test_files_of_several_tracers(
    world: MPI.Intracomm, together: Together, shared_folder: Path
) -> None:
    wanted = config(shared_folder, world, "periodic")
    final, frames = shared_folder / "final.npy", shared_folder / "out.h5"
    run_on(world, world.size, replace(wanted, final=final, output=frames, output_every=5))
    good, what = True, ""
    if world.rank == 0:
        stacked = np.load(final)
        with h5py.File(frames) as file:
            what = f"{stacked.shape} {list(file['step'])}"
            good = stacked.shape == (2, *GRID) and list(file["step"]) == [0, 5, 10, 12]
            good &= np.array_equal(file["psi"][-1], stacked[0])
            good &= np.array_equal(file["psi2"][-1], stacked[1])
            good &= file["psi2"].shape == (4, *GRID)
    together(good, what)


def test_durations_kept_are_bounded(
    world: MPI.Intracomm,
    together: Together,
    shared_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mpdata.parallel.answer.DURATIONS", 5)
    wanted = config(shared_folder, world, "periodic")
    run = dmr.run(Advection(wanted), runtime_on(world))
    together(len(run.state["step_s"]) == 5, f"{run.state['step_s']}")
