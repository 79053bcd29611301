"""The orders of convergence that ``mpdata verify`` reports, on fewer cells and axes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from selection import all_wide_but

from mpdata.cases.setup import open_mesh
from mpdata.cli.main import main
from mpdata.options import Scheme
from mpdata.solver import Solver
from mpdata.study import convergence
from mpdata.study.convergence import (
    DIVERGENT,
    FRONT,
    PILE,
    TRANSLATION,
    Order,
    Problem,
    full_order,
    measure,
    orders,
    schemes,
)

PROBLEMS = (TRANSLATION, FRONT, DIVERGENT, PILE)


# Backends have the same bits: in a quick run one of them is measured.
BACKENDS = all_wide_but(["numpy", "numba"], "numpy")
ALL = list(schemes(divergent_flow=False))
CORRECTED = [scheme for scheme in ALL if scheme.passes > 1]


def line(problem: Problem, cells: tuple[int, int, int]) -> Problem:
    """Return the problem in 1D."""
    stretch, density = problem.stretch[:1], problem.density[:1]
    return replace(
        problem, cells=cells, speeds=(0.35,), stretch=stretch, density=density, share=0.5
    )


def order(problem: Problem, scheme: Scheme, norm: str, backend: str) -> float:
    return Order(problem, scheme, norm, measure(problem, scheme, norm, backend), 0.0).order


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", ALL, ids=str)
@pytest.mark.promise("orders")
@pytest.mark.covering(1)
def test_translation(scheme: Scheme, backend: str) -> None:
    norm, required = ("l1", 1.9) if scheme.limiter else ("l2", full_order(scheme))
    assert order(line(TRANSLATION, (24, 48, 96)), scheme, norm, backend) >= required


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", CORRECTED, ids=str)
@pytest.mark.promise("orders")
@pytest.mark.covering(1)
def test_the_limiter_costs_no_order_without_extrema(scheme: Scheme, backend: str) -> None:
    assert order(line(FRONT, (48, 96, 192)), scheme, "l2", backend) >= full_order(scheme)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", CORRECTED, ids=str)
@pytest.mark.promise("orders")
@pytest.mark.covering(1)
def test_a_divergent_flow_needs_its_term(scheme: Scheme, backend: str) -> None:
    problem = line(PILE if scheme.limiter else DIVERGENT, (48, 96, 192))
    assert order(problem, replace(scheme, divergent_flow=True), "l2", backend) >= 1.9
    assert order(line(DIVERGENT, (48, 96, 192)), scheme, "l1", backend) <= 1.5


@pytest.mark.xfail(reason="the limiter takes the term of divergent flows away", strict=True)
@pytest.mark.parametrize("gauge", [False, True])
def test_a_limited_scheme_converges_around_extrema_of_a_divergent_flow(gauge: bool) -> None:
    problem = line(DIVERGENT, (96, 192, 384))
    scheme = Scheme(2, True, gauge, divergent_flow=True)
    assert order(problem, scheme, "l1", "numpy") >= 1.9


def test_all_combinations_that_differ_are_measured() -> None:
    assert len(ALL) == 13
    everything = {
        (min(n, 2) if gauge else n, limiter, gauge, third)
        for n in (2, 3)
        for limiter in (False, True)
        for gauge in (False, True)
        for third in (False, True)
    }
    assert {(s.passes, s.limiter, s.infinite_gauge, s.third_order) for s in ALL[1:]} == everything


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_the_answer_begins_as_the_field_and_solves_the_equation(problem: Problem) -> None:
    # h dpsi plus the fluxes of the exact field at faces, in the middle of the step: the equation
    # times a step, so of third order where it is true.
    gaps = []
    for cells in (32, 64, 128) if len(problem.speeds) == 3 else (64, 128, 256):
        setup = problem.setup(cells)
        mesh = open_mesh(*(np.arange(n) for n in setup.grid))
        before, middle, after = (
            np.broadcast_to(problem.psi(cells, part / cells)(*mesh), setup.grid)
            for part in (0.0, 0.5, 1.0)
        )
        assert np.array_equal(Solver(setup, Scheme(1), backend="numpy").psi, before)
        change = setup.density(*mesh) * (after - before)
        for axis in range(len(problem.speeds)):
            at_face = (middle + np.roll(middle, 1, axis)) / 2
            flux = setup.face(axis, *mesh) * at_face
            change = change + np.roll(flux, -1, axis) - flux
        inside = tuple(slice(1, -1) if n > 1 else slice(None) for n in setup.grid)
        gaps.append(float(np.abs(change[inside]).mean()))
    ratios = [coarse / fine for coarse, fine in pairwise(gaps)]
    assert ratios == pytest.approx([8, 8], rel=0.15)


def test_an_order_is_the_slope_of_the_errors() -> None:
    found = Order(TRANSLATION, Scheme(2), "l1", (0.16, 0.04, 0.01), 1.9)
    assert found.order == pytest.approx(2.0)
    assert found.ok
    assert not replace(found, required=2.1).ok
    assert replace(found, required=2.1, at_most=True).ok
    assert not replace(found, at_most=True).ok
    for errors in ((0.16, 0.04, float("nan")), (0.0, 0.0, 0.0)):
        assert not replace(found, errors=errors).ok
        assert not replace(found, errors=errors, at_most=True).ok


def test_the_command_reports_orders_and_fails_with_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        convergence,
        "measure",
        lambda problem, scheme, norm, backend: (
            (0.08, 0.01, 0.00125)
            if scheme.divergent_flow or problem is not DIVERGENT
            else (0.04, 0.02, 0.01)
        ),
    )
    assert main(["verify", "--case", "orders", "--backend", "numpy", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert report["checks"] == []
    assert len(report["orders"]) == len(list(orders("numpy"))) == 13 + 6 + 13 + 12 + 6
    first = report["orders"][0]
    assert first["against"] == "translation"
    assert first["order"] == pytest.approx(3.0)
    assert (first["required"], first["bound"], first["norm"]) == (0.9, "at least", "l2")
    monkeypatch.setattr(convergence, "measure", lambda *_: (0.04, 0.02, 0.01))
    assert main(["verify", "--case", "orders", "--backend", "numpy"]) == 1
    said = capsys.readouterr().out
    assert "NOT MET" in said
    assert "orders of convergence, divergent" in said
