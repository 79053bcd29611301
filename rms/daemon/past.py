"""What a journal tells when no daemon runs any more: the same as a daemon does, up to its end."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from rms.core.model.jobs import JobId
from rms.daemon import views
from rms.daemon.context import Context, Settings
from rms.daemon.journal import Journal
from rms.daemon.meters import restore_energy
from rms.daemon.recovery import forget_archived, known_jobs
from rms.daemon.replay import restored
from rms.launch.local import LocalLauncher
from rms.wire.users import Snapshot


def past(path: Path) -> Snapshot:
    """Return all that a journal tells, as of its last event; nothing is entered in it.

    Raises:
        JournalError: it is none, is in use, or holds what this version cannot have written.
    """
    with Journal.open(path) as journal, tempfile.TemporaryDirectory() as folder:
        scheduler = restored(journal).scheduler
        restore_energy(scheduler, journal)
        forget_archived(journal, scheduler)
        settings = Settings("", lambda: scheduler.engine.state.now_s, lambda words: None)
        launcher = LocalLauncher(Path(folder), "", "")  # it is asked what it knows: nothing
        context = Context(settings, scheduler, known_jobs(journal, scheduler), journal, launcher)
        found = views.acct(context)
        books = msgspec.structs.replace(views.books(context), energy=found.energy)
        decisions = {job.id: views.history(context, JobId(job.id)) for job in found.jobs}
        return Snapshot(found.jobs, views.nodes(context), books, found.rows, decisions)
