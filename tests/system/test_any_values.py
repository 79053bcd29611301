"""Values of any type travel with the job; what cannot be pickled is said, and the job goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from processes import MPIEXEC, Run, program
from selection import all_wide_but

PROGRAM = program("any_values")
STRATEGIES = ("spawn", "merge", "restart")
STATE = (
    "{'mean': np.float32(0.1), 'count': np.int64(47), 'history': [1.5, nan, -inf], "
    "'table': array([[0, 1, 2],\n       [3, 4, 5]], dtype=int16), 'pair': (1, 'two'), "
    "'names': {'a'}, 'reading': ('Reading', array([0.25]))}"
)


@pytest.mark.parametrize("strategy", all_wide_but(STRATEGIES, "merge", "restart"))
def test_through_resizes(run: Run, strategy: str) -> None:
    ranks = "1" if strategy == "merge" else "2"
    done = run(MPIEXEC, "-n", ranks, *PROGRAM, strategy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ranks by " + strategy) == 2
    assert sorted_values(done.stdout) == sorted_values(f"ended on 1 ranks with {STATE}\n")
    assert "not written" not in done.stdout


def sorted_values(said: str) -> list[str]:
    """Return the values in the order of their names."""
    values = said[said.index("ended on ") :].strip().partition("{")[2].removesuffix("}")
    return sorted(values.replace(", '", "\0'").split("\0"))


@pytest.mark.parametrize("strategy", all_wide_but(STRATEGIES, "spawn"))
def test_what_cannot_be_pickled_is_a_rollback_in_words(run: Run, strategy: str) -> None:
    ranks = "1" if strategy == "merge" else "2"
    done = run(MPIEXEC, "-n", ranks, *PROGRAM, strategy, "bad")
    assert done.returncode == 0, done.stdout + done.stderr
    why = "run.state['lock'] cannot be pickled: TypeError: cannot pickle '_thread.lock' object"
    (back,) = [one for one in done.stdout.splitlines() if "rolled back" in one]
    assert back.startswith(f"resize to 3 ranks rolled back: {why}")
    assert f"warning: checkpoint at step 15 not written: {why}" in done.stdout
    if strategy != "merge":  # one rank stays one
        assert done.stdout.count("ranks by " + strategy) == 1
    assert sorted_values(done.stdout) == sorted_values(f"ended on 1 ranks with {STATE}\n")


def test_a_checkpoint_is_read_where_nobody_else_can_have_written_it(
    run: Run, tmp_path: Path
) -> None:
    assert run(MPIEXEC, "-n", "2", *PROGRAM, "plain").returncode == 0
    again = run(MPIEXEC, "-n", "1", *PROGRAM, "plain", "again")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "checkpoint-0000000030.h5 at step 30" in again.stdout
    assert sorted_values(again.stdout) == sorted_values(f"ended on 1 ranks with {STATE}\n")
    for path in (tmp_path / "saved").glob("*.h5"):
        path.chmod(0o666)
    refused = run(MPIEXEC, "-n", "1", *PROGRAM, "plain", "again")
    assert refused.returncode != 0 and "ended on" not in refused.stdout
    assert "it is a pickle from a source that is not trusted" in refused.stderr
    assert "expected a file of this user's that others cannot write" in refused.stderr
    if os.geteuid() == 0:
        for path in (tmp_path / "saved").glob("*.h5"):
            path.chmod(0o600)
            os.chown(path, 12345, -1)
        refused = run(MPIEXEC, "-n", "1", *PROGRAM, "plain", "again")
        assert refused.returncode != 0 and "is not trusted" in refused.stderr
