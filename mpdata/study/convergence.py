"""Orders of convergence of every combination of options, measured over three resolutions.

Four problems with an exact solution. In each, psi = (b + prod_a f(X_a(x_a) - s_a t)) / (h
prod_a u_a / s_a) is exact for the separable velocities u_a = s_a / (dX_a / dx_a): with the
product q = h psi prod_a u_a the transport equation becomes dq/dt + sum_a u_a dq/dx_a = 0, and
X_a - s_a t is constant along its characteristics. X_a = x_a is the constant flow.

Required are 0.9 of the donor-cell scheme and 1.9 of a corrected one (S84, SM98); with
third-order terms (MS98, W18) 2.8 in a constant flow, in the infinite gauge or with three passes:
two passes of the standard gauge leave an error of second order, that of their one corrective
donor-cell flux. In a divergent flow 1.9 is required with the term of such flows; the runs without
it are controls, which must stay near the first order, or the problem would not tell.

The limiter cuts off smooth extrema too. So of a limited scheme 1.9 is required in the mean error
(L1) where there are extrema, and the whole order of the unlimited one, in L2, on fronts that have
none. Known limit, not seen in 3D on these cells: what the term of divergent flows corrects is a
difference of two fluxes that are each of the order of psi dx, and the limiter bounds each by the
differences of psi around. So it takes most of the term away wherever psi varies less than the
flow, and around such extrema a limited scheme does not converge as it should (in 1D:
tests/contract/test_orders.py).

Sources are named as in :mod:`mpdata.numerics.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import erf, log, pi, sqrt
from statistics import linear_regression
from typing import Any

import numpy as np

from mpdata.cases.setup import Array, Index, Setup, open_mesh
from mpdata.options import Scheme, parse_boundaries
from mpdata.solver import Solver


@dataclass(frozen=True)
class Problem:
    """A flow and a profile with an exact solution, for any number of cells.

    Attributes:
        name, statement: for the report.
        cells: along each active axis; three resolutions.
        boundaries: of all axes.
        shape: the profile f.
        stretching: X and its derivative, of x and an amplitude.
        base: b.
        speeds: s of the active axes, in cells a step.
        stretch: amplitude of each axis; the flow diverges where it is not 0.
        density: h is the product of 1 + d cos(2 pi (x - 0.2)) with these d.
        share: steps, as a part of the cells along an axis.
    """

    name: str
    statement: str
    cells: tuple[int, int, int]
    boundaries: str
    shape: Callable[[Array], Array]
    stretching: Callable[[Array, float], tuple[Array, Array]]
    base: float
    speeds: tuple[float, ...]
    stretch: tuple[float, ...]
    density: tuple[float, ...]
    share: float

    def setup(self, cells: int) -> Setup:
        """Return the case on so many cells along each active axis."""
        axes = self._axes(cells)
        n, m, el = (cells if a < len(axes) else 1 for a in range(3))
        steps = round(self.share * cells)

        def density(*index: Index) -> Any:
            h: Any = 1.0
            for i, axis in zip(index, axes, strict=False):
                h = h * axis.h[i]
            return h

        def face(normal: int, *index: Index) -> Any:
            c: Any = np.ones((1, 1, 1))
            for a, (i, axis) in enumerate(zip(index, axes, strict=False)):
                c = c * (axis.c[i] if a == normal else axis.h[i])
            return c

        return Setup(
            self.name,
            (n, m, el),
            parse_boundaries(self.boundaries),
            self.psi(cells, 0.0),
            density,
            face,
            extends=False,
            steps=steps,
            exact=self.psi(cells, steps / cells),
        )

    def psi(self, cells: int, time: float) -> Callable[[Index, Index, Index], Any]:
        """Return the answer at a time, of which a step takes 1 / cells."""
        axes = self._axes(cells)
        waves = [axis.wave(time) for axis in axes]

        def at(*index: Index) -> Any:
            wave: Any = 1.0
            weight: Any = 1.0
            for i, axis, values in zip(index, axes, waves, strict=False):
                wave, weight = wave * values[i], weight * axis.weight[i]
            return weight * (self.base + wave)

        return at

    def _axes(self, cells: int) -> list[_Axis]:
        numbers = zip(self.speeds, self.stretch, self.density, strict=True)
        return [_Axis(self, cells, *of_axis) for of_axis in numbers]


class _Axis:
    """The factors of one axis of length 1."""

    def __init__(
        self, problem: Problem, cells: int, speed: float, stretch: float, density: float
    ) -> None:
        centres, faces = (np.arange(cells) + 0.5) / cells, np.arange(cells + 1) / cells
        self._shape, self._speed = problem.shape, speed
        self._label, derivative = problem.stretching(centres, stretch)
        self.h = _density(centres, density)
        self.weight = derivative / self.h
        self.c = speed * _density(faces, density) / problem.stretching(faces, stretch)[1]
        if problem.boundaries == "periodic":
            self.c[-1] = self.c[0]

    def wave(self, time: float) -> Array:
        return self._shape(self._label - self._speed * time)


def _density(x: Array, amplitude: float) -> Array:
    return np.asarray(1 + amplitude * np.cos(2 * pi * (x - 0.2)))


def _sine(x: Array) -> Array:
    return np.asarray(np.sin(2 * pi * x))


def _front(x: Array) -> Array:
    return np.array([0.5 + 0.5 * erf((place - 0.4) / 0.1) for place in x])


def _waves(x: Array, amplitude: float) -> tuple[Array, Array]:
    """A flow that speeds up and slows down once in the period."""
    return (
        x + amplitude * np.sin(2 * pi * x) / (2 * pi),
        1 + amplitude * np.cos(2 * pi * x),
    )


def _slower(x: Array, amplitude: float) -> tuple[Array, Array]:
    """A flow that slows down around x = 1/2, so that what it carries piles up."""
    width = 0.12
    z = (x - 0.5) / width
    errors = np.array([erf(place) for place in z])
    # The integral of erf z is z erf z + exp(-z^2) / sqrt(pi); 0 at both ends, as far as they go.
    shift = width * (z * errors + np.exp(-z * z) / sqrt(pi)) - 0.5
    return x + amplitude * shift, 1 + amplitude * errors


TRANSLATION = Problem(
    "translation",
    "3D, constant flow, periodic: psi = 2 + product of sines",
    (12, 24, 48),
    "periodic",
    _sine,
    _waves,
    2.0,
    speeds=(0.3, -0.25, 0.2),
    stretch=(0.0, 0.0, 0.0),
    density=(0.0, 0.0, 0.0),
    share=0.25,
)
FRONT = Problem(
    "front",
    "2D, constant flow, open: psi = 1/2 + product of rising fronts, no extremum",
    (32, 64, 128),
    "open",
    _front,
    _waves,
    0.5,
    speeds=(0.4, 0.25),
    stretch=(0.0, 0.0),
    density=(0.0, 0.0),
    share=0.5,
)
DIVERGENT = Problem(
    "divergent",
    "3D, divergent flow u = s / X'(x) on each axis, X = x + e sin(2 pi x) / (2 pi), periodic: "
    "psi = (2 + product of sin 2 pi (X - s t)) (product of X') / h",
    (12, 24, 48),
    "periodic",
    _sine,
    _waves,
    2.0,
    speeds=(0.2, 0.15, -0.15),
    stretch=(0.4, 0.5, 0.4),
    density=(0.2, 0.1, 0.3),
    share=0.25,
)
PILE = Problem(
    "divergent front",
    "2D, flow that slows down, open: the fronts in X - s t, times the product of X', no extremum",
    (32, 64, 128),
    "open",
    _front,
    _slower,
    0.5,
    speeds=(0.3, 0.2),
    stretch=(0.3, 0.3),
    density=(0.0, 0.0),
    share=0.5,
)


@dataclass(frozen=True)
class Order:
    """One measured order beside the one required.

    Attributes:
        problem: what it is measured against.
        scheme: the options.
        norm: of the error: l1 (mean) or l2 (root of the mean square).
        errors: at each resolution.
        required: the least order; the largest one where ``at_most``: a control, which shows that
            the problem can tell a scheme of lower order.
    """

    problem: Problem
    scheme: Scheme
    norm: str
    errors: tuple[float, ...]
    required: float
    at_most: bool = False

    @property
    def order(self) -> float:
        """The slope of the line fitted to the logarithms of errors against cell widths."""
        widths = [-log(cells) for cells in self.problem.cells]
        if not all(0 < error < float("inf") for error in self.errors):
            return float("nan")
        return linear_regression(widths, [log(error) for error in self.errors]).slope

    @property
    def ok(self) -> bool:
        """Whether the order is what is required (nan is not)."""
        return self.order <= self.required if self.at_most else self.order >= self.required

    @property
    def heading(self) -> str:
        """A table's title and the names of its columns."""
        cells = " ".join(f"{f'{n} cells':>9s}" for n in self.problem.cells)
        title = f"orders of convergence, {self.problem.name} ({self.problem.statement})"
        return f"\n{title}\n{'options':54s} norm {cells} order       required"

    def line(self) -> str:
        """Return the table's row."""
        errors = " ".join(f"{error:9.2e}" for error in self.errors)
        return (
            f"{describe(self.scheme):54s} {self.norm.upper():4s} {errors} {self.order:5.2f} "
            f"{'control <' if self.at_most else '>':>9s}= {self.required:3.1f} "
            f"{'ok' if self.ok else 'NOT MET'}"
        )

    def record(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "against": self.problem.name,
            "statement": self.problem.statement,
            "iterations": self.scheme.iterations,
            "limiter": self.scheme.limiter,
            "gauge": "infinite" if self.scheme.infinite_gauge else "standard",
            "third_order": self.scheme.third_order,
            "divergent_flow": self.scheme.divergent_flow,
            "norm": self.norm,
            "cells": list(self.problem.cells),
            "errors": list(self.errors),
            "order": self.order,
            "required": self.required,
            "bound": "at most" if self.at_most else "at least",
            "ok": self.ok,
        }


