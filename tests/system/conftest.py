"""Real processes: mpirun, signals, files. Every run has a deadline and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import DEADLINE_S, MPDATA, MPIEXEC, Mpirun, Run, started


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
