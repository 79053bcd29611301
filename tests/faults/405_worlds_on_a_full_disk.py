"""Two worlds of a job with ``--survive`` computed after a daemon was killed on a full disk.

The world after a death was started although no note told of it, so the next daemon started another
one; keepers ran on in the same way. Seeds of ``scripts/simulate-faults --survivors`` show it.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from survivors import KEEPERS, ONE, dies, passes, step_of, surviving, worlds


def test_nothing_is_started_that_is_not_on_disk(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        dies(opened)
        opened.launcher.kill(KEEPERS)
        with patch.object(opened.journal, "caught_up", return_value=False):
            passes(opened)
            assert worlds(opened) == [None] and not opened.machine.of(KEEPERS)
        passes(opened)
        assert worlds(opened) == [None, 1] and opened.machine.of(KEEPERS, 1)
        assert step_of(opened).life == 1 and opened.machine.begun.count((ONE, 1)) == 1
