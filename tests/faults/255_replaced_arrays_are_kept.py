"""Arrays that a program had replaced within its state kept their memory until the run ended."""

from __future__ import annotations

import weakref

import numpy as np

from dmr.state.values import parts_of, replaced_parts


def test_the_memory_of_a_replaced_array_is_released() -> None:
    state = {"layers": [np.zeros(8), np.ones(8)]}
    parts = parts_of(state)
    first = weakref.ref(state["layers"][0])
    assert replaced_parts(parts, state) == []
    state["layers"][0] = np.ones(8)
    assert first() is None
    assert replaced_parts(parts, state) == ["['layers'][0]"]
