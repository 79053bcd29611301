"""A job with ``--survive`` never went on if a resize was decided after its world had died.

The next world waited for the end of the resize, and the resize for a world that takes it up. Seeds
of ``scripts/simulate-faults --survivors`` show it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from survivors import ONE, dies, job_of, passes, polls, step_of, surviving, worlds


@pytest.mark.parametrize("strategy", ["spawn", "warm"])
def test_it_goes_on_at_its_size(tmp_path: Path, strategy: str) -> None:
    with surviving(tmp_path) as opened:
        polls(opened, 6, strategy)
        dies(opened)
        opened.daemon.resize(ONE, 2, "")
        passes(opened)
        assert job_of(opened).resize is None
        (launch,) = step_of(opened).current
        assert launch in worlds(opened) and step_of(opened).life == 1
        polls(opened, 4)
        assert step_of(opened).death is None
