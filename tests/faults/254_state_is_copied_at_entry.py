"""The comparison of the state at entry took as much memory as the state: each rank pickled it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from dmr.state.values import ValuesError, pickle_digest

MIB = 1 << 20


def test_arrays_are_hashed_without_a_copy() -> None:
    state = {"weights": [np.zeros(16 * MIB, np.uint8)]}
    tracemalloc.start()
    try:
        pickle_digest("it", state)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MIB


@pytest.mark.parametrize("order", ["C", "F"])
def test_every_item_of_an_array_is_in_the_hash(order: Any) -> None:
    values = np.arange(12.0).reshape(3, 4, order=order)
    before = pickle_digest("it", [values, values[::2]])
    assert pickle_digest("it", [values.copy(order), values[::2]]) == before
    values[1, 2] += 1
    assert pickle_digest("it", [values, values[::2]]) != before


def test_state_that_is_nested_too_deep_is_refused() -> None:
    state: list[Any] = []
    for _ in range(5000):
        state = [state]
    with pytest.raises(ValuesError, match=r"run\.state\['it'\] is nested too deep"):
        pickle_digest("it", state)
