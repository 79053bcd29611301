"""What a world imports while it boots: its ranks wait for that, so it is to stay little."""

from __future__ import annotations

import subprocess
import sys

import pytest

LISTS = """
import sys
import dmr.boot.bootstrap, dmr.boot.rendezvous, dmr.api, dmr.loop.session, dmr.resize.merge
print("\\n".join(sys.modules))
"""
HEAVY = {"h5py", "numba", "matplotlib", "cupy", "rich", "starlette", "multiprocessing"}


def test_a_world_boots_without_what_it_may_not_need() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTS], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split())
    assert "dmr.loop.driver" in found and not found & HEAVY
    rms = {name for name in found if name.startswith("rms.")}
    assert {name for name in rms if not name.startswith("rms.wire")} <= {"rms._version"}


RUNS = """
import sys
import numpy as np
from mpi4py import MPI
import dmr
u = np.zeros((4, 4))
plan = dmr.Plan(strategy=sys.argv[1])
with dmr.malleable(MPI.COMM_WORLD, {"u": dmr.adapt(u, u.shape)}, plan) as run:
    for step in run.loop(1):
        print("h5py" in sys.modules)
"""


@pytest.mark.parametrize(("strategy", "loaded"), [("restart", "True"), ("spawn", "False")])
def test_what_writes_checkpoints_is_loaded_before_a_restart_and_for_nothing_else(
    strategy: str, loaded: str
) -> None:
    command = [sys.executable, "-c", RUNS, strategy]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == [loaded], done.stderr
