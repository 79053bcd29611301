"""The keepers of a job with ``--survive``, and what a death costs."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from killed import COMMAND
from survivors import KEEPERS, ONE, dies, job_of, passes, polls, step_of, surviving, worlds

from rms.daemon.jobs.worlds import KEEPER_S, PLAN, passed_s
from rms.launch.base import LaunchError
from rms.wire.messages import (
    KEEPERS_VARIABLE,
    MEMORY_VARIABLE,
    MTBF_VARIABLE,
    SUPERVISOR_VARIABLE,
)

TWO = ("a/core:0", "b/core:0")


def test_there_is_one_on_each_host(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        keepers, job, step = opened.daemon.worlds.keepers, job_of(opened), step_of(opened)
        assert step.keepers == {0: ""}
        assert keepers.start(job, step, TWO)
        assert step.keepers == {0: "", 1: "a", 2: "b"}
        assert keepers.start(job, step, TWO) and job.keeper_count == 3
        opened.launcher.kill(KEEPERS, 1)
        assert keepers.start(job, step, TWO)
        assert step.keepers == {0: "", 2: "b", 3: "a"}
        keepers.lost(step, ["a"])
        assert step.keepers == {0: "", 2: "b"}


def test_one_that_cannot_be_started_is_none(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        keepers, job, step = opened.daemon.worlds.keepers, job_of(opened), step_of(opened)
        with patch.object(opened.launcher, "start_keeper", side_effect=LaunchError("no")):
            keepers.start(job, step, TWO)
        assert step.keepers == {0: ""} and not keepers.serve(job, step, TWO)
        assert any("no keeper on a: no" in line for line in opened.said)


def test_a_keeper_serves_once_its_line_is_whole(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        keepers, job, step = opened.daemon.worlds.keepers, job_of(opened), step_of(opened)
        file = opened.launcher.keeper_file(ONE, 0)
        for text in ("", "n1=host:1:to"):
            file.write_text(text)
            assert not keepers.serve(job, step, ()) and not keepers.environment(job, step)
        file.unlink()
        assert not keepers.serve(job, step, ())
        file.write_text("n1=host:1:token=/folder\n")
        assert keepers.serve(job, step, ())
        assert keepers.environment(job, step)[KEEPERS_VARIABLE] == "n1=host:1:token=/folder"


@pytest.mark.parametrize("survive", ["1", "auto", PLAN])
def test_ranks_know_the_interval_and_the_worlds_before(tmp_path: Path, survive: str) -> None:
    with surviving(tmp_path) as opened:
        keepers, job, step = opened.daemon.worlds.keepers, job_of(opened), step_of(opened)
        job.submission.survive, step.life = survive, 3
        env = keepers.environment(job, step)
        assert env[SUPERVISOR_VARIABLE] == "3" and MTBF_VARIABLE not in env
        assert env.get(MEMORY_VARIABLE) == (None if survive == PLAN else survive)


def test_they_end_with_the_line_that_needs_them(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        keepers, job, step = opened.daemon.worlds.keepers, job_of(opened), step_of(opened)
        passes(opened)
        assert opened.machine.of(KEEPERS) and not keepers.end(ONE)
        keepers.start(job, step, TWO)
        passes(opened)
        assert step.keepers == {0: ""}  # the job is on no other host
        assert not opened.machine.of(KEEPERS, 1)
        opened.machine.end(ONE, 0)
        step.exit_code = 0
        passes(opened)
        assert not opened.machine.of(KEEPERS) and not keepers.end(ONE)


def test_those_of_a_job_that_is_unknown_are_ended(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        opened.launcher.start_keeper("9", 0, "")
        opened.daemon.worlds.keepers.adopt([ONE, KEEPERS, "9.keepers"])
        assert opened.machine.of(KEEPERS) and not opened.machine.of("9.keepers")


def test_a_world_waits_for_them_so_long(tmp_path: Path) -> None:
    with surviving(tmp_path, computes=False) as opened:
        with patch.object(opened.launcher, "start_keeper"):
            opened.daemon.worlds.launch(job_of(opened), COMMAND, "key")
            passes(opened, KEEPER_S / 4.0)
            assert worlds(opened) == [None]
            passes(opened, KEEPER_S / 2.0)
        assert worlds(opened) == [None, 0]  # without copies


def test_a_death_and_what_it_costs(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        opened.now_s += 10.0
        polls(opened, 15)
        dies(opened)
        passes(opened)
        polls(opened, 10)
        assert step_of(opened).restored == (10, 1)
        assert any("computes again at step 10" in line for line in opened.said)
        assert any("5 steps and" in line for line in opened.said)


@pytest.mark.parametrize(
    ("step", "at_s"),
    [(0, 10.0), (2, 10.0), (4, 12.0), (6, 14.0), (8, 17.0), (10, 20.0), (12, 20.0)],
)
def test_when_a_job_came_to_a_step(step: int, at_s: float) -> None:
    assert passed_s([(10.0, 2), (14.0, 6), (20.0, 10)], step) == at_s


def test_a_step_that_it_came_to_twice_counts_at_first() -> None:
    assert passed_s([(10.0, 4), (12.0, 4), (13.0, 8)], 4) == 10.0
    assert passed_s([(10.0, 4)], 9) == 10.0
