"""The adapter of a job that is notified by a signal or a command, without a daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from processes import until

from rms.client import adapter
from rms.client.adapter import Answer, ByCommand, BySignal, Conversation, Size
from rms.launch.base import ScriptLaunch
from rms.wire.messages import (
    MARK_VARIABLE,
    Begun,
    Done,
    Poll,
    PollAnswer,
    Report,
    ResizeRequest,
    RolledBack,
)
from rms.wire.terminal import CommandError

SIZE = Size.of(3, ("cpu:0", "cpu:1"))


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of a job of one slot, and this process with the usual cores afterwards."""
    for name, value in {MARK_VARIABLE: "daemon:7", "RMS_JOB_ID": "7", "RMS_TOKEN": "t"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RMS_RANKS", "1")
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    """A process of the job that counts its signals."""
    text = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("told", flush=True))
print("ready", flush=True)
while True: time.sleep(0.01)
"""
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


class Notified:
    """A job that is notified by a signal, in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.begun, self.reason = folder, 0, list[str]()
        self.notifier = BySignal(folder)
        self.thread = threading.Thread(target=self._tell, daemon=True)
        self.thread.start()

    def _tell(self) -> None:
        self.reason.append(self.notifier.notify(SIZE, self._begin))

    def _begin(self) -> None:
        self.begun += 1

    def take(self) -> dict[str, Any]:
        until((self.folder / "request").exists)
        (self.folder / "request").rename(self.folder / "taken")
        taken: dict[str, Any] = json.loads((self.folder / "taken").read_text())
        return taken

    def answer(self, text: str) -> None:
        (self.folder / "part").write_text(text)
        (self.folder / "part").rename(self.folder / "answer")

    def over(self) -> str:
        self.thread.join(30.0)
        (reason,) = self.reason
        return reason


# --- sizes ----------------------------------------------------------------------------------------


def test_a_size_names_slots_and_hosts() -> None:
    assert msgspec.structs.astuple(SIZE) == (3, 2, ("cpu:0", "cpu:1"), ("localhost",))
    size = Size.of(0, ("n1/core:0", "n2/core:0", "n1/core:1"))
    assert size.hosts == ("n1", "n2") and size.ranks == 3
    assert size.variables()["RMS_SLOTS"] == "n1/core:0 n2/core:0 n1/core:1"
    assert Size.of(0, ()).variables() == {"RMS_RANKS": "0", "RMS_SLOTS": "", "RMS_HOSTS": ""}


def test_cores_that_are_not_there_are_no_error() -> None:
    before = os.sched_getaffinity(0)
    Size.of(1, ("cpu:99999",)).bind()
    assert os.sched_getaffinity(0) == before


def test_the_words_of_a_script_begin_with_its_adapter() -> None:
    launch = ScriptLaunch(Path("/s"), "/", {}, Path("/o"), [["cpu:0"]], arguments=["a"])
    assert launch.words == ["/s", "a"]
    with_adapter = ScriptLaunch(Path("/s"), "/", {}, Path("/o"), [], adapter=["python", "x"])
    assert with_adapter.words == ["python", "x", "/s"]


# --- a command ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("test $RMS_RANKS_BEFORE.$RMS_RANKS = 1.2", ""),
        ("exit 4", "command 'exit 4' ended with 4"),
        ("exit 75", "later: command 'exit 75' ended with 75"),
        ("/no/such", "command '/no/such' ended with 127"),
        ("kill -KILL $$", "command 'kill -KILL $$' ended with -9"),
    ],
)
def test_the_status_of_a_command_is_the_answer(command: str, reason: str) -> None:
    begun = list[int]()
    notifier = ByCommand(command)
    assert notifier.is_ready()
    assert notifier.notify(SIZE, lambda: begun.append(1)) == reason
    assert begun == [1]


# --- a signal and a file --------------------------------------------------------------------------


def test_a_request_is_taken_and_answered(tmp_path: Path, target: subprocess.Popen[str]) -> None:
    for name in ("answer", "taken"):  # of the request before
        (tmp_path / name).write_text('{"number": 3}')
    (tmp_path / "pid").write_text(f"{target.pid}\n")
    job = Notified(tmp_path)
    assert target.stdout is not None and target.stdout.readline() == "told\n"
    assert job.begun == 0
    expected = {"number": 3, "ranks": 2, "slots": ["cpu:0", "cpu:1"], "hosts": ["localhost"]}
    assert job.take() == expected
    until(lambda: job.begun == 1)
    job.answer('{"number": 3, "refused": "no"}')
    assert job.over() == "no" and job.begun == 1


def test_a_request_that_is_not_taken_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "TAKE_S", 0.2)
    job = Notified(tmp_path)
    assert job.over() == "the job did not take the request within 0.2 s"
    assert not (tmp_path / "request").exists() and job.begun == 0


def test_a_request_that_is_taken_is_not_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "TAKE_S", 0.3)
    job = Notified(tmp_path)
    job.take()
    time.sleep(0.6)
    assert not job.reason
    job.answer('{"number": 3}')
    assert job.over() == ""


def test_a_process_that_follows_gets_the_signal_too(
    tmp_path: Path, target: subprocess.Popen[str]
) -> None:
    with subprocess.Popen(["sleep", "60"]) as first:
        (tmp_path / "pid").write_text(str(first.pid))
        job = Notified(tmp_path)
        assert first.wait(30.0) == -signal.SIGUSR1
    (tmp_path / "pid").write_text(str(target.pid))
    assert target.stdout is not None and target.stdout.readline() == "told\n"
    job.take()
    job.answer('{"number": 3}')
    assert job.over() == ""


