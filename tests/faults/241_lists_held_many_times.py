"""State whose lists hold one list twice, 25 levels deep, was written out 2**25 times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dmr.state import values
from dmr.state.values import adopt, decode_values, digest, encode_values, parts_of, replaced_parts

LEVELS = 60


def nested(last: float) -> list[Any]:
    value: list[Any] = [last]
    for _ in range(LEVELS):
        value = [value, value]
    return value


def innermost(value: list[Any]) -> list[Any]:
    for _ in range(LEVELS):
        value = value[1]
    return value


def test_it_is_pickled_as_a_whole() -> None:
    plain, trees = encode_values({"x": nested(1.5), "y": {"z": nested(2.5)}})
    assert not plain and all(set(tree) == {"pickle"} for tree in trees.values())
    value = decode_values(plain, trees, trusted=True)
    assert innermost(value["x"]) == [1.5] and innermost(value["y"]["z"]) == [2.5]
    given = nested(0.0)
    assert adopt(given, value["x"]) is given and innermost(given) == [1.5]


def test_its_digest_is_that_of_its_values() -> None:
    assert digest("x", nested(1.0)) == digest("x", nested(1.0)) != digest("x", nested(2.0))


def test_large_values_are_written_out_where_all_is_held_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(values, "MAX_CONTAINERS", 100)
    large = [[float(n)] for n in range(1000)]
    assert encode_values({"x": large}) == ({"x": large}, {})
    once = [0.0]
    plain, trees = encode_values({"few": [once] * 99, "many": [once] * 100})
    assert list(plain) == ["few"] and list(trees) == ["many"]


@pytest.mark.parametrize("paths", [[], ["*"], ["[0][0]"]])
def test_tuples_are_filled_once(paths: list[str]) -> None:
    def shared(leaf: Any) -> tuple[Any, ...]:
        value = (leaf,)
        for _ in range(LEVELS):
            value = (value, value)
        return value

    numbers = shared(1.5)
    assert list(parts_of([numbers])) == [""] and parts_of(numbers) == {}
    assert len(str(adopt([shared(0.0), 0], [numbers, 1], paths)[1])) == 1
    given = [shared(np.zeros(2)), [0]]
    parts = parts_of(given)
    assert replaced_parts(parts, given) == ["*"]
    leaf = np.ones(2)
    result = adopt(given, [shared(leaf), [1]], paths)
    assert result is given and result[1] == [1]
    value = result[0]
    while isinstance(value, tuple):
        value = value[-1]
    assert np.array_equal(value, leaf)
