"""A rank that had left a job recorded a failure in place of how the job ended."""

from __future__ import annotations

import sys
from pathlib import Path

from processes import Run

LEFT = """
import time
from pathlib import Path
from mpi4py import MPI
from dmr.system.watch import WATCH

with WATCH.running(1.0, 60.0, []):
    WATCH.on_end(lambda *_: Path("record").touch(), Path("left").touch)
    WATCH.left = True
    with WATCH.within("MPI_Comm_disconnect", alone=True):
        time.sleep(600)
"""


def test_it_leaves_without_a_record(run: Run, tmp_path: Path) -> None:
    done = run(sys.executable, "-c", LEFT)
    assert "error: MPI_Comm_disconnect has not returned on rank 0" in done.stderr
    assert (tmp_path / "left").exists() and not (tmp_path / "record").exists()
