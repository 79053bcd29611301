"""A start that was decided before a restart was made on a host that had not answered yet.

A seed of ``scripts/simulate-faults`` shows it: with ``--reach ssh`` another job had ranks there.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from killed import NAMES, bench

from rms.core.model.jobs import JobId, JobState, Mode
from rms.launch.hosts.allocation import Allocation
from rms.launch.hosts.launcher import HostsLauncher


@pytest.mark.parametrize("away", [frozenset(NAMES), frozenset(), None])
def test_the_job_waits_for_nodes(tmp_path: Path, away: frozenset[str] | None) -> None:
    answers = [away]
    with (
        bench(tmp_path) as opened,
        patch("killed.Refusing.unavailable", lambda self: answers[-1], create=True),
    ):
        opened.daemon.scripts.stopping = True  # killed between a decision and its start
        opened.submit("1", (2, 2, 2), Mode.FIXED)
        assert not opened.machine.begun
        opened.start()
        state = opened.daemon.context.state
        if away:
            assert not opened.machine.begun and state.waiting[JobId("1")].state is JobState.PENDING
            answers.append(frozenset())
            opened.daemon.nodes.tick()
        assert opened.machine.begun == [("1", None)] and JobId("1") in state.running


def test_at_first_no_host_has_answered(tmp_path: Path) -> None:
    allocation = Allocation("", {"a": 1, "b": 1}, ("ssh",), (), relayed=False)
    launcher = HostsLauncher(tmp_path, "instance", "unix:none", allocation, 0.0)
    assert launcher.nodes.unavailable() == {"a", "b"}
