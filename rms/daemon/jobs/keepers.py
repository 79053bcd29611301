"""The keepers of jobs that go on from copies in memory when a rank or node dies.

A keeper is a process on each host of such a job (:mod:`dmr.memory.keeper`), which holds copies of
the ranks' data and outlives them. The keepers of a launcher line are started with its first world,
on other hosts as the job is resized, and end with the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rms.core.model.jobs import JobId
from rms.daemon.store.context import Context, log
from rms.daemon.store.record import JobRuntime, Step
from rms.launch.base import LaunchError, hosts_of
from rms.launch.local import keepers_of
from rms.wire.messages import (
    KEEPERS_VARIABLE,
    MEMORY_VARIABLE,
    MTBF_VARIABLE,
    SUPERVISOR_VARIABLE,
)

KEEPER_S = 30.0
"""Timeout for the keepers of a world to start."""

PLAN = "plan"
"""The interval of copies is that of the program's plan."""


class Keepers:
    """Starts the keepers of jobs, and ends those that no job needs any more."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[JobId, set[int]] = {}
        """Keepers that have been started and may not have ended."""

    def start(self, job: JobRuntime, step: Step, slots: Sequence[str]) -> bool:
        """Have a keeper on each host of these slots that has none.

        It is on disk first, as a restarted daemon ends or uses them. Return whether it is: on a
        full disk none is started.
        """
        launcher, journal, new = self._context.launcher, self._context.journal, dict[int, str]()
        if not journal.caught_up():
            return False
        first = not step.keepers and job.inherited is None
        if first and launcher.members(keepers_of(job.id)):
            return False  # what ends those of the line before may end the new ones as well
        for number in [n for n in step.keepers if not self._runs(job.id, n)]:
            del step.keepers[number]
        for host in hosts_of(slots) or [""]:
            if host not in step.keepers.values():
                step.keepers[job.keeper_count] = new[job.keeper_count] = host
                job.keeper_count += 1
        journal.note(job.steps_note())
        if not journal.caught_up():
            return False
        self._known.setdefault(job.id, set()).update(new)
        for number, host in new.items():
            try:
                launcher.start_keeper(job.id, number, host)
            except LaunchError as error:
                log.warning(f"job {job.id}: no keeper on {host or 'this machine'}: {error}")
                del step.keepers[number]
        return True

    def _runs(self, job: JobId, number: int) -> bool:
        return bool(self._context.launcher.members(keepers_of(job), number))

    def serve(self, job: JobRuntime, step: Step, slots: Sequence[str]) -> bool:
        """Return whether a keeper serves on each host of these slots."""
        ready = {host for number, host in step.keepers.items() if self._line(job.id, number)}
        return ready.issuperset(hosts_of(slots) or [""])

    def drop_late(self, job: JobRuntime, step: Step) -> None:
        """Drop the keepers that do not serve yet."""
        step.keepers = {n: host for n, host in step.keepers.items() if self._line(job.id, n)}

    def _line(self, job: JobId, number: int) -> str:
        try:
            text = self._context.launcher.keeper_file(job, number).read_text()
        except OSError:
            return ""
        return text.strip() if text.endswith("\n") else ""

    def environment(self, job: JobRuntime, step: Step) -> dict[str, str]:
        """Return the variables of the ranks of a world, with the keepers that serve."""
        lines = list(filter(None, [self._line(job.id, number) for number in step.keepers]))
        if not lines:
            return {}
        env = {KEEPERS_VARIABLE: " ".join(lines), SUPERVISOR_VARIABLE: str(step.life)}
        if job.submission.survive != PLAN:
            env[MEMORY_VARIABLE] = job.submission.survive
        mtbf_h = self._context.settings.mtbf_h
        if mtbf_h is not None:
            env[MTBF_VARIABLE] = f"{mtbf_h:g}"
        return env

    def lost(self, step: Step, hosts: Iterable[str]) -> None:
        """Drop the keepers of hosts that are lost."""
        gone = set(hosts)
        step.keepers = {n: host for n, host in step.keepers.items() if host not in gone}

    def adopt(self, names: Iterable[str]) -> None:
        """Take back the keepers of an earlier daemon, by the owners of its processes."""
        jobs = [job for job in self._context.jobs.values() if job.keeper_count]
        self._known = {job.id: {*range(job.keeper_count)} for job in jobs}
        known = {keepers_of(job_id) for job_id in self._known}
        for name in names:
            if name.endswith(keepers_of("")) and name not in known:
                self._context.launcher.kill(name)

    def tick(self) -> None:
        """End the keepers that are not needed any more."""
        for job_id in list(self._known):
            self.end(job_id)

    def end(self, job_id: JobId, *, all_of: bool = False) -> bool:
        """End the keepers that a job does not need any more, or all; return whether some still run.

        Those of hosts that it has left stay until its present world has what they hold.
        """
        known = self._known.get(job_id)
        if not known:
            return False
        job, left = self._context.jobs.get(job_id), False
        runs = job is not None and job_id in self._context.state.running
        needed: set[int] = set()
        if job is not None and runs and not all_of:
            for step in job.lasting:
                kept = self._needed(job, step)
                step.keepers = {n: host for n, host in step.keepers.items() if n in kept}
                needed |= kept
        launcher, owner = self._context.launcher, keepers_of(job_id)
        for number in known - needed:
            if launcher.members(owner, number):
                launcher.kill(owner, number)
                left = True
            else:
                known.discard(number)
        if not known:
            del self._known[job_id]
        return left

    def _needed(self, job: JobRuntime, step: Step) -> set[int]:
        """Return the keepers that a step needs: of all hosts while it is started or resized."""
        running = self._context.state.running[job.id]
        if job.resize is not None or job.revives or running.requested_nodes is not None:
            return {*step.keepers}
        hosts = hosts_of(self._context.cluster.slots_of(running.held)) or [""]
        return {n for n, host in step.keepers.items() if host in hosts}
