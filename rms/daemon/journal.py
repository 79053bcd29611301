"""The journal: what the engine saw and decided, in order, durable before anyone acts on it.

One SQLite file (write-ahead log, flushed when that is asked for), held alone by whoever has it
open, until it closes or dies. Its tables, of which the first two only grow:

- ``entries``: ``seq`` (the order), ``kind`` (the name of the type, for people who query the file),
  ``body`` (MessagePack of an event, :class:`Opened` or :class:`PolicySet`; JSON has no infinity).
- ``decisions``: ``seq`` of the event they answer, ``body`` (MessagePack of all of them, in order).
- ``notes``: ``key``, ``value`` (JSON): the present facts outside the engine.
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
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rms.core.cluster import Cluster
from rms.core.contention import SharedNode
from rms.core.events import Decision, Event
from rms.core.model import NodePower
from rms.core.policies import named
from rms.core.tasks.record import RecordEntry
from rms.wire.users import EnergyRow

FORMAT = 4
READ = (3, FORMAT)
"""Formats that are read: 3 (version 0.1.0) has fewer kinds of events, and no energy."""

MOST_RECORDED = 100_000
"""About three or four entries are a task."""

APPLICATION_ID = 0x726D736A  # "rmsj"
_TABLES = (
    "CREATE TABLE entries (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE decisions (seq INTEGER PRIMARY KEY REFERENCES entries, body BLOB NOT NULL)",
    "CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_ENERGY = """CREATE TABLE IF NOT EXISTS energy (
    owner TEXT NOT NULL, world INTEGER, resize INTEGER NOT NULL, node TEXT NOT NULL,
    device TEXT NOT NULL, source TEXT NOT NULL, begin_s REAL NOT NULL, end_s REAL NOT NULL,
    joules REAL NOT NULL, uncertainty_j REAL NOT NULL, estimate INTEGER NOT NULL,
    replaced_j REAL NOT NULL, PRIMARY KEY (node, begin_s, owner, device, source)) WITHOUT ROWID"""
_BY_OWNER = "CREATE INDEX IF NOT EXISTS energy_of ON energy (owner)"
_TASKS = """CREATE TABLE IF NOT EXISTS tasks (
    seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL)"""
_RECORD = "INSERT INTO tasks (at_s, kind, body) VALUES (?, ?, ?)"
_FORGET = "DELETE FROM tasks WHERE seq <= (SELECT max(seq) FROM tasks) - ?"
_BOOK = f"INSERT OR REPLACE INTO energy VALUES ({', '.join('?' * 12)})"
_SUMS = """SELECT owner, NULL, resize, node, '', source, max(begin_s), max(end_s), sum(joules),
    sum(uncertainty_j), max(estimate), sum(replaced_j) FROM energy
    GROUP BY owner, resize, node, source, begin_s >= ?"""
_NEWEST = """SELECT energy.* FROM energy JOIN (
        SELECT node, max(begin_s) AS newest_s, min(CASE WHEN end_s > ? THEN begin_s END) AS first_s
        FROM energy GROUP BY node
    ) USING (node) WHERE begin_s >= min(newest_s, ifnull(first_s, newest_s)) ORDER BY begin_s"""
_WHOSE = """SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version"""
_DECIDE = """INSERT OR IGNORE INTO decisions SELECT seq, ? FROM entries
    WHERE seq = ? AND kind NOT IN ('Opened', 'PolicySet')"""
_NOTES = "SELECT key, value FROM notes WHERE key >= ? AND key < ? ORDER BY key"
_LAST = chr(0x10FFFF)
"""Behind every character of a key."""

_PAGE = """SELECT seq, entries.body, decisions.body FROM entries LEFT JOIN decisions USING (seq)
    WHERE seq > ? ORDER BY seq LIMIT 1000"""


class JournalError(ValueError):
    """A journal that cannot be opened, read or written, or an entry out of place."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """A daemon has started, with these nodes, their power models and this policy.

    ``where`` tells a cluster from another one with the same nodes, ``widths`` are their numbers of
    slots. On another cluster than the entries before have, a :class:`Reopened` follows.
    ``at_once`` is how many jobs are resized at once at most, 0 for any number. ``shared`` are hosts
    whose slots are given one by one, as ``nodes``; ``power`` is theirs then. ``levels`` are the
    frequencies that nodes can be set to, with voltages.
    """

    nodes: tuple[str, ...]
    policy: str
    format: int = FORMAT
    power: tuple[NodePower, ...] = ()
    where: str = ""
    widths: tuple[int, ...] = ()
    at_once: int = 0
    shared: tuple[SharedNode, ...] = ()
    levels: tuple[tuple[float, float], ...] = ()


class PolicySet(msgspec.Struct, frozen=True, tag=True):
    """Another policy decides on every event from here on."""

    at_s: float
    policy: str


class Seen(msgspec.Struct, frozen=True, tag=True):
    """An event, and what was decided on it; None if a crash came before that was recorded."""

    seq: int
    event: Event
    decisions: tuple[Decision, ...] | None


Entry = Opened | PolicySet | Seen
_entry = msgspec.msgpack.Decoder(Opened | PolicySet | Event)
_decisions = msgspec.msgpack.Decoder(tuple[Decision, ...])
_recorded = msgspec.msgpack.Decoder(RecordEntry)


class Journal:
    """An open journal, for one thread at a time. Every method may raise :class:`JournalError`.

    ``began`` is its first entry as it was when the journal was opened, None if it was new.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self._db = db
        self._written, self._log = False, -1
        first = next(self.read(), None)
        self.began = first if isinstance(first, Opened) else None
        self._nodes = None if self.began is None else self.began.nodes

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open a journal, or create it; refuse a damaged one, one of another format, one in use."""
        with _said(path):  # a daemon's threads may share it, behind their lock
            db = sqlite3.connect(path.absolute(), timeout=0, check_same_thread=False)
            try:
                _prepare(db, path)
                return cls(path, db)
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
        self._enter(Opened(names, key, FORMAT, *given, at_once, cluster.shared, cluster.levels))
        self._nodes = names

    def policy(self, name: str, at_s: float) -> None:
        """Enter that another policy decides from here on."""
        self._enter(PolicySet(at_s, named(name).key))

    def append(self, event: Event) -> int:
        """Enter an event and return its sequence number."""
        return self._enter(event)

    def decided(self, seq: int, decisions: Sequence[Decision]) -> None:
        """Enter what was decided on an event, once."""
        _, cursor = self._run(_DECIDE, msgspec.msgpack.encode(tuple(decisions)), seq)
        if cursor.rowcount != 1:
            raise JournalError(f"{self.path}: expected an event without decisions, got entry {seq}")

    def note(self, key: str, value: dict[str, Any]) -> None:
        """Keep a fact that a restarted daemon needs, in place of an older one of that key."""
        text = json.dumps(value, allow_nan=False)  # msgspec would turn an infinity into null
        self._run("INSERT OR REPLACE INTO notes VALUES (?, ?)", key, text)

    def notes(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Return the notes whose keys begin with ``prefix``, by key, sorted."""
        rows, _ = self._run(_NOTES, prefix, f"{prefix}{_LAST}")
        return {key: json.loads(value) for key, value in rows}

    def book(self, rows: Sequence[EnergyRow], notes: Mapping[str, dict[str, Any]]) -> None:
        """Enter energy and keep facts, all or nothing; a row replaces what was written of it."""
        with self._whole():
            self._db.executemany(_BOOK, map(msgspec.structs.astuple, rows))
            for key, value in notes.items():
                self.note(key, value)
        self._written = True

    def record(self, entries: Sequence[RecordEntry]) -> None:
        """Keep what happened to tasks, and forget what is long ago; no flush waits for it."""
        with self._whole():
            encode = msgspec.msgpack.encode
            rows = ((each.at_s, type(each).__name__, encode(each)) for each in entries)
            self._db.executemany(_RECORD, rows)
            self._db.execute(_FORGET, (MOST_RECORDED,))

    def recorded(self) -> list[RecordEntry]:
        """Return what happened to tasks, in order."""
        rows, _ = self._run("SELECT seq, body FROM tasks ORDER BY seq")
        try:
            return [_recorded.decode(body) for _, body in rows]
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise JournalError(f"{self.path}: expected tasks' entries, got: {error}") from None

    def energy(self, owner: str | None = None) -> list[EnergyRow]:
        """Return all rows of energy, or those of an owner, by node and time."""
        which = "" if owner is None else "WHERE owner = ?"
        found = self._run(f"SELECT * FROM energy {which}", *([] if owner is None else [owner]))
        return _rows(found[0])

    def energy_sums(self, since_s: float) -> list[EnergyRow]:
        """Return sums of rows by owner, resize, node and source; those begun since a time apart."""
        return _rows(self._run(_SUMS, since_s)[0])

    def newest_energy(self, since_s: float) -> list[EnergyRow]:
        """Return the rows of each node's last span, and all that end after a time, rising."""
        return _rows(self._run(_NEWEST, since_s)[0])

    def read(self) -> Iterator[Entry]:
        """Yield every entry in order, those appended meanwhile included."""
        after = 0
        # Page by page: a reader that stops half-way leaves no open statement, which would lock.
        while rows := self._run(_PAGE, after)[0]:
            yield from (self._decode(*row) for row in rows)
            after = rows[-1][0]

    def flush(self) -> None:
        """Have all that was entered on disk, for a machine that loses its power now.

        A killed daemon loses nothing that it entered. Many entries cost one flush, which is why
        this is a call of its own: before decisions are acted on, before somebody is answered.
        """
        if not self._written:
            return
        try:
            if self._log < 0:
                self._log = os.open(f"{self.path.absolute()}-wal", os.O_RDONLY)
            os.fsync(self._log)  # what synchronous = FULL does after each statement
        except OSError as error:
            raise JournalError(f"{self.path}: expected a journal on disk, got {error}") from None
        self._written = False

    def close(self) -> None:
        """Give the file back; a second time does nothing."""
        self._db.close()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Do several statements as one: all or nothing."""
        with _said(self.path):
            self._db.execute("BEGIN")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _enter(self, entry: Opened | PolicySet | Event) -> int:
        if self._nodes is None and not isinstance(entry, Opened):
            raise JournalError(f"{self.path}: expected a header first, got {type(entry).__name__}")
        row = type(entry).__name__, msgspec.msgpack.encode(entry)
        _, cursor = self._run("INSERT INTO entries (kind, body) VALUES (?, ?)", *row)
        return int(cursor.lastrowid or 0)

    def _run(
        self, statement: str, *values: str | bytes | float
    ) -> tuple[list[Any], sqlite3.Cursor]:
        with _said(self.path):
            cursor = self._db.execute(statement, values)
            self._written |= not statement.startswith("SELECT")
            return cursor.fetchall(), cursor

    def _decode(self, seq: int, body: bytes, decided: bytes | None) -> Entry:
        try:
            entry: Opened | PolicySet | Event = _entry.decode(body)
            if isinstance(entry, Opened | PolicySet):
                return entry
            return Seen(seq, entry, None if decided is None else _decisions.decode(decided))
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise JournalError(f"{self.path}: expected a whole entry {seq}, got: {error}") from None


def _rows(found: list[Any]) -> list[EnergyRow]:
    names = EnergyRow.__struct_fields__
    return [
        msgspec.convert(dict(zip(names, row, strict=True)), EnergyRow, strict=False)
        for row in found
    ]


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    """Lock the file, see that it is a journal, or make it one if it is new."""
    db.isolation_level = None  # every statement is committed by itself, but for BEGIN
    db.execute("PRAGMA locking_mode = EXCLUSIVE")  # kept after the commit, until it is closed
    db.execute("PRAGMA synchronous = NORMAL")  # the rest is Journal.flush
    db.execute("BEGIN EXCLUSIVE")
    owner, version, tables = db.execute(_WHOSE).fetchone()
    if owner == version == tables == 0:
        for statement in _TABLES:
            db.execute(statement)
    elif owner != APPLICATION_ID or version not in READ:
        got = f"format {version}" if owner == APPLICATION_ID else "another program's database"
        raise JournalError(f"{path}: expected a journal of format {FORMAT}, got {got}")
    for statement in (_ENERGY, _BY_OWNER, _TASKS):  # journals of before have none
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {FORMAT}")  # an older program would not know its events
    db.execute("COMMIT")
    damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise JournalError(f"{path}: expected a whole journal, got {' '.join(damage.split())}")
    db.execute("PRAGMA journal_mode = WAL")


@contextmanager
def _said(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
        got = "one that is in use" if busy else f"{path.name}: {error}"
        raise JournalError(f"{path}: expected a journal to work with, got {got}") from None
