"""Forks of the daemon: what they see, what they keep open, how they end."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rms.daemon.store.sandbox import fork


def ended(pid: int, within_s: float = 20.0) -> int:
    """Return the status of a process that is to end."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("expected its end, got none")


def test_it_sees_what_there_was_and_changes_nothing() -> None:
    reading, writing = os.pipe()
    held = [1]

    def work() -> None:
        held.append(2)
        os.write(writing, bytes(held))

    pid = fork(work)
    held.append(3)
    os.close(writing)
    assert ended(pid) == 0
    assert (os.read(reading, 10), held) == (b"\1\2", [1, 3])
    os.close(reading)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(0), KeyboardInterrupt()])
def test_an_error_is_its_status(error: BaseException) -> None:
    def work() -> None:
        raise error

    assert ended(fork(work)) == 1


def test_one_that_is_killed_says_so() -> None:
    assert ended(fork(lambda: os.kill(os.getpid(), signal.SIGKILL))) == -signal.SIGKILL


def test_what_is_not_its_own_it_does_not_keep_open() -> None:
    before, own, behind = os.pipe(), os.pipe(), os.pipe()
    pid = fork(lambda: time.sleep(20.0), only=own[1])
    for _, writing in (before, own, behind):
        os.close(writing)
    try:
        assert os.read(before[0], 1) == os.read(behind[0], 1) == b""  # nobody has the other ends
        os.set_blocking(own[0], False)
        with pytest.raises(BlockingIOError):
            os.read(own[0], 1)
    finally:
        os.kill(pid, signal.SIGKILL)
        ended(pid)
        for reading, _ in (before, own, behind):
            os.close(reading)
