"""Processes that drop their environment and session stay their job's, and end with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import Fault
from processes import until

from rms.launch.base import ManagedProcess, ScriptLaunch
from rms.launch.local import LocalLauncher
from rms.launch.processes import (
    GROUP_VARIABLE,
    Groups,
    alive,
    find_delegated,
    join,
    send_signal,
    uncontained,
)

DEADLINE_S = 120.0
ESCAPE = "env -i setsid /bin/sh -c 'echo $$ > escaped.part; mv escaped.part escaped; sleep 600' &\n"
"""Beside a job: a process of its own session, without an environment, and one below it."""

pytestmark = pytest.mark.skipif(bool(uncontained()), reason=uncontained() or "contained")


class Job:
    """A script that has left something behind."""

    def __init__(self, folder: Path, ends: str) -> None:
        self.launcher = LocalLauncher(folder, "cafe", "unix:none")
        script = folder / "script"
        script.write_text(f"#!/bin/sh\n{ESCAPE}until [ -e escaped ]; do sleep 0.01; done\n{ends}\n")
        script.chmod(0o700)
        env = {"PATH": os.environ["PATH"]}
        (folder / "jobs" / "7").mkdir(parents=True)
        launch = ScriptLaunch(script, str(folder), env, folder / "out", [["cpu:0"]])
        self.script: ManagedProcess = self.launcher.start_script("7", launch)
        until((folder / "escaped").exists, "escaped process")
        self.escaped = int((folder / "escaped").read_text())

    def close(self) -> None:
        for pid in [self.escaped, *self.launcher.members("7")]:
            send_signal(pid, 9)
        assert self.script.process is not None
        self.script.process.wait(DEADLINE_S)


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    found = Job(tmp_path, request.param)
    yield found
    found.close()


@pytest.mark.parametrize("job", ["exit 3"], indirect=True)
@pytest.mark.promise("contained")
def test_what_a_script_leaves_ends_with_it(job: Job, fault: Fault) -> None:
    until(lambda: job.script.status() is not None, "end of the script")
    assert job.script.status() == 3 and job.script.written_status() == 3
    assert not alive(job.escaped)
    fault("env -i setsid in a job", "found below the job's shell, ended with it")


@pytest.mark.parametrize("job", ["sleep 600"], indirect=True)
@pytest.mark.promise("contained")
def test_what_has_dropped_its_environment_is_found_and_killed(job: Job, tmp_path: Path) -> None:
    again = LocalLauncher(tmp_path, "cafe", "unix:none")  # as a daemon that was killed comes back
    assert job.escaped in again.members("7") and job.escaped in again.members()
    assert job.escaped not in again.members("8")
    again.kill("7")
    until(lambda: not again.members("7"), "end of the job")
    assert not alive(job.escaped)
    assert job.script.status() == 137


# --- control groups ------------------------------------------------------------------------------


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a control group that the daemon may make others in."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found = [line.split()[4] for line in mounts if " - cgroup2 " in line]
    group = Path(found[0] if found else tmp_path) / f"rms-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "below").mkdir()
        (group / "below").rmdir()
        assert (group / "cgroup.procs").read_text() == ""
    except (OSError, AssertionError):
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip("expected a cgroup2 that this user may make groups in")
    monkeypatch.setenv(GROUP_VARIABLE, str(group))
    yield group
    for below in sorted(group.rglob("*/"), reverse=True):
        below.rmdir()
    group.rmdir()


KILLS_ITS_SHELL = "sed -n 's/^PPid:.//p' /proc/$$/status | xargs kill -9; exec sleep 600"


@pytest.mark.promise("contained")
def test_a_job_that_kills_its_own_shell_is_found_by_its_group(
    group: Path, tmp_path: Path, fault: Fault
) -> None:
    job = Job(tmp_path, KILLS_ITS_SHELL)
    try:
        job.script.process.wait(DEADLINE_S)  # type: ignore[union-attr]
        again = LocalLauncher(tmp_path, "cafe", "unix:none")  # as after a restart
        assert job.escaped in again.members("7") and alive(job.escaped)
        again.kill("7")
        until(lambda: not again.members("7"), "end of the job")
        assert not alive(job.escaped)
        assert [path.name for path in group.iterdir() if path.is_dir()] == ["rms-cafe"]
        again.close()
        assert not (group / "rms-cafe").exists()
        fault("a job that kills its own shell, where there are cgroups", "ended with the job")
    finally:
        job.close()


def test_a_delegated_group_is_known_by_its_mark(group: Path) -> None:
    try:
        os.setxattr(group, "user.delegate", b"1")
    except OSError:
        pytest.skip("expected a kernel whose cgroups take attributes of users")

    def found(where: Path) -> bool:
        """Return whether a process in a group finds that it was delegated."""
        if not (child := os.fork()):
            join(where / "cgroup.procs")
            os._exit(find_delegated({}) == where)
        return os.waitpid(child, 0)[1] != 0

    (group / "below").mkdir()  # not marked, so somebody else's
    assert found(group) and not found(group / "below")


def test_where_no_group_was_delegated_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_delegated({GROUP_VARIABLE: str(tmp_path)}) is None
    assert find_delegated({GROUP_VARIABLE: str(tmp_path / "none")}) is None
    none = Groups(None, "cafe", tmp_path)
    assert none.joined("7") is None and none.members("7") == []
    gone = Groups(tmp_path / "gone" / "x", "cafe", tmp_path / "none")
    assert gone.joined("7") is None
    none.close()
