"""A daemon as a service: what it says and at which level, what systemd is told, ``--check``."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import Fault
from processes import ROOT, called

from rms.cli.main import main
from rms.daemon.serve import LEVELS, Notifier, start_log
from rms.daemon.store.context import log


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave the log to other tests as it was."""
    before = log.handlers, log.level, log.propagate, logging.raiseExceptions
    yield
    log.handlers, log.level, log.propagate, logging.raiseExceptions = before


@pytest.mark.parametrize("level", LEVELS)
def test_sentences_of_a_level_or_graver_are_said(
    level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start_log(level, {})
    log.debug("%s event", "an")
    log.info("a job ended")
    log.warning("a node is down\x1b[2J")
    said = [line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines()]
    expected = ["debug: an event", "a job ended", r"warning: a node is down\x1b[2J"]
    assert said == expected[list(LEVELS).index(level) :]


def test_the_journal_of_systemd_is_told_the_level(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "log").open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        here = os.fstat(2)
        start_log("info", {"JOURNAL_STREAM": f"{here.st_dev}:{here.st_ino}"})
        log.info("serving, 100 %s")
        log.warning("no room")
    assert (tmp_path / "log").read_text() == "<6>serving, 100 %s\n<4>no room\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="expected a system with /dev/full")
def test_a_log_that_takes_nothing_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    full = os.fdopen(descriptor, "w", closefd=False)
    monkeypatch.setattr(sys, "stderr", full)
    start_log("info", {})
    log.info("serving")
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)  # what is kept back goes there
    full.close()
    os.close(descriptor)
    log.info("closed")
    fault("no room for what the daemon says, or nobody reads it", "it goes on")


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    monkeypatch.chdir(tmp_path)  # socket paths are limited
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.bind(f"\0rms-{os.getpid()}-{tmp_path.name}")
    found.setblocking(False)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="expected Linux's abstract sockets")
def test_systemd_is_told_that_it_serves_and_goes_on(manager: socket.socket) -> None:
    name = manager.getsockname()[1:].decode()
    env = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "4000000"}
    env["WATCHDOG_PID"] = str(os.getpid())
    with manager:
        notifier = Notifier(env)
        notifier.send("READY=1", "STATUS=serving")
        assert manager.recv(100) == b"READY=1\nSTATUS=serving"
        for now_s in (5.0, 6.9, 7.0, 8.9):  # every two of four seconds
            notifier.tick(now_s)
        assert [manager.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
        Notifier(env | {"WATCHDOG_PID": "1"}).tick(5.0)
        Notifier(env | {"WATCHDOG_USEC": "soon"}).tick(5.0)
        with pytest.raises(BlockingIOError):
            manager.recv(100)
    notifier.send("STOPPING=1")  # to nobody any more
    Notifier({}).send("READY=1")


@pytest.mark.promise("service")
def test_what_would_be_served_is_said_and_nothing_is_made(tmp_path: Path) -> None:
    state = tmp_path / "state"
    cluster = tmp_path / "c.toml"
    cluster.write_text(
        'name = "c"\n[[nodes]]\nname = "n[1-3]"\ncores = 2\npower = { idle_w = 5.0 }\n'
    )
    words = ["serve", "--state", str(state), "--check", str(cluster)]
    done = called(main, *words, "--json", "-")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and not state.exists()
    assert (found["nodes"], found["idle_w"], found["journal"]) == (3, 15.0, "new")
    for wrong in (
        ["--policy", "none"],
        ["--power-cap", "14"],
        ["--listen", "tcp:0.0.0.0:1"],
        ["--listen", f"unix:{tmp_path / ('x' * 100)}"],
        ["--listen", f"unix:{cluster}"],
        ["--prices", str(tmp_path / "none")],
    ):
        done = called(main, *words, *wrong)
        assert done.returncode == 2 and "expected" in done.stderr, (wrong, done.stderr)
        assert len(done.stderr.splitlines()) == 1, done.stderr
    state.mkdir()
    state.chmod(0o755)
    done = called(main, *words)
    assert done.returncode == 2 and "chmod 700" in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="expected systemd-analyze")
@pytest.mark.promise("service")
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    text = (ROOT / "jobs" / "rms.service").read_text()
    unit = tmp_path / "rms.service"
    unit.write_text(text.replace("%h/.local/bin/rms", sys.executable))
    checked = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(checked, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "rms.service" not in done.stderr, done.stderr
    command = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    options = command.partition(" ")[2].split()
    done = called(main, *options, "--check", "--state", str(tmp_path / "none"))
    assert done.returncode == 0, done.stderr
