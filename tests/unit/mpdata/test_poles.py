"""Grids that reach the poles: their halo, what is kept there, a bell that is carried over one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentences import one_sentence
from whole_grids import evaluate

from mpdata.cases import Request, Setup, make_setup
from mpdata.errors import InputError
from mpdata.flow.faces import fill_faces, make_flow
from mpdata.grid import Geometry, fill_halo
from mpdata.options import Scheme, parse_boundaries
from mpdata.solver import Solver, count_steps
from mpdata.study.verify import difference_sums

Triple = tuple[int, int, int]

BACKENDS = ["numpy", "numba"]
SCHEMES = [
    Scheme(1),
    Scheme(2),
    Scheme(3),
    Scheme(2, limiter=False, third_order=True),
    Scheme(3, third_order=True, divergent_flow=True),
    Scheme(2, infinite_gauge=True),
]


def random_setup(grid: Triple, boundaries: str = "periodic,pole,wall", **asked: Any) -> Setup:
    kinds = parse_boundaries(boundaries)
    return make_setup("random", Request(grid=grid, boundaries=kinds, courant=0.95, **asked))


@st.composite
def polar_grids(draw: st.DrawFn) -> Geometry:
    """Return any small whole grid with a pole, also one of fewer latitudes than halo cells."""
    grid = (2 * draw(st.integers(1, 4)), draw(st.integers(2, 6)), draw(st.integers(1, 3)))
    latitude = draw(st.sampled_from(["pole", "pole/wall", "open/pole", "pole/open"]))
    boundaries = parse_boundaries(f"periodic,{latitude},open")
    return Geometry(grid, (0, 0, 0), grid, draw(st.integers(1, 6)), boundaries)


@given(polar_grids())
def test_psi_beyond_a_pole_is_that_of_the_cells_half_a_circle_away(geo: Geometry) -> None:
    found = np.full(geo.shape, np.nan)
    whole = np.arange(float(np.prod(geo.grid))).reshape(geo.grid)
    found[geo.cells(0)] = whole
    fill_halo(found, geo)
    around, rows, _ = geo.grid
    low, high = (end.kind == "pole" for end in geo.boundaries[1])
    i, _, k = geo.global_cells()
    for layer in range(2 * geo.halo + rows):
        row, beyond = layer - geo.halo, 0
        while (row < 0 and low) or (row >= rows and high):
            row, beyond = (-1 - row if row < 0 else 2 * rows - 1 - row), 1 - beyond
        row = min(max(row, 0), rows - 1)
        wanted = whole[np.ix_((i + beyond * around // 2) % around, [row], k)][:, 0]
        inside = slice(0, 2 * geo.halo + around)
        assert found[inside, layer, :-1].tolist() == wanted[inside, :-1].tolist()


def signed_faces(geo: Geometry, setup: Setup) -> tuple[list[npt.NDArray[Any]], npt.NDArray[Any]]:
    flow = make_flow(setup, geo, "f8", lambda: np.zeros(geo.shape))
    fill_faces(flow.C, setup, geo)
    return flow.C, flow.h


@pytest.mark.parametrize("halo", [1, 3, 5])
def test_the_flow_beyond_a_pole_is_that_there_with_north_for_south(halo: int) -> None:
    grid = (8, 6, 3)
    setup = random_setup(grid)
    geo = Geometry(grid, (0, 0, 0), grid, halo, setup.boundaries)
    C, h = signed_faces(geo, setup)
    i = slice(halo, halo + 8)
    k = slice(halo, halo + 3)
    for near in range(halo):
        for beyond, cell in ((halo - 1 - near, halo + near), (halo + 6 + near, halo + 5 - near)):
            assert h[i, beyond, k].tolist() == np.roll(h[i, cell, k], 4, 0).tolist()
            for axis in (0, 2):
                there = np.roll(C[axis][i, cell, k], 4, 0)
                assert C[axis][i, beyond, k].tolist() == there.tolist()
        faces = (halo - near, halo + near), (halo + 6 + near, halo + 6 - near)
        for beyond, face in faces:
            there = -np.roll(C[1][i, face, k], 4, 0)
            assert C[1][i, beyond, k].tolist() == there.tolist()
            assert near > 0 or not there.any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("grid", [(8, 6, 5), (8, 7, 1), (2, 2, 3)], ids=str)
@pytest.mark.covering(1)
@pytest.mark.promise("mass")
def test_mass_and_constants_are_kept_over_poles(grid: Triple, scheme: Scheme, backend: str) -> None:
    setup = random_setup(grid)
    solver = Solver(setup, scheme, backend=backend)
    before, start = (solver.density * solver.psi).sum(), solver.psi.copy()
    solver.advance(50)
    assert (solver.density * solver.psi).sum() == pytest.approx(before, rel=1e-13)
    assert np.abs(solver.psi - start).max() > 0.01
    solver.resume(np.full(grid, 1.5), 0)
    solver.advance(20)
    assert np.abs(solver.psi - 1.5).max() <= 1e-13


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.covering(1)
def test_where_the_longitudes_begin_changes_no_bit(scheme: Scheme) -> None:
    whole = evaluate(random_setup((10, 6, 4)))
    h, psi = whole.h, whole.psi
    c = [0.05 * whole.c[0][:-1], 0.05 * whole.c[1], 0.05 * whole.c[2]]
    answers = []
    for shift in (0, 3):
        arrays = [np.roll(array, shift, 0) for array in (psi, h, *c)]
        solver = Solver.of(arrays[0], arrays[2:], arrays[1], "periodic,pole,wall", scheme)
        solver.advance(5)
        answers.append(np.roll(solver.psi, -shift, 0).tobytes())
    assert answers[0] == answers[1]


@pytest.mark.parametrize("angle", [0.0, 45.0, 90.0])
def test_a_bell_comes_back_from_around_the_sphere(angle: float) -> None:
    grid = (64, 32, 1)
    setup = make_setup("bell", Request(grid=grid, angle=angle))
    scheme = Scheme(3, third_order=True)
    solver = Solver(setup, scheme, backend="numba")
    mass = (solver.density * solver.psi).sum()
    solver.advance(count_steps(setup) // 4)
    i, j, _ = np.unravel_index(int(solver.psi.argmax()), grid)
    assert abs((j + 0.5) * 180 / 32 - 90) == pytest.approx(angle, abs=7)
    assert angle == 90 or (i + 0.5) * 360 / 64 == pytest.approx(360, abs=7) or i == 0
    assert (solver.density * solver.psi).sum() == pytest.approx(mass, rel=1e-12)
    solver.advance(count_steps(setup) - solver.step)
    i, j, _ = np.unravel_index(int(solver.psi.argmax()), grid)
    assert (i + 0.5) * 360 / 64 == pytest.approx(270, abs=7)
    assert (j + 0.5) * 180 / 32 - 90 == pytest.approx(0, abs=7)
    assert solver.psi.min() >= -1e-9
    assert difference_sums(setup, solver.psi).largest < 700


@pytest.mark.parametrize("case", ["bell", "cone-over-poles"])
@pytest.mark.parametrize("grid", [(16, 8, 1), (12, 10, 2)], ids=str)
def test_the_rotation_is_free_of_divergence(case: str, grid: Triple) -> None:
    whole = evaluate(make_setup(case, Request(grid=grid)))
    largest = max(np.abs(c).max() for c in whole.c)
    assert np.abs(whole.divergence).max() <= 1e-15 * largest * 10
    assert not whole.c[1][:, [0, -1]].any()


@pytest.mark.parametrize(
    ("case", "asked"),
    [
        ("random", {"grid": (7, 6, 5), "boundaries": "periodic,pole,wall"}),
        ("random", {"grid": (8, 6, 5), "boundaries": "open,pole,wall"}),
        ("random", {"grid": (8, 6, 5), "boundaries": "pole,periodic,wall"}),
        ("random", {"grid": (8, 6, 5), "boundaries": "pole"}),
        ("bell", {"boundaries": "periodic,pole/wall,wall"}),
        ("bell", {"grid": (8, 1, 1)}),
        ("bell", {"angle": 400.0}),
        ("cone", {"angle": 45.0}),
        ("cone-over-poles", {"boundaries": "periodic"}),
        ("cone-over-poles", {"courant": 0.5}),
    ],
)
def test_what_a_sphere_cannot_have_is_refused(case: str, asked: dict[str, Any]) -> None:
    if "boundaries" in asked:
        asked = {**asked, "boundaries": parse_boundaries(asked["boundaries"])}
    with one_sentence(InputError):
        make_setup(case, Request(**asked))


def test_a_latitude_of_one_cell_has_no_pole() -> None:
    solver = Solver(random_setup((7, 1, 5)), backend="numpy")
    assert solver.geometry.poles == (False, False)
