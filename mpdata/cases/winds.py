"""Case ``winds``: a plume on observed winds in latitude and longitude.

Axis 0 is longitude (periodic), axis 1 latitude between +-75 degrees (walls) or, at an end that is a
pole, up to 90 degrees, axis 2 height (walls). The density is h = cos(latitude), so that h times the
cell's area in degrees is its area on the globe. Levels carry the first baroclinic mode: the
observed winds at the top, the same reversed at the bottom, cosine in between, so a column's
divergence adds up to nothing, and the vertical face values follow from the discrete continuity
equation, level by level.
"""

from __future__ import annotations

from math import cos, pi, radians
from typing import Any

import numpy as np

from mpdata.cases.setup import Array, Coordinate, Index, Setup
from mpdata.cases.windfile import Winds
from mpdata.errors import InputError
from mpdata.options import LATITUDE, Boundaries

EARTH_RADIUS_M = 6.371e6
EDGE_DEGREES = 75.0
"""Where the latitudes end that do not reach a pole."""

PLUME = (130.7, 31.6, 0.8)
"""Degrees east, degrees north, height: southern Japan, under the winter jet."""

PLUME_RADIUS = (14.0, 10.0, 0.35)
"""Where the plume ends, in degrees, degrees and height."""


def winds_case(
    grid: tuple[int, int, int],
    boundaries: Boundaries,
    winds: Winds,
    *,
    month: int,
    courant: float = 0.9,
    days: float = 10.0,
) -> Setup:
    """Return the case on the month's winds; time step from its own stability limit."""
    if grid[0] < 2 or grid[1] < 2 or grid[2] < 2:
        raise InputError(
            f"case winds needs at least 2 cells on every axis, got {' x '.join(map(str, grid))}"
        )
    south, north = (90.0 if end.kind == "pole" else EDGE_DEGREES for end in boundaries[LATITUDE])
    flow = _WindFlow(grid, winds, -south, north)
    plume = [
        _bell(flow.longitude, PLUME[0], PLUME_RADIUS[0], around=360.0),
        _bell(flow.latitude, PLUME[1], PLUME_RADIUS[1]),
        _bell(flow.height, PLUME[2], PLUME_RADIUS[2]),
    ]
    return Setup(
        "winds",
        grid,
        boundaries,
        initial=lambda i, j, k: plume[0][i] * plume[1][j] * plume[2][k],
        density=lambda i, j, k: flow.cosine[j],
        face=flow.face,
        extends=False,
        steps=None,
        courant=courant,
        duration=days * 86400.0,
        coordinates=(
            Coordinate("longitude", "degrees_east", flow.longitude),
            Coordinate("latitude", "degrees_north", flow.latitude),
            Coordinate("relative_height", "1", flow.height),
        ),
    )


class _WindFlow:
    """Face values per second on any block, between two latitudes in degrees."""

    def __init__(
        self, grid: tuple[int, int, int], winds: Winds, south: float, north: float
    ) -> None:
        n, m, levels = grid
        self.grid = grid
        self.winds = winds
        step = (north - south) / m
        self.longitude = (np.arange(n) + 0.5) * (360.0 / n)
        self.latitude = south + (np.arange(m) + 0.5) * step
        self.height = (np.arange(levels) + 0.5) / levels
        self.cosine = np.array([cos(radians(lat)) for lat in self.latitude])
        edges = south + np.arange(m + 1) * step
        self.cosine_edge = np.array([cos(radians(lat)) for lat in edges])
        # No flow through walls or poles.
        self.cosine_edge[0] = self.cosine_edge[m] = 0.0
        self.per_metre = (
            1 / (EARTH_RADIUS_M * radians(360.0 / n)),
            1 / (EARTH_RADIUS_M * radians(step)),
        )
        self.mode = _mode(levels)
        self.below = np.concatenate([[0.0], np.cumsum(self.mode)])
        self.below[levels] = 0.0
        at_lon_faces = _Weights(winds.longitude, np.arange(n) * (360.0 / n), around=360.0)
        at_lon_cells = _Weights(winds.longitude, self.longitude, around=360.0)
        at_lat_cells = _Weights(winds.latitude, self.latitude)
        at_lat_faces = _Weights(winds.latitude, edges)
        self.u_weights = (at_lon_faces, at_lat_cells)
        self.v_weights = (at_lon_cells, at_lat_faces)

    def face(self, axis: int, i: Index, j: Index, k: Index) -> Any:
        """Return G u / dx at faces, in 1/s."""
        if axis == 0:
            return self._east(i, j) * self.mode[k]
        if axis == 1:
            return self._north(i, j) * self.mode[k]
        spread = self._east(i + 1, j) - self._east(i, j) + self._north(i, j + 1) - self._north(i, j)
        return -spread * self.below[k]

    def _east(self, i: Index, j: Index) -> Array:
        u = _interpolate(self.winds.u, self.u_weights, i % self.grid[0], j)
        rate: Array = u * self.per_metre[0]
        return rate

    def _north(self, i: Index, j: Index) -> Array:
        v = _interpolate(self.winds.v, self.v_weights, i % self.grid[0], j)
        rate: Array = v * self.cosine_edge[j] * self.per_metre[1]
        return rate


class _Weights:
    """Linear interpolation from one axis to points: lower index, upper index, upper weight."""

    def __init__(self, source: Array, points: Array, around: float | None = None) -> None:
        upper = np.searchsorted(source, points, side="right")
        if around is None:
            upper = upper.clip(1, source.size - 1)
            self.low, self.high = upper - 1, upper
            span = source[self.high] - source[self.low]
            ahead = points - source[self.low]
        else:
            self.low, self.high = (upper - 1) % source.size, upper % source.size
            span = (source[self.high] - source[self.low]) % around
            ahead = (points - source[self.low]) % around
        self.weight = (ahead / span).clip(0.0, 1.0)


def _interpolate(values: Array, weights: tuple[_Weights, _Weights], i: Index, j: Index) -> Array:
    """Return values (lon, lat) at index pairs of the two weight tables, bilinearly."""
    x, y = weights
    p, q = x.weight[i], y.weight[j]
    south = values[x.low[i], y.low[j]] * (1 - p) + values[x.high[i], y.low[j]] * p
    north = values[x.low[i], y.high[j]] * (1 - p) + values[x.high[i], y.high[j]] * p
    between: Array = south * (1 - q) + north * q
    return between


def _mode(levels: int) -> Array:
    """Return the first baroclinic mode at level centres: -1 at the bottom to +1 at the top."""
    upper = [cos(pi * (k + 0.5) / levels) for k in range(levels // 2)]
    middle = [0.0] * (levels % 2)
    # Built from one half, so that it adds up to nothing exactly.
    return np.array([-value for value in upper] + middle + upper[::-1])


def _bell(points: Array, centre: float, radius: float, around: float | None = None) -> Array:
    """Return a cosine bell of height 1 that is exactly 0 from ``radius`` on."""
    distance = np.abs(points - centre)
    if around is not None:
        distance = np.minimum(distance, around - distance)
    return np.array([0.5 + 0.5 * cos(pi * d / radius) if d < radius else 0.0 for d in distance])
