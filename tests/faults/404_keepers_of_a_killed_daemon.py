"""Keepers of a daemon that was killed ran on, and the next worlds did not know of their copies.

They were started before a note told of them; those of a resize had none until its end. Seeds of
``scripts/simulate-faults --survivors`` show it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from unittest.mock import patch

from killed import COMMAND, Bench, KilledError
from survivors import KEEPERS, ONE, job_of, passes, step_of, surviving, worlds


def dying(opened: Bench) -> Any:
    """Let the daemon be killed when it has just started a keeper."""
    usual = opened.launcher.start_keeper

    def start_keeper(job: str, number: int, host: str) -> None:
        usual(job, number, host)
        raise KilledError

    return patch.object(opened.launcher, "start_keeper", start_keeper)


def test_those_of_a_first_world_are_used(tmp_path: Path) -> None:
    with surviving(tmp_path, computes=False) as opened:
        with contextlib.suppress(KilledError), dying(opened):
            opened.daemon.worlds.launch(job_of(opened), COMMAND, "key")
        opened.start()
        opened.daemon.worlds.keepers.adopt(opened.launcher.jobs())
        assert step_of(opened).keepers == {0: ""}
        passes(opened)
        assert opened.machine.begun == [(ONE, None), (KEEPERS, 0), (ONE, 0)]


def test_one_that_was_not_started_is(tmp_path: Path) -> None:
    with surviving(tmp_path, computes=False) as opened:
        with (
            contextlib.suppress(KilledError),
            patch.object(opened.launcher, "start_keeper", side_effect=KilledError),
        ):
            opened.daemon.worlds.launch(job_of(opened), COMMAND, "key")
        opened.start()
        passes(opened)
        assert step_of(opened).keepers == {1: ""} and worlds(opened) == [None, 0]


def test_those_that_no_step_needs_are_ended(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        job = job_of(opened)
        opened.launcher.start_keeper(ONE, 1, "")
        job.keeper_count = 2
        opened.daemon.worlds.save_steps(job)
        opened.start()
        opened.daemon.worlds.keepers.adopt(opened.launcher.jobs())
        passes(opened)
        assert opened.machine.of(KEEPERS, 0) and not opened.machine.of(KEEPERS, 1)
