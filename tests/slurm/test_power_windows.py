"""Engine ``slurm`` with a policy of windows: nodes of a real Slurm are drained, jobs make room."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from power_windows import write_policies
from slurm_bed import NODES, Slurm
from slurm_daemon import serving, write_script

COMMAND = """#!/bin/sh
exec scontrol update NodeName=$2 State=$1 Reason=window
"""


@pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)
@pytest.mark.promise("slurm-windows")
def test_a_job_gives_back_the_nodes_of_a_window(slurm: Slurm, tmp_path: Path) -> None:
    now, later = write_policies(tmp_path)
    command = tmp_path / "power"
    command.write_text(COMMAND)
    command.chmod(0o755)
    power = [
        f"--power-{word}={command} {state}" for word, state in (("off", "DRAIN"), ("on", "RESUME"))
    ]
    with serving(slurm, f"--policy={later}", *power) as rms:
        write_script(rms, f"#SBATCH --nodes=1-{NODES}", "#RMS --mode=malleable --preferred=4")
        job = rms.submit_file()
        rms.until(lambda: rms.running(job)["size"] == NODES, "a job on all nodes")
        assert rms.rms("policy", str(now)).returncode == 0
        rms.settled(job, 1)
        assert rms.row(job)["size"] == NODES // 2

        def drained() -> bool:
            states = slurm("sinfo", "--Node", "--noheader", "--format=%N %T").split()[1::2]
            return states.count("drained") == NODES - NODES // 2

        rms.until(drained, "drained nodes")
        rms.end(signal.SIGKILL)
        rms.start(f"--policy={now}")
        assert drained()
        assert rms.rms("policy", str(later)).returncode == 0
        rms.settled(job, 2)
        assert rms.row(job)["size"] == NODES
        assert not drained()
        rms.hurry()
        assert rms.over(job) == ["COMPLETED"]
        assert rms.resizes(job) == [(NODES, NODES // 2), (NODES // 2, NODES)]
        assert rms.end(signal.SIGTERM) == 0
        rms.nothing_left()
        rms.replays()
