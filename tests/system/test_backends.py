"""A resize may lead to another backend: here NumPy and Numba in the roles of two devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import MPDATA, MPIEXEC, Mpirun, Refused, Run
from selection import all_wide_but

RANDOM = ["--case", "random", "--seed", "7", "--grid", "48", "40", "16", "--steps", "60"]


def on_numba(mpdata_run: Mpirun, *more: str) -> dict[str, object]:
    return mpdata_run(2, *RANDOM, "--backend", "numba", *more)


@pytest.mark.parametrize("strategy", all_wide_but(["spawn", "restart"], "spawn"))
def test_ranks_of_one_backend_become_one_of_another_and_back(
    mpdata_run: Mpirun, strategy: str
) -> None:
    steady = on_numba(mpdata_run)
    script = "20:1@numpy,30:2,40:2@numba"
    found = on_numba(mpdata_run, "--resize-at", script, "--strategy", strategy)
    done = [(r["step"], r["from"], r["to"], r["strategy"]) for r in found["resizes"]]
    assert done == [(20, 2, 1, strategy), (30, 1, 2, strategy), (40, 2, 2, strategy)]
    assert found["backend"] == "numba"
    # Twenty steps were NumPy's.
    assert found["sha256"] == steady["sha256"]


@pytest.mark.wide
def test_the_last_backend_is_reported(mpdata_run: Mpirun) -> None:
    found = on_numba(mpdata_run, "--resize-at", "20:1@numpy,30:2")
    assert found["backend"] == "numpy" and len(found["resizes"]) == 2


@pytest.mark.wide
def test_ranks_that_could_stay_are_replaced_where_the_backend_changes(
    mpdata_run: Mpirun,
) -> None:
    found = on_numba(mpdata_run, "--strategy", "merge", "--resize-at", "20:3,40:3@numpy")
    assert [r["strategy"] for r in found["resizes"]] == ["merge", "spawn"]
    assert found["backend"] == "numpy"


@pytest.mark.wide
def test_a_backend_that_is_not_there_rolls_back(run: Run, tmp_path: Path) -> None:
    outs = []
    for more in ([], ["--resize-at", "20:1@cupy"]):
        words = [*RANDOM, "--backend", "numpy", *more, "--json", "out.json"]
        done = run(MPIEXEC, "-n", "2", *MPDATA, "run", *words, env={"CUDA_VISIBLE_DEVICES": ""})
        assert done.returncode == 0, done.stdout + done.stderr
        outs.append(json.loads((tmp_path / "out.json").read_text()))
    assert "resize to 1 ranks rolled back: " in done.stdout
    steady, found = outs
    assert found["resizes"] == [] and found["backend"] == "numpy" and found["ranks"] == 2
    assert found["sha256"] == steady["sha256"]


def test_a_backend_nobody_knows_is_refused(refused: Refused) -> None:
    said = refused("run", *RANDOM, "--resize-at", "20:1@abacus")
    assert "expected a backend of numpy, numba, cupy, got 'abacus'" in said
