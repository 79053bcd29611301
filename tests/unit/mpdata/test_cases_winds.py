"""The case winds, on synthetic wind files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wind_files as wf
from hypothesis import given
from hypothesis import strategies as st
from sentences import one_sentence
from whole_grids import evaluate, filled

from mpdata.cases import Request, Setup, make_setup
from mpdata.cases.setup import open_mesh
from mpdata.cases.windfile import read_winds
from mpdata.errors import InputError
from mpdata.flow.faces import max_courant, scale_for
from mpdata.grid import Geometry
from mpdata.options import parse_boundaries
from mpdata.solver import Solver, count_steps

GRID = (12, 10, 5)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> wf.Pair:
    return wf.write_winds(tmp_path_factory.mktemp("winds"))


def setup_of(pair: wf.Pair, **asked: Any) -> Setup:
    return make_setup("winds", Request(**{"grid": GRID, "winds": pair, **asked}))


def test_winds_are_read_by_month_with_both_axes_rising(pair: wf.Pair) -> None:
    winds = read_winds(*pair, 2)
    assert winds.latitude.tolist() == sorted(wf.LATITUDES)
    assert winds.longitude.tolist() == wf.LONGITUDES.tolist()
    wanted = [wf.wind(name, 2, winds.longitude, winds.latitude) for name in wf.NAMES]
    assert (winds.u == wanted[0]).all()
    assert (winds.v == wanted[1]).all()


def test_longitudes_from_minus_180_are_the_same_winds(pair: wf.Pair, tmp_path: Path) -> None:
    west = wf.write_winds(tmp_path, longitudes=wf.LONGITUDES - 180.0)
    here, there = read_winds(*pair, 1), read_winds(*west, 1)
    assert there.longitude.tolist() == here.longitude.tolist()
    assert np.abs(there.u - here.u).max() < 1e-12


def test_latitudes_may_rise_in_the_file(pair: wf.Pair, tmp_path: Path) -> None:
    rising = read_winds(*wf.write_winds(tmp_path, latitudes=wf.LATITUDES[::-1]), 1)
    falling = read_winds(*pair, 1)
    assert rising.latitude.tolist() == falling.latitude.tolist()
    assert (rising.u == falling.u).all()
    assert (rising.v == falling.v).all()


def test_packed_winds_are_unpacked(pair: wf.Pair, tmp_path: Path) -> None:
    packed = read_winds(*wf.write_winds(tmp_path, packed=True), 1)
    assert np.abs(packed.u - read_winds(*pair, 1).u).max() <= 0.005 + 1e-12


def test_a_variable_is_found_by_its_standard_name(pair: wf.Pair, tmp_path: Path) -> None:
    renamed = wf.write_winds(tmp_path)
    wf.edited(lambda file: file.move("uwnd", "zonal"))(renamed)
    assert (read_winds(*renamed, 1).u == read_winds(*pair, 1).u).all()


def test_a_variable_is_found_by_its_usual_name(pair: wf.Pair, tmp_path: Path) -> None:
    bare = wf.write_winds(tmp_path)
    wf.edited(lambda file: file["uwnd"].attrs.clear())(bare)
    assert (read_winds(*bare, 1).u == read_winds(*pair, 1).u).all()


@pytest.mark.parametrize("grid", [(12, 10, 5), (12, 10, 4), (144, 60, 16), (2, 2, 2)], ids=str)
def test_the_wind_flow_is_free_of_divergence(pair: wf.Pair, grid: tuple[int, int, int]) -> None:
    whole = evaluate(setup_of(pair, grid=grid))
    largest = max(np.abs(c).max() for c in whole.c)
    assert np.abs(whole.divergence).max() <= 1e-14 * largest


def test_no_wind_goes_through_walls(pair: wf.Pair) -> None:
    whole = evaluate(setup_of(pair))
    for axis in (1, 2):
        assert not whole.c[axis].take([0, -1], axis=axis).any()


def test_the_wind_around_the_globe_closes(pair: wf.Pair) -> None:
    east = evaluate(setup_of(pair)).c[0]
    assert east[0].tobytes() == east[-1].tobytes()


def test_the_top_level_follows_the_observed_wind(pair: wf.Pair) -> None:
    # Faces of the grid that lie on points of the file: nothing is interpolated along longitude.
    east = evaluate(setup_of(pair, grid=(12, 10, 4))).c[0][:-1, :, -1]
    assert (east > 0).all()
    assert np.corrcoef(east[0], np.cos(np.radians(-75 + 15 * (np.arange(10) + 0.5))))[0, 1] > 0.99


def test_the_lower_half_blows_the_other_way(pair: wf.Pair) -> None:
    c = evaluate(setup_of(pair)).c
    for axis in (0, 1):
        assert (c[axis] == -c[axis][:, :, ::-1]).all()


POLAR = parse_boundaries("periodic,pole,wall")


def test_the_winds_reach_a_pole_where_the_boundary_is_one(pair: wf.Pair) -> None:
    for text, south, north in (("pole", -90, 90), ("pole/wall", -90, 75), ("wall/pole", -75, 90)):
        setup = setup_of(pair, boundaries=parse_boundaries(f"periodic,{text},wall"))
        assert setup.coordinates is not None
        step = (north - south) / GRID[1]
        wanted = south + step * (np.arange(GRID[1]) + 0.5)
        assert setup.coordinates[1].values == pytest.approx(wanted)
        whole = evaluate(setup)
        assert np.abs(whole.divergence).max() <= 1e-14 * max(np.abs(c).max() for c in whole.c)
        assert not whole.c[1].take([0, -1], axis=1).any()


def test_winds_over_the_poles_keep_mass_and_constants(pair: wf.Pair) -> None:
    solver = Solver(setup_of(pair, boundaries=POLAR), backend="numpy")
    before = (solver.density * solver.psi).sum()
    solver.advance(20)
    assert (solver.density * solver.psi).sum() == pytest.approx(before, rel=1e-13)
    assert solver.psi.min() >= -1e-15
    solver.resume(np.full(GRID, 1.5), 0)
    solver.advance(20)
    assert np.abs(solver.psi - 1.5).max() <= 1e-13


def test_months_differ(pair: wf.Pair) -> None:
    first, second = (evaluate(setup_of(pair, month=month)) for month in (1, 2))
    assert (first.c[0] != second.c[0]).any()


def test_density_is_the_cosine_of_latitude(pair: wf.Pair) -> None:
    h = evaluate(setup_of(pair)).h
    latitude = -75 + 15 * (np.arange(10) + 0.5)
    assert np.abs(h - np.cos(np.radians(latitude))[None, :, None]).max() < 1e-15


def test_the_plume_is_a_bell_within_the_channel(pair: wf.Pair) -> None:
    psi = evaluate(setup_of(pair, grid=(144, 60, 16))).psi
    assert psi.min() == 0.0
    assert 0.9 < psi.max() <= 1.0
    assert not psi[:, [0, -1]].any()


@st.composite
def blocks(draw: st.DrawFn) -> Geometry:
    ends = [
        sorted(draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in GRID
    ]
    start, stop = (tuple(end[at] for end in ends) for at in range(2))
    boundaries = parse_boundaries("periodic,wall,wall")
    return Geometry(GRID, start, stop, draw(st.integers(1, 5)), boundaries)  # type: ignore[arg-type]


@given(geo=blocks(), axis=st.integers(0, 2))
def test_winds_of_a_block_and_its_halo_are_picked_from_the_whole(
    pair: wf.Pair, geo: Geometry, axis: int
) -> None:
    setup = setup_of(pair)
    index = geo.global_faces(axis, extends=False)
    found = filled(setup.face(axis, *open_mesh(*index)), geo.shape)
    assert found.tobytes() == evaluate(setup).c[axis][np.ix_(*index)].tobytes()


def test_whole_steps_make_up_the_days(pair: wf.Pair) -> None:
    setup = setup_of(pair, days=3.0)
    geo = Geometry(GRID, (0, 0, 0), GRID, 1, setup.boundaries)
    highest = max_courant(setup, geo)
    dt, steps = scale_for(setup, highest), count_steps(setup)
    assert dt * steps == pytest.approx(3.0 * 86400, rel=1e-14)
    assert highest.value * dt <= 0.9 * (1 + 1e-14)
    assert highest.value * 3.0 * 86400 / (steps - 1) > 0.9


def test_asking_for_steps_keeps_the_time_step_at_its_limit(pair: wf.Pair) -> None:
    setup = setup_of(pair, steps=7)
    highest = max_courant(setup, Geometry(GRID, (0, 0, 0), GRID, 1, setup.boundaries))
    assert count_steps(setup) == 7
    assert highest.value * scale_for(setup, highest) == pytest.approx(0.9, rel=1e-14)


def test_the_plume_keeps_its_mass(pair: wf.Pair) -> None:
    solver = Solver(setup_of(pair), backend="numpy")
    before = (solver.density * solver.psi).sum()
    solver.advance(5)
    assert (solver.density * solver.psi).sum() == pytest.approx(before, rel=1e-13)


def missing(pair: wf.Pair) -> None:
    pair[1].unlink()


def not_hdf5(pair: wf.Pair) -> None:
    pair[0].write_bytes(b"CDF\x01 an old NetCDF-3 file" * 50)


def empty(pair: wf.Pair) -> None:
    pair[0].write_bytes(b"")


def swapped(pair: wf.Pair) -> None:
    pair[0].write_bytes(pair[1].read_bytes())


def other_grid(pair: wf.Pair) -> None:
    folder = pair[0].parent / "finer"
    folder.mkdir()
    finer = wf.write_winds(folder, longitudes=np.arange(0.0, 360.0, 15.0))
    pair[0].write_bytes(finer[0].read_bytes())


def shifted_grid(pair: wf.Pair) -> None:
    wf.edited(wf.replaced("lon", wf.LONGITUDES + 5.0))(pair)


@pytest.mark.parametrize(
    "spoil",
    [
        missing,
        not_hdf5,
        empty,
        swapped,
        other_grid,
        shifted_grid,
        wf.edited(wf.without("uwnd")),
        wf.edited(wf.without("lat")),
        wf.edited(wf.without("lon")),
        wf.edited(wf.without("uwnd", "lat", "lon", "time")),
        wf.edited(wf.replaced("uwnd", np.zeros((2, 12, 13)))),
        wf.edited(wf.replaced("uwnd", np.zeros((13, 12)))),
        wf.edited(wf.one_value(np.nan)),
        wf.edited(wf.one_value(np.inf)),
        wf.edited(
            wf.attribute(
                "_FillValue", np.float64(wf.wind("eastward", 1, np.zeros(1), np.zeros(1))[0, 0])
            )
        ),
        wf.edited(wf.attribute("units", "knots")),
        wf.edited(wf.attribute("units", 3)),
        wf.edited(wf.attribute("scale_factor", "large")),
        wf.edited(wf.attribute("scale_factor", np.nan)),
        wf.edited(wf.replaced("uwnd", np.full((2, 13, 12), b"calm"))),
        wf.edited(wf.replaced("lon", np.full(12, 30.0))),
        wf.edited(wf.replaced("lon", np.arange(12.0))),
        wf.edited(wf.replaced("lat", np.full(13, np.nan))),
    ],
    ids=[
        "missing",
        "not-hdf5",
        "empty",
        "swapped",
        "other-shape",
        "other-longitudes",
        "no-wind",
        "no-latitudes",
        "no-longitudes",
        "nothing",
        "transposed",
        "two-axes",
        "nan",
        "inf",
        "fill-value",
        "knots",
        "units-number",
        "scale-text",
        "scale-nan",
        "text",
        "same-longitudes",
        "part-of-the-globe",
        "latitude-nan",
    ],
)
def test_bad_wind_files_are_refused_in_one_sentence(
    tmp_path: Path, spoil: Callable[[wf.Pair], None]
) -> None:
    pair = wf.write_winds(tmp_path)
    spoil(pair)
    with one_sentence(InputError):
        setup_of(pair)


def test_missing_values_of_packed_winds_are_gaps(tmp_path: Path) -> None:
    pair = wf.write_winds(tmp_path, packed=True)
    wf.edited(wf.one_value(-32768))(pair)
    with one_sentence(InputError, "got 1 gaps"):
        setup_of(pair)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 0.999])
def test_truncated_wind_files_are_refused_in_one_sentence(tmp_path: Path, share: float) -> None:
    pair = wf.write_winds(tmp_path)
    data = pair[0].read_bytes()
    pair[0].write_bytes(data[: int(share * len(data))])
    with one_sentence(InputError):
        setup_of(pair)


@pytest.mark.parametrize("month", [0, -1, 3])
def test_months_the_file_does_not_have_are_refused(pair: wf.Pair, month: int) -> None:
    with one_sentence(InputError, f"expected a month from 1 to 2, got {month}"):
        setup_of(pair, month=month)


@pytest.mark.parametrize("grid", [(1, 10, 5), (12, 1, 5), (12, 10, 1)], ids=str)
def test_grids_without_three_axes_are_refused(pair: wf.Pair, grid: tuple[int, int, int]) -> None:
    with one_sentence(InputError):
        setup_of(pair, grid=grid)


def test_a_file_of_one_latitude_is_refused(tmp_path: Path) -> None:
    pair = wf.write_winds(tmp_path, latitudes=np.array([0.0]))
    with one_sentence(InputError):
        setup_of(pair)
