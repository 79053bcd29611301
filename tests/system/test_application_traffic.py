"""The library keeps off the application's communicator: a pending receive takes nothing of it."""

from __future__ import annotations

import pytest
from processes import MPIEXEC, Run, program
from selection import all_wide_but


@pytest.mark.parametrize("strategy", all_wide_but(["spawn", "merge", "restart"], "merge"))
def test_a_pending_receive_of_any_tag_takes_only_the_application_s_messages(
    run: Run, strategy: str
) -> None:
    done = run(MPIEXEC, "-n", "2", *program("pending_receive"), strategy)
    assert done.returncode == 0, done.stdout + done.stderr
    (back,) = [one for one in done.stdout.splitlines() if "rolled back" in one]
    assert "expected another number of ranks, got 3" in back
    assert f"resize at step 20: 2 -> 4 ranks by {strategy}" in done.stdout
    assert "rank 0 of 4 has taken what was sent to it alone" in done.stdout
