"""Resize after resize, all strategies mixed: same bits, nothing grows, nothing is left.

``python tests/support/soak.py 1000`` is the long one. The daemon has one of its own:
``scripts/soak`` runs for 20 minutes, and here for :data:`DAEMON_S`.
"""

from __future__ import annotations

import pytest
from daemon_soak import soak as daemon_soak
from soak import judge, soak

RESIZES = 18
DAEMON_S = 4.0


@pytest.mark.wide
@pytest.mark.promise("soak")
def test_resizes_of_all_strategies_leave_nothing_behind() -> None:
    assert judge(soak(RESIZES, seed=3)) == []


@pytest.mark.wide
@pytest.mark.promise("soak-daemon")
def test_short_jobs_and_a_daemon_that_is_killed() -> None:
    found = daemon_soak(DAEMON_S, kills=1, seed=5, nodes=2)
    assert found.wrong == [] and found.jobs and found.life == 1
