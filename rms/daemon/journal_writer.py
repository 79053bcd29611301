"""What writes a journal's file: records one by one or together, at once or when there is room.

Beside events (:mod:`rms.daemon.journal`) these are notes, energy and what happened to tasks.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from rms.daemon.journal_entries import (
    BOOK,
    BOOKED,
    NEWEST,
    SUMS,
    Archived,
    energy_rows,
    energy_values,
)
from rms.daemon.journal_file import (
    KEPT,
    Count,
    Counted,
    JournalError,
    JournalFullError,
    checksum,
    said,
)
from rms.kernels.record import RecordEntry
from rms.wire.files import sync_folder
from rms.wire.users import EnergyRow

MOST_RECORDED = 100_000
"""About three or four entries are a task."""

_NEWEST_ENTRY = """SELECT ifnull(max(seq), 0)
    FROM (SELECT seq FROM entries UNION ALL SELECT seq FROM decisions)"""
"""Of a damaged journal the decisions on an entry may be left and the entry not: no other gets its
number."""

_RECORD = "INSERT INTO tasks (at_s, kind, body) VALUES (?, ?, ?)"
_FORGET = "DELETE FROM tasks WHERE seq <= (SELECT max(seq) FROM tasks) - ?"
_NOTE = "INSERT OR REPLACE INTO notes (key, value, sum) VALUES (?, ?, ?)"
_NOTES = "SELECT key, value FROM notes WHERE key >= ? AND key < ? ORDER BY key"
_LAST = chr(0x10FFFF)
"""Behind every character of a key."""


_ARCHIVE = "INSERT OR REPLACE INTO over (id, state, body, sum) VALUES (?, ?, ?, ?)"
_ARCHIVED = "SELECT id, body, sum FROM over WHERE id = ? OR (id > ? AND id < ?)"
_ALL_ARCHIVED = "SELECT id, body, sum FROM over WHERE id > ? ORDER BY id LIMIT 1000"
_NEWEST_ARCHIVED = """SELECT id, body, sum FROM over
    WHERE rowid > ? AND rowid <= ? AND instr(body, ?) ORDER BY rowid DESC LIMIT ?"""
_DROP = "DELETE FROM notes WHERE key >= ? AND key <= ?"
_archived = msgspec.msgpack.Decoder(Archived)
_recorded = msgspec.msgpack.Decoder(RecordEntry)


class Writer:
    """An open journal's file, for one thread at a time; see :class:`rms.daemon.journal.Journal`.

    Attributes:
        counted: what the count beside the journal said when it was opened, None if there was none.
        written, synced: how many statements have changed it; how many of these are on disk.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self._db = db
        self.written, self.synced, self._log = 0, 0, -1
        self._late: dict[tuple[object, ...], tuple[str, tuple[Any, ...]]] = {}
        self._strict = False
        self._count = Count(path)
        self.counted = self._count.read()
        self._last = int(self._run(_NEWEST_ENTRY)[0][0][0])
        self._kept = {key: found[key] for key in KEPT if key in (found := self.notes(key))}

    def note(self, key: str, value: dict[str, Any]) -> None:
        """Keep a fact that a restarted daemon needs, in place of an older one of that key."""
        text = json.dumps(value, allow_nan=False)  # msgspec would turn an infinity into null
        self._write(("note", key), _NOTE, key, text, checksum(key, text))
        if key in KEPT:
            self._kept[key] = value

    def notes(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Return the notes whose keys begin with ``prefix``, by key, sorted."""
        rows, _ = self._run(_NOTES, prefix, f"{prefix}{_LAST}")
        return {key: json.loads(value) for key, value in rows}

    def noted(self, kind: str, job_id: str) -> dict[str, Any]:
        """Return a note about a job, empty where there is none."""
        return self.notes(f"{kind}/{job_id}").get(f"{kind}/{job_id}", {})

    def book(self, rows: Sequence[EnergyRow], notes: Mapping[str, dict[str, Any]]) -> None:
        """Enter energy and keep facts, all or nothing; a row replaces what was written of it."""

        def enter() -> None:
            for row in rows:
                where = row.node, row.begin_s, row.owner, row.device, row.source
                self._write(("energy", *where), BOOK, *energy_values(row))

        self._together(enter, notes)

    def record(self, entries: Sequence[RecordEntry]) -> None:
        """Keep what happened to tasks, where there is room, and forget what is long ago.

        No flush waits for it.
        """
        encode = msgspec.msgpack.encode
        rows = [(each.at_s, type(each).__name__, encode(each)) for each in entries]
        with contextlib.suppress(JournalFullError), self.whole():
            self._run(_RECORD, *rows, many=True)
            self._run(_FORGET, MOST_RECORDED)

    def recorded(self) -> list[RecordEntry]:
        """Return what happened to tasks, in order."""
        rows, _ = self._run("SELECT seq, body FROM tasks ORDER BY seq")
        try:
            return [_recorded.decode(body) for _, body in rows]
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise JournalError(f"{self.path}: expected tasks' entries, got: {error}") from None

    def archive(self, jobs: Sequence[Archived], keys: Iterable[str]) -> None:
        """Keep the rows of jobs that are over, and drop notes about them, all or nothing.

        Args:
            keys: of notes; those that end with a slash stand for all that begin so.

        Raises:
            JournalFullError: there is no room now; nothing has changed.
        """
        encode = msgspec.msgpack.encode
        with self.whole():
            for each in jobs:
                body, name = encode(each), each.row.id
                self._run(_ARCHIVE, name, each.row.state, body, checksum(name, body))
            ends = [(key, key + _LAST if key.endswith("/") else key) for key in keys]
            self._run(_DROP, *ends, many=True)

    def archived(self, job: str) -> list[Archived]:
        """Return the job of an id that is over and archived; of an array's id all its jobs."""
        found = []
        for name, body, total in self._run(_ARCHIVED, job, f"{job}_", f"{job}_{_LAST}")[0]:
            if total == checksum(name, body):
                found.append(_archived.decode(body))
        return found

    def all_archived(self) -> Iterator[Archived]:
        """Yield all jobs that are over and archived, page by page."""
        after = ""
        while rows := self._run(_ALL_ARCHIVED, after)[0]:
            yield from (
                _archived.decode(b) for name, b, total in rows if total == checksum(name, b)
            )
            after = rows[-1][0]

    def archived_number(self) -> int:
        """Return how many jobs have been archived."""
        return int(self._run("SELECT ifnull(max(rowid), 0) FROM over")[0][0][0])

    def newest_archived(self, skip: int, most: int, text: str = "") -> list[Archived]:
        """Return archived jobs, the last archived first, after so many that are skipped.

        Args:
            most: how many at most; of those with a ``text``, among how many it is looked for.
        """
        last = self.archived_number() - skip
        rows = self._run(_NEWEST_ARCHIVED, last - most, last, text.encode(), most)[0]
        return [_archived.decode(b) for name, b, total in rows if total == checksum(name, b)]

    def archived_states(self, array: str) -> list[tuple[str, str]]:
        """Return the ids and states of the archived jobs of an array."""
        within = "SELECT id, state FROM over WHERE id > ? AND id < ?"
        return [
            (name, state) for name, state in self._run(within, f"{array}_", f"{array}_{_LAST}")[0]
        ]

    def archived_ids(self) -> set[str]:
        """Return the ids of all jobs that are archived."""
        return {name for (name,) in self._run("SELECT id FROM over")[0]}

    def archived_among(self, jobs: Iterable[str]) -> list[str]:
        """Return which of these jobs are archived."""
        if not self._run("SELECT 1 FROM over LIMIT 1")[0]:
            return []
        known = "SELECT 1 FROM over WHERE id = ?"
        return [job for job in jobs if self._run(known, job)[0]]

    def energy(self, owner: str | None = None) -> list[EnergyRow]:
        """Return all rows of energy, or those of an owner, by node and time."""
        which = "" if owner is None else " AND owner = ?"
        found = self._run(f"{BOOKED}{which}", *([] if owner is None else [owner]))
        return energy_rows(found[0])

    def energy_sums(self, since_s: float) -> list[EnergyRow]:
        """Return sums of rows by owner, resize, node and source; those begun since a time apart."""
        return energy_rows(self._run(SUMS, since_s)[0])

    def newest_energy(self, since_s: float) -> list[EnergyRow]:
        """Return the rows of each node's last span, and all that end after a time, rising."""
        return energy_rows(self._run(NEWEST, since_s)[0])

    def _together(
        self, enter: Callable[[], object], notes: Mapping[str, dict[str, Any]] | None = None
    ) -> None:
        """Enter and keep facts in one transaction; on a full disk later, as all that waits then."""

        def work() -> None:
            enter()
            for key, value in (notes or {}).items():
                self.note(key, value)

        if self._strict:  # it is part of one already
            work()
            return
        try:
            with self.whole():
                work()
        except JournalFullError:
            work()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Write all that is entered within at once, or nothing of it.

        Raises:
            JournalFullError: it cannot be written now; nothing is kept for later.
        """
        self._catch_up()
        before = self._last, dict(self._kept)
        self._run("BEGIN")
        self._strict = True
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            self._last, self._kept = before
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        finally:
            self._strict = False

    def flush(self) -> None:
        """Have all that was entered on disk, for a machine that loses its power now.

        A killed daemon loses nothing that it entered. Many entries cost one flush, which is why
        this is a call of its own: before decisions are acted on, before somebody is answered.

        Raises:
            JournalFullError: there is no room for what was entered; it is tried again.
        """
        work = self.flushing()
        if work is not None:
            work()

    def caught_up(self) -> bool:
        """Write the records that are not in the file yet; return whether all are."""
        try:
            self._catch_up()
        except JournalFullError:
            return False
        return True

    def flushing(self) -> Callable[[], None] | None:
        """Return what has all on disk that is entered by now, None where it is there.

        It may be called in another thread, and raises as :meth:`flush`, as this does.
        """
        self._catch_up()
        upto, counted = self.written, Counted(self._last, dict(self._kept))
        if self.synced >= upto:
            return None
        with self._no_disk():
            if self._log < 0:
                sync_folder(self.path.absolute().parent)  # that the files are there
                self._log = os.open(f"{self.path.absolute()}-wal", os.O_RDONLY)

        def work() -> None:
            with self._no_disk():
                os.fsync(self._log)  # what synchronous = FULL does after each statement
            self.synced = max(self.synced, upto)
            self._count.write(counted)

        return work

    @contextmanager
    def _no_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            got = f"{self.path}: expected a journal on disk, got {error}"
            raise JournalFullError(got) from None

    def close(self) -> None:
        """Give the file back; a second time does nothing."""
        self._db.close()
        self._count.close()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, what: tuple[object, ...], statement: str, *values: Any) -> int | None:
        """Write a record; return how many rows that were, None where it is to be written later."""
        if not self._late:
            try:
                return self._run(statement, *values)[1].rowcount
            except JournalFullError:
                if self._strict:
                    raise
        self._late[what] = statement, values
        return None

    def _catch_up(self) -> None:
        """Write what could not be written before, at once."""
        if not self._late:
            return
        late, self._late = self._late, {}
        try:
            with self.whole():
                for statement, values in late.values():
                    self._run(statement, *values)
        except JournalError:
            self._late = late
            raise

    def _run(
        self, statement: str, *values: Any, many: bool = False
    ) -> tuple[list[Any], sqlite3.Cursor]:
        with said(self.path):
            execute = self._db.executemany if many else self._db.execute
            cursor = execute(statement, values)
            self.written += not statement.startswith("SELECT")
            return cursor.fetchall(), cursor
