"""Runs a private daemon for an experiment."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rms.client.commands import jobs
from rms.client.connection import ServerError, ask
from rms.wire.terminal import CommandError, require_extra
from rms.wire.users import OVER, JobRow, Nothing, PolicyName

READY_S, END_S = 60.0, 30.0
"""The longest times until a daemon answers, and until it ends."""


@contextlib.contextmanager
def embedded_daemon(
    options: Sequence[str],
    folder: Path,
    *,
    local: bool,
    env: Mapping[str, str] | None = None,
    listen: str = "",
) -> Iterator[str]:
    """Run ``rms serve`` with these options; yield its address, end it and its jobs at the end.

    Args:
        folder: made if it does not exist; ``daemon.log`` in it has the daemon's output.
        local: its jobs run on this machine, so that its state may be in a temporary folder.
        env: its environment; None for that of this process.
        listen: its address, ``unix:PATH``, "" for any.

    Raises:
        CommandError: the extra ``rms`` is not installed, the folder cannot be made, or the daemon
            did not start.
    """
    require_extra("rms")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        expected = f"expected a folder that can be made, got {folder}"
        raise CommandError(f"{expected}: {error.strerror}") from None
    with tempfile.TemporaryDirectory(prefix="rms-") as place:
        server = listen or f"unix:{place}/socket"  # paths of sockets are limited
        state = place if local else str(folder / "state")
        command = [sys.executable, "-P", "-m", "rms", "serve", "--state", state, "--listen", server]
        command += [*options, "--grace", "1", "--with-parent", str(os.getpid())]
        with (folder / "daemon.log").open("w") as log:
            daemon = subprocess.Popen(
                command, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env=env
            )
            try:
                _wait_until_ready(server, daemon)
                yield server
            finally:
                _end(server, daemon)


def wait_until_over(
    server: str, report: Callable[[list[JobRow]], None] = lambda rows: None
) -> list[JobRow]:
    """Return the rows of all jobs once all are over; ``report`` gets them at every look."""
    while True:
        rows = jobs(server)
        report(rows)
        if all(row.state in OVER for row in rows):
            return rows
        time.sleep(0.1)


def _wait_until_ready(server: str, daemon: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_S
    while True:
        try:
            ask(PolicyName, server, "GET", "/policy")
            return
        except ServerError as error:
            if daemon.poll() is not None or time.monotonic() > until:
                raise CommandError(f"the embedded RMS did not start: {error}", 1) from None
            time.sleep(0.05)


def _end(server: str, daemon: subprocess.Popen[bytes]) -> None:
    try:
        if daemon.poll() is None:
            ask(Nothing, server, "POST", "/shutdown", Nothing())
        daemon.wait(END_S)
    except (ServerError, subprocess.TimeoutExpired):
        daemon.kill()
        daemon.wait()
