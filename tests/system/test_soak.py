"""Resize after resize, all strategies mixed: same bits, nothing grows, nothing is left.

``python tests/support/soak.py 1000`` is the long one.
"""

from __future__ import annotations

import pytest
from soak import judge, soak

RESIZES = 30


@pytest.mark.wide
@pytest.mark.promise("soak")
def test_resizes_of_all_strategies_leave_nothing_behind() -> None:
    assert judge(soak(RESIZES, seed=3)) == []
