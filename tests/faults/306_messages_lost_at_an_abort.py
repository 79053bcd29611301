"""Hydra's mpiexec exits at an abort, and messages that its proxy had not read were lost."""

from __future__ import annotations

import select
import subprocess
import sys
import time

PROGRAM = """
import fcntl, os, sys, termios
from dmr.system.watch import abort

class Comm:
    def Abort(self, code):
        unread = any(any(fcntl.ioctl(fd, termios.FIONREAD, bytes(4))) for fd in (1, 2))
        os._exit(100 if unread else code)

for stream in (sys.stdout, sys.stderr):
    print("the reason", file=stream, flush=True)
abort(Comm(), 7)
"""


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_an_abort_waits_until_the_output_is_read() -> None:
    with start() as process:
        assert select.select([process.stderr], [], [], 60)[0]
        time.sleep(0.5)  # as long as the program would take to end without it
        assert process.communicate(timeout=60) == ("the reason\n", "the reason\n")
    assert process.returncode == 7


def test_output_that_nobody_reads_delays_an_abort_and_does_not_prevent_it() -> None:
    with start() as process:
        assert process.wait(60) == 100
