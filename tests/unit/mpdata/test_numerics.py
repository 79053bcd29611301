"""What MPDATA must do whatever the flow, and its formulas against plain loops."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import numpy.typing as npt
import pytest
from combinations import Combination, rough
from scalar_loops import Loops, lower_faces
from whole_grids import Whole, as_setup, evaluate

from mpdata.cases import Request, Setup, make_setup
from mpdata.grid import Geometry
from mpdata.numerics import reference
from mpdata.options import Scheme, parse_boundaries
from mpdata.solver import Solver

Array = npt.NDArray[np.float64]
Triple = tuple[int, int, int]

CUBE, PLANE = (7, 6, 5), (8, 7, 1)
PERIODIC = parse_boundaries("periodic")
VARIANTS = [
    Scheme(2, False, infinite_gauge=True),
    Scheme(2, True, infinite_gauge=True, third_order=True),
    Scheme(2, False, third_order=True, divergent_flow=True),
    Scheme(3, True, third_order=True),
]
SCHEMES = [*(Scheme(n, limiter) for n in (1, 2, 3) for limiter in (False, True)), *VARIANTS][1:]
CORRECTED = [
    Scheme(iterations, limiter, gauge, third, divergent)
    for iterations in (2, 3)
    for limiter in (False, True)
    for gauge in (False, True)
    for third in (False, True)
    for divergent in (False, True)
]
KINDS = ["periodic", "open", "wall", "fixed:1.7", "periodic,wall,open", "open,fixed:1.7,wall"]


def random_setup(grid: Triple, boundaries: str = "periodic", seed: int = 1) -> Setup:
    return make_setup(
        "random", Request(grid=grid, boundaries=parse_boundaries(boundaries), seed=seed)
    )


def advanced(setup: Setup, scheme: Scheme, steps: int) -> Solver:
    solver = Solver(setup, scheme, backend="numpy")
    solver.advance(steps)
    return solver


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("boundaries", KINDS)
@pytest.mark.parametrize("grid", [CUBE, PLANE], ids=str)
@pytest.mark.promise("constants")
@pytest.mark.covering(1)
def test_a_constant_stays_constant(grid: Triple, boundaries: str, scheme: Scheme) -> None:
    setup = replace(random_setup(grid, boundaries), initial=lambda i, j, k: 1.7)
    psi = advanced(setup, scheme, 3).psi
    assert np.abs(psi / 1.7 - 1).max() <= 1e-14


def neighbourhood(psi: Array) -> Array:
    """Return every cell beside its periodic neighbours, stacked."""
    moved = [np.roll(psi, by, axis) for axis in range(3) for by in (-1, 1)]
    return np.stack([psi, *moved])


@pytest.mark.parametrize("seed", range(5))
def test_limited_psi_stays_between_its_neighbours_before_and_after_the_upwind_pass(
    seed: int,
) -> None:
    setup = random_setup(CUBE, seed=seed)
    before = evaluate(setup).psi
    upwind = advanced(setup, Scheme(1), 1).psi
    around = np.concatenate([neighbourhood(before), neighbourhood(upwind)])
    psi = advanced(setup, Scheme(2), 1).psi
    assert (psi >= around.min(axis=0) - 1e-12).all()
    assert (psi <= around.max(axis=0) + 1e-12).all()


@pytest.mark.parametrize("iterations", [2, 3])
@pytest.mark.parametrize("boundaries", ["periodic", "open", "wall", "fixed:1"])
def test_a_positive_field_stays_positive_without_the_limiter(
    boundaries: str, iterations: int
) -> None:
    solver = Solver(random_setup(CUBE, boundaries), Scheme(iterations, False), backend="numpy")
    for _ in range(10):
        solver.advance(1)
        assert solver.psi.min() > 0


@pytest.mark.parametrize("iterations", [2, 3])
@pytest.mark.parametrize("limiter", [False, True])
def test_corrective_passes_bring_the_answer_nearer(iterations: int, limiter: bool) -> None:
    setup = make_setup("gaussian", Request(grid=(24, 24, 1)))
    start = evaluate(setup).psi
    errors = [
        np.abs(advanced(setup, scheme, setup.steps or 0).psi - start).mean()
        for scheme in (Scheme(iterations - 1, limiter), Scheme(iterations, limiter))
    ]
    assert errors[1] < 0.9 * errors[0]


def stable(grid: Triple, seed: int = 1) -> Whole:
    """Return a random case on its whole grid, scaled as it will be run."""
    return scaled(random_setup(grid, seed=seed))


def scaled(setup: Setup) -> Whole:
    grid = setup.grid
    flow = Solver(setup, Scheme(1), backend="numpy").flow
    whole = evaluate(setup)
    inner = [
        tuple(slice(1, 1 + n + (a == b)) if n > 1 else slice(1) for b, n in enumerate(grid))
        for a in range(3)
    ]
    c = [flow.C[a][inner[a]] if n > 1 else whole.c[a] for a, n in enumerate(grid)]
    return Whole(whole.psi, whole.h, (c[0], c[1], c[2]))


def divergent(grid: Triple, seed: int = 1, *, signs: bool = False) -> Whole:
    """Return rough fields and a flow that diverges in every cell, scaled as it will be run."""
    row = Combination("periodic", "NML", 2, True, "standard", True, True, "f8", "given")
    return scaled(rough(row, grid, signs=signs, seed=seed))


TINY = [(3, 4, 2), (4, 3, 1), (1, 3, 4), (5, 1, 1)]


@pytest.mark.parametrize("grid", TINY, ids=str)
def test_one_iteration_is_the_donor_cell_formula(grid: Triple) -> None:
    whole = stable(grid)
    wanted = Loops(whole, Scheme(1)).donor_cell(whole.psi, lower_faces(whole))
    found = advanced(as_setup(whole, PERIODIC), Scheme(1), 1).psi
    assert np.abs(found - wanted).max() <= 1e-15 * 4
    assert np.abs(found - whole.psi).max() > 0.01


TERMS = [
    reference.Terms(gauge, third, divergent)
    for gauge in (False, True)
    for third in (False, True)
    for divergent in (False, True)
]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("grid", [(4, 5, 3), (4, 1, 3), (1, 5, 3), (4, 5, 1)], ids=str)
@pytest.mark.covering(1)
def test_the_pseudo_velocity_has_all_its_terms_and_the_density_at_faces(
    grid: Triple, terms: reference.Terms, axis: int, seed: int
) -> None:
    if grid[axis] == 1:
        axis = grid.index(max(grid))
    whole = divergent(grid, seed, signs=terms.infinite_gauge)
    geo = Geometry(whole.psi.shape, (0, 0, 0), whole.psi.shape, 2, PERIODIC)
    mesh = np.ix_(*geo.global_cells())
    found = np.full(geo.shape, np.nan)
    faces = [values[mesh] for values in lower_faces(whole)]
    reference.pseudo_velocity(
        found, axis, whole.psi[mesh], faces, 1 / whole.h[mesh], geo, geo.active, 0, terms
    )
    scheme = Scheme(
        2,
        infinite_gauge=terms.infinite_gauge,
        third_order=terms.third_order,
        divergent_flow=terms.divergent_flow,
    )
    wanted = Loops(whole, scheme).pseudo_velocity(whole.psi, lower_faces(whole), axis)
    assert np.abs(found[geo.cells(0)] - wanted).max() <= 2e-15
    last = found[geo.cells(0, (axis, 1))].take(-1, axis)
    assert np.abs(last - wanted.take(0, axis)).max() <= 2e-15


@pytest.mark.parametrize("scheme", CORRECTED, ids=str)
@pytest.mark.parametrize("grid", TINY, ids=str)
@pytest.mark.covering(1)
def test_a_step_is_what_plain_loops_give(grid: Triple, scheme: Scheme) -> None:
    for whole in (stable(grid), divergent(grid, signs=scheme.any_sign)):
        wanted = Loops(whole, scheme).step(whole.psi, lower_faces(whole))
        found = advanced(as_setup(whole, PERIODIC), scheme, 1).psi
        assert np.abs(found - wanted).max() <= 1e-13


@pytest.mark.parametrize("gauge", [False, True])
@pytest.mark.parametrize("limiter", [False, True])
def test_further_terms_make_a_difference(gauge: bool, limiter: bool) -> None:
    whole = divergent(CUBE)
    setup = as_setup(whole, PERIODIC)
    terms = [(third, divergent) for third in (False, True) for divergent in (False, True)]
    found = [advanced(setup, Scheme(2, limiter, gauge, *which), 1).psi for which in terms]
    gaps = [np.abs(a - b).max() for n, a in enumerate(found) for b in found[:n]]
    assert min(gaps) > 1e-3


@pytest.mark.parametrize("scheme", CORRECTED, ids=str)
def test_a_flow_without_divergence_has_no_term_for_it(scheme: Scheme) -> None:
    setup = random_setup(CUBE)
    plain = advanced(setup, replace(scheme, divergent_flow=False), 3).psi
    psi = advanced(setup, replace(scheme, divergent_flow=True), 3).psi
    assert np.abs(psi - plain).max() <= 1e-14


@pytest.mark.parametrize("third", [False, True])
@pytest.mark.parametrize("limiter", [False, True])
@pytest.mark.parametrize("shift", [-3.0, 100.0])
def test_the_infinite_gauge_does_not_see_a_background(
    shift: float, limiter: bool, third: bool
) -> None:
    setup = random_setup(CUBE)
    inside = setup.initial
    moved = replace(setup, initial=lambda i, j, k: inside(i, j, k) + shift)
    scheme = Scheme(2, limiter, infinite_gauge=True, third_order=third)
    psi = advanced(setup, scheme, 5).psi
    assert np.abs(advanced(moved, scheme, 5).psi - shift - psi).max() <= 1e-13 * (1 + abs(shift))


def embedded(whole: Whole, axes: tuple[int, ...]) -> Whole:
    """Move the active axes of a grid, in their order, to other places."""
    order = [*whole.active, *(a for a in range(3) if a not in whole.active)]
    places = [*axes, *(a for a in range(3) if a not in axes)]
    back = [order[places.index(a)] for a in range(3)]
    c = [whole.c[back[a]].transpose(back) for a in range(3)]
    return Whole(whole.psi.transpose(back), whole.h.transpose(back), (c[0], c[1], c[2]))


@pytest.mark.parametrize("axes", list(permutations(range(3), 2)), ids=str)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("boundaries", ["periodic", "wall", "open", "fixed:1.2"])
@pytest.mark.covering(1)
def test_a_plane_gives_the_same_wherever_its_axes_are(
    boundaries: str, scheme: Scheme, axes: tuple[int, ...]
) -> None:
    kind = parse_boundaries(boundaries)
    whole = evaluate(random_setup((7, 5, 1), boundaries))
    moved = embedded(whole, axes)
    assert sorted(moved.active) == sorted(axes)
    here = advanced(as_setup(whole, kind, courant=0.9), scheme, 3).psi
    there = advanced(as_setup(moved, kind, courant=0.9), scheme, 3).psi
    back = there.squeeze() if axes[0] < axes[1] else there.squeeze().T
    assert np.abs(back - here.squeeze()).max() <= 1e-14 * np.abs(here).max()


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("boundaries", ["periodic", "open", "fixed:1.2"])
@pytest.mark.covering(1)
def test_a_line_gives_the_same_along_every_axis(boundaries: str, scheme: Scheme, axis: int) -> None:
    kind = parse_boundaries(boundaries)
    whole = evaluate(random_setup((9, 1, 1), boundaries))
    here = advanced(as_setup(whole, kind, courant=0.9), scheme, 3).psi
    there = advanced(as_setup(embedded(whole, (axis,)), kind, courant=0.9), scheme, 3).psi
    assert np.abs(there.ravel() - here.ravel()).max() <= 1e-14 * np.abs(here).max()


def turned(array: Array, axis: int, by: int, *, face: bool) -> Array:
    """Roll a periodic array; a face array has its first layer again as the last."""
    if not face:
        return np.roll(array, by, axis)
    once = np.roll(array.take(range(array.shape[axis] - 1), axis), by, axis)
    return np.concatenate([once, once.take([0], axis)], axis)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize(("axis", "by"), [(0, 1), (1, 3), (2, -2)])
def test_a_periodic_grid_has_no_beginning(scheme: Scheme, axis: int, by: int) -> None:
    whole = stable(CUBE)
    c = [turned(values, axis, by, face=a == axis) for a, values in enumerate(whole.c)]
    other = Whole(
        turned(whole.psi, axis, by, face=False),
        turned(whole.h, axis, by, face=False),
        (c[0], c[1], c[2]),
    )
    here = advanced(as_setup(whole, PERIODIC), scheme, 4).psi
    there = advanced(as_setup(other, PERIODIC), scheme, 4).psi
    assert there.tobytes() == np.roll(here, by, axis).tobytes()


def test_axes_of_one_cell_have_no_flux() -> None:
    whole = stable(PLANE)
    strong = Whole(whole.psi, whole.h, (whole.c[0], whole.c[1], np.full((8, 7, 2), 5.0)))
    here = advanced(as_setup(whole, PERIODIC), Scheme(2), 2).psi
    there = advanced(as_setup(strong, PERIODIC), Scheme(2), 2).psi
    assert there.tobytes() == here.tobytes()


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_fixed_boundary_flows_in(scheme: Scheme) -> None:
    # Courant number 1 to the right moves every value by one whole cell a step.
    whole = Whole(
        1.0 + np.arange(6.0).reshape(6, 1, 1),
        np.ones((6, 1, 1)),
        (np.ones((7, 1, 1)), np.zeros((6, 2, 1)), np.zeros((6, 1, 2))),
    )
    psi = advanced(as_setup(whole, parse_boundaries("fixed:9,open,open")), scheme, 2).psi
    assert psi.ravel() == pytest.approx([9, 9, 1, 2, 3, 4], rel=1e-14)


def test_nothing_passes_a_wall() -> None:
    whole = Whole(
        np.ones((4, 1, 1)),
        np.ones((4, 1, 1)),
        (np.full((5, 1, 1), 0.5), np.zeros((4, 2, 1)), np.zeros((4, 1, 2))),
    )
    psi = advanced(as_setup(whole, parse_boundaries("wall")), Scheme(1), 1).psi
    assert psi.ravel().tolist() == [0.5, 1.0, 1.0, 1.5]
