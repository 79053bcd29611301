"""A daemon that was stopped between the decision to start a job and its start cancelled the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from routed import Idle, routed

from rms.core.model.cluster import Cluster
from rms.core.model.jobs import NodePower
from rms.daemon.jobs import scripts
from rms.daemon.restart.recover import resume
from rms.daemon.store.context import Settings
from rms.daemon.store.journal import Journal

OTHERS = Cluster(("m1",), (("cpu:0",),), (NodePower(5.0, 5.0),))


@pytest.mark.parametrize("requeues", [True, False])
def test_the_next_daemon_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requeues: bool
) -> None:
    with monkeypatch.context() as busy, routed(tmp_path) as server:
        started = server.submit(nodes=[1, 1])
        busy.setattr(scripts, "START_S", -1.0)  # the time for starts is over
        server.daemon.launcher.nodes.requeue_on_shutdown = requeues
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


def test_the_next_daemon_on_other_nodes_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as busy, routed(tmp_path) as server:
        busy.setattr(scripts, "START_S", -1.0)
        waiting = server.submit(nodes=[1, 1])
        server.daemon.stop()
    settings = Settings(policy="fifo", now=lambda: 2_000.0, where="another allocation")
    with Journal.open(tmp_path / "journal") as journal:
        daemon = resume(OTHERS, journal, Idle(tmp_path, "instance", "unix:none"), settings)
        assert daemon.jobs[waiting].script is not None
        assert daemon.context.state.running[waiting].state == "RUNNING"
