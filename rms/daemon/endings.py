"""The line that each job leaves at the end of its output: how it went, and what energy it took."""

from __future__ import annotations

import os
from pathlib import Path

from rms.core.model import Job, JobId
from rms.daemon.accounts import is_settled, job_rows
from rms.daemon.context import Context
from rms.daemon.jobs import JobRuntime
from rms.formats.energy import Account, cost_words

SETTLE_S = 5.0
"""How long the line waits for the last readings of meters."""

NOTE = "summary"
"""Kind of the note that keeps a job's line; without text it is still to be written."""


class Endings:
    """Writes the lines, each once its job's energy is known."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._due: dict[JobId, float] = {
            job.id: context.now() + SETTLE_S for job in context.jobs.values() if job.summary == ""
        }

    def add(self, job_id: JobId) -> None:
        """Write the line of a job that is over, or let it wait, if the job has ever run."""
        if self._context.state.ended[job_id].start_s is None:
            return
        job = self._context.jobs[job_id]
        job.summary = ""
        self._context.note(NOTE, job, {"line": ""})
        self._due[job_id] = self._context.now() + SETTLE_S
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
        context.note(NOTE, job, {"line": job.summary})
        try:
            _append(Path(job.note["output"]), f"rms: {job.summary}\n")
        except OSError as error:
            context.say(f"job {job_id}: its output does not take its last line: {error.strerror}")


def end_words(context: Context, job: Job, known: JobRuntime) -> str:
    """Return what there is to say of a job that is over, in a line."""
    run_s = (job.end_s or 0.0) - (job.start_s or 0.0)
    plural = "" if len(job.nodes) == 1 else "s"
    unit = "slot" if context.cluster.shared else "node"
    found = [f"{run_s:.1f} s on {len(job.nodes)} {unit}{plural}"]
    if known.resizes:
        sizes = [known.resizes[0].from_ranks, *(row.to_ranks for row in known.resizes)]
        count = f"{len(known.resizes)} resize{'' if len(known.resizes) == 1 else 's'}"
        found.append(f"{count} ({' to '.join(map(str, sizes))} ranks)")
    prices = context.settings.prices
    energy = context.scheduler.energy
    joules = energy.job_j(job.spec.id, context.time())
    found.append(Account.of(energy.parts(job.spec.id, joules)).words)
    if prices is not None:
        found += cost_words(Account.of(job_rows(context, job.spec.id), prices).cost, prices)
    return f"job {job.spec.id} {job.state}: {', '.join(found)}"


def _append(path: Path, line: str) -> None:
    """Append a line to a file, if there is one; a pipe that nobody reads is no place for it."""
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        size = os.fstat(file).st_size
        begins = not size or os.pread(file, 1, size - 1) == b"\n"
        os.write(file, f"{'' if begins else chr(10)}{line}".encode())
    finally:
        os.close(file)
