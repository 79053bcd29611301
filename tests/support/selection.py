"""Which tests a quick run leaves to ``--all``.

A test is left out that is marked ``wide``, and of one marked ``covering(n)`` those rows of its
parameters that no choice of n values is waiting for: with n = 0 one row stays, with n = 1
every value of every parameter comes, with n = 2 every pair of values of two parameters.
``covering(n, in_all=m)`` leaves out rows of ``--all`` too, those that m values do not wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import pytest

Row = dict[str, str]


def choices(row: Row, strength: int) -> set[frozenset[tuple[str, str]]]:
    """Return the sets of so many values that come together in a row."""
    return {frozenset(some) for some in combinations(row.items(), min(strength, len(row)))}


def covering_rows(rows: Sequence[Row], strength: int) -> list[int]:
    """Return the indices of rows in which all choices come that come in any, few and always alike.

    Greedy: next is the row with most choices that are still to come, of equal ones the one whose
    values were used least, so that values take turns.
    """
    found = [choices(row, strength) for row in rows]
    todo = set().union(*found) if found else set()
    used: dict[tuple[str, str], int] = {}
    chosen: list[int] = []
    while todo:
        best = max(
            range(len(rows)),
            key=lambda n: (
                len(found[n] & todo),
                -sum(used.get(value, 0) for value in rows[n].items()),
                -n,
            ),
        )
        todo -= found[best]
        chosen.append(best)
        for value in rows[best].items():
            used[value] = used.get(value, 0) + 1
    return sorted(chosen)


def all_wide_but(values: Iterable[object], *quick: object) -> list[object]:
    """Return values for ``parametrize``, those marked as wide that a quick run can do without."""
    found = list(values)
    assert set(quick) <= set(found), (quick, found)
    return [one if one in quick else _wide(one) for one in found]


def _wide(one: object) -> object:
    """Return a row of one value or several, marked."""
    return pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.wide)
