"""``rms compare`` ran every mode although a task of the warm-up had failed."""

from __future__ import annotations

import sys
from pathlib import Path

from processes import Run


def test_compare_ends_with_the_last_line_of_a_failed_warm_up_job(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.sh").write_text(
        "#!/bin/sh\necho expected a wind file, got none\necho\nexit 3\n"
    )
    (tmp_path / "long.sh").write_text("#!/bin/sh\nsleep 300\n")
    command = [sys.executable, "-m", "rms", "compare", "bad.sh", "long.sh", "--nodes", "1"]
    done = run(*command, "--modes", "fixed,flexible", "--json", "out.json")
    assert done.returncode == 1
    sentence = "expected the warm-up job bad to complete, got FAILED with exit status 3: expected a"
    assert f"{sentence} wind file, got none" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "compare" / "fixed-1").exists()
    assert not (tmp_path / "out.json").exists() and not done.stdout
