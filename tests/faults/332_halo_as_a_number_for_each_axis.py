"""``dmr.adapt(..., halo=(1, 0))`` ended the program with "'int' object is not iterable"."""

from __future__ import annotations

import numpy as np
import pytest

import dmr


def test_a_number_for_an_axis_stands_for_both_sides() -> None:
    assert dmr.adapt(np.zeros((6, 8)), (4, 8), halo=(1, 0)).halos == ((1, 1), (0, 0))
    assert dmr.adapt(np.zeros((5, 8)), (4, 8), halo=((1, 0), 0)).halos == ((1, 0), (0, 0))


@pytest.mark.parametrize("halo", [(1,), (1, -1), -1, (1, 0, 0), "1", (1, None), ((1,), 0)])
def test_any_other_halo_is_refused(halo: object) -> None:
    with pytest.raises(ValueError, match="expected a halo of 0 or more on each of 2 axes, got"):
        dmr.adapt(np.zeros((6, 8)), (4, 8), halo=halo)  # type: ignore[arg-type]
