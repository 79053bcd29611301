"""The demo as a newcomer meets it, and the real winds."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import BIN, DEADLINE_S, marked, started, until
from selection import all_wide_but

from mpdata.cases import Request, make_setup
from mpdata.options import Scheme
from mpdata.solver import Solver, count_steps

ROOT = Path(__file__).parents[2]


@pytest.fixture
def winds() -> tuple[Path, Path]:
    folder = Path(os.environ.get("MPDATA_WINDS", ROOT / "demo" / "winds"))
    pair = folder / "uwnd_mean.nc", folder / "vwnd_mean.nc"
    if not all(path.is_file() for path in pair):
        pytest.skip("the public wind files are not here: scripts/demo or scripts/test fetch them")
    return pair


def case(winds: tuple[Path, Path], month: int = 1) -> Request:
    return Request(grid=(180, 75, 16), winds=winds, month=month, days=5.0)


@pytest.mark.promise("winds")
def test_on_real_winds_a_constant_stays_constant(winds: tuple[Path, Path]) -> None:
    setup = make_setup("winds", case(winds))
    steps = count_steps(setup)
    still = replace(setup, initial=lambda i, j, k: 1.0 + 0.0 * (i + j + k))
    solver = Solver(still, Scheme())
    solver.advance(steps)
    assert steps > 200
    assert np.abs(solver.psi - 1.0).max() <= 1e-13


@pytest.mark.parametrize("month", all_wide_but([1, 7], 1))
@pytest.mark.promise("winds")
def test_on_real_winds_mass_is_kept_and_so_are_the_bounds(
    winds: tuple[Path, Path], month: int
) -> None:
    setup = make_setup("winds", case(winds, month))
    solver = Solver(setup, Scheme())
    high = float(solver.psi.max())
    mass = float((solver.psi * solver.density).sum())
    start = solver.psi.copy()
    solver.advance(count_steps(setup))
    assert abs(float((solver.psi * solver.density).sum()) - mass) <= 1e-13 * mass
    assert solver.psi.min() >= 0 and solver.psi.max() <= high * (1 + 1e-13)
    assert np.abs(solver.psi - start).max() > 0.1, "expected the plume to have moved"


@pytest.mark.parametrize("number", all_wide_but([signal.SIGINT, signal.SIGTERM], signal.SIGINT))
@pytest.mark.promise("demo")
def test_ctrl_c_on_the_demo_leaves_no_process(
    winds: tuple[Path, Path], number: signal.Signals, tmp_path: Path
) -> None:
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("the demo would first install itself into .venv: run by scripts/test only")
    with started(
        [str(ROOT / "scripts" / "demo"), "--winds", *map(str, winds), "--out", str(tmp_path)]
    ) as demo:
        # The demo, mpiexec, its proxy, at least one rank.
        until(lambda: len(marked(demo.mark)) >= 4)
        time.sleep(1.0)
        demo.send_signal(number)
        demo.communicate(timeout=DEADLINE_S)
        assert demo.returncode == 130
        until(lambda: marked(demo.mark) == [], "processes of the demo are left")


class Said:
    """Keeps the lines of a part of the demo."""

    detail = ""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str, coloured: str | None = None) -> None:
        self.lines.append(line)

    def doing(self, what: str, expected_s: float | None = None) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()


@pytest.mark.promise("urgent")
def test_an_urgent_job_starts_beside_a_malleable_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    urgent: Any = importlib.import_module("urgent")
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    plan = urgent.Plan(2, 600, 30, ("rigid", "malleable"), rounds=1)
    said = Said()
    urgent.urgent_job(tmp_path, plan, said)
    runs = json.loads((tmp_path / "urgent.json").read_text())
    [rigid], [malleable] = runs["rigid"], runs["malleable"]
    assert rigid["answers"] == malleable["answers"]
    assert malleable["resizes"] >= 1 and rigid["resizes"] == 0
    assert malleable["during"] and not rigid["during"]
    assert malleable["wait_s"] < rigid["wait_s"]
    assert any("the same bits in all 2 runs" in line for line in said.lines)


def test_a_part_that_cannot_run_is_one_sentence(tmp_path: Path) -> None:
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("the demo would first install itself into .venv: run by scripts/test only")
    wrong = [str(tmp_path / "u.nc"), str(tmp_path / "v.nc")]
    command = [str(ROOT / "scripts" / "demo"), "--winds", *wrong, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("times", ["0", "-1", "some"])
def test_rounds_that_cannot_be_are_refused(times: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "demo"), f"--times={times}"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert f"expected a whole number of at least 1, got '{times}'" in done.stderr
