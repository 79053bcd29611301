"""A case evaluated on its whole grid, and whole arrays as a case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.cases import Setup
from mpdata.cases.setup import open_mesh
from mpdata.options import Boundaries

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Whole:
    """psi and h (N, M, L); face values, each with one layer more along its own axis."""

    psi: Array
    h: Array
    c: tuple[Array, Array, Array]

    @property
    def active(self) -> list[int]:
        return [axis for axis in range(3) if self.psi.shape[axis] > 1]

    @property
    def divergence(self) -> Array:
        return sum((np.diff(self.c[a], axis=a) for a in self.active), np.zeros(self.psi.shape))


def evaluate(setup: Setup) -> Whole:
    """Evaluate a case on its whole grid, in one call for each array."""
    cells = [np.arange(n) for n in setup.grid]
    i, j, k = open_mesh(*cells)
    faces = []
    for axis in range(3):
        index = [np.arange(n + (a == axis)) for a, n in enumerate(setup.grid)]
        shape = [part.size for part in index]
        faces.append(filled(setup.face(axis, *open_mesh(*index)), shape))
    return Whole(
        filled(setup.initial(i, j, k), setup.grid),
        filled(setup.density(i, j, k), setup.grid),
        (faces[0], faces[1], faces[2]),
    )


def filled(values: Any, shape: Sequence[int]) -> Array:
    """Return values broadcast to a shape, as float64."""
    return np.array(np.broadcast_to(np.asarray(values, np.float64), shape))


def as_setup(whole: Whole, boundaries: Boundaries, courant: float | None = None) -> Setup:
    """Return the case of whole arrays."""
    n, m, el = whole.psi.shape
    return Setup(
        "arrays",
        (n, m, el),
        boundaries,
        initial=lambda i, j, k: whole.psi[i, j, k],
        density=lambda i, j, k: whole.h[i, j, k],
        face=lambda axis, i, j, k: whole.c[axis][i, j, k],
        extends=False,
        steps=1,
        courant=courant,
    )
