"""Solid-body rotation of a sphere: the bell of Williamson et al., the cone of Jaruga et al.

Axis 0 is longitude (periodic), axis 1 latitude from pole to pole. The density is the mean cosine of
the latitude in a cell, and face values are differences of the stream function between the corners
of cells: so the flow is free of divergence to round-off on any grid, and what flows through a face
is exact. After one turn the field is to be the initial one.
"""

from __future__ import annotations

from math import cos, fsum, pi, radians, sin, sqrt
from typing import Any

import numpy as np

from mpdata.cases.setup import Array, Coordinate, Index, Setup, Sums
from mpdata.errors import InputError
from mpdata.options import LATITUDE, LONGITUDE, Boundaries

Grid = tuple[int, int, int]

DAYS = 12.0
"""The bell's time for one turn."""

BELL_METRES = 1000.0
BELL_RADIUS = 1 / 3
"""Of the sphere's radius."""

CONE_CELLS = 7
"""The cone's radius in cells of longitude."""

CONE_STEPS = 5248
"""The source takes 5120, where the outgoing Courant numbers beside the poles add up to 1.018."""

CENTRE = 1.5 * pi, 0.0
"""Longitude and latitude of the centre of the bell and of the cone."""


class _Rotation:
    """The sphere's grid, and a rotation by one radian about an axis tilted by some degrees.

    Args:
        grid: cells.
        degrees: between the axes of the rotation and of the sphere.
        west: of the first meridian between cells, in cells.
    """

    def __init__(self, grid: Grid, degrees: float, west: float) -> None:
        around, rows, _ = grid
        self.width, self.height = 2 * pi / around, pi / rows
        meridians = (np.arange(around + 1) + west) * self.width
        parallels = np.arange(rows + 1) * self.height - pi / 2
        self.longitude = meridians[:-1] + 0.5 * self.width
        self.latitude = parallels[:-1] + 0.5 * self.height
        self._sine, self._cosine = np.sin(parallels), np.cos(parallels)
        self._cosine[[0, -1]] = 0.0
        self._meridian = np.cos(meridians)
        self._meridian[-1] = self._meridian[0]
        tilt = radians(degrees)
        self._upright, self._tilted = cos(tilt), sin(tilt)
        self.density = np.diff(self._sine) / self.height

    def _stream(self, i: Index, j: Index) -> Array:
        """Return the stream function at corners of cells, less what is west of it southwards."""
        stream: Array = (
            self._upright * self._sine[j] - self._tilted * self._meridian[i] * self._cosine[j]
        )
        return stream

    def face(self, axis: int, i: Index, j: Index, k: Index) -> Any:
        """Return the face values of a turn by one radian."""
        over = self.width * self.height
        if axis == LONGITUDE:
            return (self._stream(i, j + 1) - self._stream(i, j)) / over
        if axis == LATITUDE:
            return (self._stream(i, j) - self._stream(i + 1, j)) / over
        return np.zeros((1, 1, 1))

    def half_chord_squared(self, shrink: Array) -> Array:
        """Return the square of half the chord from each cell to the centre, on the whole grid.

        ``shrink`` is what the latitude makes of the square of half a chord along a parallel.
        """
        longitude, latitude = CENTRE
        across = np.sin(0.5 * (self.longitude - longitude)) ** 2
        along = np.sin(0.5 * (self.latitude - latitude)) ** 2
        chord: Array = across[:, None] * shrink + along
        return chord

    def coordinates(self, levels: int) -> tuple[Coordinate, Coordinate, Coordinate]:
        """Return the coordinates of the cells."""
        return (
            Coordinate("longitude", "degrees_east", np.degrees(self.longitude)),
            Coordinate("latitude", "degrees_north", np.degrees(self.latitude)),
            Coordinate("z", "1", np.arange(levels, dtype=np.float64)),
        )


def bell(grid: Grid, boundaries: Boundaries, degrees: float, courant: float) -> Setup:
    """Return test case 1 of Williamson et al. 1992: a cosine bell, once around the sphere.

    The number of steps follows from the stability limit. Norms are those of the source
    (equations 82 to 84), weighted by area and divided by those of the exact answer.
    """
    sphere = _on_sphere("bell", grid, boundaries, degrees)
    # The centre is at the equator, whose cosine is 1.
    chord = sphere.half_chord_squared(np.cos(sphere.latitude))
    distance = 2 * np.arcsin(np.sqrt(chord.clip(0.0, 1.0)))
    inside = distance < BELL_RADIUS
    bell = np.where(inside, 0.5 * BELL_METRES * (1 + np.cos(pi / BELL_RADIUS * distance)), 0.0)
    weights = sphere.density * grid[2]
    absolute, squared = fsum((weights * bell).ravel()), fsum((weights * bell * bell).ravel())
    highest = float(bell.max())

    def norms(sums: Sums) -> dict[str, float]:
        return {
            "l1": sums.absolute_by_density / absolute,
            "l2": sqrt(sums.squared_by_density / squared),
            "linf": sums.largest / highest,
        }

    return Setup(
        "bell",
        grid,
        boundaries,
        lambda i, j, k: bell[i, j],
        lambda i, j, k: sphere.density[j],
        lambda axis, i, j, k: sphere.face(axis, i, j, k) * (2 * pi / (DAYS * 86400.0)),
        extends=False,
        steps=None,
        courant=courant,
        duration=DAYS * 86400.0,
        exact=lambda i, j, k: bell[i, j],
        norms=norms,
        coordinates=sphere.coordinates(grid[2]),
    )


def cone_over_poles(grid: Grid, boundaries: Boundaries) -> Setup:
    """Return the test of Jaruga et al. 2015 (after Williamson and Rasch 1989): a cone over poles.

    ``l2`` is err0 of the source: the root of the mean square error by area, times the root of
    4 pi, over the highest initial value.
    """
    sphere = _on_sphere("cone-over-poles", grid, boundaries, -90.0, west=-0.5)
    radius = CONE_CELLS * sphere.width
    # As the source has it, with the square of the cosine.
    distance = np.sqrt(2 * sphere.half_chord_squared(np.cos(sphere.latitude) ** 2))
    cone = np.where(distance <= radius, 1 - distance / radius, 0.0)
    highest = float(cone.max())
    area = sphere.width * sphere.height / grid[2]

    def norms(sums: Sums) -> dict[str, float]:
        return {"l2": sqrt(sums.squared_by_density * area) / highest}

    return Setup(
        "cone-over-poles",
        grid,
        boundaries,
        lambda i, j, k: cone[i, j],
        lambda i, j, k: sphere.density[j],
        lambda axis, i, j, k: sphere.face(axis, i, j, k) * (2 * pi / CONE_STEPS),
        extends=False,
        steps=CONE_STEPS,
        exact=lambda i, j, k: cone[i, j],
        norms=norms,
        coordinates=sphere.coordinates(grid[2]),
    )


def _on_sphere(
    case: str, grid: Grid, boundaries: Boundaries, degrees: float, west: float = 0.0
) -> _Rotation:
    """Return the rotation on a grid that covers the sphere.

    Raises:
        InputError: the grid does not.
    """
    if grid[LONGITUDE] < 2 or grid[LATITUDE] < 2:
        raise InputError(
            f"case {case} needs at least 2 cells along axes 0 and 1, got "
            f"{' x '.join(map(str, grid))}"
        )
    if str(boundaries[LATITUDE]) != "pole":
        raise InputError(
            f"case {case} is on a whole sphere; expected pole at both ends of axis 1, got "
            f"{boundaries[LATITUDE]}"
        )
    return _Rotation(grid, degrees, west)
