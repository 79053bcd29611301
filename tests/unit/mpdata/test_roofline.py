"""Operations that count themselves, what bounds a step, and perf, present, absent and refused."""

import os
import stat

import pytest

from mpdata.study import roofline
from mpdata.study.roofline import Counted

COUNTING = """#!/bin/sh
# Stands for perf stat: so many of each event for every step of the run.
while [ "$1" != "-o" ]; do shift; done
out=$2
while [ "$1" != "--steps" ]; do shift; done
cells=512
printf '# started\\n\\n' > "$out"
printf '%s,,instructions:u,1,100.00,,\\n' $((1000000 + 300 * cells * $2)) >> "$out"
printf '%s,,cycles:u,1,100.00,,\\n' $((2000000 + 100 * cells * $2)) >> "$out"
printf '%s,,cache-misses:u,1,100.00,,\\n' $((3000 + 2 * cells * $2)) >> "$out"
"""

REFUSED = """#!/bin/sh
while [ "$1" != "-o" ]; do shift; done
printf '<not supported>,,instructions:u,0,100.00,,\\n' > "$2"
"""


@pytest.fixture(scope="module")
def operations():
    return roofline.counted(os.environ)


def test_numbers_count_what_is_done_with_them():
    Counted.counts.clear()
    a, b = Counted(2.0), Counted(-3.0)
    found = max((a + b) * a - b, abs(b)) / a
    assert found.value == 1.5
    assert Counted.counts == {"add": 2, "multiply": 1, "compare": 2, "divide": 1}


def test_a_cell_takes_a_division_for_each_face_and_one_for_both_betas(operations):
    divisions = {name: found["divide"] for name, found in operations.items()}
    assert divisions == {"limiter, density": 4, "limiter": 4, "density": 3, "basic": 3}


def test_the_limiter_and_a_density_cost_what_they_add(operations):
    limits = {
        kind: operations["limiter"][kind] - operations["basic"][kind]
        for kind in operations["basic"]
    }
    # Maxima and minima of 14 values, four of each of three pairs of faces, the two betas' ends;
    # of four fluxes two minima and a choice.
    assert limits["compare"] == 52
    dense = {
        kind: operations["density"][kind] - operations["basic"][kind]
        for kind in operations["basic"]
    }
    assert dense["divide"] == dense["compare"] == 0
    assert dense["multiply"] == 17  # five of each face, one of the donor cell, one of the update


def test_the_bound_is_bytes_by_the_copy_and_operations_by_their_own_rate():
    found = roofline.bound(
        "f8",
        "density",
        {"add": 84, "multiply": 67, "compare": 12, "divide": 3},
        {"copy_gb_per_s": 12.0, "division_ns": 0.5, "operation_ns": 0.025},
    )
    assert found["bytes_moved"] == 48
    assert found["memory_ns"] == 4.0
    assert found["arithmetic_ns"] == pytest.approx(96 * 0.025 + 1.5)
    assert "in cache 1.25, whole 2.50 times the larger" in roofline.line(found, 10.0, 5.0)


def _perf(folder, text):
    program = folder / "perf"
    program.write_text(text)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_what_perf_counts_is_the_difference_of_two_runs(tmp_path, monkeypatch):
    env = _perf(tmp_path, COUNTING)
    monkeypatch.setenv("PATH", env["PATH"])
    found = roofline.measured((8, 8, 8), env)
    assert found == {"instructions": 300.0, "cycles": 100.0, "cache-misses": 2.0}
    assert "128.0 bytes by cache misses" in roofline.measured_line(found)


def test_perf_that_may_not_count_is_said_in_one_sentence(tmp_path, monkeypatch):
    env = _perf(tmp_path, REFUSED)
    monkeypatch.setenv("PATH", env["PATH"])
    found = roofline.measured((8, 8, 8), env)
    assert found == "perf stat cannot count instructions here: not supported"


def test_no_perf_is_said_too(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert roofline.measured((8, 8, 8), dict(os.environ)) == "perf is not installed"
