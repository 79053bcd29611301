"""The hosts of ``scripts/cluster`` for tests: commands on them, and their faults."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_bed import SCRIPT, call_script, shared_kernels

DEADLINE_S = 120.0


@dataclass
class Cluster:
    """One cluster that runs; called as ``cluster("kill", "n1")``."""

    folder: Path
    record: dict[str, Any]

    def words(self, action: str, *words: str) -> list[str]:
        """Return the command line of an action."""
        return [action, "--folder", str(self.folder), *words]

    def __call__(self, action: str, *words: str) -> str:
        """Run an action, which has to succeed."""
        done = call_script(*self.words(action, *words))
        assert done.returncode == 0, f"{action} {words}: {done.stdout}{done.stderr}"
        return done.stdout

    def refused(self, action: str, *words: str) -> str:
        """Return the sentence by which an action is refused."""
        done = call_script(*self.words(action, *words))
        assert done.returncode == 1, done
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def command(self, host: str, *command: str) -> list[str]:
        """Return the command line that runs a command on a host."""
        return [*SCRIPT, *self.words("exec", host, "--", *command)]

    def run(
        self, host: str, *command: str, deadline_s: float = DEADLINE_S, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end."""
        return subprocess.run(
            self.command(host, *command),
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
        )

    def on(self, host: str, line: str, **variables: str) -> str:
        """Return what a line of shell prints on a host, stripped; it has to succeed."""
        done = self.run(host, "sh", "-c", line, **variables)
        assert done.returncode == 0, f"{host}: {line}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    @contextlib.contextmanager
    def popen(self, host: str, *command: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command on a host meanwhile; it is killed at the end."""
        process = subprocess.Popen(
            self.command(host, *command),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            assert process.stdout is not None
            process.stdout.close()
            process.wait()

    def running(self) -> dict[str, int]:
        """Return the pids of hosts and daemons by name."""
        found: dict[str, int] = json.loads(self("status", "--json", "-"))["running"]
        return found

    def processes(self, host: str) -> list[int]:
        """Return the processes of a host."""
        own = Path(f"/proc/{self.running()[f'host@{host}']}/ns/pid").stat().st_ino
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (path / "ns/pid").stat().st_ino == own:
                    found.append(int(path.name))
        return found


def command_line(pid: int) -> bytes:
    """Return the command line of a process, b"" if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@contextlib.contextmanager
def hosts_up(*words: str) -> Iterator[Cluster]:
    """A cluster in a folder of its own; brought down at the end, whatever happened."""
    place = Path(tempfile.mkdtemp(prefix="hosts-"))
    folder = place / "c"
    try:
        up = call_script("up", "--folder", str(folder), "--json", "-", *shared_kernels(), *words)
        assert up.returncode == 0, up.stderr
        yield Cluster(folder, json.loads(up.stdout))
    finally:
        down = call_script("down", "--folder", str(folder))
        shutil.rmtree(place)
        assert down.returncode == 0, down.stderr
