"""State that differs from rank to rank was replaced by that of rank 0, without a message."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from processes import MPIEXEC, Run

from dmr.state.values import digest

PROGRAM = """
import numpy as np, dmr
from mpi4py import MPI
comm = MPI.COMM_WORLD
own = dmr.PerRank(comm.rank, lambda values: values, lambda values, ranks: range(ranks))
names = {"a", "bc", "def", "ghi"}
state = {"r": comm.rank, "same": [np.arange(3.0), {"n": names}], "own": own, "w": np.ones(2)}
with dmr.malleable(comm, state=state) as run:
    pass
"""


def test_it_is_reported_at_entry_with_the_remedy(run: Run) -> None:
    done = run(MPIEXEC, "-n", "2", sys.executable, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("note: run.state['r'] differs from rank to rank")
    assert "dmr.PerRank(value, merge, split)" in line


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], (1, 2)),
        (1, 1.0),
        (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(2), np.zeros(2, "f4")),
        ([np.zeros(2)], [np.array([0.0, -0.0])]),
        ({"a": {1, 2}}, {"a": {1, 3}}),
        (np.random.default_rng(0), np.random.default_rng(1)),
    ],
)
def test_digests_of_different_values_differ(one: Any, other: Any) -> None:
    assert digest("x", one) == digest("x", one) != digest("x", other)
    assert digest("x", {"a": 1, "b": 2}) == digest("x", {"b": 2, "a": 1})
    itself: list[Any] = []
    itself.append(itself)
    assert digest("x", itself)
