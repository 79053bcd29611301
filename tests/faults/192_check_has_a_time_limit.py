"""``dmr check`` waited without end for a loop whose condition a resize resets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import MPIEXEC, program

from dmr.check import check


def test_a_loop_that_does_not_end_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "LEAST_S", 12.0)
    monkeypatch.setattr(check, "TIMES", 4.0)
    monkeypatch.setattr(check, "LEAST_STEPS", 1_000_000)
    monkeypatch.chdir(tmp_path)
    words = [MPIEXEC, "-n", "1", *program("endless_after")]
    with pytest.raises(check.CheckError, match="still running; without resizes it takes"):
        check.check(words, [2], None, lambda line: None)
    assert (tmp_path / "resized").exists()


def test_the_limit_counts_for_any_command() -> None:
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(check.CheckError, match="within 0 s"):
        patch.setattr(check, "LEAST_S", 0.1)
        check.run_once(words, "3:2", None, plain_s=0.0)
