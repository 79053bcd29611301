"""Blocks of a world to come: their pages exist before anything stops, and none is kept too long."""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import dmr
from dmr.data.field import Field
from dmr.data.particles import ListSpec
from dmr.errors import UsageError
from dmr.loop.driver import MOST_BETWEEN_S, Driver
from dmr.plan import NextWorld, Plan
from dmr.resize.merge import NewBlocks
from dmr.state.progress import Progress
from dmr.system import libc

SHAPE = (60, 9, 7)
MIB = 1 << 20
STATM = Path("/proc/self/statm")


def spec(shape: tuple[int, ...] = SHAPE) -> dmr.FieldSpec:
    return dmr.FieldSpec(shape, "f8", lambda box: 1.0, halo=1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call everything large."""
    monkeypatch.setattr(libc, "LEAST_BYTES", 1)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("new", [(2, 1), (3, 3), (2, 2)])
def test_a_block_moves_to_another_decomposition(new: tuple[int, int], keeps: bool) -> None:
    field = spec()
    decomposition = field.decompose(new)
    for rank in range(decomposition.size):
        block, fresh = field.block(field.decompose((1, 1)), 0), field.block(decomposition, rank)
        block.initialise()
        held = block.interior if keeps else None
        moved = block.moved_to(decomposition, rank)
        assert held is None or held.shape == SHAPE  # a view of the program's stays readable
        assert np.array_equal(moved.spare, fresh.padded)
        assert moved.interior.ctypes.data % moved.memory_layout.alignment == 0
        assert (moved.box, moved.decomposition, moved.rank) == (fresh.box, decomposition, rank)
        assert np.array_equal(moved.padded, fresh.padded) and not moved.storage.any()
        if not keeps and sys.gettrace() is None:  # a tracer refers to it, and so it stays as it is
            assert moved.storage.base.nbytes == moved.memory_layout.allocation_bytes


def test_a_block_that_needs_more_has_new_memory() -> None:
    field = spec()
    block = field.block(field.decompose((3, 1)), 1)
    block.initialise()
    moved = block.moved_to(field.decompose((2, 1)), 1)
    assert not np.shares_memory(moved.storage, block.storage) and not moved.storage.any()
    assert moved.box.start == (30, 0, 0)


def test_memory_of_the_application_is_left_alone() -> None:
    mine = np.full((62, 9), 3.0)
    field = dmr.adapt(mine, (60, 9), halo=((1, 1), (0, 0)))
    moved = field.block(field.decompose((1,)), 0).moved_to(field.decompose((2,)), 1)
    assert not np.shares_memory(moved.storage, mine) and (mine == 3.0).all()


def test_memory_that_is_touched_is_zero_but_for_the_application_s() -> None:
    """Its own may have a boundary in the halo already."""
    block = spec().block(spec().decompose((1, 1)), 0)
    block.padded[...] = 3.0
    block.prefault()
    assert not block.storage.any()
    mine = np.full((62, 9), 3.0)
    field = dmr.adapt(mine, (60, 9), halo=((1, 1), (0, 0)))
    field.block(field.decompose((1,)), 0).prefault()
    assert (mine == 3.0).all()


def test_lists_move_as_they_are() -> None:
    field = ListSpec((60,), "i8", lambda box: [], owner=lambda items, decomposition: items)
    moved = field.block(field.decompose((1,)), 0).moved_to(field.decompose((2,)), 1)
    assert moved.rank == 1 and len(moved.items) == 0


def resident_mib() -> float:
    return int(STATM.read_text().split()[1]) * mmap.PAGESIZE / MIB


@pytest.mark.skipif(not STATM.exists(), reason="nobody says what is resident")
def test_a_block_that_moves_gives_its_memory_back() -> None:
    field = spec((40, 1024, 1024))
    before = resident_mib()
    block = field.block(field.decompose((1, 1)), 0)
    block.prefault()
    assert resident_mib() - before > 300
    moved = block.moved_to(field.decompose((2, 1)), 1)
    assert 150 < resident_mib() - before < 240
    moved.initialise()
    assert moved.interior.min() == 1.0


def fields() -> dict[str, Field]:
    return {"a": spec().block(spec().decompose((1, 1)), 0)}


def test_new_blocks_are_as_those_of_their_world(small: None) -> None:
    found = NewBlocks(fields(), 2).take()
    fresh = spec().block(spec().decompose((2, 1)), 0)
    assert list(found) == ["a"] and found["a"].box == fresh.box
    assert np.array_equal(found["a"].padded, fresh.padded)


def test_a_rank_that_leaves_has_none(small: None) -> None:
    leaves = {"a": spec().block(spec().decompose((3, 1)), 2)}
    assert NewBlocks(leaves, 2).take() == {}


def test_what_is_dropped_is_touched_no_longer(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "TOUCHED_BYTES", 8)
    large = {"a": spec((2000, 60, 60)).block(spec((2000, 60, 60)).decompose((2, 1)), 0)}
    blocks = NewBlocks(large, 1)
    begun = time.monotonic()
    blocks.drop()
    assert blocks.ready and time.monotonic() - begun < 1.0 and blocks.take() == {}


class Slow(NewBlocks):
    """Blocks whose pages are there when the test says so."""

    made: list[Slow]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.there = self.dropped = False
        self.made.append(self)

    @property
    def ready(self) -> bool:
        return self.there

    def drop(self) -> None:
        self.dropped = True
        super().drop()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Slow]]:
    Slow.made = []
    monkeypatch.setattr("dmr.resize.merge.NewBlocks", Slow)
    yield Slow.made


def driver(step_s: float = 0.01) -> Driver:
    run: Any = SimpleNamespace(
        fields=fields(),
        progress=Progress(step=100, elapsed_s=100 * step_s),
        world=SimpleNamespace(internal_comm=MPI.COMM_SELF),
        restored=True,
    )
    found = Driver.__new__(Driver)
    found.run, found.plan, found.app = run, Plan(), SimpleNamespace(supports_merge=True)  # type: ignore[assignment]
    found._new_blocks = None
    return found


def wanted(ranks: int = 2, request: int = 1, strategy: str = "merge") -> NextWorld:
    return NextWorld(ranks, strategy, (), request, ())


def test_steps_go_on_until_the_memory_is_there(made: list[Slow]) -> None:
    this = driver()
    assert this._waits_for_memory(wanted()) and this._waits_for_memory(wanted())
    assert len(made) == 1 and not made[0].dropped
    made[0].there = True
    assert not this._waits_for_memory(wanted())
    assert this._new_blocks is made[0] and len(made) == 1


def test_another_request_has_blocks_of_its_own(made: list[Slow]) -> None:
    this = driver()
    assert this._waits_for_memory(wanted()) and this._waits_for_memory(wanted(3, request=2))
    assert made[0].dropped and (made[1].ranks, made[1].request) == (3, 2)
    this._drop_new_blocks()
    assert made[1].dropped and this._new_blocks is None


def test_nothing_waits_that_need_not(made: list[Slow]) -> None:
    this = driver()
    assert not this._waits_for_memory(wanted(strategy="warm"))
    assert not this._waits_for_memory(wanted(request=0))  # at exactly this step
    this.app.supports_merge = False
    assert not this._waits_for_memory(wanted()) and not made


def test_where_resize_points_are_rare_a_resize_does_not_wait(made: list[Slow]) -> None:
    this = driver(step_s=2 * MOST_BETWEEN_S)
    assert not this._waits_for_memory(wanted())


def test_what_does_not_fit_is_left_to_the_resize(
    made: list[Slow], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (MemoryError(), UsageError("no grid")):

        def fails(*_: Any, error: Exception = error) -> NewBlocks:
            raise error

        monkeypatch.setattr("dmr.resize.merge.NewBlocks", fails)
        assert not driver()._waits_for_memory(wanted())
