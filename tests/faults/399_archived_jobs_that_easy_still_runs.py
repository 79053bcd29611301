"""A replay decided otherwise where jobs were archived that the schedule of EASY still went by.

Found by ``scripts/simulate-faults``.
"""

from __future__ import annotations

import random
from pathlib import Path
from unittest.mock import patch

import pytest
from killed import bench as opened

from rms.core.model.jobs import Mode
from rms.daemon.restart.recover import replayed


@pytest.mark.parametrize("seed", [4, 11, 16, 17])
def test_they_stay(tmp_path: Path, seed: int) -> None:
    rng, number = random.Random(seed), 0
    with (
        patch("rms.daemon.store.archive.KEPT", 8),
        patch("rms.daemon.store.archive.AT_ONCE", 1),
        patch("rms.daemon.store.archive.MOST", 100),
        patch("rms.daemon.store.archive.EVERY", 25),
        opened(tmp_path, keep=40) as bench,
    ):
        bench.policy = "backfill-share"
        bench.start()
        for _ in range(200):
            bench.now_s += rng.choice((0.1, 1.0, 10.0, 100.0))
            running = list(bench.daemon.context.state.running)
            if rng.random() < 0.5 or not running:
                number += 1
                most = rng.choice((1, 3, 4))
                sizes = (1, most, most)
                mode = rng.choice((Mode.MOLDABLE, Mode.FLEXIBLE))
                bench.submit(f"{number}", sizes, mode, limit_s=rng.choice((None, 60.0, 3600.0)))
            else:
                bench.machine.end(rng.choice(running), None)
            bench.daemon.tick()
        archived = bench.daemon.context.journal.archived_ids()
        found = replayed(bench.daemon.context.journal)
        assert archived and (found.differing, found.refused) == ([], [])
