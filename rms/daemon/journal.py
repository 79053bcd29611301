"""The journal: what the engine saw and decided, in order, durable before anyone acts on it.

One SQLite file (write-ahead log, flushed when that is asked for), held alone by whoever has it
open, until it closes or dies. Its tables, of which the first two only grow:

- ``entries``: ``seq`` (the order), ``kind`` (the name of the type, for people who query the file),
  ``body`` (MessagePack of an event, :class:`Opened` or :class:`PolicySet`; JSON has no infinity).
- ``decisions``: ``seq`` of the event they answer, ``body`` (MessagePack of all of them, in order).
- ``notes``: ``key``, ``value`` (JSON): the present facts outside the engine.
- ``damaged``: records that did not fit their checksum when the journal was opened.
- ``energy``: joules by node, time, owner, device and source (:class:`rms.wire.users.EnergyRow`).
  All of them together are the cluster's, once a daemon has ended; of one that was killed, those of
  the model since the last report or change of hands are missing until it is started again.
- ``tasks``: ``seq``, ``at_s``, ``kind``, ``body`` (MessagePack of a
  :data:`rms.core.tasks.record.RecordEntry`): what happened to tasks, the newest
  :data:`MOST_RECORDED` entries. Nothing is decided by it; a power cut may cost its last seconds.

``PRAGMA application_id`` tells a journal from other databases, ``PRAGMA user_version`` is
:data:`FORMAT`. **Raise FORMAT with every change of an event or decision type**, of the types they
hold, or of a table: what was written must never be read as something else. (``energy`` and
``tasks`` came later and are made where they are missing: a replay fills the first by the model.)
The file itself is :mod:`rms.daemon.journal_file`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rms.core.cluster import Cluster
from rms.core.events import Decision, Event
from rms.core.policies import named
from rms.core.tasks.record import RecordEntry
from rms.daemon.journal_entries import (
    BOOK,
    NEWEST,
    SUMS,
    Entry,
    Opened,
    PolicySet,
    Seen,
    decode,
    energy_rows,
)
from rms.daemon.journal_file import (
    FORMAT,
    KEPT,
    Count,
    Counted,
    JournalError,
    JournalFullError,
    checksum,
    prepare,
    said,
)
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
_ENTER = "INSERT INTO entries (seq, kind, body, sum) VALUES (?, ?, ?, ?)"
_DECIDE = """INSERT OR IGNORE INTO decisions (seq, body, sum) SELECT seq, ?, ? FROM entries
    WHERE seq = ? AND kind NOT IN ('Opened', 'PolicySet')"""
_NOTE = "INSERT OR REPLACE INTO notes (key, value, sum) VALUES (?, ?, ?)"
_NOTES = "SELECT key, value FROM notes WHERE key >= ? AND key < ? ORDER BY key"
_LAST = chr(0x10FFFF)
"""Behind every character of a key."""

_PAGE = """SELECT seq, entries.body, decisions.body FROM entries LEFT JOIN decisions USING (seq)
    WHERE seq > ? ORDER BY seq LIMIT 1000"""
_HEADER = "SELECT seq, body, NULL FROM entries WHERE kind = 'Opened' ORDER BY seq LIMIT 1"

__all__ = [  # entries are part of a journal's interface, whichever module has them
    "FORMAT",
    "Entry",
    "Journal",
    "JournalError",
    "JournalFullError",
    "Opened",
    "PolicySet",
    "Seen",
]


_recorded = msgspec.msgpack.Decoder(RecordEntry)


class Journal:
    """An open journal, for one thread at a time. Every method may raise :class:`JournalError`.

    What cannot be written for want of room is kept in memory and written, in order, as soon as it
    can be: only :meth:`flush` and :meth:`whole` raise :class:`JournalFullError` then.

    Attributes:
        began: its first entry as it was when the journal was opened, None if it was new.
        damage: a sentence for each record that was written and is not there, or not whole: of
            checksums and of the end once it is open, of gaps once it was read.
        counted: what the count beside the journal said when it was opened, None if there was none.
    """

    def __init__(self, path: Path, db: sqlite3.Connection, damage: Sequence[str] = ()) -> None:
        self.path, self.damage = path, list(damage)
        self._db = db
        self._written, self._log = False, -1
        self._late: dict[tuple[object, ...], tuple[str, tuple[Any, ...]]] = {}
        self._strict = False
        self._count = Count(path)
        self.counted = self._count.read()
        self._last = int(self._run(_NEWEST_ENTRY)[0][0][0])
        self._kept = {key: note for key, note in self.notes().items() if key in KEPT}
        if self.counted is not None and self.counted.entries > self._last:
            self.damage.append(_missing(self._last + 1, self.counted.entries))
        first = next(self.read(), None)
        self.began = first if isinstance(first, Opened) else None
        self._nodes = None if self.began is None else self.began.nodes

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open a journal, or create it; refuse a broken one, one of another format, one in use."""
        with said(path):  # a daemon's threads may share it, behind their lock
            db = sqlite3.connect(path.absolute(), timeout=0, check_same_thread=False)
            try:
                return cls(path, db, prepare(db, path))
            except BaseException:
                db.close()
                raise

    def header(self, cluster: Cluster, policy: str, where: str = "", at_once: int = 0) -> None:
        """Enter the start of a daemon.

        It must have the nodes that the journal began with, unless it says ``where`` they are:
        then it may go on elsewhere. Whether jobs share nodes stays as it was in any case.
        """
        names = cluster.names
        if self.began is not None and bool(self.began.shared) != bool(cluster.shared):
            kinds = "gives whole nodes", "lets jobs share nodes"
            was, now = kinds if cluster.shared else kinds[::-1]
            raise JournalError(
                f"{self.path}: expected a policy that {was}, as before, got {named(policy).name}, "
                f"which {now}; another state folder may have it"
            )
        if self._nodes not in (None, names) and not where:
            began = " ".join(self._nodes or ())
            raise JournalError(f"{self.path}: expected the nodes {began}, got {' '.join(names)}")
        key, given = named(policy).key, (cluster.power, where, cluster.widths)
        opened = Opened(names, key, FORMAT, *given, at_once, cluster.shared, cluster.levels)
        with self.whole():
            self._enter(opened)
        self._nodes = names

    def policy(self, name: str, at_s: float) -> None:
        """Enter that another policy decides from here on."""
        self._enter(PolicySet(at_s, named(name).key))

    def append(self, event: Event, notes: Mapping[str, dict[str, Any]] | None = None) -> int:
        """Enter an event and keep facts, all or nothing; return the event's sequence number."""
        if not notes:
            return self._enter(event)
        self._together(lambda: self._enter(event), notes)
        return self._last

    def decided(self, seq: int, decisions: Sequence[Decision]) -> None:
        """Enter what was decided on an event, once."""
        body = msgspec.msgpack.encode(tuple(decisions))
        written = self._write(("decided", seq), _DECIDE, body, checksum(seq, body), seq)
        if written == 0:
            raise JournalError(f"{self.path}: expected an event without decisions, got entry {seq}")

    def replaced(self, seq: int, decisions: Sequence[Decision], entry: PolicySet) -> None:
        """Enter what was decided on an event on which the policy failed, and what decides now."""

        def enter() -> None:
            self.decided(seq, decisions)
            self._enter(entry)

        self._together(enter)

    def keep(self, notes: Mapping[str, dict[str, Any]]) -> None:
        """Keep facts, all or nothing."""
        self._together(lambda: None, notes)

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
                self._write(("energy", *where), BOOK, *msgspec.structs.astuple(row))

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

    def energy(self, owner: str | None = None) -> list[EnergyRow]:
        """Return all rows of energy, or those of an owner, by node and time."""
        which = "" if owner is None else "WHERE owner = ?"
        found = self._run(f"SELECT * FROM energy {which}", *([] if owner is None else [owner]))
        return energy_rows(found[0])

    def energy_sums(self, since_s: float) -> list[EnergyRow]:
        """Return sums of rows by owner, resize, node and source; those begun since a time apart."""
        return energy_rows(self._run(SUMS, since_s)[0])

    def newest_energy(self, since_s: float) -> list[EnergyRow]:
        """Return the rows of each node's last span, and all that end after a time, rising."""
        return energy_rows(self._run(NEWEST, since_s)[0])

    def read(self) -> Iterator[Entry]:
        """Yield every whole entry in order, those appended meanwhile included, a header first."""
        after = 0
        # Page by page: a reader that stops half-way leaves no open statement, which would lock.
        while rows := self._run(_PAGE, after)[0]:
            for row in rows:
                entry = self._decode(*row)
                if after == 0 and not isinstance(entry, Opened):  # it is lost: the next serves
                    found = (self._decode(*header) for header in self._run(_HEADER)[0])
                    yield from (header for header in found if header is not None)
                if after + 1 < row[0]:
                    self._tell(_missing(after + 1, row[0] - 1))
                after = row[0]
                if entry is not None:
                    yield entry

    def flush(self) -> None:
        """Have all that was entered on disk, for a machine that loses its power now.

        A killed daemon loses nothing that it entered. Many entries cost one flush, which is why
        this is a call of its own: before decisions are acted on, before somebody is answered.

        Raises:
            JournalFullError: there is no room for what was entered; it is tried again.
        """
        self._catch_up()
        if not self._written:
            return
        try:
            if self._log < 0:
                sync_folder(self.path.absolute().parent)  # that the files are there
                self._log = os.open(f"{self.path.absolute()}-wal", os.O_RDONLY)
            os.fsync(self._log)  # what synchronous = FULL does after each statement
        except OSError as error:
            got = f"{self.path}: expected a journal on disk, got {error}"
            raise JournalFullError(got) from None
        self._written = False
        self._count.write(Counted(self._last, self._kept))

    def close(self) -> None:
        """Give the file back; a second time does nothing."""
        self._db.close()
        self._count.close()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enter(self, entry: Opened | PolicySet | Event) -> int:
        if self._nodes is None and not isinstance(entry, Opened):
            raise JournalError(f"{self.path}: expected a header first, got {type(entry).__name__}")
        seq, kind, body = self._last + 1, type(entry).__name__, msgspec.msgpack.encode(entry)
        self._write(("entry", seq), _ENTER, seq, kind, body, checksum(seq, kind, body))
        self._last = seq
        return seq

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
            self._written |= not statement.startswith("SELECT")
            return cursor.fetchall(), cursor

    def _decode(self, seq: int, body: bytes, decided: bytes | None) -> Entry | None:
        """Return an entry, None for one that this version cannot have written."""
        try:
            return decode(seq, body, decided)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            self._tell(f"entry {seq} is damaged: {error}")
            return None

    def _tell(self, words: str) -> None:
        if words not in self.damage:
            self.damage.append(words)


def _missing(first: int, last: int) -> str:
    return (
        f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"
    )
