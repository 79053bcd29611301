"""``dmr check`` that was ended by SIGTERM left the ranks of its program running."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from processes import DEADLINE_S, MPIEXEC, marked, program, started


def test_no_rank_is_left(tmp_path: Path) -> None:
    words = [MPIEXEC, "-n", "2", *program("missing_rank"), "deaf"]
    begun = tmp_path / "begun"  # a rank writes it
    env = {**os.environ, "BEGUN": str(begun)}
    until = time.monotonic() + DEADLINE_S
    command = [sys.executable, "-m", "dmr", "check", "--", *words]
    with started(command, cwd=tmp_path, env=env) as process:
        while not begun.exists():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 143
        while marked(process.mark):  # type: ignore[attr-defined]
            assert time.monotonic() < until, "ranks are left"
            time.sleep(0.1)
