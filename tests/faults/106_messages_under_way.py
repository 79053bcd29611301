"""A message that no rank had received ended a resized program by SIGKILL, without a reason."""

from __future__ import annotations

from processes import MPIEXEC, Run, program

WORDS = program("missing_rank")


def test_a_pending_message_rolls_a_resize_back(run: Run) -> None:
    done = run(MPIEXEC, "-n", "2", *WORDS, "send", env={"DMR_RESIZE_AT": "4:3"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "resize to 3 ranks rolled back: expected no pending message at a resize point, got one "
        "from rank 0 with tag 5 that rank 1 has not received",
        "6 steps on 2 ranks",
    ]
