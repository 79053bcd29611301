"""The demo's sizes, progress lines and simulated parts."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import pytest
from loaded import SCRIPTS, script

STEPS = {(360, 150, 32): 454, (240, 100, 24): 303, (180, 75, 16): 227, (120, 50, 10): 152}
"""Of the plume, about as the month's stability limit has them."""


class Said(list[str]):
    """Keeps lines."""

    detail = ""

    def __call__(self, line: str, coloured: str | None = None) -> None:
        self.append(line)


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return script("demo")


def test_a_slower_machine_has_smaller_parts_and_less_than_five_minutes(demo: Any) -> None:
    seen, fast = [], demo.Speed(start_s=0.5, cell_s=6e-9)
    for slower in (1.0, 3.0, 5.0):
        speed = demo.Speed(slower * fast.start_s, slower * fast.cell_s)
        size = demo.fitting(speed, STEPS, demo.BUDGET_S)
        assert sum(demo.expected(size, speed, STEPS)) <= demo.BUDGET_S
        seen.append(demo.SIZES.index(size))
    assert seen == sorted(seen) and seen[0] < seen[-1]
    assert demo.fitting(demo.Speed(60.0, 1e-6), STEPS, demo.BUDGET_S) is demo.SIZES[-1]


def test_part_2_is_sized_by_the_time_of_part_1(demo: Any) -> None:
    run = demo.Demo.__new__(demo.Demo)
    run.speed, run.steps, run.say = demo.Speed(0.5, 6e-9), STEPS, Said()
    run.begun, run.size = time.monotonic(), demo.SIZES[0]
    run.expected_s = demo.expected(run.size, run.speed, STEPS)
    first_s = run.expected_s[0]
    run.adapt(1.1 * first_s)
    assert run.size is demo.SIZES[0] and not run.say
    run.begun -= 5.0 * first_s
    run.adapt(5.0 * first_s)
    assert run.speed.start_s == 2.5 and demo.SIZES.index(run.size) > 1
    assert "5.0 times as long as expected" in run.say[0]


@pytest.mark.parametrize(
    ("rigid", "malleable", "apart"),
    [
        ([9.0], [0.2], True),
        ([9.0, 9.4, 9.1], [0.2, 0.3, 0.2], True),
        ([2.1, 2.6, 2.6, 2.5, 2.7, 6.7], [0.3, 0.4, 0.6, 0.4, 0.4, 0.4], True),
        ([9.0, 0.1, 9.1], [0.2, 0.3, 0.2], False),  # the ranges overlap
        ([1.0, 9.0, 5.0], [0.2, 0.3, 0.9], True),
        ([1.0, 9.0, 1.1], [0.2, 0.3, 0.9], False),  # half of the range is above the difference
    ],
)
def test_waits_differ_by_more_than_they_vary(
    rigid: list[float], malleable: list[float], apart: bool, demo: Any
) -> None:
    urgent: Any = importlib.import_module("urgent")
    waits = {"rigid": rigid, "malleable": malleable}
    rows = {way: [{"wait_s": wait_s} for wait_s in own] for way, own in waits.items()}
    assert urgent.separate(rows) == apart


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_what_runs(
    terminal: bool, demo: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    shown = ""
    with demo.Progress(silence_s=0.0) as say, say.doing("part 1", 30.0):
        say.detail = "job at step 3"
        until = time.monotonic() + 60.0
        while "of about 30 s" not in shown and time.monotonic() < until:
            shown += capsys.readouterr().out
            time.sleep(0.05)
        say("a line", "a coloured line")
    shown += capsys.readouterr().out
    assert "... part 1, job at step 3: " in shown
    assert ("a coloured line" in shown) == terminal and ("a line" in shown) != terminal
    assert ("\r" in shown) == terminal


def test_nine_jobs_are_drawn_with_and_without_resizes(demo: Any, tmp_path: Path) -> None:
    simulated: Any = importlib.import_module("simulated")
    said = Said()
    assert simulated.nine_jobs(tmp_path, said)
    rows = [line for line in said if line.startswith("   |")]
    assert len(rows) == 2 * simulated.LINES
    assert {len(row) for row in rows} == {len("   ||") + simulated.COLUMNS}
    assert any("without resizes: 3,897 s, simulated" in line for line in said)
    assert any("with 7 resizes: 2,132 s, simulated" in line for line in said)
    assert (tmp_path / "nine-jobs.png").read_bytes().startswith(b"\x89PNG")


def test_a_stream_waits_less_with_resizes(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated: Any = importlib.import_module("simulated")
    monkeypatch.setattr(simulated, "SEEDS", (1,))
    monkeypatch.setattr(simulated, "JOBS", 200)
    said = Said()
    assert simulated.stream(tmp_path, said)
    rows = [line for line in said if line.startswith("   |")]
    assert len(rows) == 2 * (simulated.LINES + 1)
    assert (tmp_path / "stream.png").read_bytes().startswith(b"\x89PNG")


def test_a_stream_has_the_sizes_of_the_model_and_its_load(demo: Any) -> None:
    simulated: Any = importlib.import_module("simulated")
    specs = simulated.lublin(1, jobs=4000)
    sizes = [spec.preferred for spec in specs]
    assert min(sizes) == 1 and max(sizes) <= 128
    assert abs(sum(size == 1 for size in sizes) / len(sizes) - 0.244) < 0.05
    powers = sum(size & (size - 1) == 0 for size in sizes) / len(sizes)
    assert powers > 0.244 + 0.576 - 0.03
    work = sum(spec.preferred * spec.run_s for spec in specs)
    assert 0.9 <= work / (128 * specs[-1].submit_s) < 0.95
