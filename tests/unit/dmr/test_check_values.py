"""What ``dmr check`` records of a run, and what it compares with a tolerance."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from mpi4py import MPI

import dmr
from dmr.check.digests import (
    Digests,
    note_initial_state,
    values_folder,
    write_digests,
)
from dmr.check.tolerance import close_arrays, close_lines, close_values
from dmr.check.variables import digests_of_names, variables_of
from dmr.state.progress import Progress
from dmr.state.values import encode_values


def recorded(path: Path, progress: Progress, scale: float = 1.0) -> Digests:
    """Write and read the end of a run with a field and a list."""
    values_folder(path).mkdir()
    u = np.arange(12.0).reshape(3, 4) * scale
    rows = np.array([[2.0, 5.0], [1.0, 7.0]])[:: 1 if scale == 1 else -1]
    specs: Any = {
        "u": dmr.adapt(u, (3, 4)),
        "rows": dmr.adapt_list(rows, deliver="any"),
    }
    fields = {name: one.block(one.decompose((1,)), 0) for name, one in specs.items()}
    fields["rows"].initialise()
    write_digests(path, MPI.COMM_SELF, fields, progress, {"x": "a"})
    return msgspec.json.decode(path.read_bytes(), type=Digests)


def test_values_are_written_for_a_tolerance(tmp_path: Path) -> None:
    progress = Progress(values={"time": 1.0, "kept": [3]})
    note_initial_state(progress)
    progress.values["time"] = 2.0
    one = recorded(tmp_path / "one.json", progress)
    assert one.unchanged_state == ["kept"] and one.variables == [{"x": "a"}]
    two = recorded(tmp_path / "two.json", progress, 1 + 1e-12)
    assert one.fields["u"] != two.fields["u"] and one.fields["rows"] == two.fields["rows"]
    for number in range(2):
        paths = [values_folder(tmp_path / f"{n}.json") / f"{number}.npy" for n in ("one", "two")]
        assert close_arrays(*paths, 1e-11)
        assert close_arrays(*paths, 1e-13) == (number == 1)
    assert close_values(one.values["time"], encode_values({"time": 2.0 + 1e-9}), 1e-8)


NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other", "close"),
    [
        (1.0, 1.0 + 1e-7, True),
        (1.0, 1.1, False),
        ([1, {"a": np.arange(3.0)}], [1, {"a": np.arange(3.0) + 1e-8}], True),
        ([1, {"a": np.arange(3.0)}], [1, {"b": np.arange(3.0)}], False),
        ((1, 2), (1, 2, 3), False),
        (np.array([1, NAN, np.inf]), np.array([1 + 1e-9, NAN, np.inf]), True),
        (np.array([1, NAN]), np.array([NAN, 1]), False),
        (np.array([1, np.inf]), np.array([1, 2.0]), False),
        (np.array([1, 2.0]), np.array([1, np.inf]), False),
        (np.zeros(3), np.zeros(4), False),
        (np.zeros(3), np.zeros(3, "f4"), False),
        (np.array([(1, 2.0)], "i4,f8"), np.array([(1, 2.0 + 1e-9)], "i4,f8"), True),
        (np.array(["a"]), np.array(["b"]), False),
        (1 + 1j, 1 + 1.0000000001j, True),
        ("text", "text", True),
        ("text", 3, False),
    ],
)
def test_values_are_close(one: Any, other: Any, close: bool) -> None:
    pair = [encode_values({"a": value}) for value in (one, other)]
    assert close_values(*pair, 1e-6) == close


def test_what_cannot_be_read_is_not_close() -> None:
    assert not close_values(None, encode_values({"a": 1}), 0.5)
    assert not close_values([{}, {"a": {"pickle": "x"}}], encode_values({"a": 1}), 0.5)


def test_lines_are_close() -> None:
    one = ["step 3: sum 1.000000, -2e-3 of u1", "end", "nan here"]
    assert close_lines(one, ["end", "step 3: sum 1.000001, -2.000001e-3 of u1"], 1e-5) == [one[2]]
    assert close_lines(one, ["end", "step 3: sum 1.1, -2e-3 of u1", "nan here"], 1e-5) == one[:1]
    assert close_lines(one, ["end"], 0.0) == [one[0], one[2]]


class Model:
    """An object of the program's own."""

    def __init__(self) -> None:
        self.hidden, self.name = np.arange(3.0), "a model"


def test_variables_that_are_not_declared_are_hashed() -> None:
    u, x, model, count, seeds = np.zeros(4), np.ones(3), Model(), 3, np.random.default_rng(1)
    part, text, listed = u[1:], "text", [x, 1]
    declared = {"u": u, "count": count, "table": {"a": listed}}
    found = variables_of(sys._getframe(), declared)
    assert {"model.hidden", "seeds"} <= set(found)
    assert not {"u", "part", "count", "text", "model", "model.name", "x"} & set(found)
    assert part.size and text and seeds
    before = found["model.hidden"]
    model.hidden += 1
    assert variables_of(sys._getframe(), declared)["model.hidden"] != before


def test_what_is_large_or_an_object_is_left_out() -> None:
    names = {
        "large": list(range(20_000)),
        "objects": np.array([None, 1]),
        "function": print,
        "module": sys,
        "numbers": {"a": [1, 2.0, np.float32(3)]},
    }
    assert list(digests_of_names(names, {}, "")) == ["numbers"]
