"""A job ran twice under engine slurm, if no answer came for so long that Slurm forgot the first.

Found by a seed of ``scripts/simulate-faults``: all answers were lost for more than MinJobAge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rms.launch.slurm import queue
from rms.launch.slurm.commands import CommandResult, Executor, Slurm


def test_a_script_that_has_ended_is_not_submitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "SUBMIT_AGAIN_S", 0.01)
    commands, status = [], tmp_path / "status"

    def run(command: Sequence[str], _: Mapping[str, str], __: float) -> CommandResult:
        commands.append(Path(command[0]).name)
        if commands[-1] == "sbatch":
            status.write_text("3\n")  # it runs, and ends
            return CommandResult(1, "", "Socket timed out on send/recv operation")
        return CommandResult(0, "", "")

    file = tmp_path / "slurm.json"
    record = queue.SubmissionRecord()
    job = queue.SlurmJob(0, None, status, name="rms.x.1", record=record, record_file=file)
    executor = Executor(Slurm({}, "me", run))
    number = queue.submit(executor, job, ["job.sh"], {}, tmp_path, search=False)
    executor.close()
    assert number == 0 and commands == ["sbatch", "squeue"]
