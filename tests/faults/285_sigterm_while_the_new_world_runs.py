"""SIGTERM ended a rank that waited for the mpiexec of the world that had replaced its own."""

from __future__ import annotations

import sys
from pathlib import Path

from processes import MPIEXEC, Run

REPLACED = """
import os, signal, time
from pathlib import Path
from mpi4py import MPI
import dmr

with dmr.malleable(MPI.COMM_WORLD, plan=dmr.Plan(every=1)) as run:
    if not run.restored:
        Path("first").write_text(str(os.getpid()))
    elif run.comm.rank == 0:
        time.sleep(1)  # the first world waits by now
        os.kill(int(Path("first").read_text()), signal.SIGTERM)
    for step in run.loop(12):
        if run.restored:
            time.sleep(0.5)
    run.say(f"{run.step} steps on {run.comm.size} ranks")
"""


def test_the_new_world_goes_on(run: Run, tmp_path: Path) -> None:
    (tmp_path / "replaced.py").write_text(REPLACED)
    env = {"DMR_RESIZE_AT": "2:2", "DMR_STRATEGY": "restart", "DMR_SIGTERM_S": "1"}
    done = run(MPIEXEC, "-n", "1", sys.executable, "replaced.py", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("12 steps on 2 ranks\n") and done.stderr == ""
