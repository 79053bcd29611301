"""``mpdata run --case bell --restart`` without ``--angle`` took a checkpoint of any angle."""

from __future__ import annotations

from pathlib import Path

from processes import Refused, Run

BELL = ("run", "--case", "bell", "--grid", "16", "8", "1", "--backend", "numpy")


def test_it_is_refused(tmp_path: Path, mpdata_here: Run, refused: Refused) -> None:
    files = ("--checkpoint-dir", str(tmp_path / "ck"), "--checkpoint-every", "2", "--steps", "4")
    done = mpdata_here(*BELL, *files, "--angle", "0")
    assert done.returncode == 0, done.stderr
    expected = "expected angle 90.0, got a checkpoint of angle 0.0"
    assert expected in refused(*BELL, *files, "--restart")


def test_the_default_is_the_same_when_it_is_stated(tmp_path: Path, mpdata_here: Run) -> None:
    files = ("--checkpoint-dir", str(tmp_path / "ck"), "--checkpoint-every", "2", "--steps", "4")
    assert mpdata_here(*BELL, *files).returncode == 0
    done = mpdata_here(*BELL, *files, "--restart", "--angle", "90")
    assert done.returncode == 0, done.stderr
