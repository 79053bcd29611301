"""The default policy on a real Slurm: an array of flexible jobs beside a short job."""

from __future__ import annotations

from pathlib import Path

import pytest
from daemon import short_job_beside_array
from slurm_bed import Slurm
from slurm_daemon import CASE, STEPS, bare, serving

ARRAY = f"""#SBATCH --array=1-2
#SBATCH --nodes=3-4
#RMS --mode=flexible
srun mpdata run {CASE} --steps {STEPS}"""


# Nodes are chosen by name here, so both ways of selecting them do the same.
@pytest.mark.parametrize("session_slurm", ["linear"], indirect=True)
@pytest.mark.promise("slurm-stream")
def test_a_short_job_does_not_wait_for_an_array(slurm: Slurm, tmp_path: Path) -> None:
    """The first task holds all nodes, the second waits for three; one is given back for a while."""
    with serving(slurm, "--grace", "5") as rms:
        first, second = short_job_beside_array(rms, ARRAY, 4)
        rms.settled(first, 2)
        rms.hurry()
        assert rms.over(first, second) == ["COMPLETED"] * 2
        assert len(rms.resizes(first)) == 2 and rms.resizes(second) == []
        alone = bare(tmp_path, *CASE.split(), "--steps", str(STEPS))
        assert {rms.row(job)["answer"] for job in (first, second)} == {alone}
        rms.nothing_left()
