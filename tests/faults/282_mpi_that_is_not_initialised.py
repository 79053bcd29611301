"""MPICH killed a program that had not initialised MPI, before its one sentence was printed."""

from __future__ import annotations

import sys

from processes import Run

SESSION = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
import dmr
with dmr.malleable(MPI.COMM_WORLD):
    pass
"""


def test_it_is_refused_in_one_sentence(run: Run) -> None:
    done = run(sys.executable, "-c", SESSION)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("dmr: error: expected MPI to be initialised, got a session only: ")
