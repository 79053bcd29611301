"""The cells beyond the edge of the domain where they are more than the halo between ranks."""

from __future__ import annotations

import pytest
from processes import MPIEXEC, Run, program

WORDS = program("edge_halo")


def test_they_travel_and_are_in_checkpoints(run: Run) -> None:
    plain = run(MPIEXEC, "-n", "2", *WORDS, "save", "wide")
    assert "stopped on purpose" in plain.stderr
    again = run(MPIEXEC, "-n", "3", *WORDS, "again", "wide")
    assert "step 7" in again.stdout, again.stdout + again.stderr
    last = again.stdout.splitlines()[-1]
    assert last.startswith("(18, 10) sum ")
    for strategy, what, script in (("spawn", "plain", "5:3,9:1"), ("merge", "merge", "5:3,9:2")):
        env = {"DMR_RESIZE_AT": script, "DMR_STRATEGY": strategy}
        done = run(MPIEXEC, "-n", "2", *WORDS, what, "wide", env=env)
        assert done.stdout.splitlines()[-1] == last, done.stdout + done.stderr


@pytest.mark.wide
def test_a_run_that_is_left_alone_has_the_same(run: Run) -> None:
    lines = {run(MPIEXEC, "-n", n, *WORDS, "plain", "wide").stdout.splitlines()[-1] for n in "13"}
    assert len(lines) == 1
