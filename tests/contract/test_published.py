"""The published figures, and that ours are copied from them without a slip.

The long cases (sphere, cone) are left to ``mpdata verify``.
"""

from __future__ import annotations

import json
import os
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mpdata.cases import Request, make_setup
from mpdata.cli.main import main
from mpdata.errors import InputError
from mpdata.options import Scheme
from mpdata.study import verify as published
from mpdata.study.verify import CHECKS, Check, run_case, verify

BACKENDS = ["numpy", "numba"]
FIGURES = "mpdata_published.toml"
REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("case", "figures"), [("periodic-3x3", 3), ("periodic-3x3-b", 3), ("convergence-1d", 4)]
)
@pytest.mark.promise("published")
def test_the_short_cases_meet_every_published_figure(case: str, figures: int, backend: str) -> None:
    checks = published_checks(case, backend)
    assert len(checks) == figures
    assert {check.case for check in checks} == {case}
    assert [check.quantity for check in checks if not check.ok] == []


def published_checks(case: str, backend: str) -> list[Check]:
    checks = list(verify(case, backend))
    assert all(isinstance(check, Check) for check in checks)
    return [check for check in checks if isinstance(check, Check)]


@pytest.mark.parametrize("case", ["periodic-3x3", "convergence-1d"])
def test_the_command_writes_its_report(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--case", case, "--backend", "numpy", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert report["orders"] == []
    assert {check["case"] for check in report["checks"]} == {case}


def test_a_check_fails_outside_its_tolerance_only() -> None:
    assert Check("a", "b", computed=1.5, published=1.0, tolerance=0.5).ok
    assert not Check("a", "b", computed=0.4, published=1.0, tolerance=0.5).ok
    assert not Check("a", "b", computed=float("nan"), published=1.0, tolerance=0.5).ok


def test_cases_without_published_figures_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected a case .* got 'gaussian'"):
        list(verify("gaussian"))


def test_all_published_cases_can_be_run_by_name() -> None:
    short = {"periodic-3x3", "periodic-3x3-b", "convergence-1d"}
    assert set(CHECKS) == short | {"cone", "sphere", "cone-over-poles"}


@pytest.mark.wide
@pytest.mark.promise("published")
def test_a_cone_over_the_poles_has_the_source_s_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    # The source's steps are beyond the stability limit in the cells beside the poles.
    monkeypatch.setattr("mpdata.solver.unstable", lambda *_: None)
    monkeypatch.setattr("mpdata.cases.rotation.CONE_STEPS", 5120)
    emax, err0 = published_checks("cone-over-poles", "numba")
    assert emax.deviation == pytest.approx(0, abs=1e-8)
    assert err0.deviation == pytest.approx(0, abs=5e-6)


def test_the_order_of_convergence_is_second() -> None:
    errors = [check.computed for check in published_checks("convergence-1d", "numpy")]
    ratios = [coarse / fine for coarse, fine in pairwise(errors)]
    assert all(3.5 < ratio < 4.5 for ratio in ratios)


@pytest.fixture(scope="module")
def source() -> dict[str, Any]:
    """The figures as they came with the project's data."""
    named = os.environ.get("MALLEABLE_DATA")
    folders = [Path(named)] if named else []
    for folder in (*folders, REPOSITORY.parent / "shared" / "data"):
        if (folder / FIGURES).is_file():
            return tomllib.loads((folder / FIGURES).read_text())
    pytest.skip(f"no {FIGURES} in ../shared/data or in the folder named by MALLEABLE_DATA")


@pytest.mark.parametrize("variant", ["upwind", "basic", "limiter"])
def test_figures_of_the_sphere_are_the_source_s(source: dict[str, Any], variant: str) -> None:
    norms = dict(zip(published.SPHERE_NORMS, published.SPHERE[variant], strict=True))
    assert norms == source["sphere"][variant]


@pytest.mark.parametrize("variant", ["basic", "limiter"])
def test_figures_of_the_cone_are_the_source_s(source: dict[str, Any], variant: str) -> None:
    assert published.CONE[variant] == source["cone"][variant]


def test_figures_of_the_convergence_are_the_source_s(source: dict[str, Any]) -> None:
    assert list(published.CONVERGENCE) == source["convergence-1d"]["basic"]


@pytest.mark.parametrize(("case", "letter"), [("periodic-3x3", "a"), ("periodic-3x3-b", "b")])
def test_figures_of_the_periodic_cases_are_the_source_s(
    source: dict[str, Any], case: str, letter: str
) -> None:
    figures = {f"{i},{j}": value for (i, j), value in published.PERIODIC[case].items()}
    assert figures == source["periodic-3x3"][letter]["result"]


def test_a_case_reports_its_range_and_the_norms_of_its_source() -> None:
    found = run_case(make_setup("convergence-1d", Request()), Scheme(2, False), "numpy")
    assert set(found) == {"min", "max", "l2"}
