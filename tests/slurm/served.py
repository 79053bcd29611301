"""A daemon on a test bed, and what one asks of it and of Slurm."""

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

from conftest import ROOT, Slurm

from rms.client.connection import ServerError, call
from rms.wire.users import OVER

RMS = [sys.executable, "-m", "rms"]
PACED = [sys.executable, str(ROOT / "tests" / "system" / "paced.py")]
MPDATA = str(ROOT / "mpdata" / "__main__.py")
LIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED")


CASE = "--case random --seed 7 --grid 24 20 8 --every 2"
STEPS = 900


class Rms:
    """One state folder, and whichever daemon serves it at the moment.

    Jobs work in ``work``, where ``mpdata`` is a slow one until there is a file ``go``.
    """

    def __init__(self, bed: Slurm, *options: str) -> None:
        self.bed, self._options = bed, options
        self.folder = Path(tempfile.mkdtemp(prefix="rms-", dir="/tmp"))
        self.state, self.work = self.folder / "s", self.folder / "w"
        self.work.mkdir()
        slow = self.folder / "bin" / "mpdata"
        slow.parent.mkdir()
        slow.write_text(f'#!/bin/sh\nPACE_S=0.1 exec {" ".join(PACED)} {MPDATA} "$@"\n')
        slow.chmod(0o755)
        beside = Path(sys.executable).parent
        path = os.pathsep.join(map(str, (slow.parent, beside, os.environ["PATH"])))
        self.env = {**bed.environment, "PATH": path}
        self.server = f"unix:{self.state / 'socket'}"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start a daemon and wait until it serves."""
        served = self.said().count("serving at")
        command = [*RMS, "serve", "--engine", "slurm", "--state", str(self.state)]
        command += ["--ntasks-per-node", "1", *self._options]
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(command, env=self.env, stdout=log, stderr=log)
        self.until("a serving daemon", lambda: self.said().count("serving at") > served)

    def said(self) -> str:
        log = self.folder / "log"
        return log.read_text() if log.exists() else ""

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the daemon a signal; return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def submit(
        self, *options: str, script: Path | None = None, folder: Path | None = None, **more: str
    ) -> str:
        """Submit a script from a folder, with more variables; return the job's id."""
        done = subprocess.run(
            [*RMS, "submit", "--server", self.server, *options, str(script or "job.sh")],
            env={**self.env, **more},
            cwd=folder or self.work,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit_now(self) -> str:
        """Submit the script without the time that a command takes to start."""
        text, cwd = (self.work / "job.sh").read_text(), str(self.work)
        body = {"text": text, "name": "job.sh", "cwd": cwd, "env": self.env, "options": {}}
        number: str = self.post("/jobs", body)["ids"][0]
        return number

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return call(self.server, "POST", path, body)

    def resize(self, job: str, nodes: int) -> None:
        """Ask for a resize as soon as the job may be asked."""

        def taken() -> bool:
            found = self.post("/resize", {"id": job, "nodes": nodes})
            assert not found["reason"].startswith("never"), found
            return bool(found["decision"] == "Resize")

        self.until(f"resize of job {job} to {nodes}", taken)

    def rows(self, wanted: str) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = call(self.server, "GET", f"/jobs?id={wanted}")
        except ServerError as error:
            raise AssertionError(f"{error}; the daemon:\n{self.said()}") from None
        return found

    def row(self, job: str) -> dict[str, Any]:
        (found,) = self.rows(job)
        return found

    def number(self, job: str) -> int:
        """Return a job's number in Slurm."""
        found: int = self.row(job)["slurm"]["slurm_job"]
        return found

    def name(self, job: str) -> str:
        """Return what a job is called in Slurm."""
        which = f"--jobs={self.number(job)}"
        return self.bed("squeue", "--noheader", "--states=all", which, "--format=%j").strip()

    def why(self, job: str) -> list[str]:
        """Return why resizes of a job were rolled back."""
        found = call(self.server, "GET", f"/history/{job}")
        return [entry["reason"] for entry in found if entry["kind"] == "rolledback"]

    def until(
        self, what: str, happens: Callable[[], Any], deadline_s: float = 60, every_s: float = 0.05
    ) -> Any:
        """Wait for something; return what it gave."""
        deadline = time.monotonic() + deadline_s
        while not (found := happens()):
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                queue = self.bed.run("squeue", "--states=all").stdout
                nodes = self.bed.run("sinfo", "--Node", "--long").stdout
                raise AssertionError(f"no {what}; the daemon:\n{self.said()}\n{queue}\n{nodes}")
            time.sleep(every_s)
        return found

    def computing(self, job: str) -> dict[str, Any]:
        """Wait until a job has stepped."""
        self.until(f"step of job {job}", lambda: self.row(job)["step"] > 0)
        return self.row(job)

    def resized(self, job: str, times: int) -> None:
        """Wait until a job has so many resizes behind it."""
        self.until(
            f"resize {times} of job {job}",
            lambda: len(self.row(job)["resizes"]) == times and not self.row(job)["resizing"],
        )

    def hurry(self) -> None:
        """Let jobs run at full speed from now on."""
        (self.work / "go").touch()

    def over(self, *jobs: str, deadline_s: float = 90) -> list[str]:
        """Wait until jobs are over; return their states."""
        for job in jobs:
            self.until(
                f"end of job {job}",
                lambda job=job: all(row["state"] in OVER for row in self.rows(job)),
                deadline_s,
            )
        return [row["state"] for job in jobs for row in self.rows(job)]

    def nothing_left(self) -> None:
        """Wait until Slurm has no job and no donor any more, and all its nodes are idle."""

        def left() -> list[str]:
            rows = self.bed("squeue", "--noheader", "--states=all", "--format=%T %j").splitlines()
            found = (row.split(" ", 1) for row in rows)
            return [name for state, name in found if state in LIVE and name.startswith("rms")]

        nodes = self.bed.record["nodes"]
        self.until("empty queue", lambda: not left(), 20)
        self.until("idle nodes", lambda: len(self.bed.idle()) == nodes, 20)

    def close(self) -> None:
        """End the daemon, and whatever of its jobs is left here."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        own = f"RMS_STATUS={self.state}/".encode()
        server = str(self.folder).encode()
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                text = entry.read_bytes()
                if own in text or (b"RMS_MARK=" in text and server in text):
                    os.kill(int(entry.parent.name), signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def write_script(rms: Rms, *lines: str, steps: int = STEPS, more: str = "") -> None:
    """Write a job script of one launcher line, with these ``#SBATCH`` and ``#RMS`` lines."""
    run = f"srun mpdata run {CASE} --steps {steps} --json out.json {more}"
    (rms.work / "job.sh").write_text("\n".join(["#!/bin/sh", *lines, run, ""]))


def bare(folder: Path, *options: str) -> str:
    """Return the hash of a run without any RMS."""
    beside = Path(sys.executable).parent
    command = [str(beside / "mpiexec"), "-n", "1", str(beside / "mpdata"), "run", *options]
    subprocess.run(
        [*command, "--json", "bare.json"], cwd=folder, check=True, capture_output=True, timeout=120
    )
    found: str = json.loads((folder / "bare.json").read_text())["sha256"]
    return found


@contextlib.contextmanager
def serving(bed: Slurm, *options: str) -> Iterator[Rms]:
    """Serve a test bed; at the end nothing is left."""
    rms = Rms(bed, *options)
    try:
        yield rms
    finally:
        rms.close()
