"""The order of ``scripts/test``, and what it prints while commands run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from loaded import SCRIPTS, script


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = script("test")
    monkeypatch.setattr(module, "DURATIONS", tmp_path / "durations.json")
    return module


def commands(runs: Any, *names: str) -> list[Any]:
    return [runs.Command(name, ["python", name]) for name in names]


def running(runs: Any, command: Any, seconds: float) -> Any:
    return runs.Running(command, None, None, time.monotonic() - seconds)


def test_the_longest_commands_of_the_last_run_begin_first(runs: Any) -> None:
    runs.DURATIONS.write_text(json.dumps({"a": 10.0, "b": 30.0}))
    schedule = runs.Schedule(commands(runs, "a", "new", "b"), 2)
    assert [command.name for command in schedule.waiting] == ["new", "b", "a"]


def test_the_time_left_is_that_of_the_last_run(runs: Any) -> None:
    runs.DURATIONS.write_text(json.dumps({"a": 100.0, "b": 60.0, "c": 50.0}))
    a, b, c = commands(runs, "a", "b", "c")
    schedule = runs.Schedule([c], 2)
    schedule.running = [running(runs, a, 40.0), running(runs, b, 50.0)]
    assert schedule.left_s() == pytest.approx(60.0, abs=1.0)
    words = schedule.words()
    assert "running: a (40 of about 100 s), b (50 of about 60 s); waiting: c" in words
    assert words.endswith("about 1 min left")
    schedule.waiting.append(*commands(runs, "new"))
    assert schedule.left_s() is None and "left" not in schedule.words()


def test_durations_of_passed_commands_are_kept(runs: Any) -> None:
    a, b = commands(runs, "a", "b")
    schedule = runs.Schedule([], 2)
    for command, passed in ((a, True), (b, False)):
        one = running(runs, command, 5.0)
        schedule.running.append(one)
        schedule.over(one, passed=passed)
    assert list(json.loads(runs.DURATIONS.read_text())) == ["a"]
    wide = runs.Command("a", ["python", "--all"])
    assert wide.key not in runs.Schedule([], 2).known
