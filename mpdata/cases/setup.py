"""What a case is: functions of global indices, so that a block can be built anywhere.

A block of a rank is evaluated from its own global indices, never gathered or scattered. To keep
a cell's bits the same for every decomposition, transcendental functions are only ever taken on
whole 1D tables (vector units may round the tail of an array differently) and combined by
``+ - * /``, which are exact about it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpdata.options import Boundaries, check_poles

Array = npt.NDArray[np.floating[Any]]
Index = npt.NDArray[np.int64]
CellFunction = Callable[[Index, Index, Index], Any]
FaceFunction = Callable[[int, Index, Index, Index], Any]
LevelFunction = Callable[[int, int, Index, Index, Index], Any]
TimeFunction = Callable[[int, float, Index, Index, Index], Any]


@dataclass(frozen=True)
class Coordinate:
    """Cell centres along one axis, for output files."""

    name: str
    units: str
    values: Array


@dataclass(frozen=True)
class TimeLevels:
    """A flow known at some times, linear between them.

    Attributes:
        times: in steps, rising, two at least; the step from n to n + 1 takes n + 1/2.
        face: face values of (axis, number of the level) on an open mesh of global indices.
    """

    times: tuple[float, ...]
    face: LevelFunction


@dataclass(frozen=True)
class Setup:
    """One case, ready to be evaluated block by block.

    Attributes:
        case: name.
        grid: cells (N, M, L).
        boundaries: what lies outside.
        initial: psi at cells, from open-mesh global indices of shapes (n,1,1), (1,m,1), (1,1,l).
        density: h at cells, likewise.
        face: face values normal to an axis, likewise; per unit of ``scale``.
        extends: whether ``face`` is defined outside the grid too.
        steps: time steps; None where they follow from ``duration`` once the scale is known.
        courant: if not None, face values are scaled so that the largest outgoing sum over h is
            this; if None they are used as they are.
        duration: time to cover in the unit of which ``face`` is a rate (then scale is dt).
        exact: the answer after ``steps``, if known.
        norms: error norms from the difference to ``exact`` summed over cells.
        coordinates: for output files.
        identity: what else decides the answer (seed, wind file, ...): a checkpoint of another is
            not continued.
        time_levels: if not None, face values at some times instead of ``face``.
        face_at: if not None, face values of (axis, time in steps) instead of ``face``: evaluated
            at n + 1/2 for the step from n to n + 1. Either needs ``courant`` and ``duration``
            None.
        further_tracers: psi at cells of the second and any further tracer, as ``initial`` for
            the first.
        single: whether the fields come from a float32 file.

    Raises:
        InputError: poles that the grid cannot have.
    """

    case: str
    grid: tuple[int, int, int]
    boundaries: Boundaries
    initial: CellFunction
    density: CellFunction
    face: FaceFunction
    extends: bool
    steps: int | None
    courant: float | None = None
    duration: float | None = None
    exact: CellFunction | None = None
    norms: Callable[[Sums], dict[str, float]] | None = None
    coordinates: tuple[Coordinate, Coordinate, Coordinate] | None = None
    identity: tuple[tuple[str, str], ...] = ()
    time_levels: TimeLevels | None = None
    face_at: TimeFunction | None = None
    further_tracers: tuple[CellFunction, ...] = ()
    single: bool = False

    def __post_init__(self) -> None:
        check_poles(self.grid, self.boundaries)

    @property
    def tracers(self) -> dict[str, CellFunction]:
        """The initial field of every tracer by its name: psi, psi2, psi3, ..."""
        fields = (self.initial, *self.further_tracers)
        return dict(zip(tracer_names(len(fields)), fields, strict=True))


@dataclass(frozen=True)
class Sums:
    """Sums over all cells of the difference e between the answer and the exact one.

    ``absolute`` is of |e|, ``squared`` of e^2; those ``by_density`` are of h |e| and h e^2.
    """

    cells: int
    absolute: float
    squared: float
    largest: float
    absolute_by_density: float
    squared_by_density: float


def tracer_names(count: int) -> list[str]:
    """Return psi, psi2, ..., the names of so many tracers in files and reports."""
    return ["psi", *(f"psi{number}" for number in range(2, count + 1))]


def open_mesh(i: Index, j: Index, k: Index) -> tuple[Index, Index, Index]:
    """Return the three index vectors shaped to broadcast against each other."""
    return i[:, None, None], j[None, :, None], k[None, None, :]


def fingerprint(path: Path) -> str:
    """Return a short hash that tells files apart: of their size, first and last MiB."""
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(str(size).encode() + file.read(1 << 20))
        file.seek(max(0, size - (1 << 20)))
        digest.update(file.read())
    return digest.hexdigest()[:16]


def unit_density(i: Index, j: Index, k: Index) -> float:
    """Density 1 everywhere."""
    return 1.0
