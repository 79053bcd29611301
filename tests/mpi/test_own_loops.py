"""Loops of a program's own, on ranks that nobody resizes: what is said, and what state is."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from mpi_runs import runtime_on

import dmr
from dmr.state.values import State, adopt

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(("rebinds", "notes"), [(False, 1), (True, 0)])
def test_a_swap_without_rebind_is_said_once(
    world: MPI.Intracomm, rebinds: bool, notes: int
) -> None:
    u, v, still = np.zeros((3, 4))
    runtime = runtime_on(world)
    fields = {name: dmr.adapt(a, (4 * world.size,)) for name, a in (("u", u), ("still", still))}
    with dmr.malleable(runtime, fields) as run:
        for _ in run.loop(9):
            v[:] = u + (world.rank == world.size - 1)  # the others do not change
            u, v = v, u
            if rebinds:
                run.fields["u"].rebind(u)
    log = runtime.log
    assert isinstance(log, io.StringIO)
    said = log.getvalue().count("note: field u changes in every second step only")
    assert said == (notes if world.rank == 0 else 0) and "still" not in log.getvalue()


def test_a_resize_point_within_a_loop_of_the_library_is_refused() -> None:
    with dmr.malleable(runtime_on(MPI.COMM_SELF)) as run:
        for _ in run.loop(1):
            with pytest.raises(dmr.UsageError, match="outside of run"):
                run.resize_point()
        assert run.step == 1
        for _ in run.loop(2):
            break
        run.resize_point()
        assert run.step == 2 and list(run.loop(3)) == [0, 1, 2]


def test_state_is_read_by_name_and_says_what_it_lacks() -> None:
    with dmr.malleable(runtime_on(MPI.COMM_SELF), state={"time": 0.5}) as run:
        run.state.time += 1
        assert run.state["time"] == 1.5 and run.comm is run.world.comm
        with pytest.raises(AttributeError, match=r"expected 'tine' in run.state, got time: give"):
            run.state.tine  # noqa: B018
        with pytest.raises(AttributeError, match=r"run.state\['items'\]"):
            run.state.items = 3  # type: ignore[assignment, method-assign]
        assert isinstance(run.state, State)


@dataclasses.dataclass(frozen=True)
class Frozen:
    number: int


FILLED: list[tuple[Any, Any]] = [
    (np.zeros(3), np.arange(3.0)),
    ([1], [2, 3]),
    ({"a": 1}, {"b": 2}),
    ({1}, {2}),
    (Frozen(1), Frozen(2)),
]


@pytest.mark.parametrize(("given", "arrived"), FILLED)
def test_what_the_program_holds_is_filled_in_place(given: Any, arrived: Any) -> None:
    assert adopt(given, arrived) is given
    assert np.array_equal(given, arrived)


def test_random_generators_go_on_in_place() -> None:
    for make in (np.random.default_rng, np.random.RandomState):
        mine, theirs = make(1), make(2)
        assert adopt(mine, theirs) is mine and mine.normal() == make(2).normal()


@pytest.mark.parametrize(
    ("given", "arrived"), [(1, 2), (np.zeros(2), np.zeros(3)), ([1], (1,)), (None, "text")]
)
def test_what_cannot_be_filled_is_what_arrived(given: Any, arrived: Any) -> None:
    assert adopt(given, arrived) is arrived
