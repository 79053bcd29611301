"""The benches of scripts/bench: all that they import exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import DEADLINE_S, ROOT

BENCHES = sorted(path for path in (ROOT / "scripts" / "bench").iterdir() if path.is_file())
BENCHES = [path for path in BENCHES if not path.suffix]


@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.name)
def test_a_bench_prints_its_help(bench: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(bench), "--help"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr
