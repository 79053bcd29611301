"""Ctrl-C of commands printed a traceback, and did not end ``rms top``."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from processes import DEADLINE_S, called, marked, started

from dmr.cli import main as dmr
from mpdata.cli.main import main as mpdata
from rms.cli.main import main as rms
from rms.cli.screen import Top

COMMANDS = {
    "mpdata verify": "mpdata.study.verify.verify",
    "mpdata bench": "mpdata.study.bench.bench",
    "dmr check -- true": "dmr.check.check.check",
    "dmr bench": "dmr.bench.bench.bench",
    "dmr probe": "dmr.boot.probe.probe",
    "rms compare job.sh": "rms.studies.compare.compare",
}
"""What is interrupted of each command."""


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_end_with_status_130(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS[line], interrupted)
    program, *words = line.split()
    done = called({"dmr": dmr, "mpdata": mpdata, "rms": rms}[program], *words)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_probe_ends_its_launcher(tmp_path: Path) -> None:
    mpiexec, begun = tmp_path / "mpiexec", tmp_path / "begun"  # begun once its pipe is read
    mpiexec.write_text(f"#!/bin/sh\nhead -c 100000 /dev/zero; touch {begun}\nexec sleep 600\n")
    mpiexec.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_CACHE_HOME": "none"}
    until = time.monotonic() + DEADLINE_S
    command = [sys.executable, "-m", "dmr", "probe"]
    with started(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE) as process:
        while not begun.exists():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=DEADLINE_S)[1] == ""
        assert process.returncode == 130
        assert not marked(process.mark)  # type: ignore[attr-defined]


@pytest.mark.parametrize("keys", [["ctrl+c"], ["slash", "ctrl+c"], ["q"]])
def test_top_ends(keys: list[str]) -> None:
    async def typed() -> bool:
        app = Top("unix:none")
        async with app.run_test() as pilot:
            await pilot.press(*keys)
            await pilot.pause()
            return app._exit

    assert asyncio.run(typed())
