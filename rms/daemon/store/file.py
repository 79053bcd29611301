"""The SQLite file of a journal: tables, checksums of records, salvage, and the count beside it.

Each record has a CRC-32 of its contents and its key. A record that does not fit its checksum is
moved to the table ``damaged`` when the file is opened, so that readers meet whole records and gaps.
A file that SQLite cannot read is set aside, and its readable records are copied to a new one.

``NAME.count`` beside the file holds the number of entries and repeats two notes; so does
``jobs/.count``, in case an older copy of the journal is restored with its count file. Both are
written after the journal is on disk: an entry that they count and the journal lacks has been lost.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from rms.daemon.store.notes import MarkNote, NextNote

# Raised with every change of an event, a decision, a type in them, a note or a table, so that no
# record is read as something else.
FORMAT = 1

APPLICATION_ID = 0x726D736A  # "rmsj"
_SCHEMA = (
    """CREATE TABLE entries (
        seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body BLOB NOT NULL, sum INTEGER NOT NULL)""",
    """CREATE TABLE decisions (
        seq INTEGER PRIMARY KEY REFERENCES entries, body BLOB NOT NULL, sum INTEGER NOT NULL)""",
    "CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, sum INTEGER NOT NULL)",
    """CREATE TABLE over (
        id TEXT PRIMARY KEY, state TEXT NOT NULL, body BLOB NOT NULL, sum INTEGER NOT NULL)""",
    """CREATE TABLE energy (
        owner TEXT NOT NULL, world INTEGER, resize INTEGER NOT NULL, node TEXT NOT NULL,
        device TEXT NOT NULL, source TEXT NOT NULL, begin_s REAL NOT NULL, end_s REAL NOT NULL,
        joules REAL NOT NULL, uncertainty_j REAL NOT NULL, estimate INTEGER NOT NULL,
        replaced_j REAL NOT NULL, sum INTEGER NOT NULL,
        PRIMARY KEY (node, begin_s, owner, device, source)) WITHOUT ROWID""",
    "CREATE INDEX energy_of ON energy (owner)",
    """CREATE INDEX energy_measured ON energy (owner)
        WHERE source != 'model' OR replaced_j != 0""",
    """CREATE TABLE tasks (
        seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL)""",
    "CREATE TABLE damaged (part TEXT NOT NULL, at NOT NULL, body)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_IDENTITY = """SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version"""

# Tables that are checked at opening: key, contents, columns of the checksum, noun.
_CHECKED = {
    "snapshots": ("seq", "body", "seq, body", "the snapshot after entry"),
    "entries": ("seq", "body", "seq, kind, body", "entry"),
    "decisions": ("seq", "body", "seq, body", "the decisions on entry"),
    "notes": ("key", "value", "key, value", "note"),
}

# Errors of a statement that may go through when there is room, or the disk answers, again.
_LASTING = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
}


class JournalError(ValueError):
    """A journal that cannot be opened, read or written, or an entry out of place."""


class JournalFullError(JournalError):
    """A statement that cannot be written now, mostly for want of room; it may be later."""


class DamagedError(JournalError):
    """A file that SQLite itself cannot read, or not all of it."""


def checksum(*parts: str | bytes | float | None) -> int:
    """Return the CRC-32 of these values together, in this order."""
    crc = 0
    for part in parts:
        crc = zlib.crc32(part if isinstance(part, bytes) else str(part).encode(), crc)
    return crc


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Raise errors of SQLite as those of a journal, in one sentence."""
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
    """Lock the file and check that it is a journal, or make it one if it is new.

    Return a sentence per damaged record, which is in the table ``damaged`` now. A broken file is a
    DamagedError, another format or program's file a JournalError.
    """
    db.isolation_level = None  # every statement is committed by itself, but for BEGIN
    db.execute("PRAGMA locking_mode = EXCLUSIVE")  # kept after the commit, until it is closed
    db.execute("PRAGMA synchronous = NORMAL")  # the rest is Journal.flush
    db.execute("BEGIN EXCLUSIVE")
    owner, version, tables = db.execute(_IDENTITY).fetchone()
    if owner == version == tables == 0:
        for statement in _SCHEMA:
            db.execute(statement)
    elif (owner, version) != (APPLICATION_ID, FORMAT):
        got = f"format {version}" if owner == APPLICATION_ID else "another program's database"
        raise JournalError(f"{path}: expected a journal of format {FORMAT}, got {got}")
    db.execute("COMMIT")
    damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise DamagedError(f"{path}: expected a whole journal, got {' '.join(damage.split())}")
    sentences = _set_damaged_aside(db)
    db.execute("PRAGMA journal_mode = WAL")
    return sentences


