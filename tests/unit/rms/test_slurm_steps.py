"""What stands for processes that Slurm starts: scripts and worlds, when Slurm does not."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from rms.core.model.jobs import JobId
from rms.daemon.jobs.machine import KillLaunch, Observed, ResizeContext, ResizeMachine
from rms.daemon.jobs.worlds import Worlds
from rms.daemon.store.context import Context, Settings
from rms.daemon.store.record import JobRuntime, PendingResize, ResizeState
from rms.launch.base import LaunchError, ManagedProcess
from rms.launch.slurm import launcher
from rms.launch.slurm.commands import Executor
from rms.launch.slurm.launcher import ScriptStep, SlurmLauncher, SlurmNodes, World

if TYPE_CHECKING:
    from rms.launch.slurm.commands import Slurm

DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "STUCK_S", 2.0)
    monkeypatch.setattr(launcher, "POLL_S", 0.05)
    monkeypatch.setattr(launcher, "STATUS_DELAY_S", 0.3)


def started(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def polled(process: World | ScriptStep) -> int | None:
    """Return a process's status after another look at it."""
    process.poll()
    return process.status()


def ended(process: World | ScriptStep) -> int:
    """Return a process's status once it has one."""
    deadline = time.monotonic() + DEADLINE_S
    while (code := polled(process)) is None:
        assert time.monotonic() < deadline, "no end of it"
        time.sleep(0.02)
    return code


# --- worlds ---------------------------------------------------------------------------------

HANGS = ("sleep", "1000")
REACHES = ("sh", "-c", "sleep 1; exit 3")


def world(*boots: tuple[str, ...], again: bool = True, may: Callable[[], bool] = lambda: True):  # type: ignore[no-untyped-def]
    """Return a world whose mpiexec is each of these commands, one boot after the other."""
    left = iter(boots)

    def boot() -> ManagedProcess:
        process = started(*next(left))
        return ManagedProcess(process.pid, process)

    first = boot()
    return World(first.pid, first.process, None, boot if again else None, may)


def test_a_launcher_that_reaches_its_nodes_is_left_alone() -> None:
    found = world(REACHES)
    assert ended(found) == 3


def test_a_launcher_that_hangs_is_started_anew() -> None:
    found = world(HANGS, HANGS, REACHES)
    first = found.process
    assert ended(found) == 3
    assert first.returncode == -9 and found.process is not first


def test_it_waits_until_that_can_work() -> None:
    may = [False]
    found = world(HANGS, REACHES, may=lambda: may[0])
    first = found.process
    end = time.monotonic() + DEADLINE_S
    while found.process is not None and time.monotonic() < end:
        assert polled(found) is None
        time.sleep(0.02)
    assert first.returncode == -9 and found.pid == 0 and found.process is None
    for _ in range(10):
        assert polled(found) is None and found.process is None
        time.sleep(0.1)  # longer than until the next look
    may[0] = True
    assert ended(found) == 3


def test_asking_for_its_status_starts_nothing() -> None:
    found = world(HANGS, REACHES)
    found.process.kill()
    found.process.wait()
    found.process, found.pid = None, 0  # it waits for being started anew
    for _ in range(5):
        assert found.status() is None
    assert found.process is None
    assert ended(found) == 3


def test_one_that_waits_can_be_given_up() -> None:
    found = world(HANGS, may=lambda: False)
    deadline = time.monotonic() + DEADLINE_S
    while found.process is not None and time.monotonic() < deadline:
        found.poll()
    found.abandoned = True
    assert found.status() == 1


def test_one_beside_a_running_world_is_not_started_anew() -> None:
    assert ended(world(HANGS, again=False)) in (1, 137)


def test_not_for_ever() -> None:
    assert ended(world(*[HANGS] * launcher.MOST_BOOTS)) in (1, 137)


# --- steps that have to be ended -------------------------------------------------------------


class Steps:
    """An allocation with one step, whose launch is the job's second."""

    def __init__(self, name: str) -> None:
        self.left = [("7.1", name)]
        self.questions = 0

    def steps(self, allocation: int) -> list[tuple[str, str]]:
        self.questions += 1
        time.sleep(0.1)  # longer than a poll takes
        return self.left

    def end_steps(self, steps: list[str]) -> None:
        assert steps == ["7.1"]
        self.left = []


class Within(SlurmNodes):
    def allocations(self, job: str) -> list[int]:
        return [7]


