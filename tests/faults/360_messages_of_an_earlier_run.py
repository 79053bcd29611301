"""A requeued job's old script and ranks, on a host that came back, were taken for the new ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
from routed import routed

from rms.core.model.jobs import JobId
from rms.wire.messages import Poll

LINE = {"command": ["true"], "cwd": "/", "env": {}, "key": "a"}


def test_an_earlier_run_is_refused_and_has_files_of_its_own(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        job, daemon = server.submit(), server.daemon
        launcher, token = daemon.launcher, server.token(job)
        steps, poll = f"/jobs/{job}/steps", f"/jobs/{job}/poll"
        message = msgspec.json.encode(Poll(3, 9, 0))
        assert server.ask("POST", f"{steps}?run=0", LINE, token=token)[0] == 200
        before = launcher.status_file(job), launcher.completion_file(job, 0)
        daemon.scripts.requeue(daemon.jobs[JobId(job)], "lost its nodes")
        after = launcher.status_file(job), launcher.completion_file(job, 0)
        assert not set(before) & set(after)
        for path, body in ((steps, LINE), (poll, message)):
            status, answer = server.ask("POST", f"{path}?run=0", body, token=token)
            assert status == 410
            assert answer["error"] == f"expected run 1 of job {job}, which was requeued, got run 0"
        assert server.ask("GET", f"{steps}/0?run=0", token=token)[0] == 410
        assert daemon.jobs[JobId(job)].step == 0
        assert not daemon.jobs[JobId(job)].steps  # nothing was booted for the old script
        assert server.ask("POST", f"{steps}?run=1", LINE, token=token)[0] == 200


def test_a_restarted_daemon_knows_the_run(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        job, daemon = server.submit(), server.daemon
        server.ask("POST", f"/jobs/{job}/steps?run=0", LINE, token=server.token(job))
        daemon.scripts.requeue(daemon.jobs[JobId(job)], "lost its nodes")
    with routed(tmp_path) as server:
        assert server.daemon.jobs[JobId(job)].run == 1