def describe(scheme: Scheme) -> str:
    """Return the options in few words."""
    if scheme.passes == 1:
        return "upwind"
    # In the infinite gauge a third pass vanishes (Scheme.passes).
    words = ["2 or 3 iterations" if scheme.infinite_gauge else f"{scheme.iterations} iterations"]
    options = {
        "limiter": scheme.limiter,
        "infinite": scheme.infinite_gauge,
        "third": scheme.third_order,
        "divergent": scheme.divergent_flow,
    }
    return ", ".join([*words, *(word for word, on in options.items() if on)])


def schemes(*, divergent_flow: bool) -> Iterator[Scheme]:
    """Yield the combinations of the other options that differ in what they compute."""
    yield Scheme(1, limiter=False)
    for iterations in (2, 3):
        for number in range(8):
            limiter, gauge, third = bool(number & 4), bool(number & 2), bool(number & 1)
            if iterations == 2 or not gauge:
                yield Scheme(iterations, limiter, gauge, third, divergent_flow)


def full_order(scheme: Scheme) -> float:
    """Return the order required of a scheme in a constant flow, away from extrema."""
    if scheme.passes == 1:
        return 0.9
    third = scheme.third_order and (scheme.infinite_gauge or scheme.passes == 3)
    return 2.8 if third else 1.9


