"""exchange() of halos that differ by rank ended the ranks by MPI_Abort, with status 1 or 9."""

from __future__ import annotations

from processes import MPIEXEC, Run, program


def test_all_ranks_raise_one_usage_error(run: Run) -> None:
    done = run(MPIEXEC, "-n", "3", *program("missing_rank"), "halo")
    assert done.returncode == 2
    assert (
        "error: field u: expected one halo on all ranks for exchange(), got ((0, 1),) on rank 0 "
        "and ((1, 1),) on rank 1"
    ) in done.stderr
    assert "MPI_Abort" not in done.stderr
