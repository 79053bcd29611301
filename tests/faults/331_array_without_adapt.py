"""An array in ``dmr.malleable`` without ``dmr.adapt`` ended the program with an AttributeError."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import numpy as np
from mpi4py import MPI
import dmr

with dmr.malleable(MPI.COMM_WORLD, {"u": np.zeros(12)}) as run:
    for step in run.loop(10):
        pass
"""


def test_an_array_alone_is_refused_in_one_sentence() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "field 'u': expected dmr.adapt(array, shape, ...)" in line and "ndarray" in line
