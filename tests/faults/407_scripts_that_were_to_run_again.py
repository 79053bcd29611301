"""A job with ``--survive`` lost its copies, where a daemon was killed as it ran a script again.

The node of the script was lost; the next daemon found no script, and requeued the job.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from unittest.mock import patch

from killed import COMMAND, KilledError
from survivors import ONE, dies, job_of, passes, step_of, surviving, worlds


def test_they_do(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        dies(opened)
        opened.machine.end(ONE, None, 255)
        with (
            patch.object(opened.launcher.nodes, "lost", return_value={"n1"}),
            patch.object(opened.launcher, "start_script", side_effect=KilledError),
            contextlib.suppress(KilledError),
        ):
            passes(opened)
        assert not worlds(opened)
        opened.start()
        assert worlds(opened) == [None] and ONE in opened.daemon.context.state.running
        opened.daemon.worlds.launch(job_of(opened), COMMAND, "another key")
        passes(opened)
        assert worlds(opened) == [None, 1]
        assert (step_of(opened).life, step_of(opened).keepers) == (1, {0: ""})