def measure(problem: Problem, scheme: Scheme, norm: str, backend: str) -> tuple[float, ...]:
    """Return the errors at the end of the problem's runs, at each resolution."""
    errors = []
    for cells in problem.cells:
        setup = problem.setup(cells)
        solver = Solver(setup, scheme, backend=backend)
        solver.advance(setup.steps or 0)
        if setup.exact is None:
            raise RuntimeError(f"problem {problem.name} has no answer")
        places = (np.arange(n) for n in setup.grid)
        gap = np.abs(solver.psi - setup.exact(*open_mesh(*places)))
        errors.append(float(gap.mean()) if norm == "l1" else sqrt(float((gap * gap).mean())))
    return tuple(errors)


def orders(backend: str = "auto") -> Iterator[Order]:
    """Measure every combination of options (the third order is one of constant flows only)."""

    def order(
        problem: Problem, scheme: Scheme, norm: str, required: float, *, at_most: bool = False
    ) -> Order:
        errors = measure(problem, scheme, norm, backend)
        return Order(problem, scheme, norm, errors, required, at_most)

    constant, diverging = (list(schemes(divergent_flow=own)) for own in (False, True))
    for scheme in constant:
        limited = scheme.limiter
        required = 1.9 if limited else full_order(scheme)
        yield order(TRANSLATION, scheme, "l1" if limited else "l2", required)
    for scheme in constant:
        if scheme.limiter:
            yield order(FRONT, scheme, "l2", full_order(scheme))
    for scheme in diverging:
        required = min(1.9, full_order(scheme))
        yield order(DIVERGENT, scheme, "l1" if scheme.limiter else "l2", required)
    for scheme in constant:
        if scheme.passes > 1:
            norm = "l1" if scheme.limiter else "l2"
            yield order(DIVERGENT, scheme, norm, 1.5, at_most=True)
    for scheme in diverging:
        if scheme.limiter:
            yield order(PILE, scheme, "l2", 1.9)
