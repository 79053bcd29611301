"""A job on a node that a pilot had lost ran on for as long as its processes did not end."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from unittest.mock import Mock

import pytest
from idle import Runs
from routed import Idle, routed

from rms.core.model.jobs import JobId
from rms.daemon.jobs.watch import LOST_S
from rms.launch.base import EngineNodes
from rms.launch.slurm.commands import Slurm
from rms.launch.slurm.output import JobDetails, SiteNode
from rms.launch.slurm.pilot import Allocation


class Losing(EngineNodes):
    """Nodes of which some are lost."""

    gone: Collection[str] = ()

    def lost(self) -> Collection[str]:
        return self.gone


@pytest.mark.parametrize("back", [False, True])
def test_it_waits_again_unless_the_node_comes_back(tmp_path: Path, back: bool) -> None:
    with routed(tmp_path) as server:
        daemon, context, nodes = server.daemon, server.daemon.context, Losing()
        launcher = Idle(tmp_path, "instance", "unix:none")
        launcher.nodes = nodes
        context.launcher = launcher
        job, other = JobId(server.submit(requeue=True)), JobId(server.submit(requeue=True))
        for job_id in (job, other):
            daemon.jobs[job_id].script = Runs(0)
        (node,) = nodes.gone = context.cluster.hosts_of(context.state.running[job].nodes)
        daemon.job_watch.tick()
        server.clock[0] += LOST_S
        daemon.job_watch.tick()
        assert daemon.jobs[job].ending is None  # its own end would have a better reason
        if back:
            nodes.gone = ()
            daemon.job_watch.tick()
        server.clock[0] += 1.0
        daemon.job_watch.tick()
        assert daemon.jobs[job].ending == (None if back else "REQUEUED")
        assert daemon.jobs[job].lost == ("" if back else f"lost its nodes: {node}")
        assert daemon.jobs[other].ending is None


def test_nodes_that_are_down_or_removed_from_the_allocation_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm({}, "me")
    details = JobDetails(7, "pilot", "RUNNING", ("n1", "n2", "n3"), "n1", False, 1.0, 9.0, None)
    states = {"n1": "allocated", "n2": "down", "n3": "draining", "n4": "idle", "n5": "down"}
    nodes = [SiteNode(name, ("all",), state, True, 2, "", "") for name, state in states.items()]
    monkeypatch.setattr(slurm, "ping", lambda: True)
    monkeypatch.setattr(slurm, "job", lambda _: details)
    monkeypatch.setattr(slurm, "nodes", lambda: nodes)
    allocation = Allocation(slurm, 7, ("n1", "n2", "n3", "n4"), (), Mock(), Mock())
    snapshot = allocation._take_snapshot()
    assert snapshot.lost == {"n2", "n4"}
    assert snapshot.unfit == {"n2", "n3", "n4"}
    allocation._executor.close()
