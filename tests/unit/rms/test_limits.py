"""Memory that a job may hold, and a signal before its time is up: asked, watched, sent."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import until
from routed import SCRIPT, Routed, routed
from specs import job_spec

from rms.core.model.jobs import Job, JobId
from rms.daemon.jobs import watch
from rms.daemon.store.notes import SignalNote
from rms.formats.jobscript import Options, parse_text, read_option
from rms.formats.values import ScriptError, SignalRequest, parse_signal
from rms.launch.base import ManagedProcess, ScriptLaunch
from rms.launch.local import LocalLauncher
from rms.launch.processes import Groups, resident_mib

ONE = JobId("1")
DEADLINE_S = 120.0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Routed]:
    """Return a daemon whose scripts run for ever."""
    monkeypatch.setattr(ManagedProcess, "status", lambda process: None)
    with routed(tmp_path) as found:
        yield found


def test_a_limit_counts_from_the_start_and_not_while_a_job_is_suspended() -> None:
    job = Job(job_spec(1, 1, limit_s=100.0))
    assert job.limit_end_s == inf
    job.start_s = 1000.0
    assert job.limit_end_s == 1100.0
    job.suspended_at_s = 1050.0
    assert job.limit_end_s == inf
    job.suspended_at_s, job.suspended_s = None, 70.0
    assert job.limit_end_s == 1170.0
    assert Job(job_spec(2, 1, run_s=5.0)).limit_end_s == inf


# --- what is asked -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("USR1", SignalRequest(signal.SIGUSR1)),
        ("SIGTERM@5", SignalRequest(signal.SIGTERM, 5.0)),
        ("B:10@0", SignalRequest(10, 0.0, True)),
        ("R:INT@65535", SignalRequest(signal.SIGINT, 65535.0)),
    ],
)
def test_signals_in_slurms_forms(text: str, expected: SignalRequest) -> None:
    assert parse_signal(text) == expected


@given(st.text(alphabet="USR1BT:@0369INX", max_size=14))
def test_any_text_is_a_signal_or_refused(text: str) -> None:
    try:
        assert parse_signal(text).before_s <= 65535
    except ScriptError as error:
        assert repr(text) in str(error)


@pytest.mark.parametrize(
    ("text", "mib"), [("512", 512), ("4G", 4096), ("1t", 2**20), ("2048K", 2), ("0", 0)]
)
def test_memory_in_slurms_forms(text: str, mib: float) -> None:
    assert read_option("mem", text).memory_mib == mib


def test_lines_of_sbatch_are_heeded_here_and_by_slurm(tmp_path: Path) -> None:
    lines = "#!/bin/sh\n#SBATCH --mem 2G --signal=B:USR1@30\ntrue\n"
    found = parse_text(lines, "job.sh")
    assert found.options == Options(memory_mib=2048.0, signal="B:USR1@30")
    assert found.slurm_options == ("--mem=2G", "--signal=B:USR1@30")
    assert LocalLauncher(tmp_path, "cafe", "unix:none").nodes.unheeded(found.slurm_options) == []
    with pytest.raises(ScriptError, match="--mem: expected memory like 512"):
        read_option("mem", "much")


# --- what is watched -----------------------------------------------------------------------------


def test_a_job_gets_its_signal_once_before_its_time_is_up(
    server: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, int]] = []
    daemon, launcher = server.daemon, server.daemon.launcher
    monkeypatch.setattr(launcher, "send_signal", lambda job, n, script: sent.append((job, n)))
    server.submit(time_s=100.0, signal="USR1@30")
    server.clock[0] += 69.0
    daemon.tick()
    assert sent == []
    server.clock[0] += 2.0
    daemon.tick()
    daemon.tick()
    assert sent == [("1", signal.SIGUSR1)]
    assert daemon.journal.noted(SignalNote, "1").sent
    server.clock[0] += 30.0
    daemon.tick()
    assert daemon.jobs[ONE].ending == "TIMEOUT" and len(sent) == 1


@pytest.mark.promise("memory-limit")
def test_a_job_over_its_memory_is_ended_at_once(
    server: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[str] = []
    daemon, launcher = server.daemon, server.daemon.launcher
    monkeypatch.setattr(watch, "sum_mib", lambda pids: 100.0)
    monkeypatch.setattr(launcher, "terminate", lambda job, worlds: None)
    monkeypatch.setattr(launcher, "kill", lambda job, launch=None: killed.append(job))
    server.submit(memory_mib=200.0)
    server.submit(memory_mib=50.0)
    daemon.tick()
    server.clock[0] += 2.0
    daemon.tick()
    assert (daemon.jobs[ONE].ending, daemon.jobs[JobId("2")].ending) == (None, "OUT_OF_MEMORY")
    server.clock[0] += 0.1
    daemon.tick()
    assert set(killed) == {"2"}
    daemon.scripts.end(daemon.jobs[JobId("2")], 137)
    row = server.ask("GET", "/jobs?id=2")[1][0]
    assert (row["state"], row["reason"]) == ("OUT_OF_MEMORY", "OutOfMemory: script ended with 137")


def test_on_slurm_they_are_slurms(server: Routed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(server.daemon.launcher), "watches_processes", False)
    server.submit()
    status, answer = server.ask("POST", "/jobs", SCRIPT | {"options": {"signal": "9"}})
    assert status == 400 and "in #SBATCH lines, for Slurm" in answer["error"]


# --- who gets it ---------------------------------------------------------------------------------


def test_the_ranks_get_a_signal_or_the_script_alone(tmp_path: Path) -> None:
    (tmp_path / "rank").write_text(
        "#!/bin/sh\ntrap 'echo > rank-heard; exit' USR1\n: > rank-set\n"
        "while :; do sleep 0.01; done\n"
    )
    script = tmp_path / "script"
    script.write_text(
        "#!/bin/sh\ntrap 'echo > script-heard' USR1\nPMI_RANK=0 ./rank &\n: > script-set\n"
        "until [ -e script-heard ]; do sleep 0.01; done\n"
    )
    for file in (script, tmp_path / "rank"):
        file.chmod(0o700)
    (tmp_path / "jobs" / "7").mkdir(parents=True)
    launcher = LocalLauncher(tmp_path, "cafe", "unix:none")
    env = {"PATH": os.environ["PATH"]}
    launch = ScriptLaunch(script, str(tmp_path), env, tmp_path / "out", [["cpu:0"]])
    managed = launcher.start_script("7", launch)
    assert managed.process is not None
    try:
        for name in ("rank-set", "script-set"):
            until((tmp_path / name).exists, name)
        launcher.send_signal("7", signal.SIGUSR1)
        until((tmp_path / "rank-heard").exists, "signal of the rank")
        assert not (tmp_path / "script-heard").exists()
        launcher.send_signal("7", signal.SIGUSR1, managed.pid)
        until((tmp_path / "script-heard").exists, "signal of the script")
        assert managed.process.wait(DEADLINE_S) == 0
    finally:
        launcher.kill("7")
        managed.process.wait(DEADLINE_S)


def test_resident_memory_is_that_of_proc() -> None:
    held = bytearray(b"x" * 2**26)
    assert resident_mib(os.getpid()) > len(held) / 2**20
    assert resident_mib(2**30) == 0.0


# --- by the kernel -------------------------------------------------------------------------------


@pytest.mark.promise("memory-limit")
def test_a_control_group_that_can_limits_memory(tmp_path: Path) -> None:
    """Files stand in for the kernel's: a group has them once it is given the controller."""
    jobs, own = tmp_path / "jobs", tmp_path / "above" / "rms-cafe"
    (jobs / "1").mkdir(parents=True)
    groups = Groups(tmp_path / "above", "cafe", jobs)
    assert groups.joined("1") == own / "1" / "cgroup.procs"
    assert (own / "cgroup.subtree_control").read_text() == "+memory"
    assert groups.limit_memory("1", 64.0) is None  # no controller after all
    for name in ("memory.max", "cgroup.procs"):
        (own / "1" / name).write_text("")
    (own / "1" / "memory.events").write_text("max 3\noom 1\noom_kill 0\n")
    assert groups.limit_memory("1", 64.0) == 0
    limits = {name: (own / "1" / name).read_text() for name in ("memory.max", "memory.swap.max")}
    assert limits == {"memory.max": str(64 * 2**20), "memory.swap.max": "0"}
    (own / "1" / "memory.events").write_text("max 3\noom 1\noom_kill 2\n")
    assert groups.members("1") == []  # it has ended, and its group goes
    shutil.rmtree(own / "1")
    assert groups.limit_memory("1") == 2  # that is remembered until it is asked for
    assert groups.limit_memory("1") is None


@pytest.mark.promise("memory-limit")
def test_who_was_ended_by_the_kernel_is_out_of_memory(
    server: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float | None]] = []
    daemon, launcher, kills = server.daemon, server.daemon.launcher, {"1": 0}

    def limit(job: str, most_mib: float | None = None) -> int:
        asked.append((job, most_mib))
        return kills[job]

    monkeypatch.setattr(launcher, "limit_memory", limit)
    monkeypatch.setattr(watch, "sum_mib", lambda pids: 1e9)  # nobody looks at that
    server.submit(memory_mib=50.0)
    server.clock[0] += 2.0
    daemon.tick()
    assert daemon.jobs[ONE].ending is None and asked == [("1", 50.0)]
    kills["1"] = 3
    daemon.scripts.end(daemon.jobs[ONE], 137)
    assert server.ask("GET", "/jobs?id=1")[1][0]["state"] == "OUT_OF_MEMORY"
