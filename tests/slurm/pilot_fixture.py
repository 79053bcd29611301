"""A daemon inside an allocation of the test bed, and what one asks of it."""

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

from conftest import Slurm

from rms.client.connection import ServerError, call
from rms.wire.users import OVER

RMS = [sys.executable, "-m", "rms"]
DEADLINE_S = 60.0


class Pilot:
    """One state folder, the allocation there is, and whichever daemon serves in it."""

    def __init__(self, slurm: Slurm, nodes: int, *options: str) -> None:
        self.slurm, self.options = slurm, options
        self.folder = Path(tempfile.mkdtemp(prefix="pilot-", dir="/tmp"))
        self.state, self.work = self.folder / "s", self.folder / "w"
        self.work.mkdir()
        self.log = self.folder / "log"
        self.server = f"unix:{self.state / 'socket'}"
        self.process: subprocess.Popen[str] | None = None
        self.allocation = ""
        self.allocate(nodes)
        self.start()

    def allocate(self, nodes: int, *options: str) -> None:
        """Take nodes; a node that fails leaves the others."""
        self.allocation = self.slurm.allocate("--no-kill", f"--nodes={nodes}", *options)

    def start(self, *options: str) -> None:
        """Start a daemon in the allocation and wait until it serves."""
        served = self.said().count("serving at")
        command = [*RMS, "serve", "--engine", "slurm-pilot", "--state", str(self.state)]
        env = {**self.slurm.environment, "SLURM_JOB_ID": self.allocation}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--ntasks-per-node", "1", *self.options, *options],
                cwd=self.work,
                env=env,
                stdout=log,
                stderr=log,
                text=True,
            )
        self.until(lambda: self.said().count("serving at") > served, "a serving daemon")

    def end(self, number: signal.Signals) -> int:
        """Send the daemon a signal; return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        """End everything, however the test has gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.slurm.run("scancel", self.allocation)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def rms(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a client command."""
        return subprocess.run(
            [*RMS, *words],
            cwd=self.work,
            env={**self.slurm.environment, **variables, "RMS_SERVER": self.server},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    def ask(self, *words: str, **variables: str) -> Any:
        """Run a client command that must succeed; return its JSON."""
        done = self.rms(*words, "--json", "-", **variables)
        assert done.returncode == 0, done.stderr + self.said()
        return json.loads(done.stdout)

    def submit(self, body: str, *options: str, **variables: str) -> str:
        """Submit a script with these options; return its number."""
        script = self.work / "script.sh"
        script.write_text(f"#!/bin/sh\n{body}\n")
        number: str = self.ask("submit", *options, str(script), **variables)["id"]
        return number

    def rows(self, wanted: str | None = None) -> list[dict[str, Any]]:
        try:
            path = "/jobs" if wanted is None else f"/jobs?id={wanted}"
            found: list[dict[str, Any]] = call(self.server, "GET", path)
        except ServerError as error:
            raise AssertionError(f"{error}; the daemon:\n{self.said()}") from None
        return found

    def row(self, job: str) -> dict[str, Any]:
        (found,) = self.rows(job)
        return found

    def until(self, happens: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
        """Wait for something; return what it gave."""
        end = time.monotonic() + deadline_s
        while not (found := happens()):
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"no {what}; the daemon has ended:\n{self.said()}")
            if time.monotonic() > end:
                steps = self.slurm.run("squeue", "--steps").stdout
                raise AssertionError(
                    f"no {what} within {deadline_s:g} s; the daemon:\n{self.said()}\n{steps}"
                )
            time.sleep(0.05)
        return found

    def steps_taken(self, job: str, at_least: int = 1) -> dict[str, Any]:
        """Wait until a job has stepped."""
        self.until(lambda: self.row(job)["step"] >= at_least, f"step of job {job}")
        return self.row(job)

    def over(self, *jobs: str, deadline_s: float = DEADLINE_S) -> list[str]:
        """Wait until jobs are over; return their states."""
        for job in jobs:
            self.until(
                lambda job=job: all(row["state"] in OVER for row in self.rows(job)),
                f"end of job {job}",
                deadline_s,
            )
        return [row["state"] for job in jobs for row in self.rows(job)]

    def resizes(self, job: str) -> list[tuple[int, int]]:
        return [(row["from"], row["to"]) for row in self.row(job)["resizes"]]

    def resized(self, job: str, size: int, *options: str) -> None:
        """Have a job resized and wait until all of it is done."""
        self.until(lambda: not self.rms("resize", job, str(size), *options).returncode, "resize")
        self.until(lambda: self.row(job)["size"] == size, f"size {size} of job {job}")

    def rolled_back(self, job: str) -> list[str]:
        """Return why resizes of a job were rolled back."""
        return [r["reason"] for r in self.ask("explain", job) if r["kind"] == "rolledback"]

    def steps(self) -> dict[str, tuple[str, set[str]]]:
        """Return the steps that Slurm runs in the allocation: id and nodes by name."""
        said = self.slurm("squeue", "--steps", "--noheader", "--format=%i|%N|%j")
        found = {}
        for line in filter(None, said.splitlines()):
            step, nodes, name = line.split("|")
            if step.startswith(f"{self.allocation}."):
                found[name] = step, self.named(nodes)
        return found

    def named(self, nodes: str) -> set[str]:
        """Return the names in a list of nodes as Slurm writes it."""
        return set(self.slurm("scontrol", "show", "hostnames", nodes).split()) if nodes else set()

    def world(self, job: str, launch: int) -> str:
        """Return what Slurm calls the step of one of a job's launches."""
        mark = next(name for name in self.steps() if name.startswith("rms.")).split(".")[1]
        return f"rms.{mark}.{job}.{launch}"

    def recorded(self, job: str) -> list[set[str]]:
        """Return the nodes of a job's worlds as accounting has them, in order of their launch."""
        said = self.slurm(
            *["sacct", "--noheader", "--parsable2", "--jobs", self.allocation],
            "--format=JobName,NodeList",
        )
        found = {}
        for line in said.splitlines():
            name, _, nodes = line.partition("|")
            parts = name.split(".")
            if len(parts) == 4 and parts[2] == job:
                found[int(parts[3])] = self.named(nodes)
        return [found[launch] for launch in sorted(found)]

    def books_balance(self) -> None:
        energy = call(self.server, "GET", "/books")["energy"]
        owned = sum(row["energy_j"] for row in self.rows())
        books = sum(energy[f"{part}_j"] for part in ("busy", "idle", "off", "boot"))
        assert abs(owned - energy["busy_j"]) <= 1e-9 * owned and owned > 0
        assert abs(books - energy["cluster_j"]) <= 1e-9 * books

    def replays(self) -> None:
        """The journal leads to the same decisions again; the daemon has ended."""
        done = subprocess.run(
            [*RMS, "replay", str(self.state / "journal.sqlite")],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0 and " 0 decided otherwise" in done.stdout, done.stdout

    def processes(self) -> list[int]:
        """Return the live processes of jobs."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                items = entry.read_bytes().decode(errors="replace").split("\0")
                env = dict(item.split("=", 1) for item in items if "=" in item)
                if "RMS_MARK" in env and str(self.state) in env.get("RMS_STATUS", "") + env.get(
                    "DMR_COMPLETION", ""
                ):
                    found.append(int(entry.parent.name))
        return found

    def nothing_left(self) -> None:
        """No process of a job, and no step of one, is left."""
        self.slurm.wait_until("no process left", lambda: not self.processes())
        self.slurm.wait_until(
            "no step left", lambda: not [n for n in self.steps() if ".meter-" not in n]
        )


@contextlib.contextmanager
def piloted(slurm: Slurm, nodes: int, *options: str) -> Iterator[Pilot]:
    """Serve in an allocation of so many nodes; at the end nothing is left of it."""
    pilot = Pilot.__new__(Pilot)
    try:
        pilot.__init__(slurm, nodes, *options)  # type: ignore[misc]
        yield pilot
    finally:
        pilot.close()
