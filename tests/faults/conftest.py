"""One file for each fault that was reported: its tests fail without the change that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browsing
from processes import called
from routed import Routed, routed
from run_fixtures import mpdata_here, mpdata_run, refused, run, steady
from terminals import Terminal, terminals

from dmr.cli import main as dmr
from mpdata.cli.main import main as mpdata
from rms.cli.main import main as rms

__all__ = ["mpdata_here", "mpdata_run", "refusal", "refused", "run", "steady", "terminal"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Routed]:
    """Open a daemon of two nodes in this process, which starts nothing; its folder is ``state``."""
    with routed(tmp_path / "state") as opened:
        yield opened


@pytest.fixture
def browser() -> Iterator[Any]:
    """Open a browser; skip the test where Playwright is not installed."""
    with browsing() as opened:
        yield opened


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Terminal]:
    """Commands against a daemon of two nodes in this process, which starts nothing."""
    with terminals(tmp_path, monkeypatch, capsys) as opened:
        yield opened


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Run a command line that is refused; return its standard error.

    The command runs in this process, in a folder that holds only ``job.sh``, and writes nothing.
    """

    def call(line: str) -> str:
        program, *words = line.split()
        done = called({"dmr": dmr, "mpdata": mpdata, "rms": rms}[program], *words)
        assert done.returncode == 2 and done.stdout == "", done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert [path.name for path in folder.iterdir()] == ["job.sh"]
        return done.stderr

    folder = tmp_path / "refusal"
    folder.mkdir()
    (folder / "job.sh").write_text("#!/bin/sh\ntrue\n")
    monkeypatch.chdir(folder)
    return call
