"""``rms simulate --malleable 0.5`` printed half of a per cent as ``0 %``."""

from __future__ import annotations

from pathlib import Path

from processes import ROOT, called

from rms.cli.main import main


def test_a_half_is_not_taken_for_half_of_a_per_cent(tmp_path: Path) -> None:
    log = ROOT / "docs" / "rms" / "programs" / "jobs.txt"
    done = called(main, "simulate", "--sacct", str(log), "--malleable", "0,0.5")
    assert done.returncode == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert "each 0 or 1 to 100 (50 for one half), got '0,0.5'" in line
