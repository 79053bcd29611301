"""Dtypes that HDF5 cannot hold (times without a unit, overlaps, empty members) were accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sentences import one_sentence

import dmr
from dmr.data.particles import ListSpec

OVERLAP = np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2]})


@pytest.mark.parametrize(
    "dtype",
    [
        *("m8", "M8", "i4,m8", OVERLAP, [("in", OVERLAP, (2,)), ("x", "f8")]),
        *([("x", "f8"), ("none", none)] for none in ("V0", "S0", "U0", ("f8", (0,)), [])),
    ],
)
def test_they_are_refused_where_they_are_declared(dtype: Any) -> None:
    with one_sentence(ValueError, "expected a dtype that a checkpoint can hold, got "):
        dmr.FieldSpec((4,), dtype, lambda box: 0)
    with one_sentence(ValueError, "expected a dtype that a checkpoint can hold, got "):
        ListSpec((4,), dtype, lambda box: 0, owner=lambda items, cut: [])
    with one_sentence(ValueError, "expected a dtype that a checkpoint can hold, got "):
        dmr.adapt(np.zeros(4, dtype), (4,))


@pytest.mark.parametrize(
    "dtype",
    [
        "m8[s]",
        {"names": ["b", "a"], "formats": ["i4", "i2"], "offsets": [4, 0], "itemsize": 16},
        [(("a title", "a"), "i4"), ("b", "M8[D]", (2,))],
    ],
)
def test_members_in_any_order_are_accepted(dtype: Any) -> None:
    assert dmr.FieldSpec((4,), dtype, lambda box: 0).dtype == np.dtype(dtype)
