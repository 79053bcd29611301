"""A job past its grace was killed anew in every round, and never ended, on hosts with agents."""

from __future__ import annotations

from pathlib import Path

from idle import Runs
from routed import Idle, routed

from rms.core.model.jobs import JobId
from rms.launch.base import ManagedProcess


class Asks(Idle):
    """Kills by a request that has its answer a round later."""

    asked, kills = False, 0

    def members(self, job: str | None = None, launch: int | None = None) -> list[int]:
        return [0] if self.asked else []

    def kill(self, job: str, launch: int | None = None) -> None:
        self.asked, self.kills = True, self.kills + 1


class Ended(ManagedProcess):
    def status(self) -> int | None:
        return 137


def test_it_ends_with_the_answer(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        job, daemon = JobId(server.submit()), server.daemon
        launcher = Asks(tmp_path, "instance", "unix:none")
        daemon.context.launcher = launcher
        runtime = daemon.jobs[job]
        runtime.script = Runs(0)
        daemon.scripts.cancel(runtime, grace_s=1.0)
        server.clock[0] += 2.0
        daemon.job_watch.tick()
        assert launcher.kills == 1
        runtime.script = Ended(0)
        daemon.job_watch.tick()
        assert job not in daemon.context.state.ended
        launcher.asked = False
        daemon.job_watch.tick()
        assert job in daemon.context.state.ended
