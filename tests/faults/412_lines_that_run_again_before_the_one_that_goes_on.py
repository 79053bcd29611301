"""A script that ran again, as its node was lost, stood still at the lines before the one that died.

Keepers of a line begin once all others of the job have ended, and those of the line that died have
to stay. A seed of ``scripts/simulate-faults --survivors`` shows it.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from killed import COMMAND
from survivors import ONE, dies, job_of, passes, polls, step_of, surviving, worlds


def test_they_run(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        opened.machine.end(ONE, 0)
        step_of(opened).exit_code = 0
        passes(opened)
        opened.daemon.worlds.launch(job_of(opened), COMMAND, "the next line")
        passes(opened)
        polls(opened, 5)
        dies(opened)
        opened.machine.end(ONE, None, 255)
        with patch.object(opened.launcher.nodes, "lost", return_value={"n1"}):
            passes(opened)
        assert job_of(opened).heir == 1 and worlds(opened) == [None]
        opened.daemon.worlds.launch(job_of(opened), COMMAND, "the first line again")
        passes(opened)
        assert worlds(opened) == [None, 2] and job_of(opened).inherited is not None
