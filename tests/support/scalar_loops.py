"""MPDATA as plain loops over a small periodic grid, written from the formulas alone.

Derivatives and means are taken one by one as they stand in the docstrings of
:mod:`mpdata.numerics.reference`. ``c[a][cell]`` is the face between a cell and the one below it
along axis a.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import numpy.typing as npt
from whole_grids import Whole

from mpdata.options import Scheme

Array = npt.NDArray[np.float64]
Cell = tuple[int, int, int]

EPS = 1e-15


def cells(shape: tuple[int, ...]) -> Iterator[Cell]:
    n, m, el = shape
    yield from product(range(n), range(m), range(el))


def lower_faces(whole: Whole) -> list[Array]:
    """Return the faces below every cell, one for each cell."""
    n, m, el = whole.psi.shape
    return [c[:n, :m, :el] for c in whole.c]


class Loops:
    """Scalar MPDATA on a periodic grid."""

    def __init__(self, whole: Whole, scheme: Scheme) -> None:
        self.shape = whole.psi.shape
        self.h = whole.h
        self.axes = whole.active
        self.scheme = scheme

    def at(self, cell: Cell, *moves: tuple[int, int]) -> Cell:
        """Return a cell moved along axes, around the edges."""
        place = list(cell)
        for axis, by in moves:
            place[axis] = (place[axis] + by) % self.shape[axis]
        return place[0], place[1], place[2]

    def upwind_flux(self, psi: Array, c: Array, a: int, cell: Cell) -> float:
        """Return what flows up through the face below a cell."""
        speed = float(c[cell])
        return speed * float(psi[self.at(cell, (a, -1))] if speed > 0 else psi[cell])

    def corrective_flux(self, psi: Array, v: Array, a: int, cell: Cell) -> float:
        """The same of a pseudo-velocity, which in the infinite gauge is a flux."""
        if self.scheme.infinite_gauge:
            return float(v[cell])
        return self.upwind_flux(psi, v, a, cell)

    def donor_cell(self, psi: Array, c: list[Array], *, corrective: bool = False) -> Array:
        flux = self.corrective_flux if corrective else self.upwind_flux
        new = np.empty_like(psi)
        for cell in cells(psi.shape):
            gain = 0.0
            for a in self.axes:
                gain += flux(psi, c[a], a, cell) - flux(psi, c[a], a, self.at(cell, (a, 1)))
            new[cell] = psi[cell] + gain / self.h[cell]
        return new

    def per_psi(self, derivative: float, around: list[float]) -> float:
        """Return a derivative over the mean psi of the cells it is made of, or over 1."""
        if self.scheme.infinite_gauge:
            return derivative
        return derivative / ((sum(around) + EPS) / len(around))

    def mean_speed(self, c: list[Array], e: int, below: Cell, cell: Cell) -> float:
        """Return Cbar_e at the face between two cells: the mean of their four faces normal to e."""
        faces = (below, self.at(below, (e, 1)), cell, self.at(cell, (e, 1)))
        return sum(float(c[e][face]) for face in faces) / 4

    def divergence(self, c: list[Array], cell: Cell) -> float:
        return sum(float(c[a][self.at(cell, (a, 1))] - c[a][cell]) for a in self.axes)

    def pseudo_velocity(self, psi: Array, c: list[Array], a: int, *, first: bool = True) -> Array:
        """Return V normal to ``a``; third-order and divergent-flow terms in the first pass."""
        found = np.empty_like(psi)
        for cell in cells(psi.shape):
            value = self.second_order(psi, c, a, cell)
            if first and self.scheme.third_order:
                value += self.third_order(psi, c, a, cell)
            if first and self.scheme.divergent_flow:
                value += self.divergent_flow(psi, c, a, cell)
            found[cell] = value
        return found

    def second_order(self, psi: Array, c: list[Array], a: int, cell: Cell) -> float:
        """(|C| - C^2/Gbar) A - C/(2 Gbar) sum over e of Cbar_e B_e.

        A is half the derivative along a per psi, B_e the one along e.
        """
        below = self.at(cell, (a, -1))
        speed, g = float(c[a][cell]), 0.5 * (self.h[below] + self.h[cell])
        left, right = float(psi[below]), float(psi[cell])
        value = (abs(speed) - speed**2 / g) * self.per_psi((right - left) / 2, [left, right])
        for e in self.axes:
            if e == a:
                continue
            upper = [float(psi[self.at(place, (e, 1))]) for place in (below, cell)]
            lower = [float(psi[self.at(place, (e, -1))]) for place in (below, cell)]
            slope = (sum(upper) / 2 - sum(lower) / 2) / 2
            mean = self.mean_speed(c, e, below, cell)
            value -= speed / (2 * g) * mean * self.per_psi(slope, upper + lower)
        return float(value)

    def third_order(self, psi: Array, c: list[Array], a: int, cell: Cell) -> float:
        """(3 C|C|/G - 2 C^3/G^2 - C)/6 psi_aa + sum_e Cbar_e (|C| - 2 C^2/G)/(2 G) psi_ae
        - 2/3 C Cbar_e Cbar_f/G^2 psi_ef, all per psi.
        """
        below = self.at(cell, (a, -1))
        speed, g = float(c[a][cell]), 0.5 * (self.h[below] + self.h[cell])
        row = [float(psi[self.at(cell, (a, by))]) for by in (-2, -1, 0, 1)]
        # Second derivatives at the two cells of the face, and their mean.
        curve = ((row[0] - 2 * row[1] + row[2]) + (row[1] - 2 * row[2] + row[3])) / 2
        factor = (3 * speed * abs(speed) / g - 2 * speed**3 / g**2 - speed) / 6
        value = factor * self.per_psi(curve, row)
        others = [e for e in self.axes if e != a]
        means = {e: self.mean_speed(c, e, below, cell) for e in others}
        for e in others:
            corners = {
                (x, y): float(psi[self.at(place, (e, y))])
                for x, place in ((0, below), (1, cell))
                for y in (-1, 1)
            }
            upper, lower = corners[1, 1] - corners[0, 1], corners[1, -1] - corners[0, -1]
            factor = means[e] * (abs(speed) - 2 * speed**2 / g) / (2 * g)
            value += factor * self.per_psi((upper - lower) / 2, list(corners.values()))
        if len(others) == 2:
            e, f = others
            mixed, around = 0.0, []
            for place, y, z in product((below, cell), (-1, 1), (-1, 1)):
                there = float(psi[self.at(place, (e, y), (f, z))])
                mixed += y * z * there / 4 / 2
                around.append(there)
            value -= 2 / 3 * speed * means[e] * means[f] / g**2 * self.per_psi(mixed, around)
        return float(value)

    def divergent_flow(self, psi: Array, c: list[Array], a: int, cell: Cell) -> float:
        """-C/(2 G) div C at the face; times psi where V is a flux."""
        below = self.at(cell, (a, -1))
        g = 0.5 * (self.h[below] + self.h[cell])
        divergence = (self.divergence(c, below) + self.divergence(c, cell)) / 2
        value = -float(c[a][cell]) / (2 * g) * divergence
        if self.scheme.infinite_gauge:
            value *= (float(psi[below]) + float(psi[cell])) / 2
        return float(value)

    def betas(self, before: Array, psi: Array, v: list[Array]) -> tuple[Array, Array]:
        """Return the shares of inflow and outflow that make no new extremum."""
        up, down = np.empty_like(psi), np.empty_like(psi)
        for cell in cells(psi.shape):
            around = [self.at(cell, (a, by)) for a in self.axes for by in (-1, 1)] + [cell]
            known = [float(field[at]) for field in (before, psi) for at in around]
            inflow = outflow = 0.0
            for a in self.axes:
                below = self.corrective_flux(psi, v[a], a, cell)
                above = self.corrective_flux(psi, v[a], a, self.at(cell, (a, 1)))
                inflow += max(below, 0.0) + max(-above, 0.0)
                outflow += max(-below, 0.0) + max(above, 0.0)
            up[cell] = (max(known) - psi[cell]) * self.h[cell] / (inflow + EPS)
            down[cell] = (psi[cell] - min(known)) * self.h[cell] / (outflow + EPS)
        return up, down

    def limited(self, before: Array, psi: Array, v: list[Array]) -> list[Array]:
        up, down = self.betas(before, psi, v)
        found = [values.copy() for values in v]
        for a in self.axes:
            for cell in cells(psi.shape):
                below = self.at(cell, (a, -1))
                rising = min(1.0, down[below], up[cell])
                falling = min(1.0, up[below], down[cell])
                upwards = self.corrective_flux(psi, v[a], a, cell) > 0
                found[a][cell] *= rising if upwards else falling
        return found

    def step(self, before: Array, c: list[Array]) -> Array:
        psi = self.donor_cell(before, c)
        iterations = self.scheme.iterations
        # A third pass of the infinite gauge has nothing left to correct.
        for number in range(
            min(iterations, 2) - 1 if self.scheme.infinite_gauge else iterations - 1
        ):
            v = [
                self.pseudo_velocity(psi, c, a, first=number == 0) if a in self.axes else psi
                for a in range(3)
            ]
            if self.scheme.limiter:
                v = self.limited(before, psi, v)
            psi, c = self.donor_cell(psi, v, corrective=True), v
        return psi
