"""A job with ``--survive`` began anew after a death, although there were copies of its data.

A keeper had not started within its time, or could not be started, and the ranks use copies only
where each host has a keeper. Keepers of hosts that the job does not have were waited for as well.
Seeds of ``scripts/simulate-faults --survivors`` show both.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from survivors import KEEPERS, ONE, dies, passes, step_of, surviving, worlds

from rms.daemon.jobs.worlds import KEEPER_S, TRIES
from rms.launch.base import LaunchError


@pytest.mark.parametrize("fails", [True, False])
def test_others_are_started(tmp_path: Path, fails: bool) -> None:
    with surviving(tmp_path) as opened:
        dies(opened)
        opened.launcher.kill(KEEPERS)
        cannot = LaunchError("no processes are left") if fails else None
        with patch.object(opened.launcher, "start_keeper", side_effect=cannot):
            passes(opened, KEEPER_S / 4.0)
            assert worlds(opened) == [None]
        passes(opened, KEEPER_S, rounds=6)
        assert worlds(opened) == [None, 1] and opened.machine.of(KEEPERS)


def test_the_job_ends_where_there_are_none(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        dies(opened)
        opened.launcher.kill(KEEPERS)
        with patch.object(opened.launcher, "start_keeper"):
            passes(opened, KEEPER_S, rounds=4 * TRIES)
        assert opened.daemon.jobs[ONE].steps[0].exit_code == 1 and worlds(opened) == [None]


def test_a_node_that_is_lost_meanwhile_is_given_back(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        dies(opened)
        opened.launcher.kill(KEEPERS)
        with patch.object(opened.launcher, "start_keeper"):
            passes(opened)
        assert step_of(opened).waits_s is not None
        with (
            patch.object(opened.daemon.worlds, "_go_narrower", return_value=False) as narrower,
            patch.object(opened.launcher.nodes, "unavailable", return_value={"n2"}),
            patch.object(
                type(opened.daemon.context.cluster), "hosts_of", return_value=["n1", "n2"]
            ),
        ):
            passes(opened, KEEPER_S)
        assert narrower.called


def test_those_of_other_hosts_are_not_waited_for(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        dies(opened)
        opened.machine.start(KEEPERS, 7, tmp_path / "status")
        step_of(opened).keepers[7] = "n7"
        passes(opened)
        assert worlds(opened) == [None, 1]
