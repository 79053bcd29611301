"""Snapshots of the scheduler in the journal; old entries are deleted and old jobs archived."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from dataclasses import dataclass
from typing import IO

from rms.core.scheduler.scheduler import Scheduler
from rms.core.scheduler.snapshot import freeze
from rms.daemon.store.archive import retire
from rms.daemon.store.context import Context, log
from rms.daemon.store.journal import JournalFullError
from rms.daemon.store.sandbox import fork

EVERY = 2_000  # number of entries between snapshots; a start replays no more than these
KEEP = 100_000  # default of the minimum number of entries that are kept
# Number of jobs up to which a snapshot is packed by the daemon, in some 10 ms; else in a fork.
AT_ONCE = 500
LIMIT_S = 60.0  # deadline for a fork, on a busy machine too
NICE = 5  # niceness of a fork, for which no request waits


@dataclass(frozen=True)
class Packing:
    """A fork that packs the scheduler as it was after an entry, into a file without a name."""

    pid: int
    after: int
    into: IO[bytes]
    until_s: float

    @classmethod
    def begin(cls, scheduler: Scheduler, after: int) -> Packing:
        """Start the fork; an OSError means that there is no room for a process or file."""
        into = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - until the fork is over

        def work() -> None:
            os.nice(NICE)
            left = memoryview(freeze(scheduler))
            while left:
                left = left[os.write(into.fileno(), left) :]

        try:
            pid = fork(work, only=into.fileno())
        except OSError:
            into.close()
            raise
        return cls(pid, after, into, time.monotonic() + LIMIT_S)

    def result(self) -> bytes | None:
        """Return the snapshot, b"" if the fork has failed, None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid and time.monotonic() < self.until_s:
            return None
        if not pid:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
        self.into.seek(0)
        return b"" if status else self.into.read()


class Snapshots:
    """Takes snapshots between events; where there are many jobs, after as many entries.

    A snapshot and the deletion of needless ones are one transaction: killed before its end, the
    daemon goes on from the snapshot before. Without room it is tried again later. With many jobs
    it is packed by a fork of the daemon and entered when that has ended: no request waits for it.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last = max(context.journal.snapshots(), default=0)
        self._prunes = True
        self._packing: Packing | None = None
        self._forks = True

    def tick(self) -> None:
        """Take a snapshot that is due; else archive some jobs, or delete some old entries."""
        state, journal = self._context.state, self._context.journal
        try:
            jobs = len(state.pending) + len(state.held) + len(state.running)
            if self._packing is not None:
                self._follow(self._packing)
            elif journal.last >= self._last + max(EVERY, jobs):
                self._take(jobs + len(state.ended))
            elif retire(self._context):
                return
            elif self._prunes and (keep := self._context.settings.keep_entries) is not None:
                self._prunes = journal.prune(keep)
        except JournalFullError:
            return

    def _take(self, jobs: int) -> None:
        """Take a snapshot of this many jobs, or start to."""
        journal, scheduler = self._context.journal, self._context.scheduler
        if self._forks and jobs > AT_ONCE:
            try:
                self._packing = Packing.begin(scheduler, journal.last)
                return
            except OSError as error:
                self._together(str(error))
        self._last, self._prunes = journal.last, True
        journal.save(freeze(scheduler), self._context.settings.keep_entries)

    def _follow(self, packing: Packing) -> None:
        """Enter the snapshot of a fork that has ended."""
        packed = packing.result()
        if packed is None:
            return
        self._packing = None
        packing.into.close()
        if not packed:
            self._together("a process of it failed")
            return
        self._last, self._prunes = packing.after, True
        keep = self._context.settings.keep_entries
        self._context.journal.save(packed, keep, packing.after)

    def _together(self, why: str) -> None:
        """Pack in the daemon from now on."""
        self._forks = False
        log.info(f"snapshots are made while all wait from now on: {why}")
