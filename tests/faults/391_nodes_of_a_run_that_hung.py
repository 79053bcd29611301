"""A run that hung went on to its next line, and its nodes got the next job at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from idle import Runs
from routed import Idle, routed

from rms.core.model.jobs import JobId
from rms.daemon.jobs.scripts import SUSPECT_S
from rms.launch.base import EngineNodes


class Answering(EngineNodes):
    """Nodes of an engine that reports which of them are unavailable: none."""

    def unavailable(self) -> Collection[str]:
        return ()


@dataclass
class Killing(Idle):
    """Notes the jobs whose processes it kills."""

    killed: list[tuple[str, int | None]] = field(default_factory=list)

    def kill(self, job: str, launch: int | None = None) -> None:
        self.killed.append((job, launch))


@pytest.mark.parametrize("requeue", [True, False])
def test_they_get_no_job_for_a_while_and_its_script_is_killed(
    tmp_path: Path, requeue: bool
) -> None:
    with routed(tmp_path) as server:
        daemon, context = server.daemon, server.daemon.context
        launcher = Killing(tmp_path, "instance", "unix:none")
        launcher.nodes = Answering()
        context.launcher = launcher
        hung = JobId(server.submit(requeue=requeue))
        runtime = daemon.jobs[hung]
        runtime.script = Runs(0)
        (node,) = context.cluster.hosts_of(context.state.running[hung].nodes)
        daemon.scripts.give_up(runtime, "no step for 41 s", [node])
        assert runtime.ending == ("REQUEUED" if requeue else "FAILED")
        assert launcher.killed == [(hung, None)]
        down = {context.cluster.names.index(node)}
        daemon.nodes.tick()
        assert context.state.down == down
        server.clock[0] += SUSPECT_S - 1.0
        daemon.nodes.tick()
        assert context.state.down == down
        server.clock[0] += 1.0
        daemon.nodes.tick()
        assert context.state.down == set()
