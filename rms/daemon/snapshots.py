"""What keeps a daemon small: snapshots, old entries deleted, jobs archived that are long over."""

from __future__ import annotations

import contextlib

from rms.core.snapshot import freeze
from rms.daemon.context import Context
from rms.daemon.journal import JournalFullError
from rms.daemon.retirement import catch_up, retire

EVERY = 2_000
"""After so many entries there is a snapshot; a start follows no more than these again."""

KEEP = 100_000
"""How many entries are kept at least, unless somebody wants otherwise."""


class Snapshots:
    """Takes them between events; where there are many jobs, after as many entries.

    A snapshot and what it makes needless are one transaction: killed before its end, the daemon
    goes on from the snapshot before. Where there is no room it is tried again later.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last = max(context.journal.snapshots(), default=0)
        self._prunes = True
        with contextlib.suppress(JournalFullError):
            catch_up(context)

    def watch(self) -> None:
        """Take one that is due; else archive some jobs, or delete some old entries."""
        state, journal = self._context.state, self._context.journal
        try:
            jobs = len(state.pending) + len(state.held) + len(state.running)
            if journal.last >= self._last + max(EVERY, jobs):
                self._last, self._prunes = journal.last, True
                journal.save(freeze(self._context.scheduler), self._context.settings.keep_entries)
            elif retire(self._context):
                return
            elif self._prunes and (keep := self._context.settings.keep_entries) is not None:
                self._prunes = journal.prune(keep)
        except JournalFullError:
            return
