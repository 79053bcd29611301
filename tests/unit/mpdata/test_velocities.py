"""Face values that change in time: files, functions, and what is refused of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import log2, pi, sin
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentences import one_sentence
from velocity_files import levels_of, swinging, write_levels

from mpdata.cases import Request, Setup, array_case, make_setup, with_velocities
from mpdata.cases.setup import TimeLevels
from mpdata.errors import InputError
from mpdata.flow import faces, velocities
from mpdata.grid import Geometry
from mpdata.options import Scheme, parse_boundaries
from mpdata.parallel.config import RunConfig
from mpdata.solver import Solver

GRID = (9, 8, 5)
STEPS = 6
TIMES = [0.0, 1.25, 4.0, 7.0]


def case(boundary: str = "periodic", grid: tuple[int, int, int] = GRID, **more: Any) -> Setup:
    boundaries = parse_boundaries(boundary)
    return make_setup("random", Request(grid=grid, steps=STEPS, boundaries=boundaries, **more))


def linear(axis: int, time: float, i: Any, j: Any, k: Any) -> Any:
    """A flow linear in time, of values that binary fractions hold exactly, equal around."""
    return (axis + 1) * (1 / 64 + time / 256) + 0.0 * (i + j + k)


def answer(setup: Setup, steps: int = STEPS, **options: Any) -> np.ndarray:
    solver = Solver(setup, backend="numpy", **options)
    solver.advance(steps)
    return solver.psi.copy()


@pytest.mark.parametrize("courant", [0.7, None])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_a_steady_flow_set_early_has_the_same_bits(dtype: str, courant: float | None) -> None:
    setup = replace(case("periodic,wall,open"), courant=courant)
    geo = Geometry(GRID, (0, 0, 0), GRID, 3, setup.boundaries)

    def room() -> np.ndarray:
        return np.zeros(geo.shape, dtype)

    scale = faces.scale_for(setup, velocities.max_courant_over_time(setup, geo))
    assert (scale == 1.0) == (courant is None)
    late, early = (faces.make_flow(setup, geo, dtype, room) for _ in range(2))
    velocities.make_velocities(setup, geo, late, scale, room)
    held = 1.0 if velocities.scales_later(setup, dtype) else scale
    faces.fill_faces(early.C, setup, geo, held)
    velocities.make_velocities(setup, geo, early, scale, room, held)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(late.C, early.C, strict=True))


@pytest.mark.parametrize("boundary", ["periodic", "open", "wall", "fixed:1"])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("grid", [GRID, (9, 8, 1), (1, 9, 1)], ids=str)
def test_a_flow_linear_in_time_is_that_of_the_function(
    tmp_path: Path, boundary: str, dtype: str, grid: tuple[int, int, int]
) -> None:
    setup = case(boundary, grid)
    # Weights of binary fractions: interpolation rounds nothing.
    path = write_levels(tmp_path / "v.h5", levels_of(grid, [0, 2, 4, 8], linear))
    exact = replace(setup, face_at=linear, courant=None, extends=False)
    got = answer(with_velocities(setup, path), dtype=dtype)
    assert np.array_equal(got, answer(exact, dtype=dtype))


def test_values_between_two_times_are_linear_to_round_off(tmp_path: Path) -> None:
    setup = case("open")
    arrays = levels_of(GRID, TIMES, swinging(setup))
    solver = Solver(with_velocities(setup, write_levels(tmp_path / "v.h5", arrays)))
    for step in range(STEPS):
        solver.advance(1)
        for axis in range(3):
            c, time = arrays[f"c{axis + 1}"], step + 0.5
            above = next(n for n, t in enumerate(TIMES) if t >= time)
            low, high = TIMES[above - 1], TIMES[above]
            w = (time - low) / (high - low)
            expected = (1 - w) * c[above - 1] + w * c[above]
            region = solver.geometry.cells(0, extra=axis)
            assert np.abs(solver.flow.C[axis][region] - expected).max() <= 1e-15


def test_values_at_a_time_of_the_file_are_its_own(tmp_path: Path) -> None:
    setup = case("open")
    arrays = levels_of(GRID, [0.5, 1.5, 2.5, 5.5], swinging(setup))
    solver = Solver(with_velocities(setup, write_levels(tmp_path / "v.h5", arrays)))
    for step, level in ((0, 0), (1, 1), (2, 2), (5, 3)):
        solver.advance(step + 1 - solver._step)
        region = solver.geometry.cells(0, extra=0)
        assert np.array_equal(solver.flow.C[0][region], arrays["c1"][level])


@pytest.mark.parametrize("times", [[3.0], [-2.0, 100.0], [0.0, 0.25, 0.3, 1.0, 6.0]])
def test_a_flow_that_stays_the_same_is_the_steady_one(tmp_path: Path, times: list[float]) -> None:
    setup = case("open")
    arrays = levels_of(GRID, times, lambda axis, _, i, j, k: 0.02 * setup.face(axis, i, j, k))
    got = answer(with_velocities(setup, write_levels(tmp_path / "v.h5", arrays)))
    steady = replace(
        setup,
        face=lambda axis, i, j, k: 0.02 * setup.face(axis, i, j, k),
        courant=None,
        extends=False,
    )
    assert np.array_equal(got, answer(steady))


def test_only_two_levels_are_held_and_each_is_read_once(tmp_path: Path) -> None:
    setup = case("open")
    arrays = levels_of(GRID, TIMES, swinging(setup))
    setup = with_velocities(setup, write_levels(tmp_path / "v.h5", arrays))
    assert setup.time_levels is not None
    read: list[int] = []
    inner = setup.time_levels.face

    def face(axis: int, level: int, i: Any, j: Any, k: Any) -> Any:
        read.append(level)
        return inner(axis, level, i, j, k)

    geo = Geometry(GRID, (0, 0, 0), GRID, 3, setup.boundaries)
    watched = replace(setup, time_levels=TimeLevels(setup.time_levels.times, face))
    room = lambda: np.zeros(geo.shape)  # noqa: E731
    held = faces.make_flow(watched, geo, "f8", room)
    moving = velocities.make_velocities(watched, geo, held, 1.0, room)
    told = []
    for step in range(STEPS):
        told.append(moving.may_fail(step))
        moving.move_to(step)
    assert told == [True, True, False, False, True, False]
    assert read == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert moving.nbytes == 2 * held.nbytes - 2 * held.h.nbytes
    moving.move_to(0)  # back again, as another run would start
    assert np.array_equal(held.C[1][geo.cells(0, extra=1)], expected_at(arrays["c2"], 0.5))


def expected_at(c: np.ndarray, time: float) -> np.ndarray:
    w = (time - TIMES[0]) / (TIMES[1] - TIMES[0])
    return np.asarray(c[0] + w * (c[1] - c[0]))


def test_slabs_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = case("wall,open,periodic")
    around = levels_of(GRID, TIMES, swinging(setup))
    around["c3"][..., -1] = around["c3"][..., 0]
    moving = with_velocities(setup, write_levels(tmp_path / "v.h5", around))
    whole = [answer(s) for s in (setup, moving)]
    peaks = [Solver(s).flow.C[0].sum() for s in (setup, moving)]
    monkeypatch.setattr(faces, "SLAB_CELLS", 1)
    monkeypatch.setattr(velocities, "INTERPOLATED_CELLS", 100)
    assert [Solver(s).flow.C[0].sum() for s in (setup, moving)] == peaks
    assert all(np.array_equal(a, answer(s)) for a, s in zip(whole, (setup, moving), strict=True))


def turning(steps: int) -> Callable[..., Any]:
    """Uniform in space; over the run it carries the field by 0.25 and -0.125 of the box."""

    def face_at(axis: int, time: float, i: Any, j: Any, k: Any) -> Any:
        t = time / steps
        rate = 0.25 + 0.5 * pi * 0.3 * sin(2 * pi * t) if axis == 0 else -0.25 * t
        return 32 * (steps / 64) * rate / steps + 0.0 * (i + j + k)

    return face_at


def error_after(level: int, early: float = 0.0) -> float:
    """Return the error of a Gaussian bell carried by ``turning`` with dx and dt halved."""
    n, steps = 32 * 2**level, 64 * 2**level

    def bell(shift: float) -> Callable[..., Any]:
        def at(i: Any, j: Any, k: Any) -> Any:
            value: Any = 1.0
            for index, move in ((i, 0.25 * shift), (j, -0.125 * shift)):
                gap = (index / n - 0.5 - move + 0.5) % 1.0 - 0.5
                value = value * np.exp(-(gap**2) / (2 * 0.12**2))
            return value + 1.0 + 0.0 * k

        return at

    face = turning(steps)
    base = make_setup("gaussian", Request(grid=(n, n, 1), steps=steps))
    setup = replace(
        base,
        initial=bell(0.0),
        face_at=lambda axis, time, i, j, k: face(axis, time - early, i, j, k) + 0.0,
        courant=None,
        steps=steps,
    )
    solver = Solver(setup, Scheme(2, False), backend="numpy")
    solver.advance(steps)
    mesh = np.ix_(np.arange(n), np.arange(n), np.arange(1))
    return float(np.sqrt(((solver.psi - bell(1.0)(*mesh)) ** 2).mean()))


def test_the_middle_of_the_step_keeps_second_order_in_time() -> None:
    middle = [error_after(level) for level in range(3)]
    orders = [log2(a / b) for a, b in pairwise(middle)]
    assert min(orders) > 1.85, (middle, orders)
    begin = [error_after(level, early=0.5) for level in range(3)]
    assert log2(begin[1] / begin[2]) < 1.4, begin


def whole(changes: dict[str, Any]) -> dict[str, Any]:
    arrays: dict[str, Any] = levels_of(GRID, TIMES, linear) | changes
    return {name: values for name, values in arrays.items() if values is not None}


def spoilt(axis: int, at: tuple[int, ...], value: float) -> np.ndarray:
    values = levels_of(GRID, TIMES, linear)[f"c{axis + 1}"]
    values[at] = value
    return values


BAD = [
    ({"time": None}, "expected time in"),
    ({"time": np.zeros((4, 1))}, "expected time of shape (T,), T at least 1, got (4, 1)"),
    ({"time": np.zeros(0)}, "expected time of shape (T,)"),
    ({"time": np.array([0, 1, 1, 7.0])}, "expected times strictly rising, got 1 after 1"),
    ({"time": np.array([0, np.nan, 4, 7])}, "expected finite times, got nan"),
    ({"time": np.array([b"a", b"b", b"c", b"d"])}, "expected numbers in time"),
    ({"time": np.array([1.0, 2, 3, 4])}, "expected times covering 0.5 to 5.5"),
    ({"time": np.array([0.0, 2, 3, 5])}, "the middles of the steps, got 0 to 5"),
    ({"time": np.array([0.0, 7.0])}, "expected c1 of shape (2, 10, 8, 5), got (4, 10, 8, 5)"),
    ({"c1": None}, "expected c1 of shape (4, 10, 8, 5), got none"),
    ({"c2": np.zeros((4, 9, 8, 5))}, "expected c2 of shape (4, 9, 9, 5), got (4, 9, 8, 5)"),
    ({"c3": spoilt(2, (2, 1, 1, 1), np.inf)}, "finite numbers in c3 at time 4, got inf at (1, 1"),
    ({"c2": spoilt(1, (1, 3, 0, 2), 0.2)}, "expected c2 of the first and the last face"),
    ({"c1": spoilt(0, (3, 4, 5, 2), 1.5)}, "in cell (3, 5, 2) at time 7, too much by"),
]


@pytest.mark.parametrize(("changes", "says"), BAD)
def test_bad_files_are_refused_before_the_first_step(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path = write_levels(tmp_path / "v.h5", whole(changes))
    with one_sentence(InputError, says):
        Solver(with_velocities(case(), path))


@pytest.mark.parametrize("name", ["none.h5", "text.h5", "v.npz", "folder.h5"])
def test_what_is_no_velocity_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.h5").write_text("not HDF5")
    (tmp_path / "v.npz").write_bytes(b"PK")
    (tmp_path / "folder.h5").mkdir()
    with one_sentence(InputError):
        with_velocities(case(), tmp_path / name)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = write_levels(tmp_path / "v.h5", whole({}))
    path.write_bytes(path.read_bytes()[:-3000])
    with one_sentence(InputError):
        Solver(with_velocities(case(), path))


def test_the_file_is_part_of_what_a_checkpoint_is_of(tmp_path: Path) -> None:
    one = with_velocities(case(), write_levels(tmp_path / "a.h5", whole({})))
    other = whole({"time": np.array([0, 2.0, 4, 7])})
    two = with_velocities(case(), write_levels(tmp_path / "b.h5", other))
    found = [
        RunConfig(setup, Scheme(), np.dtype("f8"), "numpy").options["velocities"]
        for setup in (case(), one, two)
    ]
    assert found[0] is None and len(set(found)) == 3


def test_arrays_need_no_flow_where_a_file_brings_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", psi=np.ones(GRID))
    setup = array_case(tmp_path / "in.npz", case().boundaries, STEPS, flow=False)
    path = write_levels(tmp_path / "v.h5", whole({}))
    assert answer(with_velocities(setup, path)) == pytest.approx(1.0, abs=1e-14)
    with one_sentence(InputError):
        array_case(tmp_path / "in.npz", case().boundaries, STEPS)


def test_a_function_that_becomes_unstable_is_stopped_before_that_step() -> None:
    setup = replace(case(), courant=None, density=lambda i, j, k: 1.0)
    setup = replace(setup, face_at=lambda axis, t, i, j, k: 0.1 * t + 0.0 * i)
    solver = Solver(setup, backend="numpy")
    solver.advance(3)
    before = solver.psi.copy()
    with one_sentence(InputError, "got 1.05 in cell (0, 0, 0) at time 3.5"):
        solver.advance(1)
    assert np.array_equal(solver.psi, before)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_a_function_at_the_limit_is_stable(dtype: str) -> None:
    third = 1 / 3
    setup = replace(case(), courant=None, density=lambda i, j, k: 1.0)
    setup = replace(setup, face_at=lambda axis, t, i, j, k: third + 0.0 * i)
    Solver(setup, backend="numpy", dtype=dtype).advance(1)


def test_a_function_of_another_last_face_is_refused() -> None:
    setup = replace(case(), courant=None, face_at=lambda axis, t, i, j, k: 0.01 * (i + j + k))
    with one_sentence(InputError, "expected c1 of the first and the last face"):
        Solver(setup)


def test_a_function_that_is_not_a_number_is_refused() -> None:
    setup = replace(case(), courant=None, face_at=lambda axis, t, i, j, k: np.nan + 0.0 * i)
    with one_sentence(InputError):
        Solver(setup)


def test_a_courant_number_has_no_meaning_with_a_function_of_time() -> None:
    with one_sentence(InputError, "courant 0.9"):
        Solver(replace(case(), face_at=linear))


def test_steps_beyond_the_times_are_refused(tmp_path: Path) -> None:
    setup = with_velocities(case(), write_levels(tmp_path / "v.h5", whole({})))
    solver = Solver(setup)
    solver.advance(7)
    with one_sentence(InputError, "cover time 7.5, got times from 0 to 7"):
        solver.advance(1)


def test_velocities_for_winds_need_steps(tmp_path: Path) -> None:
    with one_sentence(InputError, "expected --steps K"):
        with_velocities(replace(case(), steps=None), tmp_path / "none.h5")


@pytest.mark.parametrize("name", ["gaussian", "random"])
def test_tracers_of_a_named_case(name: str) -> None:
    setup = make_setup(name, Request(grid=GRID, seed=5, tracers=3))
    assert list(setup.tracers) == ["psi", "psi2", "psi3"]
    mesh = np.ix_(*(np.arange(n) for n in GRID))
    for number, field in enumerate(setup.tracers.values()):
        if name == "random":
            alone = make_setup(name, Request(grid=GRID, seed=5 + number)).initial(*mesh)
        else:
            alone = (number + 1) * np.asarray(setup.initial(*mesh))
        assert np.array_equal(field(*mesh), alone)


def test_tracers_of_arrays(tmp_path: Path) -> None:
    psi = np.arange(np.prod(GRID), dtype=float).reshape(GRID)
    np.savez(tmp_path / "in.npz", psi=psi, psi2=psi + 1)
    setup = array_case(tmp_path / "in.npz", case().boundaries, 1, 2, flow=False)
    mesh = np.ix_(*(np.arange(n) for n in GRID))
    assert np.array_equal(setup.tracers["psi2"](*mesh), psi + 1)
    with one_sentence(InputError, "expected psi3 in"):
        array_case(tmp_path / "in.npz", case().boundaries, 1, 3, flow=False)


@pytest.mark.parametrize(
    ("dtype", "scheme", "low", "high", "says"),
    [
        ("f8", Scheme(), 0.0, 1e13, None),
        ("f8", Scheme(), 0.0, 1e103, r"expected |psi2| of at most 1e+100 in f8"),
        ("f4", Scheme(), 0.0, 1e12, None),
        ("f4", Scheme(), -1.1e12, 0.0, r"expected |psi2| of at most 1e+12 in f4"),
        ("f4", Scheme(), 0.0, 1.1e12, r"expected |psi2| of at most 1e+12 in f4"),
        ("f4", Scheme(1), 0.0, 1e13, None),
        ("f4", Scheme(2, True, infinite_gauge=True), -1e13, 1e13, None),
        ("f8", Scheme(), -1.0, 1.0, "expected psi2 of one sign (or --gauge infinite"),
        ("f8", Scheme(1), 0.0, float("nan"), "expected finite numbers in psi2"),
    ],
)
def test_ranges_that_a_scheme_cannot_advance(
    dtype: str, scheme: Scheme, low: float, high: float, says: str | None
) -> None:
    found = RunConfig(case(), scheme, np.dtype(dtype), "numpy").refusal("psi2", low, high)
    assert (found is None) if says is None else (found is not None and says in found)
