"""What can be done to a job from the page and from ``rms top``, and what will happen then."""

from __future__ import annotations

from dataclasses import dataclass

from rms.client.connection import ask
from rms.wire.rows import restart_words
from rms.wire.users import OVER, JobIds, JobRow, JobSelection, ResizeAnswer, ResizeCommand


@dataclass(frozen=True)
class Action:
    """Something that can be done to a job now.

    Attributes:
        do: the command's name, and the last part of its path.
        label: on a button.
        say: what will happen, in a sentence.
        nodes: how many nodes the job has, where a number of nodes is asked for too; else 0.
    """

    do: str
    label: str
    say: str
    nodes: int = 0


def actions(job: JobRow, ids: str) -> list[Action]:
    """Return what can be done to a job; ``ids`` are all of its row, as ``8_[3-10]``."""
    if job.state in OVER:
        return []
    runs = job.state == "RUNNING"
    nodes = f"{job.size} node{'s' if job.size != 1 else ''}"
    end = (
        f"it is told to end, killed if it does not, and its {nodes} are given to others"
        if job.nodes
        else "it waits and will not run"
    )
    choices = [Action("cancel", "Cancel job", f"Cancel job {ids} ({job.name}): {end}.")]
    if runs and job.mode in ("malleable", "flexible") and job.nodes_max > job.nodes_min:
        say = (
            f"Resize job {ids} ({job.name}), which has {nodes}, to another number from "
            f"{job.nodes_min} to {job.nodes_max}: it goes on there from its next resize point."
        )
        choices.append(Action("resize", "Resize", say, job.size))
    if runs:
        choices.append(
            Action("requeue", "Requeue", f"Requeue job {ids} ({job.name}): {requeue_words(job)}.")
        )
    if job.state == "PENDING" and job.reason.startswith("JobHeldUser"):
        say = f"Release job {ids} ({job.name}): it starts when its turn comes."
        choices.append(Action("release", "Release", say))
    elif job.state == "PENDING":
        say = f"Hold job {ids} ({job.name}): it does not start until it is released."
        choices.append(Action("hold", "Hold", say))
    return choices


def requeue_words(job: JobRow) -> str:
    """Return what the effect of requeueing a job is."""
    end = (
        "it ends at a checkpoint and waits again" if job.restartable else "it ends and waits again"
    )
    where = restart_words(job.restartable, job.step, job.steps)
    return f"{end}; {where}"


def act(server: str, do: str, ids: str, nodes: int) -> str:
    """Do it; return in words what the daemon said.

    Raises:
        ServerError: it is not there, or refuses.
    """
    if do == "resize":
        found = ask(ResizeAnswer, server, "POST", "/resize", ResizeCommand(ids, nodes))
        if found.decision in ("Resize", "Waits"):
            return f"resize of job {ids} to {nodes}: {found.reason or 'requested'}"
        return f"not resized: {found.reason}"
    done = ask(JobIds, server, "POST", f"/{do}", JobSelection(ids)).ids
    jobs = "1 job" if len(done) == 1 else f"{len(done)} jobs"
    return f"{do}: {jobs}"
