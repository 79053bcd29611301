"""What would end a daemon, and each restart: contained in the job or policy it belongs to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults import Fault
from killed import COMMAND, Bench
from killed import bench as opened
from routed import SCRIPT, Routed, routed

from rms.core.model.jobs import JobId, Mode
from rms.daemon.ask import views
from rms.daemon.store.file import checksum
from rms.daemon.store.journal import Seen
from rms.launch.base import LaunchCommand, LaunchError, ManagedProcess, ScriptLaunch, WorldLaunch
from rms.launch.local import LocalLauncher
from rms.wire.messages import ApplicationResizeRequest, Done, Poll, Report, ResizeReport

ONE, TWO = JobId("1"), JobId("2")
RESIZE = ResizeReport(5, 2, 1, "warm", 1.0, 0.5, 0.1, 8, 1.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Routed]:
    with routed(tmp_path / "state") as found:
        yield found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with opened(tmp_path) as found:
        yield found


def states(bench: Bench) -> dict[str, str]:
    return {row.id: row.state for row in views.jobs(bench.daemon.context)}


def entered(server: Routed) -> int:
    """Return how many events the journal holds."""
    return sum(isinstance(entry, Seen) for entry in server.daemon.journal.read())


# --- outputs -------------------------------------------------------------------------------------


def test_an_output_that_is_no_file_is_refused(server: Routed, tmp_path: Path, fault: Fault) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place, got in (
        (tmp_path / "pipe", "a named pipe"),
        (tmp_path, "a folder"),
        (Path("/dev/full"), "a device"),
    ):
        status, answer = server.ask("POST", "/jobs", SCRIPT | {"options": {"output": str(place)}})
        expected = f"expected a regular file as output, got {place}, which is {got}"
        assert (status, answer) == (400, {"error": expected})
    assert entered(server) == 0 and not server.daemon.jobs
    assert server.submit(output="/dev/null")
    fault("FIFO, folder or device as --output", "submit refused in words")


def test_an_output_that_became_a_pipe_fails_its_job_alone(tmp_path: Path, fault: Fault) -> None:
    launcher = LocalLauncher(tmp_path, "instance", "unix:none")
    script, output = tmp_path / "script", tmp_path / "pipe"
    script.write_text("#!/bin/sh\necho hello\n")
    script.chmod(0o700)
    os.mkfifo(output)
    (tmp_path / "jobs" / "1").mkdir(parents=True)
    launch = ScriptLaunch(script, "/", {}, output, [("cpu:0",)])
    with pytest.raises(LaunchError, match=r"got .*pipe, which is a named pipe$"):
        launcher.start_script("1", launch)
    reader = os.open(output, os.O_RDONLY | os.O_NONBLOCK)  # it does not block, and is no file
    with pytest.raises(LaunchError, match="which is a named pipe"):
        launcher.start_script("1", launch)
    os.close(reader)
    output.unlink()
    process = launcher.start_script("1", launch).process
    assert process is not None and process.wait(120.0) == 0
    assert output.read_text() == "hello\n"
    fault("--output turned into a FIFO before the start", "job FAILED with the reason")


# --- what no process can be started with --------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"env": {"A\0B": "1"}}, "expected names of variables without = and NUL, got 'A\\x00B'"),
        ({"env": {"A=B": "1"}}, "expected names of variables without = and NUL, got 'A=B'"),
        ({"env": {"": "1"}}, "expected names of variables without = and NUL, got ''"),
        ({"env": {"A": "1\0"}}, "expected variables without NUL, got A='1\\x00'"),
        ({"cwd": "/\0"}, "expected a path without NUL, got '/\\x00'"),
        ({"options": {"output": "a\0"}}, "--output: expected a printable text, got 'a\\x00'"),
    ],
)
def test_strings_that_no_process_takes_are_refused(
    server: Routed, given: dict[str, Any], expected: str, fault: Fault
) -> None:
    status, answer = server.ask("POST", "/jobs", SCRIPT | given)
    assert (status, answer) == (400, {"error": expected})
    assert entered(server) == 0 and not server.daemon.jobs
    fault("NUL or = in an environment, NUL in a path", "submit refused in words")


def test_what_a_journal_holds_that_cannot_start_fails_alone(tmp_path: Path, fault: Fault) -> None:
    launcher = LocalLauncher(tmp_path, "instance", "unix:none")
    for env, cwd in (({"A\0": "1"}, "/"), ({"A=": "1"}, "/"), ({}, "/\0")):
        launch = ScriptLaunch(Path("/bin/true"), cwd, env, tmp_path / "out", [("cpu:0",)])
        with pytest.raises(LaunchError, match="could not start /bin/sh: "):
            launcher.start_script("1", launch)
    command = LaunchCommand(["a\0"], "/", {}, str(tmp_path / "out"), str(tmp_path / "out"))
    with pytest.raises(LaunchError):
        launcher.boot_world("1", WorldLaunch(0, 0, ("cpu:0",), command))
    fault("such a job in the journal of an older daemon", "job FAILED with the reason")


def test_ranks_of_one_machine_boot_without_the_hooks_of_network_cards(tmp_path: Path) -> None:
    launcher = LocalLauncher(tmp_path, "id", "unix:none")
    envs: list[dict[str, str]] = [{}, {}, {"UCX_MEM_MMAP_HOOK_MODE": "reloc"}]
    for slots, env in zip((["cpu:0"], ["gpu:0"], ["cpu:0"]), envs, strict=True):
        launcher.world_options("1", 0, slots, env)
    assert [env.get("UCX_MEM_MMAP_HOOK_MODE") for env in envs] == ["none", None, "reloc"]


# --- what jobs say -------------------------------------------------------------------------------


def running(bench: Bench) -> None:
    """Let job 1 compute, beside job 2."""
    bench.submit("1", (1, 4, 2), Mode.MALLEABLE)
    bench.submit("2", (1, 1, 1), Mode.FIXED)
    bench.daemon.worlds.launch(bench.daemon.jobs[ONE], COMMAND, "key")
    poll(bench, 1)


def poll(bench: Bench, step: int) -> None:
    ranks = ((0, 2),)
    bench.daemon.worlds.poll(
        bench.daemon.jobs[ONE], Poll(step, 100, 0, "warm", ranks, restartable=True)
    )


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (Done(1, RESIZE, (99,)), "expected launches of job 1, got 99"),
        (ApplicationResizeRequest(10**30), "expected 1 to 1048576 ranks"),
        (ApplicationResizeRequest(-1), "expected 1 to 1048576 ranks, got -1"),
    ],
)
def test_a_report_that_cannot_be_changes_nothing(
    bench: Bench, report: Report, expected: str, fault: Fault
) -> None:
    running(bench)
    bench.daemon.resize(ONE, 1, "warm")
    with pytest.raises(ValueError, match=expected):
        bench.daemon.worlds.report(bench.daemon.jobs[ONE], report)
    poll(bench, 2)
    bench.daemon.tick()
    bench.start()
    bench.daemon.tick()
    assert states(bench) == {"1": "RUNNING", "2": "RUNNING"}
    resize = bench.daemon.jobs[ONE].resize
    assert resize is not None and resize.state == "booting"
    fault("report of a job that names unknown worlds", "refused; its resize goes on")


@dataclass
class Odd(ManagedProcess):
    """A process that cannot be looked at."""

    def status(self) -> int | None:
        raise KeyError(self.pid)


@pytest.mark.promise("faults-contained")
def test_an_error_about_a_job_ends_that_job(bench: Bench, fault: Fault) -> None:
    running(bench)
    bench.daemon.jobs[ONE].script = Odd(1)
    bench.daemon.tick()
    assert states(bench) == {"1": "RUNNING", "2": "RUNNING"}  # it is being killed
    bench.daemon.tick()
    assert states(bench) == {"1": "FAILED", "2": "RUNNING"}
    (row, _) = views.jobs(bench.daemon.context)
    assert row.reason.startswith("KeyError: 1 (test_daemon_faults.py:")
    assert bench.machine.of("1") == []
    bench.start()
    assert states(bench) == {"1": "FAILED", "2": "RUNNING"}
    (row, _) = views.jobs(bench.daemon.context)
    assert row.reason.startswith("KeyError: 1")
    fault("any exception while a job is watched", "job FAILED with the reason", lost="that job")


def test_an_error_of_a_part_is_said_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    running(bench)

    def fail() -> None:
        raise RuntimeError("odd")

    monkeypatch.setitem(bench.daemon._parts, "launcher", fail)
    bench.machine.end("2", None)
    bench.daemon.tick()
    bench.daemon.tick()
    assert states(bench) == {"1": "RUNNING", "2": "COMPLETED"}
    assert sum("launcher: RuntimeError: odd" in words for words in bench.said) == 1
    fault("any exception of a part that is watched", "said once, the rest goes on")


@pytest.mark.parametrize("kind", ["job", "line", "steps", "resize"])
def test_a_note_that_is_damaged_or_gone_costs_its_job_alone(
    bench: Bench, kind: str, fault: Fault
) -> None:
    running(bench)
    bench.daemon.resize(ONE, 1, "warm")
    if kind == "job":
        bench.daemon.journal._run("DELETE FROM notes WHERE key = 'job/1'")
    else:
        name = "line/1/0" if kind == "line" else f"{kind}/1"
        value = '{"steps": [{}], "number": "x"}'
        wrong = "INSERT OR REPLACE INTO notes (key, value, sum) VALUES (?, ?, ?)"
        bench.daemon.journal._run(wrong, name, value, checksum(name, value))
    bench.start()
    bench.daemon.tick()
    bench.daemon.tick()
    assert states(bench) == {"1": "FAILED", "2": "RUNNING"}
    assert any("job 1 FAILED: could not be adopted: " in words for words in bench.said)
    assert bench.machine.of("1") == []
    bench.start()
    assert states(bench) == {"1": "FAILED", "2": "RUNNING"}
    fault("a fact about a job damaged or gone", "job FAILED with the reason", lost="that job")


def test_an_entry_that_cannot_have_been_is_said_and_the_rest_serves(
    bench: Bench, fault: Fault
) -> None:
    running(bench)
    bench.daemon.journal._run("DELETE FROM entries WHERE seq = 2")
    bench.daemon.journal._run("DELETE FROM decisions WHERE seq = 2")
    bench.start()
    bench.daemon.tick()
    assert states(bench) == {"2": "RUNNING"}
    assert any("expected one that the engine takes" in words for words in bench.said)
    fault("an entry of the journal cut out", "said; the rest serves", lost="its job")
