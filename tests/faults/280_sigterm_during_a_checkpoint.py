"""SIGTERM ended a program that was writing a checkpoint, if the write took longer than a limit."""

from __future__ import annotations

import sys

import pytest
from processes import Run

SLOW = """
import os, signal, sys, time
from pathlib import Path
from mpi4py import MPI
import dmr
from dmr.checkpoint import store

PERIODIC = sys.argv[1] == "periodic"
write = store.write

def slow(*args, **options):
    if PERIODIC and not Path("begun").exists():
        Path("begun").touch()
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(6)
    return write(*args, **options)

store.write = slow
plan = dmr.Plan(every=1, checkpoint=dmr.Schedule(Path("saved"), 2 if PERIODIC else 0))
with dmr.malleable(MPI.COMM_WORLD, plan=plan) as run:
    for step in run.loop(100):
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
"""


@pytest.mark.parametrize(("which", "step"), [("periodic", 3), ("final", 5)])
def test_the_checkpoint_is_completed(run: Run, which: str, step: int) -> None:
    limits = {"DMR_SIGTERM_S": "2", "DMR_COLLECTIVE_S": "3"}
    done = run(sys.executable, "-c", SLOW, which, env=limits)
    assert done.returncode == 143
    assert f"ended by SIGTERM at step {step}; checkpoint saved/" in done.stderr
    assert "has not ended" not in done.stderr
