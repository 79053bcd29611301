"""No message named a job whose ranks were cut off, or waited for one another without end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from idle import Runs
from routed import Routed, routed

from rms.core.model.jobs import JobId
from rms.wire.messages import Poll

LINE = {"command": ["true"], "cwd": "/", "env": {}, "key": "a"}


class Child(Runs):
    """A child of the daemon that runs."""

    is_child = True


def begun(server: Routed, between: Callable[[], object] = lambda: None) -> str:
    """Return a job whose ranks make ten steps, one a second."""
    job = server.submit()
    server.ask("POST", f"/jobs/{job}/steps", LINE, token=server.token(job))
    runtime = server.daemon.jobs[JobId(job)]
    runtime.script = Child(0)
    runtime.steps[0].worlds = dict.fromkeys(runtime.steps[0].worlds, Child(0))
    between()
    for step in range(11):
        between()
        server.clock[0] += 1.0
        polled(server, job, step)
    between()
    return job


def polled(server: Routed, job: str, step: int) -> None:
    # An answer is held for a while of real time where there is no request.
    message = msgspec.json.decode(msgspec.json.encode(Poll(step, 100, 0)), type=Poll)
    server.daemon.worlds.poll(server.daemon.jobs[JobId(job)], message)


def looked(server: Routed, job: str) -> str:
    """Return the reason that a user sees after the daemon has looked at its jobs."""
    server.daemon.job_watch.tick()
    (row,) = server.ask("GET", f"/jobs?id={job}")[1]
    reason: str = row["reason"]
    return reason


def test_silence_and_late_steps_are_told(tmp_path: Path) -> None:
    with routed(tmp_path) as server:
        job = begun(server)
        assert looked(server, job) == ""
        server.clock[0] += 31.0
        assert looked(server, job) == "Stalled: no message of its ranks for 31 s"
        polled(server, job, 10)  # as the network is healed, and the ranks wait all the same
        assert looked(server, job) == "Stalled: no step for 31 s, after step 10"
        server.clock[0] += 5.0
        polled(server, job, 11)
        assert looked(server, job) == ""
        assert "".join(server.messages).count("no message of its ranks") == 1
        assert f"job {job}: makes steps again" in "".join(server.messages)


def test_slow_steps_are_not_late(tmp_path: Path) -> None:
    """Steps of ten seconds: the next is late after 200 s."""
    with routed(tmp_path) as server:
        job = begun(server)
        for step in range(11, 60):
            server.clock[0] += 10.0
            polled(server, job, step)
        server.clock[0] += 25.0
        polled(server, job, 59)
        assert looked(server, job) == ""


def test_a_run_that_restarts_counts_its_own_steps(tmp_path: Path) -> None:
    """Ten steps of ten seconds after five hundred of an earlier run."""
    with routed(tmp_path) as server:
        job = begun(server)
        server.daemon.jobs[JobId(job)].pulse = None
        looked(server, job)  # as after a restart of the daemon
        for step in range(500, 511):
            server.clock[0] += 10.0
            polled(server, job, step)
        server.clock[0] += 60.0
        polled(server, job, 510)
        assert looked(server, job) == ""


def test_a_job_of_child_processes_is_looked_at_in_time(tmp_path: Path) -> None:
    """The daemon looks at such a job when a child ends, or a limit of the job is due."""
    with routed(tmp_path) as server:
        watch = server.daemon.job_watch
        watch.has_signals = True
        job = begun(server, between=watch.tick)
        runtime = server.daemon.jobs[JobId(job)]
        assert server.clock[0] < runtime.calm_until_s <= server.clock[0] + 30.0
        server.clock[0] += 31.0
        assert looked(server, job) == "Stalled: no message of its ranks for 31 s"


@pytest.mark.parametrize("requeue", [True, False])
def test_past_the_limit_its_run_is_given_up(tmp_path: Path, requeue: bool) -> None:
    with routed(tmp_path) as server:
        context = server.daemon.context
        context.settings = replace(context.settings, stall_s=40.0)
        job = begun(server)
        runtime = server.daemon.jobs[JobId(job)]
        runtime.submission = msgspec.structs.replace(runtime.submission, requeue=requeue)
        server.clock[0] += 39.0
        polled(server, job, 10)
        looked(server, job)
        assert runtime.ending is None
        server.clock[0] += 2.0
        looked(server, job)
        assert runtime.ending == ("REQUEUED" if requeue else "FAILED")
        assert runtime.lost == "no step for 41 s, after step 10 (--stall-limit 40)"
