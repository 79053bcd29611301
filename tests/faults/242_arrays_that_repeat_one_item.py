"""An array in the state that repeats one item 10**13 times took all memory, or a MemoryError."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from mpi_runs import runtime_on

import dmr
from dmr.state.values import ValuesError, digest, encode_values

LARGE = np.broadcast_to(0.0, 10**13)


@pytest.mark.parametrize("value", [LARGE, {"deep": [LARGE]}])
def test_it_is_refused_in_one_sentence(value: Any) -> None:
    with (
        pytest.raises(dmr.UsageError, match=r"^run.state\['x'\] cannot be pickled: .+$"),
        dmr.malleable(runtime_on(MPI.COMM_SELF), state={"x": value}),
    ):
        raise AssertionError("entered")
    for act in (lambda: encode_values({"x": value}), lambda: digest("x", value)):
        with pytest.raises(ValuesError, match=r"^run.state\['x'\] cannot be pickled: .+$"):
            act()


def test_a_small_one_travels() -> None:
    (tree,) = encode_values({"x": np.broadcast_to(2.0, 9)})[1].values()
    assert set(tree) == {"array"}
