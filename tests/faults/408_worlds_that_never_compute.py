"""A job with ``--survive`` never ended whose worlds died before they computed.

Only worlds that had sent a message were counted, not those that died at the restore.
"""

from __future__ import annotations

from pathlib import Path

from survivors import ONE, passes, surviving

from rms.daemon.jobs.worlds import DEATH_S, TRIES


def test_it_ends_after_some_of_them(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        for _ in range(3 * TRIES):
            for job, launch, _ in list(opened.machine.live.values()):
                if job == ONE and launch is not None:
                    opened.machine.end(ONE, launch, 9)
            passes(opened, DEATH_S + 1.0)
        begun = [launch for job, launch in opened.machine.begun if job == ONE]
        assert begun == [None, *range(TRIES + 2)]  # the first one has computed
