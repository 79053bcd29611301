"""The keepers of a job's next launcher line were ended with those of the line before.

With ``--reach ssh`` a host was requested to end all keepers of the job, as some were left there and
none here. A seed of ``scripts/simulate-faults --survivors`` shows it.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from killed import COMMAND
from survivors import KEEPERS, ONE, job_of, passes, step_of, surviving, worlds


def test_they_begin_once_the_others_have_ended(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        opened.machine.end(ONE, 0)
        step_of(opened).exit_code = 0
        with patch.object(opened.launcher, "kill"):
            opened.daemon.worlds.launch(job_of(opened), COMMAND, "the next line")
            passes(opened)
            assert worlds(opened) == [None] and not opened.machine.of(KEEPERS, 1)
        passes(opened)
        assert worlds(opened) == [None, 1] and opened.machine.of(KEEPERS, 1)
