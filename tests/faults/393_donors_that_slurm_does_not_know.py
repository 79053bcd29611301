"""A donor that Slurm did not know was read as the end of the job that was to grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from rms.launch.slurm.commands import CommandResult, Meaning, Slurm, SlurmError

SHOWN = """JobId=7 JobName=grows
   JobState=RUNNING Reason=None
   StartTime=1 EndTime=2
   NodeList=n1

"""


def test_the_answer_of_salloc_is_unclear() -> None:
    commands = []

    def run(command: Sequence[str], _: Mapping[str, str], __: float) -> CommandResult:
        commands.append(" ".join(command))
        if command[0] == "salloc":
            return CommandResult(0, "", "salloc: Granted job allocation 41\n")
        if command[-1] == "41":
            return CommandResult(1, "", "slurm_load_jobs error: Invalid job id specified")
        return CommandResult(0, SHOWN if command[0] == "scontrol" else "", "")

    with pytest.raises(SlurmError, match=r"expected rms-donor\.x\.1, got no job 41") as error:
        Slurm({}, "me", run).grow(7, 1, "rms-donor.x.1")
    assert error.value.meaning is Meaning.UNCLEAR
    assert commands[-1] == "scancel --user=me --name=rms-donor.x.1"
