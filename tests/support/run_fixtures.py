"""Fixtures that run real processes: mpirun, signals, files. Every run has a deadline."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import DEADLINE_S, MPDATA, MPIEXEC, Mpirun, Refused, Run, Steady, called, started

from mpdata.cli.main import main


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
def mpdata_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``mpdata`` in this process, on the one rank that it is; return status and output."""
    monkeypatch.chdir(tmp_path)
    return partial(called, main)


@pytest.fixture
def refused(mpdata_here: Run) -> Refused:
    """Run ``mpdata`` in this process on input that is refused; return its one sentence."""

    def call(*arguments: str) -> str:
        done = mpdata_here(*arguments)
        assert done.returncode == 2 and done.stdout == "", done.stdout + done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        return done.stderr

    return call


@pytest.fixture(scope="session")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Steady:
    """Return the JSON of a run on one rank, computed once for the same options."""
    results: dict[tuple[str, ...], dict[str, Any]] = {}

    def call(*arguments: str) -> dict[str, Any]:
        if arguments not in results:
            out = tmp_path_factory.mktemp("steady") / "out.json"
            done = called(main, "run", *arguments, "--json", str(out))
            assert done.returncode == 0, done.stderr + done.stdout
            results[arguments] = json.loads(out.read_text())
        return results[arguments]

    return call


@pytest.fixture
def mpdata_run(run: Run, mpdata_here: Run, tmp_path: Path) -> Mpirun:
    """Run ``mpdata run`` on n ranks to its end and return its JSON; one that stays one is here."""

    def call(ranks: int, *arguments: str) -> dict[str, Any]:
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        words = ["run", *arguments, "--json", str(out)]
        if ranks == 1 and "--resize-at" not in arguments:
            done = mpdata_here(*words)
        else:
            done = run(MPIEXEC, "-n", str(ranks), *MPDATA, *words)
        assert done.returncode == 0, done.stderr + done.stdout
        result: dict[str, Any] = json.loads(out.read_text())
        return result

    return call
