"""The default policy in an allocation of a real Slurm: a wide flexible job starts in its turn."""

from __future__ import annotations

import signal

import pytest
from slurm_bed import Slurm
from slurm_daemon import piloted
from wide_flexible import LONGER, NODES, Stream


# How Slurm chooses nodes is no matter of a pilot's: its jobs run within one allocation.
@pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)
@pytest.mark.promise("slurm-wide-flexible")
def test_no_later_job_overtakes_a_wide_flexible_one(slurm: Slurm) -> None:
    """Three short jobs are before it; the daemon is killed while it waits."""
    with piloted(slurm, NODES) as pilot:
        stream = Stream(pilot)
        before = [stream.submit() for _ in range(3)]
        pilot.running(before[0])
        wide = stream.submit("2")
        for _ in range(LONGER):
            stream.submit()
        pilot.until(lambda: "reserved in" in stream.why(wide), "reservation")
        pilot.end(signal.SIGKILL)
        pilot.start()
        assert "reserved in" in stream.why(wide)
        assert stream.until_started(wide) == []
        assert sorted(stream.over) == sorted(before)
        assert pilot.running(wide)["size"] == NODES
        stream.drain()
        assert pilot.end(signal.SIGTERM) == 0
        pilot.nothing_left()
        pilot.replays()
