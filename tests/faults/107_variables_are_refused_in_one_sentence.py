"""A wrong DMR_RESIZE_AT or argument printed a traceback of every rank, and ended with status 1."""

from __future__ import annotations

import sys

import pytest
from processes import MPIEXEC, Run, program

WORDS = program("edge_halo")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DMR_RESIZE_AT", "10:x", "expected STEP:RANKS[@BACKEND][,...], got '10:x'"),
        ("DMR_RESIZE_AT", "9:0", "got '9:0': a job has at least 1 rank"),
        ("DMR_RESIZE_AT", "9:99", "field u: cannot cut 12 cells into 99 blocks"),
        ("DMR_RESIZE_AT", "9:2@cupy", "expected a backend of none"),
        ("DMR_COOLDOWN", "soon", "expected a cooldown of at least 0 seconds, got soon"),
        ("DMR_STRATEGY", "magic", "expected a strategy of auto, spawn"),
        ("DMR_SIGTERM_S", "-1", "expected sigterm_s of more than 0 seconds, got -1"),
    ],
)
def test_rank_0_prints_one_message(run: Run, name: str, value: str, message: str) -> None:
    done = run(MPIEXEC, "-n", "2", *WORDS, env={name: value})
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"dmr: error: {name}={value}: ") and message in line


ARGUMENTS = """
import dmr
from mpi4py import MPI

comm = MPI.COMM_WORLD
with dmr.malleable(comm, plan=dmr.Plan(every={every})) as run:
    dmr.raise_on_all(comm, "expected 3 files, got 2")
"""


@pytest.mark.parametrize(
    ("every", "message"),
    [
        (0, "expected a resize point every 1 or more steps, got 0"),
        (1, "expected 3 files, got 2"),
    ],
)
def test_an_uncaught_usage_error_is_one_message(run: Run, every: int, message: str) -> None:
    words = (sys.executable, "-c", ARGUMENTS.format(every=every))
    done = run(MPIEXEC, "-n", "2", *words)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"dmr: error: {message}\n"
