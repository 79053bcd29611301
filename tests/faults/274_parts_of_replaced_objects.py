"""A replaced object was returned whole: arrays that it shares with the program kept old values."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest

from dmr.state.values import adopt, parts_of, replaced_parts, round_trip


@dataclasses.dataclass
class Layer:
    w: Any
    n: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    w: Any
    n: int = 1


class Stateful:
    def __init__(self, w: Any, n: int = 1) -> None:
        self.w, self.n = w, n

    def __getstate__(self) -> tuple[Any, int]:
        return self.w, self.n

    def __setstate__(self, state: tuple[Any, int]) -> None:
        self.w, self.n = state


class Holder:
    def __init__(self, layer: Any) -> None:
        self.layer = layer


def objects(w: Any, n: int) -> list[Any]:
    mixed = np.array([w, n], dtype=object)
    derived = collections.OrderedDict(w=w, n=n)
    return [
        *(Layer(w, n), Slotted(w, n), Stateful(w, n), collections.deque([w, n]), mixed, derived),
        *([w, n], {"w": w, "n": n}, collections.defaultdict(list, w=w, n=n), (w, [n])),
    ]


def contents(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if hasattr(value, "__iter__") else [value.w, value.n]


@pytest.mark.parametrize("kind", range(len(objects(None, 0))))
def test_a_part_that_was_not_replaced_is_filled(kind: int) -> None:
    old = np.zeros(2)
    model = Holder(objects(old, 1)[kind])
    parts = parts_of(model)
    model.layer = objects(old, 2)[kind]
    old += 5
    replaced = replaced_parts(parts, model)
    own = np.zeros(2)
    current = Holder(objects(own, 1)[kind])
    before = current.layer
    assert adopt(current, round_trip("m", model), replaced) is current
    assert (own == 5).all()
    found = current.layer
    if isinstance(found, tuple):
        assert found[0] is own and found[1] == [2]
        return
    assert found is not before and type(found) is type(before)
    assert contents(found)[0] is own and contents(found)[1] == 2
    assert contents(before)[0] is own and contents(before)[1] == 1  # it is not modified


def test_a_part_that_was_replaced_too_is_not_filled() -> None:
    own = np.zeros(2)
    current, model = Holder(Layer(own)), Holder(Layer(np.zeros(2)))
    parts = parts_of(model)
    model.layer = Layer(np.ones(2), 2)
    adopt(current, round_trip("m", model), replaced_parts(parts, model))
    assert not own.any() and current.layer.w.all() and current.layer.n == 2


def test_a_replaced_object_that_holds_itself() -> None:
    def begin() -> tuple[Any, Any, list[Any]]:
        w, itself = np.zeros(2), list[Any]()
        itself += [itself, w]
        return w, itself, [itself]

    w, _, old = begin()
    parts = parts_of(old)
    w += 5
    other: list[Any] = []
    other += [other, w, 1]
    old[0] = other
    own, stays, current = begin()
    result = adopt(current, round_trip("m", old), replaced_parts(parts, old))
    assert (own == 5).all() and len(stays) == 2 and stays[0] is stays
    assert result[0][0] is result[0] and result[0][1] is own and result[0][2] == 1
