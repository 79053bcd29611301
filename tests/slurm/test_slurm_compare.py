"""``rms compare`` on a real Slurm: the four-mode table, by both of its engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from slurm_bed import Slurm

MODES = ["fixed", "moldable", "malleable", "flexible"]
SCRIPT = """#!/bin/sh
#SBATCH --array=1-3
#SBATCH --nodes=1-2
mpirun mpdata run --case random --seed $SLURM_ARRAY_TASK_ID --grid 24 20 8 \\
    --steps $((60 * SLURM_ARRAY_TASK_ID)) --every 2 --strategy warm
"""


# Both ways of selecting nodes run the same jobs; one table is enough.
@pytest.mark.parametrize("session_slurm", ["linear"], indirect=True)
@pytest.mark.parametrize("engine", ["slurm", "slurm-pilot"])
@pytest.mark.promise("slurm-compare")
def test_the_four_modes(slurm: Slurm, engine: str) -> None:
    env = {**slurm.environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if engine == "slurm-pilot":
        env |= {"SLURM_JOB_ID": slurm.allocate("--nodes=4"), "SLURM_NTASKS_PER_NODE": "1"}
    with tempfile.TemporaryDirectory(prefix="compare-") as place:
        Path(place, "jobs.sh").write_text(SCRIPT)
        done = subprocess.run(
            [*[sys.executable, "-m", "rms", "compare", "jobs.sh", "--json", "out.json"],
             *["--engine", engine, "--nodes", "4", "--times", "1"]],
            cwd=place, env=env, capture_output=True, text=True, timeout=1200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(Path(place, "out.json").read_text())
    assert [line.split()[0] for line in done.stdout.splitlines()[1:5]] == MODES
    assert found["engine"] == engine and found["nodes"] == 4
    answers = set()
    for row in found["rows"]:
        assert [job["state"] for job in row["jobs"]] == ["COMPLETED"] * 3
        answers.add(tuple(job["sha256"] for job in row["jobs"]))
        if row["mode"] in ("fixed", "moldable"):
            assert not any(job["resizes"] for job in row["jobs"])
    assert len(answers) == 1 and all(map(all, answers))
    assert not slurm("squeue", "--noheader", "--states=PENDING").strip()
