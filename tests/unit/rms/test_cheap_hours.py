"""Widths of a job over hours of different prices: the answer, the optimum, and resizes' price."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from rms.core.policies.cheap_hours import (
    Hour,
    HourlySizes,
    Width,
    carried_out,
    cheapest,
    cheapest_by_hour,
    efficient_sizes,
)

CONCAVE = (Width(1, 0.10, 1.0), Width(2, 0.18, 2.0), Width(4, 0.28, 4.0))


def day(*values: float) -> list[Hour]:
    return [Hour(float(at), at + 1.0, value) for at, value in enumerate(values)]


def sizes(made: HourlySizes | None, hours: int) -> list[int]:
    assert made is not None
    return [made.size_at(at + 0.25) for at in range(hours)]


def test_a_job_is_wide_in_the_cheap_hour_and_pauses_in_the_dear_one() -> None:
    made = cheapest(CONCAVE, day(1.0, 9.0, 2.0, 3.0), 0.28 + 0.18 + 0.10)
    assert sizes(made, 4) == [4, 0, 2, 1]
    assert made is not None and made.cost == pytest.approx(4.0 * 1.0 + 2.0 * 2.0 + 1.0 * 3.0)
    assert made.done == pytest.approx(0.56) and made.resizes == 2


def test_without_pauses_it_is_narrow_in_the_dear_hour() -> None:
    made = cheapest(CONCAVE, day(1.0, 9.0, 1.0), 0.28 + 0.10 + 0.28, pauses=False)
    assert sizes(made, 3) == [4, 1, 4]
    late = cheapest(CONCAVE, day(9.0, 9.0, 1.0, 1.0), 0.3, pauses=False)
    assert sizes(late, 4)[:2] == [0, 0]


def test_a_deadline_that_cannot_be_met_has_no_sizes() -> None:
    assert cheapest(CONCAVE, day(1.0, 1.0), 0.57) is None
    assert cheapest(CONCAVE, day(1.0, 1.0), 0.57, pauses=False) is None
    assert cheapest_by_hour(CONCAVE, day(1.0, 1.0), 0.55, price_s=0.5, before=CONCAVE[0]) is None
    assert cheapest(CONCAVE, [], 0.1) is None
    done = cheapest(CONCAVE, [], 0.0)
    assert done is not None and done.pieces == ()


def test_sizes_that_a_mixture_of_others_beats_are_left_out() -> None:
    slow = Width(2, 0.11, 2.0)  # half an hour on one and half on four do more
    slower = Width(8, 0.27, 8.0)
    assert efficient_sizes([*CONCAVE[::2], slow, slower]) == CONCAVE[::2]
    assert efficient_sizes([Width(1, 0.1, 0.0), Width(2, 0.2, 0.0)]) == (Width(2, 0.2, 0.0),)


def every_schedule(
    widths: tuple[Width, ...],
    hours: list[Hour],
    work: float,
    *,
    pauses: bool,
    price_s: float = 0.0,
) -> float:
    """Return the least cost of all schedules of whole hours that end when the work is done."""
    costs = []
    for levels in product((None, *widths), repeat=len(hours)):
        there = [at for at, width in enumerate(levels) if width is not None]
        if not pauses and there and there[-1] - there[0] != len(there) - 1:
            continue
        made = carried_out(levels, hours, work, price_s)
        if made.done >= work - 1e-9:
            costs.append(made.cost)
    return min(costs)


@pytest.mark.parametrize("pauses", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_no_schedule_costs_less_with_a_concave_speedup(seed: int, pauses: bool) -> None:
    """Of whole hours none is cheaper, and where the work fills whole hours one costs the same."""
    rng = Random(seed)
    hours = day(*(float(rng.randint(1, 9)) for _ in range(5)))
    levels = [rng.randrange(1, 4) for _ in hours]
    whole = sum(CONCAVE[level - 1].rate for level in levels)
    for work in (whole, rng.uniform(0.05, 5 * 0.28)):
        made = cheapest(CONCAVE, hours, work, pauses=pauses)
        assert made is not None and made.done == pytest.approx(work)
        assert made.cost <= every_schedule(CONCAVE, hours, work, pauses=pauses) + 1e-9
    first = cheapest(CONCAVE, hours, whole)
    assert first is not None
    assert first.cost <= sum(  # the drawn sizes do the same work
        CONCAVE[level - 1].watts * hour.value for level, hour in zip(levels, hours, strict=True)
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_job_of_one_size_begins_at_the_cheapest_time(seed: int) -> None:
    rng = Random(seed)
    hours, one = day(*(float(rng.randint(1, 9)) for _ in range(6))), CONCAVE[:1]
    work = rng.uniform(0.02, 0.55)
    made = cheapest(one, hours, work, pauses=False)
    assert made is not None and made.done == pytest.approx(work) and made.resizes == 0
    tries = [0.01 * n for n in range(601) if 0.01 * n + work / 0.1 <= 6.0]
    costs = []
    for begin in tries:
        parts = [min(h.end_s, begin + work / 0.1) - max(h.begin_s, begin) for h in hours]
        costs.append(sum(max(0.0, p) * h.value for p, h in zip(parts, hours, strict=True)))
    assert made.cost <= min(costs) + 1e-9
    assert cheapest(one, hours, 0.61, pauses=False) is None
    assert cheapest(one, [], 0.1, pauses=False) is None


@pytest.mark.parametrize("seed", range(6))
def test_the_greedy_is_the_optimum_in_quarters_of_an_hour(seed: int) -> None:
    """Its steps are whole quarters here, so that a search of all finds the same cost."""
    rng = Random(seed)
    two = (Width(1, 0.1, 1.0), Width(3, 0.2, 3.0))
    values = [float(rng.randint(1, 9)) for _ in range(2)]
    quarters = [Hour(at / 4, at / 4 + 0.25, values[at // 4]) for at in range(8)]
    work = 0.025 * rng.randint(1, 16)
    made = cheapest(two, day(*values), work)
    assert made is not None
    assert made.cost == pytest.approx(every_schedule(two, quarters, work, pauses=True))


def test_negative_prices_count_as_none_but_are_in_the_cost() -> None:
    made = cheapest(CONCAVE, day(-1.0, 2.0), 0.28)
    assert sizes(made, 2) == [4, 0] and made is not None and made.cost == pytest.approx(-4.0)


def test_a_resize_holds_its_nodes_without_progress() -> None:
    wide, narrow = CONCAVE[2], CONCAVE[0]
    made = carried_out([narrow, wide], day(1.0, 2.0), 0.1 + 0.28 * 0.5, 0.5)
    assert made.done == pytest.approx(0.24) and made.end_s == pytest.approx(2.0)
    assert made.cost == pytest.approx(1.0 + 4.0 * 2.0)
    first = carried_out([wide], day(1.0), 0.14, 0.5)
    assert first.end_s == pytest.approx(0.5)  # the start is no resize
    assert carried_out([wide], day(1.0), 0.14, 0.5, narrow).end_s == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(8))
def test_a_known_price_of_resizes_is_cheaper_than_to_ignore_it(seed: int) -> None:
    rng = Random(seed)
    hours = day(*(rng.uniform(1.0, 9.0) for _ in range(6)))
    ignoring = cheapest_by_hour(CONCAVE, hours, 0.6)
    aware = cheapest_by_hour(CONCAVE, hours, 0.6, price_s=0.2)
    assert ignoring is not None and aware is not None
    levels = [
        next((w for w in CONCAVE if w.nodes == ignoring.size_at(h.begin_s)), None) for h in hours
    ]
    ignored = carried_out(levels, hours, 0.6, 0.2)
    assert aware.done == pytest.approx(0.6)
    assert ignored.done < 0.6 - 1e-9 or aware.cost <= ignored.cost + 1e-9


@pytest.mark.parametrize("price_s", [0.0, 0.2])
def test_sizes_by_the_hour_are_close_to_the_cheapest_of_all(price_s: float) -> None:
    """At most 2 % above, on average over random cases; 15 % at most."""
    above = []
    for seed in range(12):
        rng = Random(seed)
        hours = day(*(rng.uniform(1.0, 9.0) for _ in range(5)))
        made = cheapest_by_hour(CONCAVE, hours, 0.6, price_s=price_s)
        best = every_schedule(CONCAVE, hours, 0.6, pauses=True, price_s=price_s)
        assert made is not None and made.done == pytest.approx(0.6)
        above.append(made.cost / best - 1.0)
    assert 0.0 <= max(above) < 0.15 and sum(above) / len(above) < 0.02 and min(above) > -1e-9


def test_a_high_price_of_resizes_leaves_one_size() -> None:
    made = cheapest_by_hour(CONCAVE, day(1.0, 3.0, 1.0, 3.0), 0.5, price_s=0.9)
    assert made is not None and made.resizes <= 1 and made.done == pytest.approx(0.5)
