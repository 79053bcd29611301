"""``jobs/winds.sh`` failed in every task of a fresh clone, as MPDATA_WINDS was not set."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from processes import ROOT

WINDS = ("uwnd_mean.nc", "vwnd_mean.nc")


def done(folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script with an mpirun that prints its arguments."""
    launcher = folder / "bin" / "mpirun"
    launcher.parent.mkdir(exist_ok=True)
    launcher.write_text('#!/bin/sh\necho "$@"\n')
    launcher.chmod(0o700)
    env = {"PATH": f"{launcher.parent}:{os.defpath}", "SLURM_ARRAY_TASK_ID": "3", **more}
    place = folder / "compare" / "fixed-1"
    place.mkdir(parents=True, exist_ok=True)
    command = ["bash", str(ROOT / "jobs" / "winds.sh")]
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=60)


def launched(folder: Path, **more: str) -> list[str]:
    """Run the script to its end; return the lines of its output."""
    ended = done(folder, **more)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def test_without_wind_files_another_case_takes_their_place_and_the_first_line_says_so(
    tmp_path: Path,
) -> None:
    first, command = launched(tmp_path)
    assert first.startswith(
        "winds.sh: no wind files (MPDATA_WINDS, demo/winds): using case gaussian"
    )
    assert command == (
        "mpdata run --case gaussian --steps 230 --grid 144 60 16 --every 5 --json winds-3.json"
    )


@pytest.mark.parametrize("days", [".5", "0.5", "ten"])
def test_days_that_give_no_steps_are_refused(tmp_path: Path, days: str) -> None:
    ended = done(tmp_path, WINDS_DAYS=days)
    message = "winds.sh: error: expected WINDS_DAYS of at least 1 without wind files, got"
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"{message} {days}\n"


@pytest.mark.parametrize("where", ["set", "demo"])
def test_wind_files_are_used_where_they_are(tmp_path: Path, where: str) -> None:
    folder = tmp_path / "demo" / "winds"
    folder.mkdir(parents=True)
    for name in WINDS:
        (folder / name).touch()
    more = {"MPDATA_WINDS": str(folder)} if where == "set" else {}
    (command,) = launched(tmp_path, WINDS_DAYS="8", **more)
    base = str(folder) if where == "set" else "../../demo/winds"
    files = " ".join(f"{base}/{name}" for name in WINDS)
    assert f"--winds {files} --month 3 --days 8 --grid" in command


def test_a_folder_that_is_set_is_used_even_if_it_has_no_files(tmp_path: Path) -> None:
    (command,) = launched(tmp_path, MPDATA_WINDS="/nowhere")
    assert "--winds /nowhere/uwnd_mean.nc /nowhere/vwnd_mean.nc" in command
