"""A checkpoint did not call ``before=``, so it held an array that was rebound there only."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi_runs import runtime_on
from processes import MPIEXEC, Run, program

import dmr

WORDS = program("late_rebind")


def test_a_checkpoint_holds_the_array_that_before_binds(run: Run) -> None:
    stopped = run(MPIEXEC, "-n", "1", *WORDS, "save")
    assert "stopped on purpose" in stopped.stderr
    done = run(MPIEXEC, "-n", "1", *WORDS, "again")
    assert "checkpoint-0000000020.h5 at step 20" in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "u is 40.0", done.stdout + done.stderr


def test_hooks_around_a_checkpoint_get_the_same_number_of_ranks(tmp_path: Path) -> None:
    calls: list[Any] = []
    runtime = runtime_on(MPI.COMM_SELF)

    def before(run: dmr.Run, ranks: int) -> None:
        calls.append((run.step, ranks))
        if run.step == 4:
            raise dmr.UsageError("not now")

    with dmr.malleable(
        runtime,
        {"u": dmr.adapt(np.zeros(4), (4,))},
        dmr.Plan(checkpoint=dmr.Schedule(tmp_path / "saved", 2)),
        before=before,
        after=lambda run, record: calls.append(record),
    ) as run:
        for _ in run.loop(5):
            pass
    assert calls == [(2, 1), None, (4, 1), None]
    log = runtime.log
    assert isinstance(log, io.StringIO)
    assert "checkpoint at step 4 not written: not now" in log.getvalue()
    assert [path.name for path in (tmp_path / "saved").glob("*.h5")] == ["checkpoint-0000000002.h5"]
