"""Processes of a daemon are found by what their environment says."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from rms.launch.processes import INSTANCE_VARIABLE, Processes
from rms.wire.marks import environment
from rms.wire.messages import WORLD_VARIABLE


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.wait()


def start(job: str, launch: str | None = None) -> subprocess.Popen[bytes]:
    world = {} if launch is None else {WORLD_VARIABLE: launch}
    env = {"PATH": os.environ["PATH"], INSTANCE_VARIABLE: f"cafe:{job}", **world}
    return sleep(env)


def sleep(env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process; return once it has its environment."""
    process = subprocess.Popen(["sleep", "60"], env=env)
    # Popen returns a moment before the kernel has set the new program's environment up.
    deadline = time.monotonic() + 10
    while environment(process.pid) == [b""] and time.monotonic() < deadline:
        time.sleep(0.001)
    return process


def test_processes_are_known_by_their_environment(started: list[subprocess.Popen[bytes]]) -> None:
    processes = Processes("cafe")
    assert processes.of(None, None) == []
    started += [start("1"), start("1", "0"), start("1", "1"), start("12", "1")]
    script, first, second, other = (process.pid for process in started)
    assert sorted(processes.of("1", None)) == sorted([script, first, second])
    assert processes.of("1", "1") == [second]
    assert processes.of("12", None) == [other]
    assert len(processes.of(None, None)) == 4
    assert Processes("caf").of(None, None) == []


def test_one_that_ends_is_gone_at_once_and_one_that_comes_is_seen(
    started: list[subprocess.Popen[bytes]],
) -> None:
    processes = Processes("cafe")
    started.append(start("1", "0"))
    assert processes.of("1", None) == [started[0].pid]
    started[0].kill()
    os.waitid(os.P_PID, started[0].pid, os.WEXITED | os.WNOWAIT)
    assert processes.of("1", None) == []  # a zombie runs no more
    started.append(start("1", "1"))
    assert processes.of("1", None) == [started[1].pid]


def test_a_number_given_anew_is_nobodys_of_ours(started: list[subprocess.Popen[bytes]]) -> None:
    processes = Processes("cafe")
    started.append(start("1"))
    foreign = sleep({"PATH": os.environ["PATH"]})
    started.append(foreign)
    processes._own[foreign.pid] = ("1", "")  # as if ours had had that number at the last look
    assert processes.of("1", None) == [started[0].pid]
