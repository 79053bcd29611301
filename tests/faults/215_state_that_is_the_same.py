"""State that is the same on all ranks was noted to differ; patterns and large integers failed."""

from __future__ import annotations

import pickle
import re
import sys
from fractions import Fraction

import numpy as np
import pytest
from processes import MPIEXEC, Run

from dmr.state.values import decode_values, digest, encode_values, round_trip, unfillable_types

ALIGNED = np.dtype([("a", "i1"), ("b", [("c", "f8"), ("d", "i2")])], align=True)

PROGRAM = """
import re, numpy as np, dmr
from mpi4py import MPI

class Setup:
    pass

comm = MPI.COMM_WORLD
setup = None
if comm.rank == 0:
    setup = Setup()
    setup.kind, setup.mesh = "kind", np.arange(6.0)[::2]
state = {"setup": comm.bcast(setup), "pattern": re.compile("a"), "large": 7**10000}
with dmr.malleable(comm, state=state) as run:
    print(end="done" * (comm.rank == 0))
"""


def test_an_object_that_rank_0_has_made_and_sent_is_the_same_on_all_ranks(run: Run) -> None:
    done = run(MPIEXEC, "-n", "2", sys.executable, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done"


def test_padding_is_in_no_digest() -> None:
    one, other = (np.frombuffer(bytearray([fill] * 48), ALIGNED) for fill in (0, 255))
    one["a"], other["a"] = 1, 1
    one["b"]["c"] = other["b"]["c"] = 2.0
    one["b"]["d"] = other["b"]["d"] = 3
    assert one.tobytes() != other.tobytes()
    assert digest("x", one) == digest("x", other)
    assert digest("x", one[0]) == digest("x", other[0])
    other["b"]["d"][1] = 4
    assert digest("x", one) != digest("x", other)
    assert digest("x", one) != digest("x", one.astype([("a", "i1"), ("e", ALIGNED["b"])]))


@pytest.mark.parametrize(
    ("base", "power"), [(2, 63), (-7, 23), (10, 100_000), (-3, 10_001), (Fraction(1, 3), 4)]
)
def test_integers_of_any_length_travel(base: int, power: int) -> None:
    value = base**power
    assert decode_values(*encode_values({"x": value}), trusted=True) == {"x": value}
    assert digest("x", value) == digest("x", round_trip("x", pickle.loads(pickle.dumps(value))))


@pytest.mark.parametrize("value", [re.compile("a"), re.fullmatch, np.sin, int | str])
def test_what_pickle_knows_by_itself_is_no_fault(value: object) -> None:
    assert unfillable_types([value]) == [] and digest("x", value)
