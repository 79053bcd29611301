"""The watch thread ended where 1,024 files were open, and ended a program that had been paused."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import pytest
from processes import DEADLINE_S

from dmr.system.watch import TICK_S, Watch

PAUSED = """
import sys, time
from dmr.system.watch import WATCH
with WATCH.running(7.5, 60.0, []), WATCH.within("a call"):
    print("in it", flush=True)
    sys.stdin.readline()
    time.sleep(1.0)  # the others come when they are continued, too
"""


def test_it_watches_a_program_with_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("the system allows fewer files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    watch = Watch()
    try:
        with watch.running(60.0, 60.0, [signal.SIGTERM]):
            end = time.monotonic() + DEADLINE_S
            while watch._sigterm_at is None:  # set at the first tick
                assert watch._thread is not None and watch._thread.is_alive()
                assert time.monotonic() < end
                time.sleep(TICK_S / 10)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_time_of_a_pause_does_not_count() -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", PAUSED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None and job.stdout.readline() == "in it\n"
        time.sleep(2 * TICK_S)
        job.send_signal(signal.SIGSTOP)
        time.sleep(8.0)
        job.send_signal(signal.SIGCONT)
        _, stderr = job.communicate("\n", timeout=DEADLINE_S)
    assert job.returncode == 0, stderr
