"""Covering arrays: few rows in which every pair of values of two factors comes together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

Row = dict[str, object]
Pair = frozenset[tuple[str, object]]
Shows = Callable[[Row, str, str], bool]


def pairs_of(row: Row, shows: Shows) -> set[Pair]:
    """Return the pairs of values that a row, or a part of one, puts to the test."""
    return {
        frozenset([(a, row[a]), (b, row[b])]) for a, b in combinations(row, 2) if shows(row, a, b)
    }


def all_pairs(factors: Mapping[str, Sequence[object]]) -> list[Pair]:
    """Return every pair of values of two factors, in a fixed order."""
    return [
        frozenset([(a, x), (b, y)])
        for a, b in combinations(factors, 2)
        for x in factors[a]
        for y in factors[b]
    ]


def covering_array(factors: Mapping[str, Sequence[object]], shows: Shows) -> list[Row]:
    """Return rows that show every pair, found greedily and always the same.

    Each row begins with the first pair that is not yet covered; each further factor takes the
    value that covers most new pairs with those already there; of equal ones that used least so
    far, so that more than pairs come together by the way. ``shows`` says whether the pair of
    two factors has an effect in a row: one that is hidden by a third value is left to another.
    It must answer alike once the row has all the values it looks at.
    """
    # Factors of many values first: they decide how many rows there must be.
    names = sorted(factors, key=lambda name: -len(factors[name]))
    todo = dict.fromkeys(all_pairs(factors))
    rows: list[Row] = []
    while todo:
        row = dict(next(iter(todo)))
        for name in names:
            if name in row:
                continue
            row[name] = max(
                factors[name],
                key=lambda value: (
                    sum(p in todo for p in pairs_of({**row, name: value}, shows)),
                    -sum(other[name] == value for other in rows),
                ),
            )
        covered = [p for p in pairs_of(row, shows) if p in todo]
        if not covered:
            raise ValueError(f"expected a row that shows {dict(next(iter(todo)))}, found {row}")
        for pair in covered:
            del todo[pair]
        rows.append({name: row[name] for name in factors})
    return rows
