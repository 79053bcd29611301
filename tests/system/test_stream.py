"""The default policy on a stream: an array of flexible jobs beside a short job, for real."""

from __future__ import annotations

import pytest
from daemon import served, short_job_beside_array
from processes import ROOT, Mpirun, program

CASE = "--case random --seed 7 --grid 24 20 8 --backend numpy --every 1 --steps 160"
PACED = " ".join([*program("paced"), str(ROOT / "mpdata" / "__main__.py")])
ARRAY = f"""#SBATCH --array=1-2
#SBATCH --nodes=2-3
#RMS --mode=flexible
mkdir task-$SLURM_ARRAY_TASK_ID; cd task-$SLURM_ARRAY_TASK_ID
PACE_S=0.25 mpirun {PACED} run {CASE}"""


@pytest.mark.promise("stream")
def test_a_short_job_does_not_wait_for_an_array(mpdata_run: Mpirun) -> None:
    """The first task holds all nodes, the second waits for two; one is given back for a while."""
    with served(3) as rms:
        first, second = short_job_beside_array(rms, ARRAY, 3)
        for task in ("1", "2"):
            rms.until((rms.work / f"task-{task}").exists, f"start of task {task}")
            (rms.work / f"task-{task}" / "go").touch()
        assert rms.over(first, second) == ["COMPLETED"] * 2
        assert len(rms.resizes(first)) == 2 and rms.resizes(second) == []
        alone = mpdata_run(1, *CASE.split())
        assert {rms.row(job)["answer"] for job in (first, second)} == {alone["sha256"]}
        rms.ends_well()
