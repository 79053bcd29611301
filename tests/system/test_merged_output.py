"""After strategy merge the ranks of several launches are one world: only its rank 0 speaks."""

from __future__ import annotations

import json
from pathlib import Path

from processes import MPDATA, MPIEXEC, Run, program

SMALL = ["--case", "random", "--grid", "24", "20", "8", "--backend", "numpy", "--steps", "30"]


def test_one_rank_prints_and_writes(run: Run, tmp_path: Path) -> None:
    done = run(MPIEXEC, "-n", "2", *program("merged_output"))
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if "rank 0 of" in line]
    assert said == [
        "step 5: rank 0 of 2",
        "step 15: rank 0 of 3",
        "step 25: rank 0 of 4",
        "after the run: rank 0 of 4",
    ]
    assert (tmp_path / "out").read_text() == "written\n"


def test_one_rank_says_what_all_have_found(run: Run) -> None:
    done = run(MPIEXEC, "-n", "2", *program("merged_output"), "fail")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert said.count("expected an end, got an error") == 1, said


def test_mpdata_prints_and_writes_once(run: Run, tmp_path: Path) -> None:
    words = ["--resize-at", "10:3", "--strategy", "merge", "--json", "out.json"]
    done = run(MPIEXEC, "-n", "1", *MPDATA, "run", *SMALL, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sha256") == 1 and done.stdout.count("step 30 of 30") == 1
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["ranks"] == 3 and [r["strategy"] for r in found["resizes"]] == ["merge"]
