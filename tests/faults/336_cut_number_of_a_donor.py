"""A cut answer of salloc named another job, whose nodes were taken as if it were a donor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from rms.launch.slurm.commands import CommandResult, Meaning, Slurm, SlurmError

SHOWN = """JobId={} JobName=another
   JobState=RUNNING Reason=None
   StartTime=1 EndTime=2
   NodeList=n1

"""


@pytest.mark.parametrize("answer", ["allocation 1", "allocation 1\n", "", "alloc"])
def test_no_other_job_is_merged(answer: str) -> None:
    commands = []

    def run(command: Sequence[str], _: Mapping[str, str], __: float) -> CommandResult:
        commands.append(" ".join(command))
        if command[0] == "salloc":
            return CommandResult(0, "", f"salloc: Granted job {answer}")
        return CommandResult(0, SHOWN.format(command[-1]), "")

    with pytest.raises(SlurmError, match="salloc gave no clear answer") as error:
        Slurm({}, "me", run).grow(7, 1, "rms-donor.x.1")
    assert error.value.meaning is Meaning.UNCLEAR
    assert commands[-1] == "scancel --user=me --name=rms-donor.x.1"
    assert not [command for command in commands if "NumNodes" in command]
