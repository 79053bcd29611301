"""Deeply nested state was accepted, and ended the job in the middle of its first resize."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from mpi_runs import runtime_on

import dmr
from dmr.state.values import ValuesError, adopt, pickle_digest


class Link:
    def __init__(self, array: Any, following: Any = None) -> None:
        self.array, self.following = array, following


def lists(depth: int) -> Any:
    value: list[Any] = [np.zeros(2)]
    for _ in range(depth):
        value = [value]
    return value


def chain(depth: int) -> Any:
    value = Link(np.zeros(2))
    for _ in range(depth):
        value = Link(np.zeros(2), value)
    return value


@pytest.mark.parametrize(("make", "depth"), [(lists, 350), (chain, 320), (lists, 5000)])
@pytest.mark.parametrize("own", [False, True])
def test_it_is_refused_at_entry(make: Any, depth: int, own: bool) -> None:
    value = make(depth)
    state = dmr.PerRank(value, list, lambda values, ranks: values) if own else value
    message = r"^run\.state\['x'\] is nested too deep to be filled"
    with (
        pytest.raises(dmr.UsageError, match=message),
        dmr.malleable(runtime_on(MPI.COMM_SELF), state={"x": state}),
    ):
        pass


def test_what_is_accepted_is_filled_to_its_end_in_deeper_calls() -> None:
    def deeper(frames: int, current: Any, received: Any) -> Any:
        return deeper(frames - 1, current, received) if frames else adopt(current, received)

    accepted = 0
    for make in (lists, chain):
        for depth in range(20, 400, 4):
            try:
                pickle_digest("x", make(depth))
            except ValuesError:
                break
            accepted += 1
            value, other = make(depth), make(depth)
            end = value
            for _ in range(depth):
                end = end[0] if isinstance(end, list) else end.following
            assert deeper(30, other, value) is other
    assert accepted > 50


def test_a_chain_that_is_too_long_is_not_filled_in_part() -> None:
    with pytest.raises(RecursionError):
        adopt(chain(600), chain(600))


def test_the_program_keeps_its_data() -> None:
    array = np.arange(3.0)
    value = {"a": [array, Link(array)], "rng": np.random.default_rng(1)}
    expected = np.random.default_rng(1).random()
    pickle_digest("x", value)
    assert (array == [0, 1, 2]).all() and value["rng"].random() == expected
    assert value["a"][1].array is array
