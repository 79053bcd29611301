"""``dmr check`` of a program with ``restart=True`` went on from its plain run's checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from mpi4py import MPI
from mpi_runs import runtime_on

import dmr


def steps_of(folder: Path, check: Path | None) -> list[int]:
    """Run 10 steps of a program that restarts, and saves every 3 steps; return those done."""
    runtime = replace(runtime_on(MPI.COMM_SELF), check=check)
    plan = dmr.Plan(checkpoint=dmr.Schedule(folder, 3), restart=True)
    u = np.zeros(4)
    with dmr.malleable(runtime, {"u": dmr.adapt(u, (4,))}, plan) as run:
        return list(run.loop(10))


def test_each_run_begins_at_step_0(tmp_path: Path) -> None:
    assert steps_of(tmp_path / "saved", tmp_path / "end.json") == list(range(10))
    assert steps_of(tmp_path / "saved", tmp_path / "end.json") == list(range(10))
    assert not (tmp_path / "saved").exists()


def test_checkpoints_from_before_are_neither_read_nor_replaced(tmp_path: Path) -> None:
    steps_of(tmp_path / "saved", None)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "saved").rglob("*")}
    assert steps_of(tmp_path / "saved", tmp_path / "end.json") == list(range(10))
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "saved").rglob("*")} == before
    assert steps_of(tmp_path / "saved", None) == [9]
