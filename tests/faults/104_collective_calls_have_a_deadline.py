"""A rank that does not enter a collective call of the library left the others waiting."""

from __future__ import annotations

import pytest
from processes import MPIEXEC, Run, program

WORDS = program("missing_rank")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("point", "rank 0 waits in a resize point for rank 2, which has not entered it"),
        pytest.param(
            "enter",
            "rank 0 waits in dmr.malleable for rank 2, which has not entered it",
            marks=pytest.mark.wide,
        ),
        ("first", "rank 1 waits in dmr.malleable for rank 0, which has not entered it"),
        ("exchange", "rank 0 waits in exchange() for rank 2, which has not entered it"),
        ("gather", "rank 0 waits in gather() for rank 2, which has not entered it"),
        ("reordered", "rank 0 waits in a resize point for rank 2, which has not entered it"),
        (
            "hook",
            "rank 0 waits in a checkpoint for rank 2, which has not entered it; "
            "rank 1, which is in exchange(): expected",
        ),
        pytest.param(
            "end",
            "waits in a resize point for rank 2, which is in the end of the block",
            marks=pytest.mark.wide,
        ),
    ],
)
def test_the_ranks_end_and_the_message_names_those_that_are_missing(
    run: Run, call: str, message: str
) -> None:
    done = run(MPIEXEC, "-n", "3", *WORDS, call, env={"DMR_COLLECTIVE_S": "3"})
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message in line and "expected it within 3 s (DMR_COLLECTIVE_S sets this limit)" in line


def test_a_rank_that_is_late_ends_nothing(run: Run) -> None:
    done = run(MPIEXEC, "-n", "2", *WORDS, "late", env={"DMR_COLLECTIVE_S": "30"})
    assert done.returncode == 0 and done.stdout == "6 steps on 2 ranks\n", done.stderr


def test_a_restart_takes_any_time_once_all_ranks_are_in_it(run: Run) -> None:
    for begin in (0, 6):
        done = run(MPIEXEC, "-n", "2", *WORDS, "restart", env={"DMR_COLLECTIVE_S": "8"})
        assert done.returncode == 0 and "6 steps on 2 ranks" in done.stdout, done.stderr
        assert ("restarted from" in done.stdout + done.stderr) == (begin > 0)


def test_plans_that_differ_by_rank_are_refused(run: Run) -> None:
    done = run(MPIEXEC, "-n", "3", *WORDS, "checkpoint")
    assert "error: expected the same checkpoint of the plan on all ranks, got Sched" in done.stderr
    assert done.stderr.rstrip().endswith("and None on rank 2") and done.returncode == 2


@pytest.mark.parametrize("limit", ["0", "soon"])
def test_a_limit_that_is_not_a_time_is_refused(run: Run, limit: str) -> None:
    done = run(*WORDS, "send", env={"DMR_COLLECTIVE_S": limit})
    message = f"dmr: error: DMR_COLLECTIVE_S={limit}: expected collective_s of more than 0 seconds"
    assert done.returncode == 2 and done.stderr.startswith(message)
