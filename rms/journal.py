"""The journal: what the engine saw and decided, in order, durable before anyone acts on it.

One SQLite file (write-ahead log, every commit flushed). Whoever has it open holds it alone until
it closes or dies. The tables, of which the first two only ever grow:

- ``entries``: ``seq`` (the order), ``kind`` (the name of the type, in plain text for people who
  query the file), ``body`` (MessagePack of an event of :mod:`rms.events`, of :class:`Opened` or of
  :class:`PolicySet`; JSON would lose infinite times).
- ``decisions``: ``seq`` of the event they answer, ``body`` (MessagePack of all of them, in order).
  An event without a row here was taken in by a daemon that died before it had recorded them.
- ``notes``: ``key``, ``value`` (JSON): the present facts outside the engine.

``PRAGMA application_id`` says that a file is a journal, ``PRAGMA user_version`` is :data:`FORMAT`.
**Raise FORMAT with every change of an event or decision type**, of the types they hold, or of a
table: what was written must never be read as something else.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from rms.engine import Engine
from rms.events import Decision, Event
from rms.policies import named
from rms.rules import RuleError
from rms.transition import TransitionError

FORMAT = 1
APPLICATION_ID = 0x726D736A  # "rmsj"

_TABLES = (
    "CREATE TABLE entries (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE decisions (seq INTEGER PRIMARY KEY REFERENCES entries, body BLOB NOT NULL)",
    "CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_DECIDE = """INSERT OR IGNORE INTO decisions SELECT seq, ? FROM entries
    WHERE seq = ? AND kind NOT IN ('Opened', 'PolicySet')"""
_PAGE = """SELECT seq, entries.body, decisions.body FROM entries LEFT JOIN decisions USING (seq)
    WHERE seq > ? ORDER BY seq LIMIT 1000"""


class JournalError(ValueError):
    """A journal that cannot be opened, read or written, or an entry out of place."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """A daemon has started, with these nodes and this policy."""

    nodes: tuple[str, ...]
    policy: str
    format: int = FORMAT


class PolicySet(msgspec.Struct, frozen=True, tag=True):
    """The policy is another one for every event from here on."""

    at_s: float
    policy: str


class Seen(msgspec.Struct, frozen=True, tag=True):
    """An event, and what was decided on it; None where that was never recorded."""

    seq: int
    event: Event
    decisions: tuple[Decision, ...] | None


Entry = Opened | PolicySet | Seen

_entry: msgspec.msgpack.Decoder[Opened | PolicySet | Event] = msgspec.msgpack.Decoder(
    Opened | PolicySet | Event
)
_decisions: msgspec.msgpack.Decoder[tuple[Decision, ...]] = msgspec.msgpack.Decoder(
    tuple[Decision, ...]
)


class Journal:
    """An open journal, for one thread at a time. Every method may raise :class:`JournalError`."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self._db = db
        first = next(self.read(), None)
        if first is not None and not isinstance(first, Opened):
            raise JournalError(f"{path}: expected a header as first entry, got {_kind(first)}")
        self._nodes = None if first is None else first.nodes

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open a journal, or create it where there is no file.

        Raises:
            JournalError: no journal, a damaged one, one of another format, or one in use.
        """
        with _said(path):
            # A daemon's threads may share it behind their lock; nobody waits for a lock on it.
            db = sqlite3.connect(
                path.absolute(), timeout=0, isolation_level=None, check_same_thread=False
            )
        try:
            with _said(path):
                _prepare(db, path)
            return cls(path, db)
        except BaseException:
            db.close()
            raise

    def header(self, nodes: tuple[str, ...], policy: str) -> None:
        """Enter the start of a daemon. The nodes must be those that the journal began with.

        Raises:
            rms.policies.PolicyError: there is no such policy.
        """
        if self._nodes not in (None, nodes):
            raise JournalError(
                f"{self.path}: expected the nodes {_listed(self._nodes)}, got {_listed(nodes)}"
            )
        self._enter(Opened(nodes, named(policy).name))
        self._nodes = nodes

    def policy(self, name: str, at_s: float) -> None:
        """Enter that from here on another policy decides; raises as :meth:`header` does."""
        self._enter(PolicySet(at_s, named(name).name))

    def append(self, event: Event) -> int:
        """Enter an event and return its sequence number; it is on disk by then."""
        return self._enter(event)

    def decided(self, seq: int, decisions: Sequence[Decision]) -> None:
        """Enter what was decided on an event, once; it is on disk on return."""
        body = msgspec.msgpack.encode(tuple(decisions))
        with _said(self.path):
            entered = self._db.execute(_DECIDE, (body, seq)).rowcount
        if entered != 1:
            raise JournalError(f"{self.path}: expected an event without decisions, got entry {seq}")

    def note(self, key: str, value: dict[str, Any]) -> None:
        """Keep a fact that a restarted daemon needs, in place of an older one of that key."""
        try:
            text = json.dumps(value, allow_nan=False)  # msgspec would turn an infinity into null
        except (TypeError, ValueError) as error:
            raise JournalError(f"expected a note of plain JSON for {key}, got {error}") from None
        with _said(self.path):
            self._db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (key, text))

    def notes(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Return the notes whose keys begin with ``prefix``, by key, sorted."""
        rows = self._rows("SELECT key, value FROM notes ORDER BY key")
        return {key: json.loads(value) for key, value in rows if key.startswith(prefix)}

    def read(self) -> Iterator[Entry]:
        """Yield every entry in order, those appended meanwhile included."""
        after = 0
        # Page by page, so that a reader that stops half-way leaves no open statement, hence lock.
        while rows := self._rows(_PAGE, after):
            yield from (self._decode(*row) for row in rows)
            after = rows[-1][0]

    def close(self) -> None:
        """Give the file back; a second time does nothing."""
        self._db.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _enter(self, entry: Opened | PolicySet | Event) -> int:
        if self._nodes is None and not isinstance(entry, Opened):
            raise JournalError(f"{self.path}: expected a header first, got {_kind(entry)}")
        row = _kind(entry), msgspec.msgpack.encode(entry)
        with _said(self.path):
            cursor = self._db.execute("INSERT INTO entries (kind, body) VALUES (?, ?)", row)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with _said(self.path):
            return self._db.execute(query, values).fetchall()

    def _decode(self, seq: int, body: bytes, decided: bytes | None) -> Entry:
        try:
            entry = _entry.decode(body)
            if isinstance(entry, Opened | PolicySet):
                return entry
            return Seen(seq, entry, None if decided is None else _decisions.decode(decided))
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise JournalError(f"{self.path}: expected entry {seq} whole, got {error}") from None


