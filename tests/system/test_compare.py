"""``rms compare`` for real, on as many of this machine's cores as it has, and on one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import Run

SCRIPT = """#!/bin/sh
#RMS --nodes=1-2
#RMS --array=0-1
srun mpdata run --case random --seed $SLURM_ARRAY_TASK_ID --grid 24 20 8 --steps 200 --every 2
"""


@pytest.mark.promise("compare")
def test_one_core_runs_every_mode_at_one_node(run: Run, tmp_path: Path) -> None:
    (tmp_path / "jobs.sh").write_text(SCRIPT)
    words = "compare jobs.sh --nodes 1 --modes fixed,flexible --times 2 --json out.json"
    done = run(sys.executable, "-m", "rms", *words.split(), "--figure", "out.png")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    rows = result["rows"]
    assert result["times"] == 2
    assert result["rounds"] == [["fixed", "flexible"], ["flexible", "fixed"]]
    assert [row["mode"] for row in rows] == ["fixed", "flexible"]
    answers = [[job["sha256"] for job in row["jobs"]] for row in rows]
    assert answers[0] == answers[1] and len(set(answers[0])) == 2
    for row in rows:
        assert [job["state"] for job in row["jobs"]] == ["COMPLETED"] * 2
        assert row["note"].startswith("no resize")
        assert [run["round"] for run in row["runs"]] == [1, 2]
        for run in (row, *row["runs"]):
            parts = run["busy_j"] + run["idle_j"] + run["off_j"] + run["boot_j"]
            assert parts == pytest.approx(run["cluster_j"], rel=1e-9)
            assert [job["sha256"] for job in run["jobs"]] == answers[0]
        of_runs = [run["time_s"] for run in row["runs"]]
        assert row["ranges"]["time_s"] == {
            "least": min(of_runs),
            "median": min(of_runs),
            "most": max(of_runs),
        }
        assert row["time_s"] == min(of_runs)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


NOTED = """#!/bin/sh
#RMS --nodes=1-2
#RMS --array=3-4
echo "$(basename "$PWD") $(basename "$0" .sh) $SLURM_ARRAY_TASK_ID $SLURM_JOB_NUM_NODES" >> "$NOTES"
sleep 0.1
"""


def test_each_script_runs_once_before_the_first_mode_and_is_counted_nowhere(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes.txt"
    monkeypatch.setenv("NOTES", str(notes))
    (tmp_path / "a.sh").write_text(NOTED)
    (tmp_path / "b.sh").write_text(NOTED.replace("#RMS --array=3-4\n", ""))
    command = [sys.executable, "-m", "rms", "compare", "a.sh", "b.sh", "a.sh"]
    command += ["--nodes", "1", "--modes", "malleable,fixed", "--delay", "0", "--times", "2"]
    done = run(*command, "--json", "out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split() for line in notes.read_text().splitlines()]
    folders = ["malleable-1", "fixed-1", "fixed-2", "malleable-2"]
    expected = ["warm-up"] * 2 + [folder for folder in folders for _ in range(5)]
    assert [folder for folder, *_ in ran] == expected
    assert sorted(words[2:] for words in ran[:2]) == [["1"], ["3", "1"]]
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["warm_up"]["states"] == ["COMPLETED"] * 2
    assert [len(row["jobs"]) for row in result["rows"]] == [5, 5]
    progress = [line.partition(" ")[2] for line in done.stderr.splitlines()]
    for part, jobs in {"warm-up": 2, "round 1 of 2, mode malleable": 5}.items():
        whole = f"{part}: {jobs} of {jobs} jobs ended, "
        assert f"{part} ..." in progress and any(line.startswith(whole) for line in progress)
    assert "Before the first mode each script ran once (2 jobs" in done.stdout
    assert "From 2 runs of each mode no difference can be concluded" in done.stdout


def test_more_nodes_than_cores_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "jobs.sh").write_text(SCRIPT)
    done = run(sys.executable, "-m", "rms", "compare", "jobs.sh", "--nodes", "4096")
    assert done.returncode == 2 and "an oversubscribed timing is no result" in done.stderr


def test_a_daemon_whose_parent_ended_while_it_started_ends_too(run: Run, tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as parent:
        pass
    serve = [sys.executable, "-m", "rms", "serve", "--state", "s", "--nodes", "1"]
    done = run(*serve, "--with-parent", str(parent.pid))
    assert done.returncode == 0, done.stderr
