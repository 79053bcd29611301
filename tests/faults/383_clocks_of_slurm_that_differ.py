"""A job ran twice under engine slurm, as Slurm's clock was some seconds behind the daemon's.

Found by a seed of ``scripts/simulate-faults``: the answer of sbatch was lost, and the job, looked
for in the queue, seemed to be an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rms.launch.slurm import queue
from rms.launch.slurm.commands import CommandResult, Executor, Slurm

LONG_AGO = "{}|{}|N/A|RUNNING|1|n1|None|1:00|1000|1000|me|rms.x.1\n"


def test_a_job_is_known_by_its_name_and_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "SUBMIT_AGAIN_S", 0.01)
    commands = []

    def run(command: Sequence[str], _: Mapping[str, str], __: float) -> CommandResult:
        commands.append(Path(command[0]).name)
        if commands[-1] == "sbatch":
            return CommandResult(1, "", "Socket timed out on send/recv operation")
        return CommandResult(0, LONG_AGO.format(11, 11) + LONG_AGO.format(12, 12), "")

    record = queue.SubmissionRecord([11])
    file = tmp_path / "slurm.json"
    job = queue.SlurmJob(0, None, None, name="rms.x.1", record=record, record_file=file)
    executor = Executor(Slurm({}, "me", run))
    number = queue.submit(executor, job, ["job.sh"], {}, tmp_path, search=False)
    executor.close()
    assert number == 12 and commands == ["sbatch", "squeue"]
