"""A job ran on in Slurm after it had FAILED, as sbatch's answer had been lost or cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rms.launch.slurm import queue
from rms.launch.slurm.commands import CommandResult, Executor, Slurm, SlurmError

ROW = "12|12|N/A|RUNNING|1|n1|None|1:00|{}|1|me|rms.x.1\n"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "SUBMIT_AGAIN_S", 0.01)


def submitted(folder: Path, answer: CommandResult, listed: str) -> tuple[list[str], queue.SlurmJob]:
    """Submit a job with these answers of sbatch and squeue; return the commands, and the job."""
    commands = []

    def run(command: Sequence[str], _: Mapping[str, str], __: float) -> CommandResult:
        commands.append(Path(command[0]).name)
        return answer if commands[-1] == "sbatch" else CommandResult(0, listed, "")

    record = queue.SubmissionRecord()
    file = folder / "slurm.json"
    job = queue.SlurmJob(0, None, None, name="rms.x.1", record=record, record_file=file)
    executor = Executor(Slurm({}, "me", run))
    try:
        record.number = queue.submit(executor, job, ["job.sh"], {}, folder, search=False)
    except SlurmError as error:
        job.end_reason = str(error)
    finally:
        executor.close()
    return commands, job


@pytest.mark.parametrize(
    "answer",
    [
        *(CommandResult(0, "", ""), CommandResult(0, "1", ""), CommandResult(1, "", "")),
        CommandResult(0, "Submitted batch job 12\n", ""),
    ],
)
def test_the_job_is_looked_for(tmp_path: Path, answer: CommandResult) -> None:
    commands, job = submitted(tmp_path, answer, ROW.format(5))
    assert (commands, job.record.number) == (["sbatch", "squeue"], 12)


def test_an_sbatch_that_never_answers_well(tmp_path: Path) -> None:
    commands, job = submitted(tmp_path, CommandResult(1, "", ""), "")
    assert commands.count("sbatch") == 1 + queue.UNCLEAR_MOST
    assert job.end_reason == "sbatch failed: it prints no reason"
