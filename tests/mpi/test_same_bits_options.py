"""The answer does not depend on the number of ranks, for rows that cover all pairs of options.

The blocks are as thin as the halo allows: on six ranks a neighbour's halo is its whole block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from combinations import Combination, covering, rough
from mpi4py import MPI
from mpi_runs import Counts, run_on
from selection import all_wide_but

from mpdata.parallel.app import RunConfig

Together = Callable[..., None]
pytestmark = pytest.mark.mpi
STEPS = 3
CASES = [(row, signs) for row in covering() for signs in {False, row.scheme.any_sign}]
"""Rows, and whether psi is of both signs, which the standard gauge does not take."""


def thinnest(row: Combination) -> tuple[int, int, int]:
    """Return extents of which six ranks can have blocks no thinner than the halo."""
    halo = row.scheme.halo
    # Of a grid with poles the latitude is cut alone.
    both = "N" in row.axes and "M" in row.axes and not row.polar
    n, m = (3 * halo, 2 * halo + 1) if both else (6 * halo + 1, 6 * halo + 1)
    return max(n, 2), max(m, 2), 5


QUICK = [n for n, (row, signs) in enumerate(CASES) if signs == row.scheme.any_sign]
"""Every row once."""


@pytest.mark.parametrize(
    "number",
    all_wide_but(range(len(CASES)), *QUICK),
    ids=lambda n: f"{CASES[n][0]}{'-signs' if CASES[n][1] else ''}",
)
@pytest.mark.promise("bits-options")
def test_same_bits_on_any_number_of_ranks(
    world: MPI.Intracomm, together: Together, counts: Counts, number: int
) -> None:
    row, signs = CASES[number]
    setup = replace(rough(row, thinnest(row), signs=signs), steps=STEPS)
    wanted = RunConfig(setup, row.scheme, np.dtype(row.dtype), "numba")
    found = [run_on(world, n, wanted) for n in counts(number)]
    hashes = {result["sha256"] for result in found if result is not None}
    together(len(hashes) == 1 and None not in found, f"{hashes}")
