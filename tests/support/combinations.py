"""Every combination of options, boundary, grid and type, or few that cover all pairs.

Rough fields: psi, h and every face value are random, so the flow diverges everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from pairwise import Row, covering_array
from whole_grids import Whole, as_setup

from mpdata.cases import Setup
from mpdata.options import Scheme, parse_boundaries

Triple = tuple[int, int, int]

# Active axes rather than extents: tests on many ranks need larger grids than others.
FACTORS: dict[str, tuple[object, ...]] = {
    "boundary": (
        *("periodic", "open", "wall", "fixed:1.5", "periodic,wall,open"),
        "fixed:1.5/wall,open/fixed:0.7,wall/open",
        "periodic,pole,wall",
        "periodic,pole/open,fixed:1.5/wall",
    ),
    "axes": ("NML", "NM", "NL", "ML", "N"),
    "iterations": (2, 3, 1),
    "limiter": (True, False),
    "gauge": ("standard", "infinite"),
    "third_order": (True, False),
    "divergent_flow": (True, False),
    "dtype": ("f8", "f4"),
    "density": ("given", "unit"),
}


def shows(row: Row, a: str, b: str) -> bool:
    """Return whether a row puts a pair of factors to the test.

    One pass uses none of the options, so it shows only its own pairs; and of three passes in the
    infinite gauge two are computed, which shows their own pair and nothing else of three.
    """
    both = {a, b}
    if row.get("iterations") == 1:
        return "iterations" in both
    if row.get("iterations") == 3 and row.get("gauge") == "infinite":
        return "iterations" not in both or both == {"iterations", "gauge"}
    return True


@dataclass(frozen=True)
class Combination:
    """One row."""

    boundary: str
    axes: str
    iterations: int
    limiter: bool
    gauge: str
    third_order: bool
    divergent_flow: bool
    dtype: str
    density: str

    @property
    def scheme(self) -> Scheme:
        return Scheme(
            self.iterations,
            self.limiter,
            self.gauge == "infinite",
            self.third_order,
            self.divergent_flow,
        )

    def grid(self, extents: Triple) -> Triple:
        """Return the extents with those of inactive axes 1, and whole circles around poles."""
        n, m, el = (e if name in self.axes else 1 for name, e in zip("NML", extents, strict=True))
        return n + n % 2 if self.polar else n, m, el

    @property
    def polar(self) -> bool:
        """Whether the grid has a pole."""
        return "pole" in self.boundary and "M" in self.axes

    def __str__(self) -> str:
        options = [
            word
            for said, word in (
                (self.limiter, "limiter"),
                (self.gauge == "infinite", "infinite"),
                (self.third_order, "third"),
                (self.divergent_flow, "divergent"),
            )
            if said
        ]
        density = f"{self.density}-h"
        return " ".join(
            [self.dtype, self.axes, self.boundary, density, f"{self.iterations}-passes", *options]
        )


def covering() -> list[Combination]:
    """Return rows that cover all pairs."""
    return [Combination(**row) for row in covering_array(FACTORS, shows)]  # type: ignore[arg-type]


def every() -> Iterator[Combination]:
    """Yield all combinations."""
    for values in product(*FACTORS.values()):
        yield Combination(**dict(zip(FACTORS, values, strict=True)))  # type: ignore[arg-type]


def rough(row: Combination, extents: Triple, *, signs: bool = False, seed: int = 1) -> Setup:
    """Return random fields scaled to an outgoing sum of 0.9; ``signs``: psi of either sign."""
    grid = row.grid(extents)
    rng = np.random.default_rng([seed, *grid])
    psi = rng.uniform(-1.5 if signs else 0.5, 2.0, grid)
    h = rng.uniform(0.8, 1.2, grid) if row.density == "given" else np.ones(grid)
    faces = []
    boundaries = parse_boundaries(row.boundary)
    for axis in range(3):
        shape = [n + (a == axis) for a, n in enumerate(grid)]
        c = rng.uniform(-1, 1, shape)
        if boundaries[axis].periodic:
            layers = c.swapaxes(0, axis)
            layers[-1] = layers[0]
        faces.append(c)
    return as_setup(Whole(psi, h, (faces[0], faces[1], faces[2])), boundaries, courant=0.9)