@pytest.mark.parametrize("text", ["", "me", "1", "0", "-5", "1.5", "9" * 30, "\xff"])
def test_what_is_no_process_id(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    notifier = BySignal(tmp_path)
    (tmp_path / "pid").write_text(text, "latin-1")
    assert not notifier.is_ready() and not notifier.is_ready()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == (text not in ("", "9" * 30))  # once, and nothing of a process that is gone
    assert all("expected a process id in" in line and "got" in line for line in said)


def test_a_process_of_another_job_gets_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(MARK_VARIABLE, "daemon:8")
    with subprocess.Popen(["sleep", "60"]) as other:
        monkeypatch.setenv(MARK_VARIABLE, "daemon:7")
        (tmp_path / "pid").write_text(str(other.pid))
        assert not BySignal(tmp_path).is_ready()
        assert f"expected a process of this job in {tmp_path}/pid, got" in capsys.readouterr().err
        other.kill()
    assert not BySignal(tmp_path).is_ready() and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "text",
    ["yes", "[]", '{"number": 2}', '{"number": -3}', '{"number": 3, "ranks": 2}', '"\xff"'],
)
def test_what_is_no_answer(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = Notified(tmp_path)
    job.take()
    (tmp_path / "answer").write_text(text, "latin-1")
    said = until(lambda: capsys.readouterr().err)
    form = '{"number": 3} or {"number": 3, "refused": "WHY"}'
    assert said.startswith(f"rms: expected {form} in ") and ", got " in said
    assert not job.reason
    job.answer('{"number": 3}')
    assert job.over() == ""


# --- the daemon -----------------------------------------------------------------------------------


def talk(
    monkeypatch: pytest.MonkeyPatch, notifier: adapter.Notifier, *requests: ResizeRequest | None
) -> list[Report]:
    """Give a job these answers to its polls; return its reports."""
    left, reports, known = list(requests), list[Report](), list[int]()

    def answered(_: Any, server: str, method: str, path: str, body: object, token: str) -> Any:
        assert (method, token) == ("POST", "t") and path.endswith("?run=0")
        if isinstance(body, Poll):
            known.append(body.known)
            if not left:
                raise CommandError("over")
            return PollAnswer(left.pop(0))
        reports.append(body)  # type: ignore[arg-type]
        return {}

    monkeypatch.setattr(adapter, "until_answered", answered)
    Conversation("command", notifier, Size.of(0, ("cpu:0",)), os.getpid()).run()
    newest = [0]
    for request in requests:
        newest.append(newest[-1] if request is None else max(newest[-1], request.number))
    assert known == newest
    return reports


def test_reports_of_a_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two, one = ResizeRequest(1, ("cpu:0", "cpu:1")), ResizeRequest(2, ("cpu:1",))
    notifier = ByCommand("test $RMS_RANKS_BEFORE.$RMS_RANKS = 1.2")
    reports = talk(monkeypatch, notifier, None, two, two, one)
    first, done, second, rolled_back = reports
    assert (first, second) == (Begun(1), Begun(2)) and isinstance(done, Done)
    row = done.resize
    assert (done.number, row.from_ranks, row.to_ranks, row.strategy) == (1, 1, 2, "command")
    assert row.stall_s > 0.0 and (row.bytes, row.step, done.launches) == (0, 0, ())
    assert isinstance(rolled_back, RolledBack) and rolled_back.reason.endswith("ended with 1")
    assert capsys.readouterr().err == "rms: the job keeps its size: over\n"


def test_a_request_that_cannot_be_written_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Missing(BySignal):
        def is_ready(self) -> bool:
            return True

    (report,) = talk(monkeypatch, Missing(tmp_path / "gone"), ResizeRequest(1, ("cpu:0",)))
    assert isinstance(report, RolledBack) and report.reason.startswith("could not be notified: ")


def test_a_job_that_is_not_ready_is_not_polled_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Soon(ByCommand):
        looks = 0

        def is_ready(self) -> bool:
            self.looks += 1
            return self.looks > 3

    notifier = Soon("true")
    assert talk(monkeypatch, notifier) == [] and notifier.looks == 4


# --- the script -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("#!/bin/sh\nexit 5\n", 5),
        ("exit 6\n", 6),  # no line that names an interpreter
        ("#!/bin/sh\nkill -KILL $$\n", 137),
        ("#!/no/such\n", 127),
        ('#!/bin/sh\ntest "$RMS_RANKS $RMS_SLOTS $1" = "2 cpu:0 cpu:0 a"\n', 0),
        ('#!/bin/sh\ntest -d "$RMS_RESIZE" -a -z "$(echo :$PATH: | grep :/shims:)"\n', 0),
        ("#!/bin/sh\nkill -TERM $PPID; sleep 0.1; exit 4\n", 4),  # of all processes of a job
        ("#!/bin/sh\ntrap 'exit 8' USR2; kill -USR2 $PPID; while :; do sleep 0.05; done\n", 8),
    ],
)
def test_the_status_is_the_scripts(tmp_path: Path, script: str, status: int) -> None:
    path = tmp_path / "script"
    path.write_text(script)
    path.chmod(0o700)
    env = {
        **os.environ,
        "DMR_SLOTS": "cpu:0 cpu:0",
        "PATH": f"/shims:{os.environ['PATH']}",
        "TMPDIR": str(tmp_path),
        "RMS_SERVER": f"unix:{tmp_path}/none",
    }
    command = [sys.executable, "-P", "-m", "rms.client.adapter", "signal", "/shims", str(path), "a"]
    done = subprocess.run(command, env=env, timeout=60, check=False)
    assert done.returncode == status
    assert [left.name for left in tmp_path.iterdir()] == ["script"]


def test_answers_have_no_other_fields() -> None:
    assert Answer(1).refused == ""
