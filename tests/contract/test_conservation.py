"""What must be kept whatever the options: the mass, and with the limiter the bounds."""

from __future__ import annotations

from dataclasses import replace
from math import fsum
from typing import Any

import numpy as np
import pytest
from combinations import Combination, rough

from mpdata.cases import Request, Setup, make_setup
from mpdata.options import Scheme, parse_boundaries, polar, with_outside
from mpdata.solver import Solver

Triple = tuple[int, int, int]

BACKENDS = ["numpy", "numba"]
KINDS = [
    *("periodic", "open", "wall", "fixed:1.7", "periodic,wall,open", "open,fixed:1.7,wall"),
    *("open/wall,wall/fixed:1.7,open", "periodic,pole,wall"),
]
CUBE, PLANE, LINE = (7, 6, 5), (8, 7, 1), (12, 1, 1)
STEPS = 1000
KEPT = 1e-13
"""Of the sum of |h psi|. A step rounds a cell by about 1e-16 of it, up as often as down: found are
2e-16 after 1,000 steps. It would be 1e-13 if all roundings went one way."""

ROUND_OFF = 1e-14
"""Of a psi of the order of 1. The reference breaks no bound by a single bit here."""


def random_setup(grid: Triple, boundaries: str = "periodic", seed: int = 1) -> Setup:
    kinds = parse_boundaries(boundaries)
    if polar(grid, kinds):
        # Whole circles around the poles.
        grid = (grid[0] + grid[0] % 2, *grid[1:])
    return make_setup("random", Request(grid=grid, boundaries=kinds, seed=seed, courant=0.99))


def both_signs(setup: Setup) -> Setup:
    """Return the case with as much of psi below zero as above."""
    inside = setup.initial
    return replace(setup, initial=lambda i, j, k: inside(i, j, k) - 1.25)


def spikes(setup: Setup) -> Setup:
    """Return the case with psi zero but for some cells."""
    return replace(setup, initial=lambda i, j, k: np.where((i * 7 + j * 3 + k) % 5 == 0, 1.0, 0.0))


def drift(solver: Solver, steps: int) -> float:
    """Return how much of the mass is gained or lost, of the sum of its magnitudes."""
    before = solver.density * solver.psi
    solver.advance(steps)
    gained = fsum([*(solver.density * solver.psi).ravel(), *-before.ravel()])
    return abs(gained) / fsum(np.abs(before).ravel())


KEEPING = [
    Scheme(1),
    Scheme(2, limiter=False),
    Scheme(2, limiter=True),
    Scheme(2, limiter=False, third_order=True, divergent_flow=True),
    Scheme(3, limiter=False),
    Scheme(2, limiter=False, infinite_gauge=True, third_order=True),
    Scheme(2, limiter=True, infinite_gauge=True, third_order=True),
    Scheme(3, limiter=True, third_order=True),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", KEEPING, ids=str)
@pytest.mark.parametrize(
    "boundaries", ["periodic", "wall", "periodic,wall,periodic", "periodic,pole/wall,wall"]
)
@pytest.mark.parametrize("grid", [CUBE, PLANE, (1, 6, 5)], ids=str)
@pytest.mark.promise("mass")
@pytest.mark.covering(0, in_all=1)
def test_the_mass_is_kept_over_a_thousand_steps(
    grid: Triple, boundaries: str, scheme: Scheme, backend: str
) -> None:
    setup = random_setup(grid, boundaries)
    if scheme.any_sign:
        setup = both_signs(setup)
    solver = Solver(setup, scheme, backend=backend)
    start = solver.psi.copy()
    assert drift(solver, STEPS) <= KEPT
    assert np.abs(solver.psi - start).max() > 0.1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gauge", ["standard", "infinite"])
@pytest.mark.covering(0)
def test_the_mass_is_kept_in_a_divergent_flow(gauge: str, backend: str) -> None:
    row = Combination("periodic", "NML", 2, True, gauge, True, True, "f8", "given")
    solver = Solver(rough(row, CUBE), row.scheme, backend=backend)
    start = solver.psi.copy()
    assert drift(solver, STEPS) <= KEPT
    assert np.abs(solver.psi - start).max() > 0.1


LIMITED = [
    Scheme(1),
    *(
        Scheme(iterations, True, gauge, third, divergent)
        for iterations, gauge in ((2, False), (2, True), (3, False), (3, True))
        for third in (False, True)
        for divergent in (False, third)
    ),
]
"""The divergent flow's term has nothing to add here, and must not undo the limiter."""


def bounds_broken(setup: Setup, scheme: Scheme, backend: str) -> float:
    """Return by how much psi leaves its first range within 20 steps."""
    solver = Solver(setup, scheme, backend=backend)
    first = [float(solver.psi.min()), float(solver.psi.max())]
    low, high = with_outside(setup.boundaries, min(first), max(first))
    worst = 0.0
    for _ in range(20):
        solver.advance(1)
        worst = max(worst, low - float(solver.psi.min()), float(solver.psi.max()) - high)
    return worst


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", LIMITED, ids=str)
@pytest.mark.parametrize("boundaries", KINDS)
@pytest.mark.parametrize("grid", [CUBE, PLANE, LINE], ids=str)
@pytest.mark.promise("bounds")
@pytest.mark.covering(1)
def test_the_limiter_makes_no_new_extremum_at_an_outgoing_sum_of_0_99(
    grid: Triple, boundaries: str, scheme: Scheme, backend: str
) -> None:
    setup = random_setup(grid, boundaries, seed=3)
    fields = [setup, *([both_signs(setup)] if scheme.any_sign else [])]
    assert max(bounds_broken(field, scheme, backend) for field in fields) <= ROUND_OFF


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", LIMITED, ids=str)
@pytest.mark.parametrize("boundaries", ["periodic", "wall", "open", "fixed:0"])
@pytest.mark.parametrize("grid", [CUBE, PLANE, LINE], ids=str)
@pytest.mark.promise("bounds")
@pytest.mark.covering(1)
def test_limited_psi_never_falls_below_zero_at_an_outgoing_sum_of_0_99(
    grid: Triple, boundaries: str, scheme: Scheme, backend: str
) -> None:
    setup = spikes(random_setup(grid, boundaries, seed=3))
    assert bounds_broken(setup, scheme, backend) <= ROUND_OFF


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("passes", "gauge"), [(2, False), (2, True), (3, False)])
@pytest.mark.parametrize("third", [False, True])
@pytest.mark.covering(1)
def test_without_the_limiter_there_are_new_extrema(
    passes: int, gauge: bool, third: bool, backend: str
) -> None:
    scheme = Scheme(passes, False, gauge, third)
    assert bounds_broken(random_setup(CUBE, seed=3), scheme, backend) > 0.01
    below = Scheme(2, False, infinite_gauge=True, third_order=third)
    assert bounds_broken(spikes(random_setup(CUBE, seed=3)), below, backend) > 0.01


def test_the_flow_of_the_bounds_is_the_fastest_allowed() -> None:
    found: Any = Solver(random_setup(CUBE, seed=3), Scheme(1), backend="numpy").flow
    inside = tuple(slice(1, 1 + n) for n in CUBE)
    total = np.zeros(CUBE)
    for axis in range(3):
        above = tuple(slice(1 + (a == axis), 1 + n + (a == axis)) for a, n in enumerate(CUBE))
        total += np.maximum(found.C[axis][above], 0) - np.minimum(found.C[axis][inside], 0)
    assert (total / found.h[inside]).max() == pytest.approx(0.99, rel=1e-12)
