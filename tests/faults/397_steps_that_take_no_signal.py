"""A signal did not reach a job's script in Slurm where scancel refused the step ``extern``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rms.launch.slurm.commands import CommandResult, Executor, Slurm
from rms.launch.slurm.jobs import SlurmJobs
from rms.launch.slurm.launcher import SlurmLauncher
from rms.launch.slurm.queue import SlurmJob, SubmissionRecord

STEPS = "7.extern|extern\n7.batch|batch\n7.0|first\n7.1|second\n"


def test_it_goes_to_the_numbered_steps_and_to_the_script(tmp_path: Path) -> None:
    commands = []

    def run(command: Sequence[str], _: Mapping[str, str], __: float) -> CommandResult:
        commands.append(" ".join(command))
        if command[0] == "squeue":
            return CommandResult(0, STEPS, "")
        if any(word.endswith((".extern", ".batch")) for word in command):
            return CommandResult(1, "", "scancel: error: Kill job error on job step id 7.extern")
        return CommandResult(0, "", "")

    executor = Executor(Slurm({}, "me", run))
    jobs = SlurmJobs(SlurmLauncher(tmp_path, "cafe", "unix:none", executor))
    record = SubmissionRecord(number=7)
    jobs.jobs["1"] = SlurmJob(
        0, None, tmp_path / "status", name="rms.1", record=record, record_file=tmp_path / "s.json"
    )
    jobs.send_signal("1", "USR1")
    executor.close()
    signals = [command for command in commands if command.startswith("scancel")]
    assert signals == ["scancel --signal=USR1 7.0 7.1", "scancel --full --signal=USR1 7"]
