"""Values that travel with a job keep their types and bits, whatever they are."""

from __future__ import annotations

import collections
import fractions
import math
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmr.data.field import adapt
from dmr.state.progress import Progress, decode, encode
from dmr.state.values import ValuesError, decode_values, encode_values

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.text() | st.integers() | st.tuples(st.integers())
trees = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(keys, inner)
)


def travelled(values: dict[str, Any], *, trusted: bool = False) -> dict[str, Any]:
    return decode(encode(Progress(values=values)), trusted=trusted).values


def same(a: Any, b: Any) -> bool:
    """Return whether two values are alike, types and NaN and signs of zeros included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, float) and math.copysign(1.0, a) != math.copysign(1.0, b):
        return False
    return bool(a == b)


@given(st.dictionaries(st.text(), trees))
def test_what_json_almost_knows_travels_without_a_pickle(values: dict[str, Any]) -> None:
    found = travelled(values)
    assert found.keys() == values.keys()
    assert all(same(found[name], values[name]) for name in values)


@pytest.mark.parametrize(
    "value",
    [
        np.float64(0.1),
        np.float32("nan"),
        np.int8(-3),
        np.bool_(True),
        np.str_("a"),
        np.datetime64("2025-06-01"),
        np.arange(6.0).reshape(2, 3),
        np.arange(6, dtype=">i4").reshape(2, 3).T,
        np.array([math.nan, -0.0, math.inf]),
        np.array(7),
        np.zeros(2, [("x", "f8"), ("n", "i4")]),
        [{"history": (np.float64(1.5), math.nan)}, np.ones(0)],
    ],
    ids=repr,
)
def test_numpy_scalars_and_arrays_travel_without_a_pickle(value: Any) -> None:
    assert same(travelled({"it": value})["it"], value)


class Half(fractions.Fraction):
    """A class of the program's own."""


def test_anything_that_can_be_pickled_travels_where_the_source_is_trusted() -> None:
    itself: list[Any] = [1]
    itself.append(itself)
    values = {
        "set": {1, 2},
        "bytes": b"\0\xff",
        "own": Half(1, 2),
        "complex": 1j,
        "deque": collections.deque([1], maxlen=3),
        "objects": np.array([Half(1, 3), None]),
        "surrogate": "\ud800",
        "itself": itself,
    }
    found = travelled(values, trusted=True)
    for name in values.keys() - {"itself", "objects"}:
        assert type(found[name]) is type(values[name]) and found[name] == values[name]
    assert list(found["objects"]) == [Half(1, 3), None]
    assert found["itself"][1] is found["itself"]


def test_a_pickle_is_not_read_where_the_source_is_not_trusted() -> None:
    with pytest.raises(ValuesError, match=r"run.state\['own'\].*pickle.*not trusted"):
        travelled({"fine": 1, "own": Half(1, 2)})


@pytest.mark.parametrize("value", [threading.Lock(), lambda: 0, [{"deep": (x for x in "a")}]])
def test_what_cannot_be_pickled_is_refused_in_words(value: Any) -> None:
    with pytest.raises(ValuesError, match=r"run.state\['bad'\] cannot be pickled: \w+Error: "):
        encode(Progress(values={"good": 1, "bad": value}))
    with pytest.raises(ValuesError, match="expected names"):
        encode(Progress(values={1: "one"}))  # type: ignore[dict-item]


def test_arrays_that_are_mapped_from_a_file_are_refused(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "mapped", "f8", "w+", shape=(4, 4))
    with pytest.raises(ValuesError, match=r"run.state\['m'\].*got a memmap of .*mapped: copy it"):
        encode(Progress(values={"m": [mapped]}))
    for array in (mapped, mapped[:, :], np.asarray(mapped)):
        with pytest.raises(ValueError, match=r"got a memmap of .*mapped: copy it by np.array"):
            adapt(array, (4, 4))
    spec = adapt(np.zeros((4, 4)), (4, 4))
    with pytest.raises(ValueError, match="got a memmap"):
        spec.block(spec.decompose((1,)), 0).rebind(mapped)


def test_what_cannot_be_read_is_said() -> None:
    _, found = encode_values({"own": Half(1, 2)})
    gone = pickle.dumps(Half(1, 2)).replace(b"Half", b"Gone")
    for tree in ({"pickle": "AAAA"}, {"array": "AAAA"}, {"no": "tag"}, {"pickle": gone.hex()}):
        with pytest.raises(ValuesError, match=r"run.state\['own'\] cannot be read: "):
            decode_values({}, {**found, "own": tree}, trusted=True)
