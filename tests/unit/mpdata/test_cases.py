"""The named cases: flow, density and initial field, whole and in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentences import one_sentence
from whole_grids import evaluate, filled

from mpdata.cases import CASES, Request, Setup, make_setup
from mpdata.cases.setup import open_mesh
from mpdata.errors import InputError
from mpdata.flow.faces import MaxCourant, max_courant, scale_for, unstable
from mpdata.grid import Geometry
from mpdata.options import parse_boundaries
from mpdata.solver import Solver

Triple = tuple[int, int, int]

ANALYTIC = [name for name in CASES if name not in ("winds", "random")]
FLAT = [name for name in ANALYTIC if name not in ("bell", "cone-over-poles")]
"""Those that are not on a sphere, where the density is the area of a cell."""

BOUNDARIES = [
    *("periodic", "open", "wall", "fixed:1.5", "periodic,wall,open", "wall,open,periodic"),
    "wall/open,open/wall,fixed:1.5/wall",
]
GRIDS: list[Triple] = [(7, 6, 5), (8, 7, 1), (8, 1, 7), (1, 8, 7), (2, 2, 2)]
LINES: list[Triple] = [(9, 1, 1), (1, 9, 1), (1, 1, 9)]


def random_setup(grid: Triple, boundaries: str = "periodic", **asked: Any) -> Setup:
    request = Request(grid=grid, boundaries=parse_boundaries(boundaries), **asked)
    return make_setup("random", request)


@pytest.mark.parametrize("name", [*ANALYTIC, "random"])
def test_every_case_builds_a_stable_solver_on_its_own_grid(name: str) -> None:
    solver = Solver(make_setup(name, Request()), backend="numpy")
    assert solver.psi.shape == CASES[name].grid
    assert np.isfinite(solver.psi).all()
    assert (solver.density > 0).all()


@pytest.mark.parametrize("name", FLAT)
def test_density_of_the_flat_cases_is_one(name: str) -> None:
    assert (evaluate(make_setup(name, Request())).h == 1).all()


@pytest.mark.parametrize("name", ANALYTIC)
def test_analytic_flows_are_free_of_divergence(name: str) -> None:
    whole = evaluate(make_setup(name, Request()))
    assert np.abs(whole.divergence).max() <= 1e-15


@dataclass(frozen=True)
class Block:
    """A case and a block of its grid."""

    setup: Setup
    geo: Geometry


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Return any block of the case random on any small grid."""
    grid = draw(st.tuples(*[st.integers(1, 6)] * 3))
    kinds = draw(st.tuples(*[st.sampled_from(["periodic", "open", "wall", "fixed:2"])] * 3))
    setup = random_setup(grid, ",".join(kinds), seed=draw(st.integers(0, 2**32)))
    ends = [
        sorted(draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in grid
    ]
    start, stop = (tuple(end[at] for end in ends) for at in range(2))
    halo = draw(st.integers(1, 5))
    return Block(setup, Geometry(grid, start, stop, halo, setup.boundaries))  # type: ignore[arg-type]


@given(blocks())
def test_random_psi_of_a_block_is_the_slice_of_the_whole(block: Block) -> None:
    geo = block.geo
    i, j, k = (np.arange(a, b) for a, b in zip(geo.start, geo.stop, strict=True))
    found = filled(block.setup.initial(*open_mesh(i, j, k)), geo.interior)
    assert found.tobytes() == evaluate(block.setup).psi[np.ix_(i, j, k)].tobytes()


@given(blocks())
def test_random_density_of_a_block_and_its_halo_is_picked_from_the_whole(block: Block) -> None:
    index = block.geo.global_cells()
    found = filled(block.setup.density(*open_mesh(*index)), block.geo.shape)
    assert found.tobytes() == evaluate(block.setup).h[np.ix_(*index)].tobytes()


@given(blocks(), st.integers(0, 2))
def test_random_faces_of_a_block_and_its_halo_are_picked_from_the_whole(
    block: Block, axis: int
) -> None:
    geo, far = block.geo, 6
    reach = [np.arange(-far, n + far + 1) for n in geo.grid]
    whole = filled(block.setup.face(axis, *open_mesh(*reach)), [r.size for r in reach])
    index = geo.global_faces(axis, extends=True)
    found = filled(block.setup.face(axis, *open_mesh(*index)), geo.shape)
    assert found.tobytes() == whole[np.ix_(*(i + far for i in index))].tobytes()


@given(st.tuples(*[st.integers(2, 6)] * 3), st.integers(0, 2), st.integers(0, 2))
def test_random_faces_repeat_across_a_periodic_edge(grid: Triple, axis: int, along: int) -> None:
    setup = random_setup(grid)
    here = [np.arange(n) for n in grid]
    there = [index + grid[a] * (a == along) for a, index in enumerate(here)]
    found, again = (np.asarray(setup.face(axis, *open_mesh(*i))) for i in (here, there))
    assert found.tobytes() == again.tobytes()


def test_random_values_fill_their_ranges() -> None:
    whole = evaluate(random_setup((20, 20, 20)))
    for values, low, high in ((whole.psi, 0.5, 2.0), (whole.h, 0.8, 1.2)):
        width = high - low
        assert low <= values.min() < low + 0.01 * width
        assert high - 0.01 * width < values.max() < high
        assert abs(values.mean() - (low + high) / 2) < 0.02 * width


def test_random_psi_and_density_are_different_numbers() -> None:
    whole = evaluate(random_setup((10, 10, 10)))
    assert abs(np.corrcoef(whole.psi.ravel(), whole.h.ravel())[0, 1]) < 0.2


def test_random_fields_follow_their_seed() -> None:
    one, same, other = (evaluate(random_setup((5, 4, 3), seed=seed)) for seed in (7, 7, 8))
    assert one.psi.tobytes() == same.psi.tobytes()
    assert one.c[0].tobytes() == same.c[0].tobytes()
    for mine, theirs in ((one.psi, other.psi), (one.h, other.h), (one.c[2], other.c[2])):
        assert (mine != theirs).all()


@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("grid", [*GRIDS, *LINES], ids=str)
def test_the_random_flow_is_free_of_divergence(grid: Triple, boundaries: str) -> None:
    whole = evaluate(random_setup(grid, boundaries))
    largest = max(np.abs(whole.c[a]).max() for a in whole.active)
    assert np.abs(whole.divergence).max() <= 1e-15 * max(1.0, 10 * largest)


@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_random_flow_moves_along_every_axis(grid: Triple, boundaries: str) -> None:
    whole = evaluate(random_setup(grid, boundaries))
    assert all(np.abs(whole.c[a]).max() > 0.01 for a in whole.active)


@pytest.mark.parametrize("grid", [*GRIDS, *LINES], ids=str)
def test_no_random_flow_goes_through_walls(grid: Triple) -> None:
    whole = evaluate(random_setup(grid, "wall"))
    for axis in whole.active:
        assert not whole.c[axis].take([0, -1], axis=axis).any()


@pytest.mark.parametrize("grid", [*GRIDS, *LINES], ids=str)
def test_first_and_last_periodic_faces_of_the_random_flow_are_equal(grid: Triple) -> None:
    whole = evaluate(random_setup(grid))
    for axis in whole.active:
        first, last = (whole.c[axis].take(at, axis=axis) for at in (0, -1))
        assert first.tobytes() == last.tobytes()


def outgoing(solver: Solver) -> list[float]:
    """Return the sum of outgoing |c| over h of every cell, by plain loops."""
    halo, geo = solver.geometry.halo, solver.geometry
    place = dict.fromkeys(geo.active, halo)
    found = []
    for cell in product(*map(range, geo.interior)):
        at = tuple(cell[a] + place.get(a, 0) for a in range(3))
        total = 0.0
        for a in geo.active:
            above = tuple(at[b] + (a == b) for b in range(3))
            total += max(solver.flow.C[a][above], 0.0) + max(-solver.flow.C[a][at], 0.0)
        found.append(total / float(solver.flow.h[at]))
    return found


@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_largest_outgoing_sum_of_the_random_flow_is_nine_tenths(
    grid: Triple, boundaries: str
) -> None:
    solver = Solver(random_setup(grid, boundaries), backend="numpy")
    assert max(outgoing(solver)) == pytest.approx(0.9, rel=1e-14)


def test_a_courant_number_asked_for_is_the_largest_outgoing_sum() -> None:
    solver = Solver(random_setup((6, 5, 4), courant=0.35), backend="numpy")
    assert max(outgoing(solver)) == pytest.approx(0.35, rel=1e-14)


def test_the_max_courant_names_the_cell_with_the_largest_outgoing_sum() -> None:
    setup = random_setup((6, 5, 4), "open")
    geo = Geometry(setup.grid, (2, 1, 0), (6, 4, 4), 2, setup.boundaries)
    cells = np.array(outgoing(Solver(setup, backend="numpy")))
    part = cells.reshape(6, 5, 4)[2:6, 1:4]
    where = np.unravel_index(int(part.argmax()), part.shape)
    highest = max_courant(setup, geo)
    assert highest.cell == (where[0] + 2, where[1] + 1, where[2])


@pytest.mark.parametrize(
    ("sum_of_outgoing", "stable"), [(1.0, True), (1 + 1e-15, True), (1 + 1e-9, False), (1.5, False)]
)
def test_an_outgoing_sum_of_one_is_still_stable(sum_of_outgoing: float, stable: bool) -> None:
    assert (unstable(MaxCourant(sum_of_outgoing, (1, 2, 3)), 1.0) is None) == stable


def test_an_unstable_flow_is_refused_with_its_cell() -> None:
    uniform = make_setup("gaussian", Request(grid=(6, 6, 6), courant=1.0))
    unsafe = Setup(
        "fast",
        uniform.grid,
        uniform.boundaries,
        uniform.initial,
        uniform.density,
        lambda axis, i, j, k: 1.5 * uniform.face(axis, i, j, k),
        extends=True,
        steps=1,
    )
    with one_sentence(InputError, "in cell (0, 0, 0)"):
        Solver(unsafe)


def test_face_values_are_used_as_they_are_without_a_courant_number() -> None:
    assert scale_for(make_setup("sphere", Request()), MaxCourant(0.2, (0, 0, 0))) == 1.0


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("spheer", Request()),
        ("random", Request(courant=0.0)),
        ("random", Request(courant=1.5)),
        ("random", Request(courant=float("nan"))),
        ("random", Request(seed=-1)),
        ("random", Request(seed=2**64)),
        ("random", Request(grid=(4, 0, 4))),
        ("random", Request(grid=(-4, 4, 4))),
        ("sphere", Request(courant=0.5)),
        ("winds", Request()),
        ("winds", Request(days=0.0)),
    ],
)
def test_requests_that_cannot_be_met_are_refused_in_one_sentence(
    name: str, request_: Request
) -> None:
    with one_sentence(InputError):
        sample_of(make_setup(name, request_))


def sample_of(setup: Setup) -> None:
    max_courant(setup, Geometry(setup.grid, (0, 0, 0), setup.grid, 1, setup.boundaries))


def test_the_answer_is_known_at_the_last_step_of_the_case_only() -> None:
    assert make_setup("sphere", Request(steps=556)).exact is not None
    assert make_setup("sphere", Request(steps=555)).exact is None


def test_the_gaussian_comes_back_after_its_steps() -> None:
    setup = make_setup("gaussian", Request(grid=(6, 6, 6), courant=0.6))
    assert setup.exact is not None
    assert setup.steps == 30


@pytest.mark.parametrize(
    "request_",
    [
        Request(grid=(6, 5, 6)),
        Request(boundaries=parse_boundaries("open,periodic,periodic")),
    ],
)
def test_the_gaussian_has_no_answer_where_it_does_not_come_back(request_: Request) -> None:
    assert make_setup("gaussian", request_).exact is None
