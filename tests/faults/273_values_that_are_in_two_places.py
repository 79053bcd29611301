"""A value that had been replaced was filled into an array that was other data of the program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import MPIEXEC, Run

from dmr.state.values import adopt, parts_of, replaced_parts

PROGRAM = """
import numpy as np, dmr
from mpi4py import MPI

comm = MPI.COMM_WORLD
x, own = np.zeros(3), np.zeros(3)
w = np.zeros(2)
state = {"x": x, "best": x, "own": own, "kept": w, "view": w[:1]}
with dmr.malleable(comm, {"w": dmr.adapt(w, (2 * comm.size,))}, state=state) as run:
    for step in run.loop(6):
        x += 1
        w += 1
        if step == 2:
            run.state["best"] = x.copy()
            run.state["kept"] = w.copy()
        run.state["own"] = run.state["own"] + 1
    found = (x, run.state["x"], run.state["best"], own, w, run.state["kept"], run.state["view"])
    run.say(" ".join(str(int(one[0])) for one in found))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of the program: MPI_Comm_spawn takes no arguments of several lines."""
    (path := tmp_path / "program.py").write_text(PROGRAM)
    return path


def test_a_replaced_value_does_not_overwrite_other_data(run: Run, file: Path) -> None:
    words = (MPIEXEC, "-n", "1", sys.executable, str(file))
    done = run(*words, env={"DMR_RESIZE_AT": "5:1", "DMR_STRATEGY": "spawn"})
    assert "1 -> 1 ranks by spawn" in done.stdout, done.stdout + done.stderr
    # "own" is in no other place: the program's own reference is filled; "view" is a copy
    assert done.stdout.splitlines()[-1] == "6 6 3 5 6 3 5"


def test_the_value_itself_is_among_the_replaced_parts() -> None:
    first, second = np.zeros(2), np.ones(2)
    assert replaced_parts(parts_of(first), first) == []
    assert replaced_parts(parts_of(first), second) == [""]
    assert replaced_parts(parts_of(1.0), 2.0) == []


@pytest.mark.parametrize("other", [lambda x: x, lambda x: [{"deep": x}], lambda x: (1, x[1:])])
def test_an_object_in_another_value_is_not_filled_if_it_was_replaced(other: Any) -> None:
    current, received = np.zeros(2), np.ones(2)
    assert adopt(current, received, [""], others=[other(current)]) is received
    assert not current.any()
    assert adopt(current, received, [], others=[other(current)]) is current
    assert adopt(np.zeros(2), received, [""], others=[other(received)]) is not received


def test_memory_of_a_field_is_not_filled() -> None:
    field, received = np.zeros((2, 3)), np.ones(3)
    assert adopt(field[1], received, fields=[field]) is received
    assert adopt([field[1]], [received], fields=[field])[0] is received
    assert not field.any()
