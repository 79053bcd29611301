"""Arrays in a container or an object of ``run.state`` were not filled in place after a resize."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import fractions
import io
import pathlib
import random
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from mpi_runs import runtime_on
from processes import MPIEXEC, Run, program

import dmr
from dmr.resize.merge import Snapshot
from dmr.state.progress import Progress, decode, encode
from dmr.state.values import adopt, parts_of, replaced_parts, unfillable_types


@dataclasses.dataclass
class Layer:
    weights: Any
    name: str = "first"


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    weights: Any


class Plain:
    def __init__(self, weights: Any) -> None:
        self.weights, self.cache = weights, None


class Named(collections.namedtuple("Named", ["w", "n"])):
    pass


class Derived(list[Any]):
    note: Any = None


def travelled(value: Any) -> Any:
    return decode(encode(Progress(values={"it": value})), trusted=True).values["it"]


def twice(make: Any) -> tuple[Any, Any, Any]:
    """Return an array, a value that holds it, and such a value from elsewhere, its array all 20."""
    old = np.full(3, 20.0)
    fresh = np.zeros(3)
    return fresh, make(fresh), travelled(make(old))


@pytest.mark.parametrize(
    "make",
    [
        lambda a: [1, a],
        lambda a: (1, a),
        lambda a: {"d": a},
        lambda a: {"deep": [{"er": (a,)}]},
        lambda a: collections.defaultdict(list, d=[a]),
        lambda a: collections.deque([a], maxlen=3),
        Layer,
        Slotted,
        Plain,
        lambda a: [Plain([Layer({"w": a})])],
        lambda a: Named(a, 1),
        lambda a: np.array([a, None], dtype=object),
    ],
)
def test_an_array_within_a_value_is_filled(make: Any) -> None:
    fresh, target, arrived = twice(make)
    result = adopt(target, arrived)
    assert result is target and (fresh == 20).all()


def test_attributes_of_derived_containers_and_generators_are_filled() -> None:
    own, rng, python = np.zeros(2), np.random.default_rng(1), random.Random(1)
    target, other = Derived([rng, python]), Derived([np.random.default_rng(2), random.Random(2)])
    target.note, other.note = own, np.ones(2)
    children = other[0].spawn(2)  # a generator counts its children outside of its state
    assert adopt(target, travelled(other)) is target and (own == 1).all() and target[0] is rng
    assert rng.random() == other[0].random() and python.random() == other[1].random()
    assert rng.spawn(1)[0].random() != children[0].random()


def test_values_that_cannot_be_filled_are_replaced_in_their_container() -> None:
    target = {"grown": np.zeros(2), "kept": np.zeros(2), "gone": 1}
    kept = target["kept"]
    result = adopt(target, travelled({"grown": np.ones(5), "kept": np.ones(2), "new": "x"}))
    assert result is target and list(target) == ["grown", "kept", "new"]
    assert len(target["grown"]) == 5 and target["kept"] is kept and (kept == 1).all()


def test_one_object_in_two_places_does_not_get_both_values() -> None:
    shared = np.zeros(2)
    result = adopt([shared, shared], travelled([np.ones(2), np.full(2, 2.0)]))
    assert [list(one) for one in result] == [[1, 1], [2, 2]] and result[0] is shared
    result = adopt([shared, shared], travelled([np.ones(2)] * 2))
    assert result[0] is shared and result[1] is shared
    itself: list[Any] = [shared]
    itself.append(itself)
    assert adopt(itself, travelled(itself)) is itself and itself[1] is itself


def test_a_merge_that_is_taken_back_leaves_the_program_its_own_objects() -> None:
    weights = np.ones(2)
    run: Any = type("Run", (), {})()
    run.progress, run.world, run.fields, run.restored = Progress(), None, {}, False
    run.internal = type("State", (), {"built": True, "free_carts": lambda self: None})()
    run.progress.values = {"w": [weights]}
    before = Snapshot(run)
    weights += 1
    before.put_back(run)
    assert run.progress.values["w"][0] is weights and (weights == 1).all()


def test_a_program_with_nested_state_gives_the_same_resized(run: Run) -> None:
    words = program("nested_state")
    plain = run(MPIEXEC, "-n", "1", *words)
    resized = run(MPIEXEC, "-n", "1", *words, env={"DMR_RESIZE_AT": "10:2,14:1"})
    assert plain.returncode == 0 and "a 20.0 d 20.0" in plain.stdout, plain.stderr
    assert resized.stdout.count(" ranks by ") == 2, resized.stdout + resized.stderr
    assert resized.stdout.splitlines()[-2:] == plain.stdout.splitlines()[-2:], resized.stderr
    assert "data 12.0 centers 246.0" in plain.stdout


def test_an_object_that_the_program_has_replaced_is_not_filled() -> None:
    def begin() -> tuple[list[Any], dict[str, Any]]:
        data = [np.full(2, float(n)) for n in range(4)]
        return data, {"c": [data[0], data[1]], "o": Plain(data[2]), "t": (data[3], 1)}

    _, old = begin()
    parts = parts_of(old)
    assert replaced_parts(parts, old) == []
    old["c"][0] = old["c"][0] + 7
    old["c"][1] += 7
    old["o"].weights = np.full(2, 9.0)
    old["t"] = (old["t"][0], 2)  # a new pair of the same array
    old["t"][0][:] = 8
    where = replaced_parts(parts, old)
    assert where == ["['c'][0]", "['o']['weights']"]
    fresh, target = begin()
    result = adopt(target, travelled(old), where)
    assert [float(one[0]) for one in fresh] == [0, 8, 2, 8] and result is target
    assert result["c"][0][0] == 7 and result["c"][1] is fresh[1] and result["t"] == (fresh[3], 2)
    assert result["o"] is target["o"] and result["o"].weights[0] == 9
    old["c"] = [old["c"][1], old["c"][1]]
    assert replaced_parts(parts, old)[:2] == ["['c']", "['c'][0]"]
    many = [[n] for n in range(2000)]
    parts = parts_of(many)
    many[1:] = [[n] for n in range(1999)]
    assert replaced_parts(parts, many) == ["*"]
    assert replaced_parts(parts, [[n] for n in range(2000)]) == ["", "*"]
    assert replaced_parts(parts_of(many[:1]), many) == [""]  # its other parts were not there before


class Tensor:
    """An array of another library: it is pickled with its data, and compared by element."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensor, (self.data,)

    def __eq__(self, other: object) -> Any:
        return np.zeros(2) == 0

    __hash__ = object.__hash__


