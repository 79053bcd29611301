"""``rms compare`` printed nothing for minutes while its modes ran."""

from __future__ import annotations

import sys
from pathlib import Path

from processes import Run


def test_compare_prints_the_progress_of_each_mode(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\nexit 0\n")
    command = [sys.executable, "-m", "rms", "compare", "job.sh", "--nodes", "1", "--times", "1"]
    done = run(*command, "--modes", "fixed,malleable", "--json", "-")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition(" ")[2] for line in done.stderr.splitlines()]
    for part in ("warm-up", "round 1 of 1, mode fixed", "round 1 of 1, mode malleable"):
        at = lines.index(f"{part} ...")
        assert lines[at + 1].startswith(f"{part}: 1 of 1 jobs ended, ")
