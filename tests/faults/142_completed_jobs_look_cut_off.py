"""A COMPLETED job kept the step of its last poll, so that the page showed it as 62/100."""

from __future__ import annotations

from pathlib import Path

import pytest
from routed import Routed, routed

from rms.core.model.jobs import JobId
from rms.daemon.store.record import Step
from rms.launch.base import LaunchCommand, ManagedProcess
from rms.wire.messages import CompletionRecord, Poll, write_completion


def run_to(server: Routed, step: int) -> str:
    """Let a job poll at step 62 of 100 and end at another; return its id."""
    job_id = JobId(server.submit(nodes=[1, 1]))
    job = server.daemon.jobs[job_id]
    command = LaunchCommand([], "", {}, "", "")
    job.steps.append(Step(command, {0: ManagedProcess(0)}, current=(0,)))
    server.daemon.worlds.poll(server.daemon.jobs[job_id], Poll(known=0, step=62, steps=100))
    record = CompletionRecord("COMPLETED", 0, "", step, 0, 1)
    write_completion(server.daemon.launcher.completion_file(job_id, 0), record)
    server.daemon.worlds.conclude(job, 0, 0)
    return job_id


@pytest.mark.parametrize("last", [100, 80])
def test_the_last_step_is_that_of_the_completion_record(tmp_path: Path, last: int) -> None:
    with routed(tmp_path) as server:
        job = run_to(server, last)
        (row,) = server.ask("GET", f"/jobs?id={job}")[1]
        assert (row["step"], row["steps"]) == (last, 100)