def test_objects_that_cannot_be_filled_are_reported_at_entry() -> None:
    fixed = np.zeros(2)
    fixed.flags.writeable = False
    good = [
        *(fractions.Fraction(1, 2), datetime.date(2026, 1, 1), pathlib.Path("a"), 1j, b"a", None),
        *(np.float64(1), random.Random(1), np.random.default_rng(1), np.random.mtrand._rand),  # type: ignore[attr-defined]
        *(np.ones(2), Layer(np.ones(2)), Slotted([1]), Plain({"a": (1, 2)}), frozenset({1})),
        *({1}, collections.deque([1]), Derived([1]), Named(1, 2), MPI.COMM_WORLD, np.float64),
    ]
    for value in good:
        assert unfillable_types({"a": [value]}) == [], value
    itself: list[Any] = [Tensor(1), fixed]
    itself.append(itself)
    assert unfillable_types(Layer(itself)) == ["Tensor", "read-only array"]
    runtime = runtime_on(MPI.COMM_SELF)
    with dmr.malleable(runtime, state={"model": {"w": Tensor(np.ones(2))}, "fine": good}):
        pass
    log = runtime.log
    assert isinstance(log, io.StringIO)
    (line,) = log.getvalue().splitlines()
    assert line.startswith("note: run.state['model'] holds Tensor, which a resize cannot fill")
