"""The covering array covers, is small, and is always the same."""

from __future__ import annotations

import pytest
from combinations import FACTORS, Combination, covering, every, shows
from pairwise import all_pairs, covering_array, pairs_of


def test_every_pair_is_shown_by_a_row() -> None:
    rows = covering_array(FACTORS, shows)
    shown = set().union(*(pairs_of(row, shows) for row in rows))
    assert shown == set(all_pairs(FACTORS))
    assert len(rows) <= 50  # of 40 pairs of boundary and axes
    assert covering_array(FACTORS, shows) == rows


def test_a_pair_that_never_shows_is_an_error() -> None:
    factors = {"a": (1, 2), "b": (1, 2), "c": (1, 2)}
    with pytest.raises(ValueError, match="expected a row that shows"):
        covering_array(factors, lambda row, a, b: row.get("a") != 1)


def test_options_are_shown_where_they_are_computed() -> None:
    for a, b in (("limiter", "third_order"), ("gauge", "divergent_flow"), ("limiter", "gauge")):
        found = {(getattr(row, a), getattr(row, b)) for row in covering() if row.scheme.passes > 1}
        assert len(found) == 4


def test_all_combinations_are_distinct() -> None:
    everything = set(every())
    assert len(everything) == 3 * 2**6 * 5 * 8
    assert set(covering()) <= everything
    assert len({str(row) for row in everything}) == len(everything)


def test_a_row_names_what_it_is() -> None:
    row = Combination("open", "NL", 3, True, "infinite", True, False, "f4", "unit")
    assert str(row) == "f4 NL open unit-h 3-passes limiter infinite third"
    assert row.grid((7, 6, 5)) == (7, 1, 5)
    assert row.scheme.passes == 2
