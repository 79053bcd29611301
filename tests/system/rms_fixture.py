"""A daemon of one's own in a short folder (socket paths are limited), and what one asks of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conftest import MARK, started

from rms.client.connection import ServerError, call
from rms.wire.users import OVER

RMS = [sys.executable, "-m", "rms"]
POWER = "{ idle_w = 3.0, static_w = 5.0, dynamic_w = 7.0 }"


class Rms:
    """One state folder, and whichever daemon serves it at the moment."""

    def __init__(self, stack: contextlib.ExitStack, nodes: int, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rms-", dir="/tmp"))
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.state, self.work = self.folder / "s", self.folder / "w"
        self.work.mkdir()
        self.cluster = self.folder / "cluster.toml"
        self.cluster.write_text(
            f'name = "test"\n[[nodes]]\nname = "n[1-{nodes}]"\ncores = 1\npower = {POWER}\n'
        )
        self.log = self.folder / "log"
        self.server = f"unix:{self.state / 'socket'}"
        self._stack, self._options = stack, options
        self.start()

    def start(self) -> None:
        """Start a daemon and wait until it serves."""
        served = self.said().count("serving at")
        with self.log.open("a") as log:
            self.process = self._stack.enter_context(
                started(self.serve_command(), cwd=self.work, stdout=log, stderr=log)
            )
        self.until(lambda: self.said().count("serving at") > served, "a serving daemon")

    def serve_command(self) -> list[str]:
        where = ["--state", str(self.state), "--cluster", str(self.cluster)]
        return [*RMS, "serve", *where, *self._options]

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def end(self, number: signal.Signals) -> int:
        """Send the daemon a signal; return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def env(self) -> dict[str, str]:
        mark: str = self.process.mark  # type: ignore[attr-defined]
        return {**os.environ, "RMS_SERVER": self.server, MARK: mark}

    def rms(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a client command."""
        return subprocess.run(
            [*RMS, *arguments],
            cwd=self.work,
            env=self.env(),
            capture_output=True,
            text=True,
            timeout=60,
        )

    def ask(self, *arguments: str) -> Any:
        """Run a client command that must succeed, and return its JSON."""
        done = self.rms(*arguments, "--json", "-")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, body: str, *options: str) -> str:
        """Submit a script with these options and commands; return the id."""
        script = self.work / "script.sh"
        script.write_text(f"#!/bin/sh\n{body}\n")
        number: str = self.ask("submit", *options, str(script))["id"]
        return number

    def rows(self, wanted: str | None = None) -> list[dict[str, Any]]:
        path = "/jobs" if wanted is None else f"/jobs?id={wanted}"
        try:
            found: list[dict[str, Any]] = call(self.server, "GET", path)
        except ServerError as error:
            raise AssertionError(f"{error}; the daemon:\n{self.said()}") from None
        return found

    def row(self, job: str) -> dict[str, Any]:
        (found,) = self.rows(job)
        return found

    def books(self) -> dict[str, Any]:
        found: dict[str, Any] = call(self.server, "GET", "/books")
        return found

    def until(self, happens: Callable[[], Any], what: str, deadline_s: float = 60) -> Any:
        """Wait for something; return what it gave."""
        end = time.monotonic() + deadline_s
        while not (found := happens()):
            if self.process.poll() is not None:
                raise AssertionError(f"no {what}; the daemon has ended:\n{self.said()}")
            if time.monotonic() > end:
                raise AssertionError(f"no {what} within {deadline_s} s; the daemon:\n{self.said()}")
            time.sleep(0.05)
        return found

    def running(self, job: str) -> dict[str, Any]:
        """Wait until a job has stepped."""
        self.until(lambda: self.row(job)["step"] > 0, f"step of job {job}")
        return self.row(job)

    def over(self, *jobs: str, deadline_s: float = 60) -> list[str]:
        """Wait until jobs are over; return their states."""
        for job in jobs:
            self.until(
                lambda job=job: all(row["state"] in OVER for row in self.rows(job)),
                f"end of job {job}",
                deadline_s,
            )
        return [row["state"] for job in jobs for row in self.rows(job)]

    def processes(self) -> dict[int, dict[str, str]]:
        """Return the live processes of jobs with their environments."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                items = entry.read_bytes().decode(errors="replace").split("\0")
                env = dict(item.split("=", 1) for item in items if "=" in item)
                if env.get("RMS_SERVER") == self.server and "RMS_MARK" in env:
                    found[int(entry.parent.name)] = env
        return found

    def ranks(self) -> list[int]:
        """Return the processes that are MPI ranks."""
        return [
            pid
            for pid, env in self.processes().items()
            if "PMI_RANK" in env or "OMPI_COMM_WORLD_RANK" in env
        ]

    def nothing_left(self) -> None:
        end = time.monotonic() + 10
        while found := self.processes():
            assert time.monotonic() < end, found
            time.sleep(0.05)

    def rolled_back(self, job: str) -> list[str]:
        """Return why resizes of a job were rolled back."""
        return [r["reason"] for r in self.ask("explain", job) if r["kind"] == "rolledback"]

    def output(self, job: str) -> str:
        return Path(self.row(job)["output"]).read_text()


@contextlib.contextmanager
def served(nodes: int, *options: str) -> Iterator[Rms]:
    """Serve a cluster of this many nodes; at the end everything is killed."""
    with contextlib.ExitStack() as stack:
        yield Rms(stack, nodes, *options)