@dataclass
class Replay:
    """What came of feeding a journal to a fresh engine.

    Attributes:
        engine: its state is that of the daemon that wrote the journal, if nothing differs.
        events: how many it was fed.
        differing: a sentence for each event on which it decided otherwise than is recorded.
        unrecorded: what it decided on the events, by number, that have no decisions in the
            journal: nobody has acted on them. Record and do them.
        refused: a sentence for each such event that the engine refused, as it did at the time.
    """

    engine: Engine
    events: int = 0
    differing: list[str] = field(default_factory=list)
    unrecorded: dict[int, list[Decision]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


def replay(entries: Iterable[Entry]) -> Replay:
    """Feed the events of a journal to a fresh engine, under the policies as recorded.

    Raises:
        JournalError: the entries do not begin with a header, or the nodes change on the way.
        rms.policies.PolicyError: a recorded policy is no longer there.
    """
    rest = iter(entries)
    first = next(rest, None)
    if not isinstance(first, Opened):
        got = "no entry" if first is None else _kind(first)
        raise JournalError(f"expected a journal that begins with a header, got {got}")
    found = Replay(Engine(len(first.nodes), named(first.policy)))
    for entry in rest:
        if isinstance(entry, Seen):
            _feed(found, entry)
            continue
        if isinstance(entry, Opened) and entry.nodes != first.nodes:
            got = _listed(entry.nodes)
            raise JournalError(f"expected the nodes {_listed(first.nodes)} to the end, got {got}")
        found.engine.policy = named(entry.policy)
    return found


def _feed(found: Replay, entry: Seen) -> None:
    found.events += 1
    where = f"event {entry.seq} ({_kind(entry.event)})"
    try:
        got = found.engine.handle(entry.event)
    except (TransitionError, RuleError) as error:
        if entry.decisions is None:
            found.refused.append(f"{where}: the engine refused it, got: {error}")
        else:
            found.differing.append(f"{where}: expected the recorded decisions, got: {error}")
        return
    if entry.decisions is None:
        found.unrecorded[entry.seq] = got
        return
    for number, (new, old) in enumerate(zip_longest(got, entry.decisions), start=1):
        if new != old:  # the first one tells; a busy queue's others would fill the screen
            found.differing.append(
                f"{where}: expected decision {number} as recorded, {old}, got {new}"
            )
            return


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    """Lock the file, see that it is a journal, or make it one if it is new."""
    db.execute("PRAGMA locking_mode = EXCLUSIVE")  # kept after the commit, until the file is closed
    db.execute("PRAGMA synchronous = FULL")
    db.execute("BEGIN EXCLUSIVE")
    owner = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if owner == version == tables == 0:
        for statement in _TABLES:
            db.execute(statement)
    elif owner != APPLICATION_ID:
        raise JournalError(f"{path}: expected a journal, got another program's database")
    elif version != FORMAT:
        raise JournalError(f"{path}: expected journal format {FORMAT}, got {version}")
    db.execute("COMMIT")
    damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise JournalError(f"{path}: expected a whole journal, got {' '.join(damage.split())}")
    db.execute("PRAGMA journal_mode = WAL")


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into one sentence."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the details of extended codes
        if code == sqlite3.SQLITE_BUSY:
            said = f"{path}: expected a journal that nobody has open, got one that is in use"
        else:
            said = f"{path}: expected a working journal, got: {error}"
        raise JournalError(said) from None


def _kind(value: msgspec.Struct) -> str:
    return type(value).__name__


def _listed(nodes: tuple[str, ...] | None) -> str:
    return " ".join(nodes or ())
