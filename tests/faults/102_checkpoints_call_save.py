"""A checkpoint did not call the hook of a resize: it held an array that was rebound there only."""

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


def test_a_checkpoint_holds_the_array_that_save_binds(run: Run) -> None:
    stopped = run(MPIEXEC, "-n", "1", *WORDS, "save")
    assert "stopped on purpose" in stopped.stderr
    done = run(MPIEXEC, "-n", "1", *WORDS, "again")
    assert "checkpoint-0000000020.h5 at step 20" in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "u is 40.0", done.stdout + done.stderr


def test_a_checkpoint_calls_save_which_may_refuse_it(tmp_path: Path) -> None:
    calls: list[Any] = []
    runtime = runtime_on(MPI.COMM_SELF)

    def save(run: dmr.Run) -> None:
        calls.append(run.step)
        if run.step == 4:
            raise dmr.UsageError("not now")

    with dmr.malleable(
        runtime,
        {"u": dmr.adapt(np.zeros(4), (4,))},
        dmr.Plan(checkpoint=dmr.Schedule(tmp_path / "saved", 2)),
        save=save,
        load=lambda run: calls.append("load"),
    ) as run:
        for _ in run.loop(5):
            pass
    assert calls == [2, 4]
    log = runtime.log
    assert isinstance(log, io.StringIO)
    assert "checkpoint at step 4 not written: not now" in log.getvalue()
    assert [path.name for path in (tmp_path / "saved").glob("*.h5")] == ["checkpoint-0000000002.h5"]


def test_a_run_that_restarts_calls_load_before_its_loop(tmp_path: Path) -> None:
    calls: list[Any] = []

    def steps(*, restart: bool) -> None:
        u = np.zeros(4)
        plan = dmr.Plan(checkpoint=dmr.Schedule(tmp_path / "saved", 2), restart=restart)
        with dmr.malleable(
            runtime_on(MPI.COMM_SELF),
            {"u": dmr.adapt(u, (4,))},
            plan,
            state={"time": 0},
            load=lambda run: calls.append((run.step, run.state.time, u[0])),
        ) as run:
            for _ in run.loop(5):
                run.state.time += 2
                u += 1

    steps(restart=False)
    assert calls == []
    steps(restart=True)
    assert calls == [(4, 8, 4.0)]
