"""A daemon that was stopped between the decision to start a job and its start cancelled the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from routed import routed

from rms.daemon import scripts


@pytest.mark.parametrize("requeues", [True, False])
def test_the_next_daemon_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requeues: bool
) -> None:
    with monkeypatch.context() as busy, routed(tmp_path) as server:
        started = server.submit(nodes=[1, 1])
        busy.setattr(scripts, "START_S", -1.0)  # the time for starts is over
        server.daemon.launcher.requeue_on_shutdown = requeues
        waiting, state = server.submit(nodes=[1, 1]), server.daemon.context.state
        assert set(state.running) == {started, waiting}
        assert server.daemon.jobs[waiting].script is None
        server.daemon.stop()
        assert set(state.running) == {started, waiting}
        assert server.daemon.jobs[started].ending is not None
        assert server.daemon.jobs[waiting].ending is None
    with routed(tmp_path) as server:
        assert server.daemon.jobs[waiting].script is not None
        row = {row["id"]: row["state"] for row in server.ask("GET", "/jobs")[1]}[waiting]
        assert row == "RUNNING"
