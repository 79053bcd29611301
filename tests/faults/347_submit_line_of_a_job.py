"""Words of the command that submitted a job, which Slurm 25.11 shows, were read as its fields."""

from __future__ import annotations

from rms.launch.slurm import output

SHOWN = """\
JobId=7 JobName=x
   JobState=RUNNING Reason=None
   StartTime=1 EndTime=2 Deadline=N/A
   NodeList=n1
   JOB_GRES=(null)
   SubmitLine=sbatch --wrap export Gres=1
ResizeTime=9 BatchHost=n9
   WorkDir=/home/user
   TresPerNode=(null)

"""


def test_fields_in_a_command() -> None:
    job = output.details_from_text(SHOWN)
    assert (job.has_gres, job.resized_s, job.batch_host) == (False, None, None)


def test_what_follows_the_command() -> None:
    shown = SHOWN.replace("TresPerNode=(null)", "TresPerNode=gres/gpu:1")
    assert output.details_from_text(shown).has_gres
