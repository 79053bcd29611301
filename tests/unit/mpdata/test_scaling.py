"""What to expect of more ranks, from what few take."""

from __future__ import annotations

import pytest

from mpdata.study.scaling import (
    HALO,
    RANKS,
    Costs,
    block_of,
    expected,
    process_grid,
    sent_cells,
)

GRID = (128, 128, 32)


def test_blocks_and_what_they_send() -> None:
    assert [process_grid(GRID, p) for p in (1, 2, 4, 16)] == [(1, 1), (1, 2), (2, 2), (4, 4)]
    assert process_grid((512, 8, 4), 4) == (4, 1)
    assert block_of((10, 7, 3), (3, 2)) == (4, 4, 3)
    assert sent_cells(GRID, (1, 1)) == 0
    assert sent_cells(GRID, (2, 2)) == 2 * HALO * 32 * (64 + 64)


def test_ranks_that_lose_nothing_are_as_many_times_faster() -> None:
    alone = dict.fromkeys((1, *RANKS), 8.0)
    for row in expected(GRID, Costs(alone, beside_ns=8.0, two_ns=4.0)):
        assert row["times"] == pytest.approx(row["ranks"])


def test_shared_memory_and_messages_cost() -> None:
    alone = dict.fromkeys((1, *RANKS), 8.0)
    two, four, *_ = expected(GRID, Costs(alone, beside_ns=10.0, two_ns=5.5))
    assert two["ns_per_cell_step"] == pytest.approx(5.5)  # what was measured
    message_ns = 0.5 * 128 * 128 * 32 / sent_cells(GRID, (1, 2))
    own_ns = 64 * 64 * 32 * 10.0
    step_ns = own_ns + sent_cells(GRID, (2, 2)) * message_ns
    assert four["ns_per_cell_step"] == pytest.approx(step_ns / (128 * 128 * 32))
