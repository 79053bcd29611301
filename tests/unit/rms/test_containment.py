"""Processes that drop their environment and session stay their job's, and end with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import Fault

from rms.launch.base import ManagedProcess, ScriptLaunch
from rms.launch.containment import uncontained
from rms.launch.local import LocalLauncher
from rms.launch.processes import alive, send_signal

DEADLINE_S = 120.0
ESCAPE = "env -i setsid /bin/sh -c 'echo $$ > escaped.part; mv escaped.part escaped; sleep 600' &\n"
"""Beside a job: a process of its own session, without an environment, and one below it."""

pytestmark = pytest.mark.skipif(bool(uncontained()), reason=uncontained() or "contained")


def until(happens: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not happens():
        assert time.monotonic() < end, f"no {what}"
        time.sleep(0.01)


class Job:
    """A script that has left something behind."""

    def __init__(self, folder: Path, ends: str) -> None:
        self.launcher = LocalLauncher(folder, "cafe", "unix:none")
        script = folder / "script"
        script.write_text(f"#!/bin/sh\n{ESCAPE}until [ -e escaped ]; do sleep 0.01; done\n{ends}\n")
        script.chmod(0o700)
        env = {"PATH": os.environ["PATH"]}
        (folder / "jobs" / "7").mkdir(parents=True)
        launch = ScriptLaunch(script, str(folder), env, folder / "out", [["cpu:0"]])
        self.script: ManagedProcess = self.launcher.start_script("7", launch)
        until((folder / "escaped").exists, "escaped process")
        self.escaped = int((folder / "escaped").read_text())

    def close(self) -> None:
        for pid in [self.escaped, *self.launcher.members("7")]:
            send_signal(pid, 9)
        assert self.script.process is not None
        self.script.process.wait(DEADLINE_S)


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    found = Job(tmp_path, request.param)
    yield found
    found.close()


@pytest.mark.parametrize("job", ["exit 3"], indirect=True)
@pytest.mark.promise("contained")
def test_what_a_script_leaves_ends_with_it(job: Job, fault: Fault) -> None:
    until(lambda: job.script.status() is not None, "end of the script")
    assert job.script.status() == 3 and job.script.written_status() == 3
    assert not alive(job.escaped)
    fault("env -i setsid in a job", "found below the job's shell, ended with it")


@pytest.mark.parametrize("job", ["sleep 600"], indirect=True)
@pytest.mark.promise("contained")
def test_what_has_dropped_its_environment_is_found_and_killed(job: Job, tmp_path: Path) -> None:
    again = LocalLauncher(tmp_path, "cafe", "unix:none")  # as a daemon that was killed comes back
    assert job.escaped in again.members("7") and job.escaped in again.members()
    assert job.escaped not in again.members("8")
    again.kill("7")
    until(lambda: not again.members("7"), "end of the job")
    assert not alive(job.escaped)
    assert job.script.status() == 137
