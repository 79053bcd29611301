"""``dmr check``: programs that forget something, and one that does not."""

from __future__ import annotations

import sys

import pytest
from processes import MPIEXEC, Run, program

DMR = [sys.executable, "-m", "dmr", "check", "--resize", "3"]
SAYS = {
    "nothing": "the same whatever happens to its ranks",
    "vector": "comes from another variable",
}


@pytest.mark.parametrize("forgets", SAYS)
@pytest.mark.wide
@pytest.mark.promise("check")
def test_what_was_forgotten_is_said(run: Run, forgets: str) -> None:
    found = run(*DMR, "--", MPIEXEC, "-n", "2", *program("forgetful"), forgets)
    assert found.returncode == (0 if forgets == "nothing" else 1), found.stdout + found.stderr
    assert SAYS[forgets] in found.stdout


@pytest.mark.wide
def test_a_program_that_fails_is_said(run: Run) -> None:
    found = run(*DMR, "--", sys.executable, "-c", "raise SystemExit('no input')")
    assert found.returncode == 1 and len(found.stderr.splitlines()) == 1
    assert "expected the program to come to the end of a block" in found.stderr
    assert "got status 1: no input" in found.stderr
