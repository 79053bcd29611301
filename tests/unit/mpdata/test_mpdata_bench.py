"""The figures of ``mpdata bench``, and what it needs for ranks."""

from __future__ import annotations

import os
from itertools import product

import pytest

from mpdata.errors import InputError
from mpdata.study.bench import DTYPES, VARIANTS, bench

GRID = (6, 6, 6)


def test_every_variant_is_timed_beside_the_limits_of_the_machine() -> None:
    lines: list[str] = []
    result = bench(GRID, "numpy", os.environ, lines.append, rounds=2, peer=False)
    rows = result["rows"]
    assert [(row["dtype"], row["variant"]) for row in rows] == list(product(DTYPES, VARIANTS))
    assert all(0 < row["best_ns"] <= row["ns_per_cell_step"] for row in rows)
    for dtype in DTYPES:
        limits = result["limits"][dtype]
        assert min(limits["copy_gb_per_s"], limits["division_ns"], limits["six_arrays_ns"]) > 0
    assert len(lines) == 1 + len(DTYPES) + 1 + len(rows)


def test_ranks_need_mpiexec() -> None:
    with pytest.raises(InputError, match="expected mpiexec for --ranks, got none on PATH"):
        bench(GRID, "numpy", os.environ, print, rounds=1, ranks=2, peer=False)
