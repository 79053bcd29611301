"""The steps of a job as an earlier daemon has noted them, and the processes they have now."""

from __future__ import annotations

import msgspec

from rms.daemon.daemon import Daemon
from rms.daemon.jobs import JobRuntime, Step
from rms.daemon.private import line_file
from rms.launch.base import LaunchCommand, LaunchError, ManagedProcess


def known_steps(daemon: Daemon, job: JobRuntime) -> list[int]:
    """Enter the steps of a job as they were noted; return its processes."""
    journal, launcher = daemon.journal, daemon.launcher
    members = launcher.members(job.id)

    def world(number: int, pid: int) -> ManagedProcess:
        """Return a launch; one that was started anew meanwhile has another process."""
        if pid in members or not launcher.shared_filesystem:
            kept = launcher.world_status_file(job.id, number)
            return ManagedProcess(pid if pid in members else 0, status_file=kept)
        return ManagedProcess(min(launcher.members(job.id, number), default=0))

    found = journal.noted("steps", job.id)
    job.keys, job.launch_count = found.get("keys", []), found.get("launches", 0)
    job.steps = []
    for number, step in enumerate(found.get("steps", [])):
        line = journal.noted("line", f"{job.id}/{number}")
        if "env" not in line:  # format 4 and before have it there
            line["env"] = _line_environment(daemon, job, number)
        command = msgspec.convert(line, LaunchCommand)
        job.steps.append(
            Step(
                command,
                {int(n): world(int(n), pid) for n, pid in step["pids"].items()},
                tuple(n for n in step["current"] if str(n) in step["pids"]),
                step["strategy"],
                tuple((launch, ranks) for launch, ranks in step["groups"]),
                step["exit_code"],
                step["message"],
                has_polled=step.get("polled", True),  # then it must leave a record
                cooldown_s=step.get("cooldown_s", 0.0),
                restartable=step.get("restartable", False),
            )
        )
    if job.steps and job.steps[-1].exit_code is None and not job.steps[-1].current:
        _find_first_world(daemon, job)
    return members


def _line_environment(daemon: Daemon, job: JobRuntime, number: int) -> dict[str, str]:
    try:
        return daemon.context.private.kept(line_file(job.id, number))
    except LaunchError as error:  # what runs needs it no more, but a resize would
        daemon.say(f"job {job.id}: {error}")
        return {}


def _find_first_world(daemon: Daemon, job: JobRuntime) -> None:
    """Find the first world of a step whose start was not noted; else let its line ask again."""
    launcher, step, first = daemon.launcher, job.steps[-1], job.launch_count
    running = daemon.context.state.running.get(job.id)
    slots = () if running is None else daemon.context.cluster.slots_of(running.nodes)
    parts = daemon.worlds.parts(job.id, step.command, slots)
    for number in range(first, first + len(parts)):
        kept, members = launcher.world_status_file(job.id, number), launcher.members(job.id, number)
        if members or kept.exists():
            step.worlds[number] = ManagedProcess(min(members, default=0), status_file=kept)
    if len(step.worlds) == len(parts):
        step.current, job.launch_count = tuple(step.worlds), first + len(parts)
    else:
        for number in step.worlds:  # it would wait for the others for good
            launcher.kill(job.id, number)
        if step.worlds:
            job.launch_count = first + len(parts)
        job.steps, job.keys = job.steps[:-1], job.keys[: len(job.steps) - 1]
    daemon.worlds.save_steps(job)