def _set_damaged_aside(db: sqlite3.Connection) -> list[str]:
    """Move records that do not fit their checksum to ``damaged``; return a sentence per record.

    Entries before the newest whole snapshot are checked when they are read.
    """
    db.create_function("checksum", -1, checksum, deterministic=True)
    sentences = []
    for table, (key, body, covered, noun) in _CHECKED.items():
        wrong = f"FROM {table} WHERE sum != checksum({covered})"
        if table in ("entries", "decisions"):
            wrong += " AND seq > (SELECT ifnull(max(seq), 0) FROM snapshots)"
        for (at,) in db.execute(f"SELECT {key} {wrong}").fetchall():
            record = f"FROM {table} WHERE {key} = ?"
            db.execute("BEGIN")
            db.execute(f"INSERT INTO damaged SELECT '{table}', {key}, {body} {record}", (at,))
            db.execute(f"DELETE {record}", (at,))
            db.execute("COMMIT")
            sentences.append(f"{noun} {at} is damaged")
    return sentences


# --- a file that SQLite cannot read --------------------------------------------------------------


def salvage(path: Path) -> tuple[int, Path]:
    """Put the readable records of a broken journal in its place.

    Return the number of these records, and the new path of the broken file.
    """
    part = path.with_name(f"{path.name}.salvaging")
    part.unlink(missing_ok=True)
    records = _copy(path, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    whole = part.replace(_salvaged(path))
    return records, _replace(path, whole)


def finish_salvage(path: Path) -> None:
    """Put a salvaged journal in its place, where a daemon was killed before it did."""
    if _salvaged(path).exists():
        _replace(path, _salvaged(path))


def _salvaged(path: Path) -> Path:
    return path.with_name(f"{path.name}.salvaged")


def _replace(path: Path, whole: Path) -> Path:
    """Put a whole journal in the place of a broken one; return where that is now."""
    aside = next(p for n in count(1) if not (p := path.with_name(f"{path.name}.{n}")).exists())
    log = path.with_name(f"{path.name}-wal")
    with contextlib.suppress(FileNotFoundError):
        os.link(path, aside)
    with contextlib.suppress(FileNotFoundError):
        log.rename(aside.with_name(f"{aside.name}-wal"))
    whole.replace(path)
    return aside


def _copy(path: Path, part: Path) -> int:
    """Copy the readable records of a journal to a new one; return their number."""
    records = 0
    with (
        sqlite_errors(path),
        contextlib.closing(sqlite3.connect(path.absolute(), timeout=0)) as old,
        contextlib.closing(sqlite3.connect(part.absolute())) as new,
    ):
        prepare(new, part)
        new.execute("PRAGMA journal_mode = DELETE")
        new.execute("BEGIN")
        for table in (*_CHECKED, "over", "energy", "tasks"):
            for row in _rows(old, table):
                places = ", ".join("?" * len(row))
                records += new.execute(
                    f"INSERT OR IGNORE INTO {table} VALUES ({places})", row
                ).rowcount
        new.execute("COMMIT")
    return records


def _rows(db: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table up to the first page that cannot be read, and from the last on."""
    key = "rowid" if table != "energy" else "node, begin_s, owner, device, source"
    for order in (key, ", ".join(f"{part} DESC" for part in key.split(", "))):
        try:
            yield from db.execute(f"SELECT * FROM {table} ORDER BY {order}")
        except sqlite3.Error:
            continue
        return


# --- the count beside it -------------------------------------------------------------------------


class JournalCount(msgspec.Struct):
    """The number of the last entry, and the notes that may not be lost with the journal."""

    entries: int = 0
    mark: MarkNote = msgspec.field(default_factory=MarkNote)
    next: NextNote = msgspec.field(default_factory=NextNote)


class CountFiles:
    """The count files of a journal: beside it, and in the folder of its jobs."""

    SIZE = 512
    """Bytes that a disk writes at once."""

    def __init__(self, journal: Path) -> None:
        path = journal.absolute().with_suffix(".count")
        self.paths = path, path.parent / "jobs" / ".count"
        self._files, self._newest = dict[Path, int](), 0

    def read(self) -> JournalCount | None:
        """Return the count of the newer valid file, None without one."""
        counts = list[JournalCount]()
        for path in self.paths:
            with contextlib.suppress(OSError, ValueError):
                total, _, text = path.read_bytes().strip().partition(b" ")
                if int(total, 16) == checksum(text):
                    counts.append(msgspec.json.decode(text, type=JournalCount))
        return max(counts, key=attrgetter("entries"), default=None)

    def write(self, counted: JournalCount) -> None:
        """Write a count in place, which needs no room on a full disk; errors are ignored."""
        if counted.entries < self._newest:
            return  # a later flush has ended first
        self._newest = counted.entries
        text = msgspec.json.encode(counted)
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
