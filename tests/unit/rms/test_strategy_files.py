"""Strategies in files of users: what goes wrong with one ends its process, and nothing else."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import until

from rms.daemon.store import sandbox
from rms.daemon.store.sandbox import FileStrategy, StrategyError
from rms.kernels.model import (
    Affinity,
    KernelSpec,
    Resource,
    TaskDevice,
    TaskFinished,
    TaskId,
    TaskRegistered,
    TaskRun,
    TaskSpec,
    Woken,
)
from rms.kernels.scheduler import ShortTerm, TaskScheduler

FEWEST = '''
from rms.kernels import Resource
from rms.kernels.model import TaskStart

CAPACITY = {Resource.GPU: 4}

def schedule(state):
    """Those with the fewest kernels first; the GPU is for those that can run nowhere else."""
    print("what a file prints is no answer")
    room, choices = state.room(), []
    for task in sorted(state.waiting, key=lambda task: len(task.preference)):
        for resource in reversed(task.preference):
            device = room.free(resource)
            if device is not None and (resource != Resource.GPU or len(task.preference) == 1):
                room.take(device)
                choices.append(TaskStart(task.id, device.name))
                break
    return choices
'''
DEVICES = (TaskDevice("gpu", Resource.GPU, (0,)), TaskDevice("core", Resource.CORE, (1,)))
GPU, CORE = KernelSpec(Resource.GPU), KernelSpec(Resource.CORE, Affinity.LOW)

Load = Callable[[str], FileStrategy]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    made: list[FileStrategy] = []

    def of(text: str) -> FileStrategy:
        path = tmp_path / f"strategy{len(made)}.py"
        path.write_text(text)
        made.append(FileStrategy(path))
        return made[-1]

    yield of
    for each in made:
        each.close()


def registered(scheduler: TaskScheduler, *kernels: KernelSpec) -> list[object]:
    number = TaskId(scheduler.state.serial)
    return list(scheduler.handle(TaskRegistered(0.0, number, TaskSpec(0, kernels))))


@pytest.mark.promise("strategy-files")
def test_a_file_decides_until_it_goes_wrong(load: Load) -> None:
    said: list[str] = []
    scheduler = TaskScheduler(DEVICES, ShortTerm(), said.append)
    scheduler.swap(load(FEWEST))
    assert scheduler.state.capacity == {Resource.GPU: 4}
    assert registered(scheduler, GPU, CORE) == [TaskRun(TaskId(0), "core", Resource.CORE)]
    assert registered(scheduler, GPU, CORE) == []
    assert registered(scheduler, GPU) == [TaskRun(TaskId(2), "gpu", Resource.GPU)]
    wrong = load(FEWEST)
    wrong.close()  # as if it had crashed
    scheduler.swap(wrong)
    scheduler.handle(Woken(1.0))
    assert "strategy0.py decides again" in said[0]
    assert scheduler.handle(TaskFinished(2.0, TaskId(0))) == [
        TaskRun(TaskId(1), "core", Resource.CORE)
    ]


@pytest.mark.wide
@pytest.mark.promise("strategy-files")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    while True:\n        pass", "expected an answer within 0.3 s, got none"),
        ("    import time\n    time.sleep(600)", "expected an answer within 0.3 s, got none"),
        ("    raise KeyError('queue')", "it raised KeyError('queue')"),
        ("    return 17", "it raised TypeError"),
        ("    return [17]", "expected choices (TaskStart, TaskEnqueue, ...), got 17"),
        ("    import os\n    os._exit(3)", "expected an answer, got the end of its process"),
    ],
)
def test_whatever_goes_wrong_in_a_call_is_an_error_of_the_call(
    load: Load, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    said: list[str] = []
    scheduler = TaskScheduler(DEVICES, ShortTerm(), said.append)
    wrong = load(f"def schedule(state):\n{body}\n")
    monkeypatch.setattr(sandbox, "LIMIT_S", 0.3 if "within 0.3 s" in words else 60.0)
    scheduler.swap(wrong)
    assert registered(scheduler, CORE) == [TaskRun(TaskId(0), "core", Resource.CORE)]
    assert words in said[0] and "short-term decides again" in said[0]
    with pytest.raises(ProcessLookupError):
        os.kill(wrong.sandbox.pid, 0)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schedul = 1", "expected a function schedule(state), got none"),
        ("import nowhere", "expected a file that can be imported, got ModuleNotFoundError"),
        ("def schedule(state:", "expected a file that can be imported, got SyntaxError"),
        ("CAPACITY = {'tpu': 1}\ndef schedule(state): ...", "Invalid enum value 'tpu'"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(load: Load, text: str, words: str) -> None:
    with pytest.raises(StrategyError) as refused:
        load(text)
    assert words in str(refused.value)


def test_a_file_that_never_returns_ends_with_its_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon is killed while it waits for the import, so it cannot end the process itself."""
    monkeypatch.setattr(sandbox, "PARENT_S", 0.01)
    path, ready = tmp_path / "strategy.py", tmp_path / "pid"
    path.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'new')!r}).write_text(str(os.getpid()))\n"
        f"os.rename({str(tmp_path / 'new')!r}, {str(ready)!r})\n"
        "time.sleep(600)\n"
    )
    daemon = sandbox.fork(lambda: FileStrategy(path))
    try:
        until(ready.exists)
        watched = os.pidfd_open(int(ready.read_text()))
    finally:
        os.kill(daemon, signal.SIGKILL)
        os.waitpid(daemon, 0)
    try:
        assert select.select([watched], [], [], 30.0)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(watched, signal.SIGKILL)
        os.close(watched)
