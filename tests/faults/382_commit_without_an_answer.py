"""A new world that answered the commit too late had the job, and so had the old world."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import MPIEXEC

PROGRAM = """
import sys
import time

import numpy as np
from mpi4py import MPI

import dmr
from dmr.resize import replace
from dmr.wire.channel import TakenOver

say = replace.NewWorld.say


def late(world, message):
    if isinstance(message, TakenOver):
        time.sleep({late_s})
    say(world, message)


replace.NewWorld.say = late
plan = dmr.Plan(
    resizes={{2: 2}},
    strategy="{strategy}",
    deadlines=dmr.Deadlines(boot_s=120, answer_s={answer_s}),
)


def build(run):
    pass


fields = {{"u": dmr.adapt(np.zeros((4 // MPI.COMM_WORLD.size, 4)), (4, 4))}}
with dmr.malleable(MPI.COMM_WORLD, fields, plan, build=build) as run:
    for step in run.loop(6):
        run.say(f"step {{step}} on {{run.world.size}} at {{time.monotonic():.3f}}")
    run.say("the end")
"""


@pytest.mark.parametrize("strategy", ["spawn", "restart"])
def test_one_world_goes_on(tmp_path: Path, strategy: str) -> None:
    program = tmp_path / "late.py"
    program.write_text(PROGRAM.format(late_s=12, answer_s=6, strategy=strategy))
    command = [MPIEXEC, "-n", "1", sys.executable, str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    lines = done.stdout + done.stderr
    assert re.findall(r"step (\d) on (\d)", lines) == [
        *[(str(step), "1") for step in range(2)],
        *[(str(step), "2") for step in range(2, 6)],
    ], lines
    assert lines.count("the end") == 1, lines
    assert "has not answered the commit, and may have the job, so this world ends" in lines


def test_merged_worlds_end(tmp_path: Path) -> None:
    program = tmp_path / "late.py"
    program.write_text(PROGRAM.format(late_s=12, answer_s=6, strategy="merge"))
    command = [MPIEXEC, "-n", "1", sys.executable, str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    lines = done.stdout + done.stderr
    assert done.returncode != 0 and "the end" not in lines, lines
    assert re.findall(r"step (\d) on (\d)", lines) == [("0", "1"), ("1", "1")], lines
    assert "has not answered the commit, and may have the job" in lines
