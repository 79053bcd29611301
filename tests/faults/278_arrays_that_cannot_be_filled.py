"""Records with objects, and arrays with a hard mask, kept old values, without a note."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dmr.state.values import adopt, unfillable_types


def records(value: float) -> Any:
    found = np.empty(1, [("n", "i4"), ("object", "O")])
    found[0] = 1, np.full(2, value)
    return found


def masked(value: float, *, hard: bool) -> Any:
    return np.ma.MaskedArray([value, value], [True, False], hard_mask=hard)


def test_they_are_replaced_whole() -> None:
    current, received = records(0.0), records(1.0)
    assert adopt(current, received) is received and not current["object"][0].any()
    current, received = masked(0.0, hard=True), masked(1.0, hard=True)
    assert adopt(current, received) is received and not current.data.any()


def test_arrays_with_a_soft_mask_are_filled() -> None:
    current, received = masked(0.0, hard=False), masked(1.0, hard=False)
    received.mask = [False, True]
    assert adopt(current, received) is current
    assert current.data.all() and current.mask.tolist() == [False, True]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (records(0.0), "array of records with objects"),
        (masked(0.0, hard=True), "array with a hard mask"),
    ],
)
def test_they_are_named_at_entry(value: Any, name: str) -> None:
    assert unfillable_types({"a": [value]}) == [name]
    assert unfillable_types([masked(0.0, hard=False), np.zeros(1, "i4,f8")]) == []