def test_what_is_being_ended_is_left_until_its_step_is_gone(tmp_path: Path) -> None:
    executor = Executor(cast("Slurm", None))
    within = SlurmLauncher(tmp_path, "0" * 32, "unix:none", executor)
    within.nodes = Within()
    executor.slurm = cast("Slurm", steps := Steps(within.name("3", 1)))
    settings = Settings(policy="fifo", now=time.time)
    context = SimpleNamespace(launcher=within, settings=settings)
    worlds = Worlds(cast("Context", context), cast("Any", None), cast("Any", None))
    closing = PendingResize(1, (), "warm", state=ResizeState.CLOSING, leaving=[1])
    job, machine = JobRuntime(JobId("3"), resize=closing), ResizeMachine()

    def gone() -> bool:
        """Look once; kill what is left, as the machine says."""
        closing.state = "closing"
        left = worlds.has_processes(job, 1)
        seen = Observed({}, frozenset() if left else frozenset([1]))
        for what in machine.handle(job, ResizeContext(0.0, 0.0, ()), seen):
            if isinstance(what, KillLaunch):
                within.kill("3", what.launch)
        return not left

    within.kill("3", 1)
    assert within.members("3", 1) == within.members("3") == [0]
    deadline = time.monotonic() + DEADLINE_S
    while not gone():
        assert time.monotonic() < deadline, "it is never gone"
        time.sleep(0.05)
    assert steps.left == [] and within.members("3") == []
    asked = steps.questions
    for _ in range(5):
        assert gone(), "what is gone is ended again"
    executor.close()
    assert steps.questions == asked


# --- scripts --------------------------------------------------------------------------------


def script(
    folder: Path, command: str, answer: str = "", may: Callable[[], bool] = lambda: True
) -> ScriptStep:
    (folder / "job.sh").write_text(command)
    begin = lambda: started("sh", str(folder / "job.sh"))  # noqa: E731
    look = lambda: lambda: answer  # noqa: E731
    return ScriptStep(0, None, folder / "status", begin, look, may, folder / "begun")


def test_a_script_waits_for_the_controller(tmp_path: Path) -> None:
    may = [False]
    found = script(
        tmp_path, f"touch {tmp_path}/begun; echo 4 > {tmp_path}/status", may=lambda: may[0]
    )
    assert polled(found) is None and not found.started
    may[0] = True
    assert polled(found) is None and found.started
    assert ended(found) == 4 and found.end_state == ""


def test_one_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    def begin() -> Any:
        raise LaunchError("could not start srun: Too many open files")

    found = ScriptStep(0, None, tmp_path / "status", begin, None, lambda: True)
    assert polled(found) == 1 and found.end_reason.endswith("Too many open files")


def test_one_that_never_waits_any_more(tmp_path: Path) -> None:
    found = script(tmp_path, "exit 0", may=lambda: False)
    assert polled(found) is None
    found.abandoned = True
    assert polled(found) == 1 and found.end_state == "GONE"


def test_its_own_status_counts_before_that_of_srun(tmp_path: Path) -> None:
    found = script(tmp_path, f"touch {tmp_path}/begun; echo 0 > {tmp_path}/status; exit 9")
    assert ended(found) == 0 and found.end_state == ""


def test_a_status_that_is_seen_late(tmp_path: Path) -> None:
    late = f"touch {tmp_path}/begun; (sleep 0.1; echo 5 > {tmp_path}/status) & exit 9"
    found = script(tmp_path, late, "lost its nodes: n1")
    assert ended(found) == 5 and found.end_state == ""


def test_a_script_that_lost_its_node(tmp_path: Path) -> None:
    found = script(tmp_path, f"touch {tmp_path}/begun; exit 9", "lost its nodes: n1")
    assert ended(found) == 9
    assert (found.end_state, found.end_reason) == ("GONE", "lost its nodes: n1")


def test_a_script_that_was_killed_by_nobody_of_slurm(tmp_path: Path) -> None:
    found = script(tmp_path, f"touch {tmp_path}/begun; exit 9")
    assert ended(found) == 9 and found.end_state == ""


def test_a_script_that_never_began(tmp_path: Path) -> None:
    found = script(tmp_path, "exit 1")
    assert ended(found) == 1
    assert (found.end_state, found.end_reason) == ("GONE", "its script could not be started")
