"""Rotation: the larger sizes go from job to job, so that the jobs of an array end together.

Two jobs on three nodes need 100 s on one node and 50 s on two. The first has two nodes and 80 % to
go, the second one node and all. Unchanged, the last one ends after 70 s: 40 s until the first ends,
and 30 s on two nodes. An exchange may come four times in that time.
"""

from __future__ import annotations

import pytest

from rms.core.policies.share import RotationJob, largest_to_longest, rotation_sizes

PRESENT, EXCHANGED = [2, 1], [1, 2]


def sizes(since_s: float, price_s: float = 0.0, delay_s: float = 0.0) -> list[int]:
    jobs = [
        RotationJob(remaining, size, {1: 100.0, 2: 50.0}, price_s, delay_s)
        for remaining, size in ((0.8, 2), (1.0, 1))
    ]
    return rotation_sizes(jobs, 0, since_s)


@pytest.mark.parametrize(
    ("price_s", "delay_s", "due_s"),
    [
        (0.0, 0.0, 70 / 4),
        # It pays for an expansion unchanged, too; an exchange is a shrink and an expansion.
        (0.1, 0.0, 70.1 / 4 - 0.2),
        (0.1, 1.0, 70.1 / 4 - 0.2 - 1.0),
    ],
)
def test_sizes_are_exchanged_once_that_is_due(price_s: float, delay_s: float, due_s: float) -> None:
    assert sizes(due_s - 0.05, price_s, delay_s) == PRESENT
    assert sizes(due_s + 0.05, price_s, delay_s) == EXCHANGED


def test_the_best_of_several_times_between_exchanges_is_waited_for() -> None:
    """Three equal jobs on four nodes: one exchange a third of 20 s is best, and ends after 19.1 s.

    Six exchanges would come every 3.3 s; with a price of 1 s for each resize they end later.
    """
    jobs = [RotationJob(0.2, 1, {1: 100.0, 2: 50.0, 4: 40.0}, 1.0) for _ in range(3)]
    due_s = 20 / 3 * 19.1 / 20 - 2.0
    assert rotation_sizes(jobs, 1, due_s - 0.05) == [1, 1, 1]
    assert rotation_sizes(jobs, 1, due_s + 0.05) == [2, 1, 1]


def test_an_exchange_that_costs_more_than_it_brings_is_not_made() -> None:
    assert sizes(1e6, price_s=2.0) == EXCHANGED
    assert sizes(1e6, price_s=8.0) == PRESENT


def test_whoever_has_longest_to_go_has_the_largest_size_that_is_left() -> None:
    jobs = [RotationJob(1.0, 1, {1: 100.0, 2: 50.0, 4: 25.0}, 0.0) for _ in range(3)]
    assert largest_to_longest(jobs, [0.4, 1.0, 0.5], 3) == [1, 1, 1]
    assert largest_to_longest(jobs, [0.4, 1.0, 0.5], 5) == [1, 2, 1 + 1]
    assert largest_to_longest(jobs, [0.1, 1.0, 0.2], 6) == [1, 4, 1]
    assert largest_to_longest(jobs, [0.0, 0.0, 0.0], 6) == [1, 1, 1]
    short, long_ = (RotationJob(1.0, 1, {1: s, 2: s / 2}, 0.0) for s in (10.0, 100.0))
    assert largest_to_longest([short, long_], [1.0, 0.5], 3) == [1, 2]
