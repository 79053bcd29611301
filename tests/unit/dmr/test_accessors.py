"""Data that the program holds itself: by getter and setter, on any rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dmr
from dmr.data.field import Field
from dmr.data.particles import Items


def held(array: Any, shape: tuple[int, ...], **more: Any) -> tuple[dict[str, Any], Field]:
    """Return a dictionary that holds an array, and the block of a field over it on one rank."""
    model = {"u": array}
    spec = dmr.adapt(
        get=lambda: model["u"], set=lambda a: model.update(u=a), shape=shape, halo=1, **more
    )
    return model, spec.block(spec.decompose((1,)), 0)


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_array_of_now_is_read(order: Any) -> None:
    model, block = held(np.zeros((6, 7), order=order), (4, 5))
    assert np.shares_memory(block.storage, model["u"])
    model["u"] = np.arange(42.0).reshape((6, 7), order=order)
    block.update()
    assert np.shares_memory(block.storage, model["u"])
    assert np.array_equal(block.padded, model["u"])


def test_arrays_that_cannot_be_filled_are_copied_and_delivered() -> None:
    constant = np.arange(6.0)
    constant.flags.writeable = False
    model, block = held(constant, (4,))
    block.padded[:] += 1
    assert constant[0] == 0
    block.deliver()
    assert model["u"].tolist() == [1, 2, 3, 4, 5, 6]


def test_views_with_gaps_are_copied() -> None:
    whole = np.arange(24.0).reshape(6, 4)
    model, block = held(whole[:, 2], (4,))
    assert block.padded.tolist() == whole[:, 2].tolist()
    model["u"] = whole[:, 1]
    block.update()
    assert block.interior.tolist() == whole[1:-1, 1].tolist()


@pytest.mark.parametrize("other", [np.zeros(5), np.zeros(6, "f4"), np.ma.zeros(6)])
def test_a_getter_that_returns_other_data_is_refused(other: Any) -> None:
    model, block = held(np.zeros(6), (4,))
    model["u"] = other
    with pytest.raises(ValueError, match=r"expected (get|an array without a mask)"):
        block.update()


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({}, "neither"),
        ({"array": np.zeros(4), "get": list}, "data and get="),
        ({"get": list}, "get="),
        ({"array": np.zeros(4), "set": list}, "data and set="),
    ],
)
def test_data_or_both_functions(given: Any, got: str) -> None:
    with pytest.raises(ValueError, match=f"expected either data, or get= and set=, got {got}$"):
        dmr.adapt(shape=(4,), **given)


def test_rows_go_to_any_rank_as_many_to_each() -> None:
    model = {"rows": np.arange(30).reshape(10, 3)}
    spec = dmr.adapt_list(
        get=lambda: model["rows"], set=lambda a: model.update(rows=a), deliver="any"
    )
    assert spec.item == (3,)
    block = Items(spec, spec.decompose((2,)), 0)
    block.update()
    parts = block.parts(spec.decompose((4,)))
    assert sorted(map(len, parts.values())) == [2, 2, 3, 3]
    assert np.array_equal(np.concatenate([parts[n] for n in range(4)]), model["rows"])
    block.items = block.items[:0]
    assert block.parts(spec.decompose((4,))) == {}
    block.deliver()
    assert len(model["rows"]) == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"deliver": "all"}, 'expected deliver="owner" or "any", got \'all\''),
        ({}, "expected shape and owner with deliver='owner', got neither"),
        ({"shape": (3,)}, "expected shape and owner with deliver='owner', got shape"),
        (
            {"deliver": "any", "shape": (3,)},
            "expected neither shape nor owner with deliver='any', got shape",
        ),
    ],
)
def test_shape_and_owner_have_to_fit(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dmr.adapt_list(np.zeros(3), **given)
