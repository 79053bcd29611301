"""What ``rms show`` says of a job, to a person."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rms.cli import queue
from rms.cli.main import main
from rms.client.status import RESIZE_HEADS
from rms.wire.terminal import duration, slurm_duration
from rms.wire.users import EnergyPart, JobRow, LostWork, ResizeRow, SeenSteps, SlurmRow

RESIZE = ResizeRow(60.0, 40, 1, 2, "warm", 0.31, 0.02, 0.01, 2_500_000, 1.0)


def job(**known: Any) -> JobRow:
    texts = dict.fromkeys(("reason", "answer", "resizing", "output"), "")
    fixed = {"id": "7_1", "name": "a", "state": "RUNNING", "mode": "flexible", "submit_s": 10.0}
    fixed |= {"start_s": 15.0, "end_s": None, "nodes": ["n1", "n2"], "size": 2, "nodes_min": 1}
    fixed |= {"nodes_max": 4, "step": 50, "steps": 200, "energy_j": 3.0, "energy_source": "model"}
    fixed |= {"energy": [EnergyPart("model", 3.0)], "resizes": [], "slurm": SlurmRow()}
    return JobRow(**{**texts, **fixed, **known})


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def of(*rows: JobRow, json_to: Path | None = None) -> list[str]:
        monkeypatch.setattr(queue, "jobs", lambda server, wanted: list(rows))
        more = [] if json_to is None else ["--json", str(json_to)]
        assert main(["show", "7", "--server", "unix:none", *more]) == 0
        return capsys.readouterr().out.splitlines()

    return of


def test_only_what_is_known_is_said(shown: Any, tmp_path: Path) -> None:
    kept = tmp_path / "row.json"
    seen = [SeenSteps(1, 30, 3.0), SeenSteps(2, 20, 1.0)]
    lines = shown(job(seen=seen), json_to=kept)
    said = dict(line.split("  ", 1) for line in lines)
    words = {name: text.strip() for name, text in said.items()}
    assert words["state"] == "RUNNING" and words["nodes"] == "2 (n1,n2), flexible, may have 1 to 4"
    assert words["progress"] == "step 50 of 200 (25%)"
    assert words["steps a second"] == "10 on 1, 20 on 2"
    assert words["started"].endswith(", after 5.0 s")
    assert not {"ended", "account", "priority", "frequency", "output"} & set(words)
    assert json.loads(kept.read_text())[0]["steps"] == 200
    over = shown(job(state="COMPLETED", end_s=3700.0, step=200))
    assert "step 200 of 200 (100%)" in next(line for line in over if line.startswith("progress"))


def test_work_that_failures_have_cost(shown: Any) -> None:
    lines = shown(job(lost=LostWork(2, 40, 12.34, 1000.0, 234.5)))
    assert "in 2 failures" not in "".join(shown(job()))
    (line,) = [line for line in lines if line.startswith("lost work")]
    expected = "40 steps, 12.3 s, 1234.5 J in 2 failures"
    assert (
        line.split("  ", 1)[1].strip()
        == f"{expected} (1000.0 J of lost steps, 234.5 J of recovery)"
    )


def test_a_resize_says_what_it_cost_and_what_it_saves(shown: Any) -> None:
    cost = msgspec.structs.replace(RESIZE, energy_j=3.25)
    more = [msgspec.structs.replace(cost, saved_j=saved_j) for saved_j in (40.0, -7.0)]
    lines = shown(job(resizes=[RESIZE, cost, *more], end_s=3700.0, exit_code=3))
    table = lines[lines.index("") + 1 :]
    assert table[0].split() == ["RESIZE", *RESIZE_HEADS]
    assert table[1].endswith("40    1 to 2  warm      0.31 s  0.020 s  2.5 MB")
    assert table[2].endswith("2.5 MB  3.2 J")
    assert table[3].endswith("3.2 J, saves 40.0 J later")
    assert table[4].endswith("3.2 J, costs 7.0 J later")
    assert any(line.startswith("state") and "exit status 3" in line for line in lines)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *(
            (0.0, "0.0 s"),
            (59.94, "59.9 s"),
            (59.97, "1 min 0 s"),
            (60.0, "1 min 0 s"),
            (3599.4, "59 min 59 s"),
        ),
        *((3599.6, "1 h 0 min"), (86399.0, "23 h 59 min"), (90000.0, "1 d 1 h")),
    ],
)
def test_lengths_of_time(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(7.25, "7.25 s"), (600.0, "10 min"), (5400.0, "1.5 h"), (86400.0, "1 d")]
)
def test_lengths_of_time_in_one_unit(seconds: float, words: str) -> None:
    assert duration(seconds, 1) == words


def test_lengths_of_time_as_squeue_writes_them() -> None:
    lengths = [slurm_duration(each) for each in (65.0, 3600.0, 2 * 86400.0 + 3723.0)]
    assert lengths == ["1:05", "1:00:00", "2-01:02:03"]
