"""A resize point that has a library's own loop stop, instead of an exception through it."""

from __future__ import annotations

import pytest
from processes import MPIEXEC, Run, program

WORDS = program("library_loop")
SUM = "sum 2148.0"


def test_a_run_that_is_left_alone(run: Run) -> None:
    done = run(MPIEXEC, "-n", "2", *WORDS)
    assert f"{SUM} in 0 resizes" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("strategy", "what"),
    [("spawn", ""), ("restart", ""), ("merge", "merge"), ("spawn", "raise"), ("spawn", "exit")],
)
def test_the_loop_stops_and_cleans_up(run: Run, strategy: str, what: str) -> None:
    env = {"DMR_RESIZE_AT": "3:3,7:1", "DMR_STRATEGY": strategy}
    if strategy == "merge":
        env["DMR_RESIZE_AT"] = "3:3,7:2"
    done = run(MPIEXEC, "-n", "2", *WORDS, *what.split(), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"{SUM} in 2 resizes") == 1, done.stdout + done.stderr
    assert done.stdout.count("steps, 0 errors") == (2 if strategy == "merge" else 3), done.stdout
    last = 2 if strategy == "merge" else 1
    assert done.stdout.count("after the block") == last
    assert ("RuntimeError: not complete" in done.stderr) == (what == "raise")


def test_sigterm_stops_it_as_well(run: Run) -> None:
    done = run(MPIEXEC, "-n", "1", *WORDS, "term")
    assert done.returncode == 143, done.stdout + done.stderr
    assert "cleaned up after 5 steps, 0 errors" in done.stdout
    assert "ended by SIGTERM at step 5; no checkpoint folder was given" in done.stderr
    assert "sum" not in done.stdout and "after the block" not in done.stdout
