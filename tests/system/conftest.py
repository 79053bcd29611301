"""Real processes: mpirun, signals, files. Every run has a deadline and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import DEADLINE_S, MPDATA, MPIEXEC, Mpirun, Refused, Run, Steady, started

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
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """Run ``mpdata`` in this process on input that is refused; return its one sentence."""

    def call(*arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        try:
            status: object = main(arguments)
        except SystemExit as ended:
            status = ended.code
        said = capsys.readouterr()
        assert status == 2 and said.out == "", said.out + said.err
        assert len(said.err.strip().splitlines()) == 1, said.err
        return said.err

    return call


@pytest.fixture(scope="session")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Steady:
    """Return the JSON of a run on one rank, computed once for the same options."""
    known: dict[tuple[str, ...], dict[str, Any]] = {}

    def call(*arguments: str) -> dict[str, Any]:
        if arguments not in known:
            folder = tmp_path_factory.mktemp("steady")
            words = [MPIEXEC, "-n", "1", *MPDATA, "run", *arguments, "--json", "out.json"]
            subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=DEADLINE_S)
            known[arguments] = json.loads((folder / "out.json").read_text())
        return known[arguments]

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
