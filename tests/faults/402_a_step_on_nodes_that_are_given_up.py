"""The next step of a job began on nodes that its shrink gave up, which another job had by then.

It happened where the resized step ended before its old ranks had left. A seed of
``scripts/simulate-faults`` shows it.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from killed import COMMAND, bench

from rms.core.model.jobs import JobId, Mode
from rms.daemon.store.record import PendingResize, ResizeState

ONE = JobId("1")
STATES = (ResizeState.BOOTING, ResizeState.LEAVING, ResizeState.RELEASING)


@pytest.mark.parametrize("state", STATES)
def test_it_begins_on_the_nodes_that_stay(tmp_path: Path, state: ResizeState) -> None:
    with bench(tmp_path) as opened:
        opened.submit("1", (1, 4, 4), Mode.MALLEABLE)
        job, committed = opened.daemon.jobs[ONE], state is not ResizeState.BOOTING
        slots_of = opened.daemon.context.cluster.slots_of
        job.resize = PendingResize(1, slots_of((0, 1)), "warm", state=state, committed=committed)
        with patch.object(opened.launcher, "boot_world", wraps=opened.launcher.boot_world) as boot:
            opened.daemon.worlds.launch(job, COMMAND, "key")
        ((_, launch), _) = boot.call_args
        assert tuple(launch.slots) == tuple(slots_of((0, 1) if committed else range(4)))
