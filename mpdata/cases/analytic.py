"""Cases with formulas: translation, rotation, and the published ones."""

from __future__ import annotations

from math import erf, pi, sqrt
from typing import Any

import numpy as np

from mpdata.cases.setup import Array, Coordinate, Index, Setup, Sums, unit_density
from mpdata.errors import InputError
from mpdata.options import Boundaries

Grid = tuple[int, int, int]


def sphere(grid: Grid, boundaries: Boundaries) -> Setup:
    """Revolving sphere of Jaruga et al. 2015 (section 4.3): one turn in 556 steps at 59^3."""
    dx = 100 / (grid[0] - 1) if grid[0] > 1 else 100.0
    dt = 0.018 * 2 * pi
    factor = 0.1 / sqrt(3) * dt / dx
    offset = 25 / sqrt(3)
    centre = (50 - offset, 50 + offset, 50 + offset)

    def initial(i: Index, j: Index, k: Index) -> Any:
        square = sum((n * dx - c) ** 2 for n, c in zip((i, j, k), centre, strict=True))
        return np.where(square <= 225.0, 4.0, 0.0)

    def face(axis: int, i: Index, j: Index, k: Index) -> Any:
        # The component normal to an axis does not depend on the coordinate along it.
        x, y, z = (n * dx - 50 for n in (i, j, k))
        return factor * ((z - y), (x - z), (y - x))[axis]

    def norms(sums: Sums) -> dict[str, float]:
        time = 556 * dt
        return {
            "l1": sums.absolute / sums.cells / time,
            "l2": sqrt(sums.squared / sums.cells) / time,
            "linf": sums.largest,
        }

    return Setup(
        "sphere",
        grid,
        boundaries,
        initial,
        unit_density,
        face,
        extends=True,
        steps=556,
        exact=initial,
        norms=norms,
        coordinates=_axes(grid, dx, "1"),
    )


def cone(grid: Grid, boundaries: Boundaries) -> Setup:
    """Rotating cone in 2D (Jaruga et al. 2015, section 4.2): six turns in 3768 steps at 101^2."""

    def initial(i: Index, j: Index, k: Index) -> Any:
        square = (i - 50.0) ** 2 + (j - 75.0) ** 2 + 0.0 * k
        height = 4 - np.sqrt(square / (15 / 4) ** 2)
        return 1 + np.where(square <= 225.0, np.maximum(height, 0), 0.0)

    def face(axis: int, i: Index, j: Index, k: Index) -> Any:
        return (0.01 * (j - 50.0), -0.01 * (i - 50.0), np.zeros((1, 1, 1)))[axis]

    def norms(sums: Sums) -> dict[str, float]:
        return {"rms": sqrt(sums.squared / sums.cells) / 376.8}

    return Setup(
        "cone",
        grid,
        boundaries,
        initial,
        unit_density,
        face,
        extends=True,
        steps=3768,
        exact=initial,
        norms=norms,
        coordinates=_axes(grid, 1.0, "1"),
    )


def convergence_1d(grid: Grid, boundaries: Boundaries, courant: float = 0.5) -> Setup:
    """Translated Gaussian in 1D (Jaruga et al. 2015, section 4.1): unit speed for unit time."""
    cells = grid[0]
    dx = 440 / cells
    steps = max(1, round(1 / (courant * dx)))
    time = steps * courant * dx

    def averaged(shift: float) -> Array:
        edges = [(n - 0.5) * dx - 220 - shift for n in range(cells + 1)]
        step = np.array([erf(x / 1.5 / sqrt(2)) for x in edges])
        mean: Array = (step[1:] - step[:-1]) / (2 * dx)
        return mean

    start, end = averaged(0.0), averaged(time)

    def norms(sums: Sums) -> dict[str, float]:
        return {"l2": sqrt(sums.squared / sums.cells) / time}

    return Setup(
        "convergence-1d",
        grid,
        boundaries,
        lambda i, j, k: start[i],
        unit_density,
        lambda axis, i, j, k: np.full((1, 1, 1), courant if axis == 0 else 0.0),
        extends=True,
        steps=steps,
        exact=lambda i, j, k: end[i],
        norms=norms,
        coordinates=_axes(grid, dx, "1"),
    )


def periodic_3x3(grid: Grid, boundaries: Boundaries, variant: str = "a") -> Setup:
    """One step of one marked cell on 3 x 3 cells (Arabas et al. 2014, doi 10.3233/SPR-140379)."""
    courant, mark = {"a": ((0.1, 0.5), (2, 2)), "b": ((0.2, 0.2), (1, 1))}[variant]

    def initial(i: Index, j: Index, k: Index) -> Any:
        return np.where((i == mark[0]) & (j == mark[1]), 1.0, 0.0)

    return Setup(
        "periodic-3x3" if variant == "a" else "periodic-3x3-b",
        grid,
        boundaries,
        initial,
        unit_density,
        lambda axis, i, j, k: np.full((1, 1, 1), (*courant, 0.0)[axis]),
        extends=True,
        steps=1,
        coordinates=_axes(grid, 1.0, "1"),
    )


def gaussian(grid: Grid, boundaries: Boundaries, courant: float = 0.6) -> Setup:
    """A Gaussian that crosses the periodic box along its diagonal and comes back."""
    active = [axis for axis in range(3) if grid[axis] > 1]
    share = courant / max(1, len(active))
    longest = max(grid)
    tables = [
        np.exp(-0.5 * (((np.arange(n) + 0.5) / n - 0.5) / 0.1) ** 2) if n > 1 else np.ones(1)
        for n in grid
    ]

    def initial(i: Index, j: Index, k: Index) -> Any:
        return 1 + tables[0][i] * tables[1][j] * tables[2][k]

    back = len({grid[axis] for axis in active}) == 1 and all(
        boundaries[axis].periodic for axis in active
    )
    steps = max(1, round(longest / share))

    def norms(sums: Sums) -> dict[str, float]:
        rms = sqrt(sums.squared / sums.cells)
        return {"l1": sums.absolute / sums.cells, "rms": rms, "linf": sums.largest}

    returns = back and abs(steps * share - longest) < 1e-9 * longest
    return Setup(
        "gaussian",
        grid,
        boundaries,
        initial,
        unit_density,
        lambda axis, i, j, k: np.full((1, 1, 1), share),
        extends=True,
        steps=steps,
        exact=initial if returns else None,
        norms=norms if returns else None,
        coordinates=_axes(grid, 1.0 / longest, "1"),
    )


def _axes(grid: Grid, dx: float, units: str) -> tuple[Coordinate, Coordinate, Coordinate]:
    x, y, z = (
        Coordinate(name, units, np.arange(n) * dx) for name, n in zip("xyz", grid, strict=True)
    )
    return x, y, z


def fixed_courant(case: str, courant: float | None) -> None:
    """Refuse a Courant number where the case states its own."""
    if courant is not None:
        raise InputError(
            f"case {case} fixes its own Courant numbers; expected no --courant, got {courant:g}"
        )
