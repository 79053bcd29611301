"""A suspended job with ``--survive`` computed: its next world was started and not stopped."""

from __future__ import annotations

from pathlib import Path

from killed import COMMAND
from survivors import ONE, dies, job_of, passes, surviving, worlds

from rms.core.model.events import Suspended


def test_the_next_world_waits(tmp_path: Path) -> None:
    with surviving(tmp_path) as opened:
        dies(opened)
        opened.daemon.handle(Suspended(opened.daemon.time(), ONE, True))
        passes(opened, 60.0)
        assert worlds(opened) == [None]
        opened.daemon.handle(Suspended(opened.daemon.time(), ONE, False))
        passes(opened)
        assert worlds(opened) == [None, 1]


def test_so_does_the_first_one(tmp_path: Path) -> None:
    with surviving(tmp_path, computes=False) as opened:
        opened.daemon.handle(Suspended(opened.daemon.time(), ONE, True))
        opened.daemon.worlds.launch(job_of(opened), COMMAND, "key")
        passes(opened, 60.0)
        assert worlds(opened) == [None]
        opened.daemon.handle(Suspended(opened.daemon.time(), ONE, False))
        passes(opened)
        assert worlds(opened) == [None, 0]
