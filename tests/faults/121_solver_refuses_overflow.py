"""`Solver` made NaN of 1e30 in float32 and of 1.7e308 in float64, which `mpdata run` refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpdata import Scheme, Setup, Solver, parse_boundaries
from mpdata.errors import InputError

GRID = (8, 8, 32)
INFINITE = Scheme(infinite_gauge=True)


def solver(value: float, dtype: str, scheme: Scheme, boundary: str = "periodic") -> Solver:
    psi = np.zeros(GRID)
    psi[2:5, 2:5, 2:9] = value

    def face(axis: int, *_: Any) -> float:
        return (0.4, 0.3, 0.2)[axis]

    boundaries = parse_boundaries(boundary)
    setup = Setup("box", GRID, boundaries, lambda *_: psi, lambda *_: 1.0, face, True, None)
    return Solver(setup, scheme, dtype, "numba")


@pytest.mark.parametrize(
    ("dtype", "value", "scheme"),
    [
        ("f4", 1e30, Scheme()),
        ("f4", 1.1e12, Scheme()),
        ("f4", 1e300, Scheme()),
        ("f8", 1.7e308, Scheme()),
        ("f8", 1e103, Scheme()),
        ("f4", 1e30, INFINITE),
        ("f8", 1e200, INFINITE),
        ("f8", 1.7e308, Scheme(1)),
    ],
)
def test_a_range_that_overflows_is_refused(dtype: str, value: float, scheme: Scheme) -> None:
    with pytest.raises(InputError, match=r"^expected (\|psi\| of at most|finite numbers in psi)"):
        solver(value, dtype, scheme)


def test_values_outside_the_grid_count() -> None:
    with pytest.raises(InputError, match=r"\|psi\| of at most 1e\+100 in f8"):
        solver(1.0, "f8", Scheme(), "fixed:1e103")


@pytest.mark.parametrize(
    ("dtype", "value", "scheme"),
    [("f4", 1e12, Scheme()), ("f8", 1e100, Scheme()), ("f8", 1e150, INFINITE)],
)
def test_the_largest_range_stays_finite(dtype: str, value: float, scheme: Scheme) -> None:
    large, small = solver(value, dtype, scheme), solver(1.0, dtype, scheme)
    for each in (large, small):
        each.advance(3)
    error = np.abs(large.psi / value - small.psi).max()
    assert error < 16 * np.finfo(dtype).eps
