"""Engine ``slurm`` with policy ``cheap-hours``: an array waits for the cheap time."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from price_curve import check_cheap, write_curve
from slurm_bed import NODES, Slurm
from slurm_daemon import serving


@pytest.mark.parametrize("session_slurm", ["cons_tres"], indirect=True)
@pytest.mark.promise("cheap-hours")
def test_an_array_runs_in_the_cheap_time(slurm: Slurm, tmp_path: Path) -> None:
    prices = tmp_path / "p.csv"
    begin_s = write_curve(prices)
    with serving(slurm, "--policy=cheap-hours", f"--prices={prices}") as rms:
        lines = ["#!/bin/sh", "#SBATCH --nodes=1", f"#SBATCH --array=0-{NODES - 1}"]
        lines += ["#RMS --cheap-within=3m --time=0:20", "srun sleep 1", ""]
        (rms.work / "job.sh").write_text("\n".join(lines))
        array = rms.submit_file()
        tasks = [f"{array}_{n}" for n in range(NODES)]
        text = rms.rms("explain", tasks[0]).stdout
        assert "CheapHours: put off by " in text and ", saves 7" in text
        check_cheap(rms, tasks, begin_s)
        assert rms.end(signal.SIGTERM) == 0
        rms.nothing_left()
        rms.replays()
