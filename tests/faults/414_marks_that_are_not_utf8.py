"""A process of a job whose environment is not UTF-8 raised a UnicodeDecodeError in the daemon."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from processes import until

from rms.launch.processes import Processes
from rms.wire.messages import MARK_VARIABLE, WORLD_VARIABLE

BYTES = b"\xff\xfe"


@pytest.fixture(params=[MARK_VARIABLE, WORLD_VARIABLE])
def sleeper(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of job 7 with such a mark, or such a number of its world."""
    env = {**os.environb, MARK_VARIABLE.encode(): b"cafe:7"}
    env[request.param.encode()] = b"cafe:" + BYTES
    process = subprocess.Popen(["/bin/sleep", "600"], env=env)
    yield process
    process.kill()
    process.wait()


def test_it_is_a_process_of_the_daemon(sleeper: subprocess.Popen[bytes]) -> None:
    processes = Processes("cafe")
    until(lambda: sleeper.pid in processes.of(None, None), "it was not recognized", deadline_s=60.0)
    assert len(processes.owners()) == 1
