"""The line that each job leaves at the end of its output: how it went, and what energy it took."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rms.core.model.events import Ended, Event, Reopened
from rms.core.model.jobs import Job, JobId
from rms.daemon.accounts import is_settled, job_rows
from rms.daemon.context import Context
from rms.daemon.jobs import JobRuntime
from rms.daemon.log import warning
from rms.formats.energy import Account, cost_words
from rms.launch.outputs import check_own_file

SETTLE_S = 5.0
"""How long the line waits for the last readings of meters."""

TAIL = 1 << 16
"""How many bytes at the end of an output may hold a job's line already."""

NOTE = "summary"
"""Kind of the note that keeps a job's line; without text it is still to be written."""


COPIED = "it ran in the state folder that this one is a copy of"
"""Reason of a job that belongs to the original folder, which still writes its output."""


class Endings:
    """Writes the lines, each once its job's energy is known."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._due: dict[JobId, float] = {
            job.id: context.now() + SETTLE_S
            for job in context.jobs.values()
            if job.summary == "" and job.id in context.state.ended
        }

    def due(self, event: Event) -> dict[JobId, str]:
        """Return whose lines are to be written once an event has happened; keys of their notes."""
        gone = event.failed if isinstance(event, Reopened) else ()
        gone = (event.job,) if isinstance(event, Ended) else gone
        jobs = [self._context.state.running.get(job_id) for job_id in gone]
        return {
            job.spec.id: f"{NOTE}/{job.spec.id}"
            for job in jobs
            if job is not None and job.start_s is not None
        }

    def add(self, job_ids: Iterable[JobId]) -> None:
        """Write the lines of jobs that are over, or let them wait."""
        for job_id in job_ids:
            self._context.jobs[job_id].summary = ""
            self._due[job_id] = self._context.now() + SETTLE_S
        if self._due:
            self.watch()

    def watch(self) -> None:
        """Write the lines that are due."""
        now = self._context.now()
        for job_id, until_s in list(self._due.items()):
            if now > until_s or is_settled(self._context, self._context.state.ended[job_id]):
                self._write(job_id)

    def close(self) -> None:
        """Write all lines: the daemon ends."""
        for job_id in list(self._due):
            self._write(job_id)

    def _write(self, job_id: JobId) -> None:
        context = self._context
        del self._due[job_id]
        job = context.jobs[job_id]
        job.summary = end_words(context, context.state.ended[job_id], job)
        try:
            if context.scheduler.reasons.get(job_id) != COPIED:
                output = Path(job.note["output"])
                check_own_file(output, context.launcher.state)
                _append(output, job_id, f"rms: {job.summary}\n")
        except (OSError, ValueError) as error:
            context.say(warning(f"job {job_id}: its output does not take its last line: {error}"))
        context.note(NOTE, job, {"line": job.summary})  # a line twice is seen, one lost is not


def end_words(context: Context, job: Job, known: JobRuntime) -> str:
    """Return what there is to say of a job that is over, in a line."""
    run_s = (job.end_s or 0.0) - (job.start_s or 0.0)
    plural = "" if len(job.nodes) == 1 else "s"
    unit = "slot" if context.cluster.shared else "node"
    found = [f"{run_s:.1f} s on {len(job.nodes)} {unit}{plural}"]
    if known.resizes:
        chains = list[list[int]]()  # a requeue starts another one
        for row in known.resizes:
            if not chains or chains[-1][-1] != row.from_ranks:
                chains.append([row.from_ranks])
            chains[-1].append(row.to_ranks)
        sizes = ", ".join(" to ".join(map(str, chain)) for chain in chains)
        count = f"{len(known.resizes)} resize{'' if len(known.resizes) == 1 else 's'}"
        found.append(f"{count} ({sizes} ranks)")
    prices = context.settings.prices
    energy = context.scheduler.energy
    joules = energy.job_j(job.spec.id, context.time())
    found.append(Account.of(energy.parts(job.spec.id, joules)).words)
    if prices is not None:
        found += cost_words(Account.of(job_rows(context, job.spec.id), prices).cost, prices)
    return f"job {job.spec.id} {job.state}: {', '.join(found)}"


def _append(path: Path, job_id: JobId, line: str) -> None:
    """Append a job's line to a file, if there is one that does not have it from before a restart.

    A pipe that nobody reads is no place for it.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        size = os.fstat(file).st_size
        end = b"\n" + (os.pread(file, TAIL, max(0, size - TAIL)) if size else b"")
        if f"\nrms: job {job_id} ".encode() not in end:
            os.write(file, (b"" if end.endswith(b"\n") else b"\n") + line.encode())
    finally:
        os.close(file)
