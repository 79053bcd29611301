"""``dmr check``: programs that forget something, and one that does not."""

from __future__ import annotations

import re
import sys

import pytest
from processes import MPIEXEC, Run, program

DMR = [sys.executable, "-m", "dmr", "check", "--resize", "3"]
SAYS = {
    "nothing": "the same whatever happens to its ranks",
    "vector": r"\bw\b[^:]*: not declared, and not the same at the end",
    "counter": r"\bcount\b[^:]*: not declared, and not the same at the end",
}


@pytest.mark.parametrize("forgets", SAYS)
@pytest.mark.wide
@pytest.mark.promise("check")
def test_what_was_forgotten_is_said(run: Run, forgets: str) -> None:
    found = run(*DMR, "--", MPIEXEC, "-n", "2", *program("forgetful"), forgets)
    assert found.returncode == (0 if forgets == "nothing" else 1), found.stdout + found.stderr
    assert re.search(SAYS[forgets], found.stdout), found.stdout


@pytest.mark.wide
def test_a_program_that_fails_is_said(run: Run) -> None:
    found = run(*DMR, "--", sys.executable, "-c", "raise SystemExit('no input')")
    assert found.returncode == 1 and len(found.stderr.splitlines()) == 1
    assert "expected the program to come to the end of a block" in found.stderr
    assert "got status 1: no input" in found.stderr


SUMS = [MPIEXEC, "-n", "2", *program("rank_sums")]


def test_sums_that_depend_on_the_ranks_have_status_0(run: Run) -> None:
    found = run(*DMR, "--compare", "sums.txt", "--", *SUMS)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "rehearsal (DMR_RESIZE_AT=3:2,6:2): the same" in found.stdout
    assert "without any resize the same differs on 3 ranks" in found.stdout
    assert found.stdout.splitlines()[-1].startswith("right; sums depend on the number of ranks")


def test_with_a_tolerance_they_are_the_same(run: Run) -> None:
    found = run(*DMR, "--tolerance", "1e-12", "--compare", "sums.txt", "--", *SUMS)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.splitlines()[-1] == "the same whatever happens to its ranks"


def test_a_file_is_compared_beside_the_output(run: Run) -> None:
    found = run(*DMR, "--compare", "sums.txt", "--", *SUMS, "forgets")
    assert found.returncode == 1, found.stdout + found.stderr
    assert "  - in the output: 10" in found.stdout and "  the file differs" not in found.stdout
    assert "state shown: the value that it began with" in found.stdout


@pytest.mark.parametrize("tolerance", ["-1", "x", "nan"])
def test_a_wrong_tolerance_is_refused(run: Run, tolerance: str) -> None:
    found = run(*DMR, f"--tolerance={tolerance}", "--", *SUMS)
    assert found.returncode == 2 and len(found.stderr.splitlines()) == 1, found.stderr


def test_a_loop_that_does_not_end_is_stopped_and_its_variables_are_named(run: Run) -> None:
    found = run(*DMR, "--", MPIEXEC, "-n", "1", *program("endless_after"))
    assert found.returncode == 1, found.stdout + found.stderr
    assert "stopped at step 35, as without resizes it ends after 8" in found.stdout
    assert "count: not declared, and not the same at the end" in found.stdout
