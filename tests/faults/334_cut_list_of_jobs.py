"""Jobs of Slurm's counted as vanished, and were requeued, if squeue's answer lacked them once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from rms.launch.slurm.commands import CommandResult, Meaning, Slurm, SlurmError

ROW = "7|7|N/A|RUNNING|1|n1|None|1:00|1|1|me|rms.x.12\n"
SHOWN = """JobId=7 JobName=rms.x.12
   JobState=RUNNING Reason=None
   StartTime=1 EndTime=2
   NodeList=n1

"""
GONE = "slurm_load_jobs error: Invalid job id specified"


def asked(listed: str, shown: CommandResult) -> Slurm:
    """Return commands whose squeue and scontrol answer so."""

    def run(command: Sequence[str], _: Mapping[str, str], __: float) -> CommandResult:
        return CommandResult(0, listed, "") if command[0] == "squeue" else shown

    return Slurm({}, "me", run)


@pytest.mark.parametrize("listed", ["", ROW[:20], ROW[:-2], ROW[:-1], ROW[:-2] + "\n"])
def test_a_list_without_a_job_that_is_there(listed: str) -> None:
    slurm = asked(listed, CommandResult(0, SHOWN, ""))
    for _ in range(2):
        with pytest.raises(SlurmError, match="squeue gave no clear answer") as error:
            slurm.jobs(known={7: "rms.x.12"})
        assert error.value.meaning is Meaning.UNCLEAR
    assert len(slurm.complaints) == 1  # one line in the log


def test_a_list_without_a_job_that_is_gone() -> None:
    slurm = asked("", CommandResult(1, "", GONE))
    assert slurm.jobs(known={7: "rms.x.12"}) == []
    other = asked("", CommandResult(0, SHOWN.replace("rms.x.12", "another"), ""))
    assert other.jobs(known={7: "rms.x.12"}) == []
    assert not slurm.complaints and not other.complaints


def test_a_job_that_is_shown_without_its_end() -> None:
    slurm = asked("", CommandResult(0, SHOWN[:-1], ""))
    with pytest.raises(SlurmError, match="scontrol gave no clear answer"):
        slurm.job(7)
