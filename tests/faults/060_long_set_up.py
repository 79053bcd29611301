"""A job was ended whose new ranks set up for longer than 10 s after they had taken over."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from daemon import Rms, served

PROGRAM = """
import time
from pathlib import Path
import numpy as np
from mpi4py import MPI
import dmr

n = MPI.COMM_WORLD.size
begin, end = dmr.split_range(12, n, MPI.COMM_WORLD.rank)
u = np.zeros(end - begin)
with dmr.malleable(MPI.COMM_WORLD, {"u": dmr.adapt(u, (12,))}) as run:
    if run.restored:
        if MPI.COMM_WORLD.rank == 0:
            Path("new").touch()
        deadline = time.monotonic() + 300.0
        while not Path("set-up").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    for step in run.loop(2000):
        if not Path("set-up").exists():
            time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def rms() -> Iterator[Rms]:
    with served(2, "--policy", "fifo") as opened:
        yield opened


@pytest.mark.parametrize("strategy", ["warm", "restart"])
def test_a_resize_is_done_before_the_new_ranks_set_up(rms: Rms, strategy: str) -> None:
    for name in ("new", "set-up"):
        (rms.work / name).unlink(missing_ok=True)
    (rms.work / "program.py").write_text(PROGRAM)
    options = ("--mode", "malleable", "--nodes", "1-2", "--preferred", "1")
    job = rms.submit(f"mpirun {sys.executable} program.py", *options)
    rms.running(job)
    rms.ask("resize", job, "2", "--strategy", strategy)
    rms.until((rms.work / "new").exists, "ranks that have taken over")
    rms.until(lambda: rms.row(job)["resizing"] == "" and rms.row(job)["size"] == 2, "size 2")
    (row,) = rms.row(job)["resizes"]
    assert row["strategy"] == strategy
    (rms.work / "set-up").touch()
    assert rms.over(job) == ["COMPLETED"], rms.row(job)["reason"] + rms.output(job)
    (whole,) = rms.row(job)["resizes"]
    assert whole["stall_s"] > row["stall_s"]  # that of the set-up as well
    assert {**whole, "stall_s": 0.0} == {**row, "stall_s": 0.0}
