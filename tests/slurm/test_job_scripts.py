"""One script, handed to sbatch (rigid) and to ``rms submit`` (malleable): the same results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from slurm_bed import Slurm

RMS = [sys.executable, "-m", "rms"]
BIN = Path(sys.executable).parent
SCRIPT = """#!/bin/bash
#SBATCH --job-name=both
#SBATCH --array=1-3
#SBATCH --nodes=1-2
#SBATCH --ntasks-per-node=1
#SBATCH --output=both-%a.out
#RMS --mode=flexible
mpirun mpdata run --case random --seed "$SLURM_ARRAY_TASK_ID" --grid 24 20 8 --steps 60 \\
    --every 2 --json "both-$SLURM_ARRAY_TASK_ID.json"
"""


def answers(folder: Path) -> list[tuple[str, int]]:
    found = [json.loads((folder / f"both-{task}.json").read_text()) for task in (1, 2, 3)]
    return [(one["sha256"], one["steps"]) for one in found]


@pytest.mark.parametrize("session_slurm", ["linear"], indirect=True)
@pytest.mark.promise("slurm-script")
def test_a_script_serves_sbatch_and_rms_submit(slurm: Slurm) -> None:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="both-") as place:
        rigid, malleable = Path(place, "rigid"), Path(place, "malleable")
        for folder in (rigid, malleable):
            folder.mkdir()
            (folder / "both.sh").write_text(SCRIPT)
        slurm("sbatch", "--wait", f"--chdir={rigid}", str(rigid / "both.sh"), PATH=path)

        state = Path(place, "s")
        env = {**os.environ, "PATH": path, "RMS_SERVER": f"unix:{state}/socket"}
        with subprocess.Popen([*RMS, "serve", "--state", str(state)], env=env) as daemon:
            try:
                slurm.wait_until(lambda: (state / "socket").exists(), "the daemon serves")
                done = subprocess.run(
                    [*RMS, "submit", "--wait", "both.sh"], cwd=malleable, env=env, timeout=300
                )
                assert done.returncode == 0
            finally:
                daemon.terminate()
        assert answers(rigid) == answers(malleable)
        assert [path.read_text().count("sha256") for path in malleable.glob("both-?.out")] == [
            1
        ] * 3
