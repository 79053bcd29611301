"""A daemon on a copy of a state folder adopted and ended the jobs of the original."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from routed import SCRIPT, Idle, Routed
from said import Said

from rms.core.model.cluster import Cluster
from rms.core.model.jobs import JobId, JobState, NodePower
from rms.daemon.heart import Daemon
from rms.daemon.jobs.scripts import COPIED
from rms.daemon.restart.recover import open_journal, own_mark, restore_notes, resume, settle
from rms.daemon.store.context import Settings
from rms.daemon.store.notes import ScriptNote
from rms.launch.base import ManagedProcess, ScriptLaunch
from rms.launch.local import LocalLauncher
from rms.launch.processes import INSTANCE_VARIABLE, Groups
from rms.wire.marks import environment

CLUSTER = Cluster(("n1",), (("cpu:0",),), (NodePower(5.0, 5.0),))
ONE, TWO = JobId("1"), JobId("2")


@dataclass
class Adopting(Idle):
    """Starts nothing, but lists the processes of a job."""

    scripts: list[Path] = field(default_factory=list)
    members = LocalLauncher.members

    def start_script(self, job: str, launch: ScriptLaunch) -> ManagedProcess:
        self.scripts.append(launch.script)
        return super().start_script(job, launch)


@dataclass
class Served:
    daemon: Daemon
    launcher: Adopting
    messages: list[str]

    def state_of(self, job: JobId) -> JobState:
        entry = self.daemon.context.state.job(job)
        assert entry is not None
        return entry.state


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Serve a state folder as ``rms serve`` does."""
    messages = Said()
    with open_journal(folder / "journal.sqlite") as journal:
        restore_notes(journal, folder / "jobs")
        launcher = Adopting(folder, own_mark(journal, folder), "unix:none")
        settings = Settings(policy="fifo", now=lambda: 1_000.0)
        daemon = resume(CLUSTER, journal, launcher, settings)
        settle(daemon)
        yield Served(daemon, launcher, messages)


@pytest.fixture
def original(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Yield the folder of a daemon that was killed, and the process of its running job."""
    folder = tmp_path / "original"
    folder.mkdir()
    with served(folder) as first:
        server = Routed(first.daemon, [1_000.0])
        try:
            for _ in (ONE, TWO):  # the second waits for the node of the first
                status, answer = server.ask(
                    "POST", "/jobs", SCRIPT | {"options": {}, "cwd": str(tmp_path)}
                )
                assert status == 200, answer
        finally:
            server.loop.close()
        mark = f"{first.launcher.instance_id}:1"
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, INSTANCE_VARIABLE: mark})
    try:
        end = time.monotonic() + 120  # Popen returns before the environment is the new one
        while f"{INSTANCE_VARIABLE}={mark}".encode() not in (environment(process.pid) or []):
            assert time.monotonic() < end
            time.sleep(0.001)
        with open_journal(folder / "journal.sqlite") as journal:
            journal.note(ScriptNote("1", process.pid))
        yield folder, process
    finally:
        process.kill()
        process.wait()


def test_a_copy_leaves_the_processes_of_the_original_alone(
    original: tuple[Path, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    folder, process = original
    (tmp_path / "rms-1.out").write_text("of the original")
    shutil.copytree(folder, tmp_path / "copy")
    with served(tmp_path / "copy") as copy:
        assert copy.state_of(ONE) is JobState.FAILED
        assert f"job 1 FAILED: {COPIED}" in copy.messages
        assert any("is a copy of another state folder" in line for line in copy.messages)
        assert copy.launcher.scripts == [tmp_path / "copy" / "jobs" / "2" / "script"]
        copy.daemon.tick()
        copy.daemon.endings.close()
        assert process.poll() is None and (tmp_path / "rms-1.out").read_text() == "of the original"
    with served(tmp_path / "copy") as again:
        assert not any("is a copy" in line for line in again.messages)
    with served(folder) as back:
        assert "job 1: adopted, 1 processes still run" in back.messages
        assert process.poll() is None


def test_a_renamed_folder_adopts_its_jobs_and_finds_their_scripts(
    original: tuple[Path, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    folder, process = original
    renamed = folder.rename(tmp_path / "renamed")
    with served(renamed) as back:
        assert "job 1: adopted, 1 processes still run" in back.messages
        process.kill()
        process.wait()
        for _ in range(3):
            back.daemon.tick()
        assert back.launcher.scripts == [renamed / "jobs" / "2" / "script"]


def test_a_file_system_that_has_another_id_after_a_reboot_keeps_the_jobs(
    original: tuple[Path, subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, process = original
    usual = os.statvfs(folder)
    for number in (1, 2):  # the second time the folder is known by its new id
        monkeypatch.setattr(os, "statvfs", lambda _, n=number: SimpleNamespace(f_fsid=n))
        with served(folder) as back:
            assert "job 1: adopted, 1 processes still run" in back.messages
            assert not any("is a copy" in line for line in back.messages)
    assert usual.f_fsid not in (1, 2)
    shutil.copytree(folder, tmp_path / "copy")
    with served(tmp_path / "copy") as copy:
        assert copy.state_of(ONE) is JobState.FAILED
        assert process.poll() is None
    (folder / "journal.sqlite").rename(folder / "old")
    shutil.copy(folder / "old", folder / "journal.sqlite")  # restored from a backup
    with served(folder) as back:
        assert "job 1: adopted, 1 processes still run" in back.messages


def test_a_copied_control_group_is_not_the_copys_own(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "1").mkdir(parents=True)
    group = tmp_path / "rms-of-the-original" / "1"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (tmp_path / "jobs" / "1" / "group").write_text(f"{group}\n")
    assert Groups(tmp_path, "of-the-original", tmp_path / "jobs").members("1") == [os.getpid()]
    assert Groups(tmp_path, "of-the-copy", tmp_path / "jobs").members("1") == []
