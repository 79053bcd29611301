"""Strategy merge did not fill parts of state that differs by rank, as warm and spawn do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import MPIEXEC, Run

PROGRAM = """
import sys
import numpy as np, dmr
from mpi4py import MPI

comm = MPI.COMM_WORLD
a, b = np.zeros(1), np.zeros(1)
mine = {"a": a, "b": b}

def merge(values):
    return {key: sum(one[key] for one in values) for key in "ab"}

def split(value, ranks):
    return [{key: value[key] / ranks for key in "ab"} for _ in range(ranks)]

def build(run):
    pass

merges = build if sys.argv[1] == "merge" else None
with dmr.malleable(comm, state={"mine": dmr.PerRank(mine, merge, split)}, build=merges) as run:
    first = mine["b"]
    for step in run.loop(8):
        mine["b"] = mine["b"] + 1
        a += 1
    run.say(f"a {a[0]} {mine['a'][0]} {mine['a'] is a} b {mine['b'][0]} own {b[0]}")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of the program: MPI_Comm_spawn takes no arguments of several lines."""
    (path := tmp_path / "program.py").write_text(PROGRAM)
    return path


@pytest.mark.parametrize("strategy", ["merge", "spawn"])
def test_the_program_has_its_new_part(run: Run, file: Path, strategy: str) -> None:
    words = (MPIEXEC, "-n", "1", sys.executable, str(file), strategy)
    done = run(*words, env={"DMR_RESIZE_AT": "4:2", "DMR_STRATEGY": strategy})
    assert f"1 -> 2 ranks by {strategy}" in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "a 6.0 6.0 True b 6.0 own 0.0"
