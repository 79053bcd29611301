"""Real processes: mpirun, signals, files. Every run has a deadline and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BIN = Path(sys.executable).parent
MPIEXEC = str(BIN / "mpiexec")
MPDATA = [sys.executable, "-m", "mpdata"]
DEADLINE_S = 120


MARK = "MALLEABLE_TEST_MARK"


def marked(mark: str) -> list[int]:
    """Return the live processes whose environment carries a mark (zombies have none).

    Sessions and groups would not do: mpiexec's proxies and ranks each make their own.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


@contextlib.contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command; whatever is left of it, wherever, is killed at the end."""
    mark = uuid.uuid4().hex
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options
    options["env"] = {**(options.get("env") or os.environ), MARK: mark}
    process = subprocess.Popen(command, start_new_session=True, **options)
    process.mark = mark  # type: ignore[attr-defined]
    try:
        yield process
    finally:
        for pid in [process.pid, *marked(mark)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command in a folder of its own and return its status and output."""

    def call(
        *command: str, deadline_s: float = DEADLINE_S, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        with started(
            list(command),
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            stderr=subprocess.PIPE,
        ) as process:
            out, err = process.communicate(timeout=deadline_s)
            return subprocess.CompletedProcess(command, process.returncode, out, err)

    return call


Mpirun = Callable[..., dict[str, Any]]


@pytest.fixture
def mpdata_run(run: Run, tmp_path: Path) -> Mpirun:
    """Run ``mpdata run`` on n ranks to its end and return its JSON."""

    def call(ranks: int, *arguments: str) -> dict[str, Any]:
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        done = run(MPIEXEC, "-n", str(ranks), *MPDATA, "run", *arguments, "--json", str(out))
        assert done.returncode == 0, done.stderr + done.stdout
        result: dict[str, Any] = json.loads(out.read_text())
        return result

    return call
