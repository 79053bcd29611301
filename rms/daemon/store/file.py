"""The SQLite file of a journal: its tables, checksums of its records, and a count kept beside it.

Each entry, decision and note has a CRC-32 of what it is and where it belongs. A record that does
not fit its own is moved to the table ``damaged`` when the file is opened, so that whoever reads
finds whole records, and gaps. Records of format 4 and before have none.

Beside the file, ``NAME.count`` says how many entries there are, and repeats a few notes
(:data:`KEPT`); so does ``jobs/.count``, in case an older journal is restored with its count file.
Both are written after the journal is on disk, so entries that they count and the journal lacks have
been lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

FORMAT = 6
READ = (3, 4, 5, FORMAT)
"""Formats that are read: 3 (version 0.1.0) has fewer kinds of events, and no energy; 4 has no
checksums, and does not say whose tasks hold nodes; 5 has no assumed run times."""

KEPT = ("mark", "next")
"""Notes that are kept beside the journal too: whose processes are its own, and the next job's
number."""

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
    replaced_j REAL NOT NULL, sum INTEGER,
    PRIMARY KEY (node, begin_s, owner, device, source)) WITHOUT ROWID"""
_BY_OWNER = "CREATE INDEX IF NOT EXISTS energy_of ON energy (owner)"
_MEASURED = """CREATE INDEX IF NOT EXISTS energy_measured ON energy (owner)
    WHERE source != 'model' OR replaced_j != 0"""
_TASKS = """CREATE TABLE IF NOT EXISTS tasks (
    seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL)"""
_SNAPSHOTS = """CREATE TABLE IF NOT EXISTS snapshots (
    seq INTEGER PRIMARY KEY, body BLOB NOT NULL, sum INTEGER)"""
_OVER = """CREATE TABLE IF NOT EXISTS over (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, body BLOB NOT NULL, sum INTEGER)"""
_DAMAGED = "CREATE TABLE IF NOT EXISTS damaged (part TEXT NOT NULL, at NOT NULL, body)"
_WHOSE = """SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version"""

RECORDS = {
    "snapshots": ("seq", "body", "seq, body"),
    "entries": ("seq", "body", "seq, kind, body"),
    "decisions": ("seq", "body", "seq, body"),
    "notes": ("key", "value", "key, value"),
}
"""Tables whose records have a checksum: what finds a record, what it holds, what is summed."""

_LASTING = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
}
"""Errors of a statement that may go through when there is room, or the disk answers, again."""


class JournalError(ValueError):
    """A journal that cannot be opened, read or written, or an entry out of place."""


class JournalFullError(JournalError):
    """Nothing can be written now, for want of room most of the time; it may go another time."""


class DamagedError(JournalError):
    """A file that SQLite itself cannot read, or not all of it."""


def checksum(*parts: str | bytes | float | None) -> int:
    """Return the CRC-32 of these values together, in this order."""
    found = 0
    for part in parts:
        found = zlib.crc32(part if isinstance(part, bytes) else str(part).encode(), found)
    return found


@contextmanager
def said(path: Path) -> Iterator[None]:
    """Let errors of SQLite be those of a journal, in one sentence."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind = JournalFullError if code in _LASTING else JournalError
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            kind = DamagedError
        got = "one that is in use" if code == sqlite3.SQLITE_BUSY else f"{path.name}: {error}"
        raise kind(f"{path}: expected a journal to work with, got {got}") from None


def prepare(db: sqlite3.Connection, path: Path) -> list[str]:
    """Lock the file, see that it is a journal, or make it one if it is new.

    Returns:
        A sentence for each record that is not what was written; it is in ``damaged`` now.

    Raises:
        JournalError: it is none, or of another format; a :class:`DamagedError` if it is broken.
        sqlite3.Error: SQLite cannot work with it.
    """
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
    for statement in (
        _ENERGY,
        _BY_OWNER,
        _MEASURED,
        _TASKS,
        _SNAPSHOTS,
        _OVER,
        _DAMAGED,
    ):  # journals of before have none
        db.execute(statement)
    if not db.execute("SELECT 1 FROM pragma_table_info('entries') WHERE name = 'sum'").fetchall():
        for table in ("entries", "decisions", "notes"):
            db.execute(f"ALTER TABLE {table} ADD COLUMN sum INTEGER")
    if not db.execute("SELECT 1 FROM pragma_table_info('energy') WHERE name = 'sum'").fetchall():
        db.execute("ALTER TABLE energy ADD COLUMN sum INTEGER")
    db.execute(f"PRAGMA user_version = {FORMAT}")  # an older program would not know its events
    db.execute("COMMIT")
    damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise DamagedError(f"{path}: expected a whole journal, got {' '.join(damage.split())}")
    found = set_damaged_aside(db)
    db.execute("PRAGMA journal_mode = WAL")
    return found


def set_damaged_aside(db: sqlite3.Connection) -> list[str]:
    """Move records that do not fit their checksum to ``damaged``; return a sentence for each.

    Entries before the newest whole snapshot are looked at when they are read.
    """
    db.create_function("checksum", -1, checksum, deterministic=True)
    found = []
    for table, (key, body, summed) in RECORDS.items():
        wrong = f"FROM {table} WHERE sum IS NOT NULL AND sum IS NOT checksum({summed})"
        if table in ("entries", "decisions"):
            wrong += " AND seq > (SELECT ifnull(max(seq), 0) FROM snapshots)"
        for (at,) in db.execute(f"SELECT {key} {wrong}").fetchall():
            one = f"FROM {table} WHERE {key} = ?"
            db.execute("BEGIN")
            db.execute(f"INSERT INTO damaged SELECT '{table}', {key}, {body} {one}", (at,))
            db.execute(f"DELETE {one}", (at,))
            db.execute("COMMIT")
            what = {
                "entries": "entry",
                "decisions": "the decisions on entry",
                "notes": "note",
                "snapshots": "the snapshot after entry",
            }
            found.append(f"{what[table]} {at} is damaged")
    return found


class Counted(msgspec.Struct):
    """What is kept beside a journal: the number of its last entry, and a few of its notes."""

    entries: int = 0
    notes: dict[str, dict[str, Any]] = {}


class Count:
    """The count files of a journal: beside it, and in the folder of its jobs."""

    SIZE = 512
    """Bytes that a disk writes at once."""

    def __init__(self, journal: Path) -> None:
        path = journal.absolute().with_suffix(".count")
        self.paths = path, path.parent / "jobs" / ".count"
        self._files, self._newest = dict[Path, int](), 0

    def read(self) -> Counted | None:
        """Return the count of the newer valid file, None without one."""
        counts = list[Counted]()
        for path in self.paths:
            with contextlib.suppress(OSError, ValueError):
                total, _, text = path.read_bytes().strip().partition(b" ")
                if int(total, 16) == checksum(text):
                    counts.append(msgspec.json.decode(text, type=Counted))
        return max(counts, key=attrgetter("entries"), default=None)

    def write(self, counted: Counted) -> None:
        """Keep it, in place: on a full disk that needs no room. What cannot be kept is not."""
        if counted.entries < self._newest:
            return  # a later flush was sooner over
        self._newest = counted.entries
        text = json.dumps(msgspec.to_builtins(counted)).encode()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        for path in self.paths:
            with contextlib.suppress(OSError):
                if path not in self._files:
                    self._files[path] = os.open(path, flags, 0o600)
                line = b"%08x %s\n" % (checksum(text), text.ljust(self.SIZE - 10))
                os.pwrite(self._files[path], line, 0)

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.popitem()[1])
