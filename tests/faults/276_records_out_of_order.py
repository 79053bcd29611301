"""A list of records whose members are out of order was accepted, and ended its job at a resize."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import MPIEXEC, Run

import dmr

PROGRAM = """
import numpy as np, dmr
from mpi4py import MPI

comm = MPI.COMM_WORLD
items = np.zeros(4 // comm.size, [("x", "f8"), ("y", "f8")])
items["x"] = np.arange(len(items))

def owner(items, layout):
    return dmr.rank_of(layout, items["x"].astype(int))

with dmr.malleable(comm, {"p": dmr.adapt_list(items[["y", "x"]], (4,), owner)}) as run:
    for _ in run.loop(4):
        run.fields["p"].items["y"] += 1
    whole = run.fields["p"].gather()
    run.say(f"{None if whole is None else whole['y'].sum()}")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of the program: MPI_Comm_spawn takes no arguments of several lines."""
    (path := tmp_path / "program.py").write_text(PROGRAM)
    return path


def test_it_is_resized(run: Run, file: Path) -> None:
    words = (MPIEXEC, "-n", "1", sys.executable, str(file))
    done = run(*words, env={"DMR_RESIZE_AT": "2:2", "DMR_STRATEGY": "spawn"})
    assert "1 -> 2 ranks by spawn" in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "16.0"


RECORDS = np.zeros(2, [("x", "f8"), ("y", "f8")])


@pytest.mark.parametrize(
    "items", [RECORDS, RECORDS[["y", "x"]], RECORDS[["y"]], np.zeros(2, ">i4")]
)
def test_every_type_has_a_signature_of_its_own(items: Any) -> None:
    def signature(items: Any) -> Any:
        return dmr.adapt_list(items, (4,), lambda p, cut: []).signature()

    assert json.loads(json.dumps(signature(items))) == signature(items.copy())
    assert signature(items) != signature(np.zeros(2, "i4"))
    assert signature(RECORDS) != signature(RECORDS[["y", "x"]])
