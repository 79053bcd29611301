"""What a journal holds: entries with what was decided on them, and rows of energy."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from rms.core.model.cluster import Cluster
from rms.core.model.contention import SharedNode
from rms.core.model.events import Decision, Event
from rms.core.model.jobs import NodePower
from rms.core.policies import named
from rms.daemon.store.file import (
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
from rms.kernels.record import RecordEntry
from rms.wire.files import sync_folder
from rms.wire.users import EnergyRow, HistoryEntry, JobRow

_ROW = ", ".join(EnergyRow.__struct_fields__)
_WHOLE = f"(sum IS NULL OR sum = checksum({_ROW}))"
"""Which rows are as they were written; it is asked when they are read, as there may be many."""

BOOK = f"INSERT OR REPLACE INTO energy ({_ROW}, sum) VALUES ({', '.join('?' * 13)})"
BOOKED = f"SELECT {_ROW} FROM energy WHERE {_WHOLE}"
SUMS = f"""SELECT owner, NULL, resize, node, '', source, max(begin_s), max(end_s), sum(joules),
    sum(uncertainty_j), max(estimate), sum(replaced_j) FROM energy
    WHERE (source != 'model' OR replaced_j != 0) AND {_WHOLE}
    GROUP BY owner, resize, node, source, begin_s >= ?"""
NEWEST = f"""SELECT {_ROW} FROM energy JOIN (
        SELECT node, max(begin_s) AS newest_s, min(CASE WHEN end_s > ? THEN begin_s END) AS first_s
        FROM energy GROUP BY node
    ) USING (node) WHERE begin_s >= min(newest_s, ifnull(first_s, newest_s)) AND {_WHOLE}
    ORDER BY begin_s"""


_ESTIMATE = EnergyRow.__struct_fields__.index("estimate")


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
    """Another policy decides on every event from here on.

    Attributes:
        reason: how the one before failed on the event before this entry; "" where a user chose.
            What is recorded of that event is decided by both, so no replay decides it again.
    """

    at_s: float
    policy: str
    reason: str = ""


class Seen(msgspec.Struct, frozen=True, tag=True):
    """An event, and what was decided on it; None if a crash came before that was recorded."""

    seq: int
    event: Event
    decisions: tuple[Decision, ...] | None


class Archived(msgspec.Struct, frozen=True):
    """A job that is over: its row, and what was decided about it."""

    row: JobRow
    history: list[HistoryEntry] = []


Entry = Opened | PolicySet | Seen
_entry = msgspec.msgpack.Decoder(Opened | PolicySet | Event)
_decisions = msgspec.msgpack.Decoder(tuple[Decision, ...])


def decode(seq: int, body: bytes, decided: bytes | None) -> Entry:
    """Return an entry as it was written.

    Raises:
        msgspec.MsgspecError, TypeError, ValueError: no version has written this.
    """
    entry: Opened | PolicySet | Event = _entry.decode(body)
    if isinstance(entry, Opened | PolicySet):
        return entry
    return Seen(seq, entry, None if decided is None else _decisions.decode(decided))


def energy_values(row: EnergyRow) -> tuple[Any, ...]:
    """Return what is entered of a row: its values as SQLite keeps them, and their checksum."""
    found = [
        float(value) if name.endswith(("_s", "_j")) or name == "joules" else value
        for name, value in msgspec.structs.asdict(row).items()
    ]
    found[_ESTIMATE] = int(row.estimate)
    return (*found, checksum(*found))


def energy_rows(found: list[Any]) -> list[EnergyRow]:
    """Return rows of the table of energy as they were entered."""
    names = EnergyRow.__struct_fields__
    return [
        msgspec.convert(dict(zip(names, row, strict=True)), EnergyRow, strict=False)
        for row in found
    ]


# FUSED rms.daemon.store.journal: What writes a journal's file: records one by one or together, at once or when there is room.
#
# Beside events (:mod:`rms.daemon.store.journal`) these are notes, energy and what happened to tasks.

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
    """An open journal's file, for one thread at a time; see :class:`rms.daemon.store.journal.Journal`.

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


# FUSED rms.daemon.store.journal: The journal: what the engine saw and decided, in order, durable before anyone acts on it.
#
# One SQLite file (write-ahead log, flushed when that is asked for), held alone by whoever has it
# open, until it closes or dies. Its tables:
#
# - ``entries``: ``seq`` (the order), ``kind`` (the name of the type, for people who query the file),
#   ``body`` (MessagePack of an event, :class:`Opened` or :class:`PolicySet`; JSON has no infinity).
# - ``decisions``: ``seq`` of the event they answer, ``body`` (MessagePack of all of them, in order).
# - ``notes``: ``key``, ``value`` (JSON): the present facts outside the engine.
# - ``snapshots``: ``seq`` of an entry, ``body``: the scheduler after it (:mod:`rms.core.scheduler.snapshot`).
#   A start goes on from the newest that is whole. Entries up to an older one may be gone, but for
#   the first header: what is left begins there.
# - ``over``: jobs that have been over for long (:mod:`rms.daemon.store.archive`), a row each.
# - ``damaged``: records that did not fit their checksum when the journal was opened.
# - ``energy``: joules by node, time, owner, device and source (:class:`rms.wire.users.EnergyRow`).
#   All of them together are the cluster's, once a daemon has ended; of one that was killed, those of
#   the model since the last report or change of hands are missing until it is started again. A row
#   that does not fit its checksum counts nowhere: the sums tell that it is missing.
# - ``tasks``: ``seq``, ``at_s``, ``kind``, ``body`` (MessagePack of a
#   :data:`rms.kernels.record.RecordEntry`): what happened to tasks, the newest
#   :data:`rms.daemon.store.journal.MOST_RECORDED` entries.
#   Nothing is decided by it; a power cut may cost its last seconds.
#
# ``PRAGMA application_id`` tells a journal from other databases, ``PRAGMA user_version`` is
# :data:`FORMAT`. **Raise FORMAT with every change of an event or decision type**, of the types they
# hold, or of a table: what was written must never be read as something else. (``energy``,
# ``tasks`` and ``snapshots`` came later and are made where they are missing: a replay fills the first
# by the model.) The file itself is :mod:`rms.daemon.store.file`, what writes it
# :mod:`rms.daemon.store.journal`.

_ENTER = "INSERT INTO entries (seq, kind, body, sum) VALUES (?, ?, ?, ?)"
_DECIDE = """INSERT OR IGNORE INTO decisions (seq, body, sum) SELECT seq, ?, ? FROM entries
    WHERE seq = ? AND kind NOT IN ('Opened', 'PolicySet')"""
_PAGE = """SELECT seq, entries.body, decisions.body, kind, entries.sum, decisions.sum
    FROM entries LEFT JOIN decisions USING (seq) WHERE seq > ? ORDER BY seq LIMIT 1000"""
_SNAPSHOTS = "SELECT seq FROM snapshots WHERE seq <= ? ORDER BY seq DESC"
_SAVE = "INSERT OR REPLACE INTO snapshots (seq, body, sum) VALUES (?, ?, ?)"
_PRUNE = (
    """DELETE FROM decisions WHERE seq IN
        (SELECT seq FROM decisions WHERE seq <= ? ORDER BY seq LIMIT ?)""",
    """DELETE FROM entries WHERE seq IN (SELECT seq FROM entries
        WHERE seq <= ? AND seq > (SELECT min(seq) FROM entries WHERE kind = 'Opened')
        ORDER BY seq LIMIT ?)""",
)
PRUNED = 1000
"""How many entries are deleted at once: others have their turn in between."""

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


class Journal(Writer):
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
        super().__init__(path, db)
        self.damage = list(damage)
        self._unseen = max(self.snapshots(), default=0)
        if self.counted is not None and self.counted.entries > self._last:
            lost = _missing(self._last + 1, self.counted.entries)
            self.damage.append(f"{lost}: it is damaged, or an older journal was restored")
        self.began = next(self._headers(), None)
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

        Raises:
            JournalError: its nodes are others, or are given in another way.
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
        if (
            self.began is not None
            and not where
            and [node.processors for node in self.began.shared]
            != [node.processors for node in cluster.shared]
        ):
            expected = "nodes with the kinds of processors of the first start"
            raise JournalError(f"{self.path}: expected {expected}, got others")
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

    def read(self, after: int = 0) -> Iterator[Entry]:
        """Yield every whole entry behind ``after`` in order, those appended meanwhile included.

        From the beginning (0) a header is the first.
        """
        begins = after == 0
        # Page by page: a reader that stops half-way leaves no open statement, which would lock.
        while rows := self._run(_PAGE, after)[0]:
            for row in rows:
                entry = self._decode(*(self._checked(*row) if row[0] <= self._unseen else row[:3]))
                if begins and not isinstance(entry, Opened):  # it is lost: the next serves
                    yield from self._headers()
                if after + 1 < row[0]:
                    self._tell(_missing(after + 1, row[0] - 1))
                after, begins = row[0], False
                if entry is not None:
                    yield entry

    def since(self, after: int, kinds: Collection[str], most: int) -> tuple[list[Any], int]:
        """Return the newest entries of some kinds that come after one, and how many there are.

        Returns:
            ``(number, entry)`` of each, rising, at most so many; the number of all of them.
        """
        those = f"FROM entries WHERE seq > ? AND kind IN ({','.join('?' * len(kinds))})"
        number = self._run(f"SELECT count(*) {those}", after, *kinds)[0][0][0]
        newest = f"SELECT seq, body, NULL {those} ORDER BY seq DESC LIMIT ?"
        rows = self._run(newest, after, *kinds, most)[0]
        return [(row[0], self._decode(*row)) for row in reversed(rows)], number

    # --- snapshots ---------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The number of the newest entry."""
        return self._last

    def snapshots(self) -> list[int]:
        """Return after which entries there are snapshots, newest first."""
        return [seq for (seq,) in self._run(_SNAPSHOTS, self._last)[0]]

    def snapshot(self, seq: int) -> bytes:
        """Return the snapshot after an entry."""
        found: bytes = self._run("SELECT body FROM snapshots WHERE seq = ?", seq)[0][0][0]
        return found

    def begins(self) -> int:
        """Return behind which entry all are there: 0, or that of the oldest snapshot.

        Those before it have been pruned, or some are lost.
        """
        oldest = min(self.snapshots(), default=0)
        (there,) = self._run("SELECT count(*) FROM entries WHERE seq <= ?", oldest)[0][0]
        return 0 if there == oldest else oldest

    def save(self, body: bytes, keep: int | None, after: int | None = None) -> None:
        """Keep a snapshot, and let go those that nobody needs.

        Two are for a start, should the newer be damaged; the others are some of those between,
        from which what is left will begin when older entries are pruned.

        Args:
            keep: how many entries are kept behind a snapshot at least, None for all.
            after: the entry after which it was taken, None for the newest.

        Raises:
            JournalFullError: there is no room for it now; nothing has changed.
        """
        last = self._last if after is None else after
        known = self.snapshots()[::-1]
        span = last if keep is None else max(1, keep // 4)
        spaced, at = set[int](), -span
        for seq in known:
            if seq >= at + span:
                spaced.add(seq)
                at = seq
        drop = [seq for seq in known[:-1] if seq not in spaced]
        if keep is not None and (old := [seq for seq in known if seq <= last - keep]):
            drop += [seq for seq in known if seq < old[-1]]
        with self.whole():
            self._run(_SAVE, last, body, checksum(last, body))
            for seq in dict.fromkeys(drop):
                self._run("DELETE FROM snapshots WHERE seq = ?", seq)

    def prune(self, keep: int) -> bool:
        """Delete some entries that are older than is kept, if there is a snapshot behind them.

        Returns:
            whether there may be more.
        """
        until = min(self.snapshots(), default=0)
        if until > self._last - keep:
            return False
        with self.whole():
            found = [self._run(statement, until, PRUNED)[1].rowcount for statement in _PRUNE]
        return max(found) == PRUNED

    def _enter(self, entry: Opened | PolicySet | Event) -> int:
        if self._nodes is None and not isinstance(entry, Opened):
            raise JournalError(f"{self.path}: expected a header first, got {type(entry).__name__}")
        seq, kind, body = self._last + 1, type(entry).__name__, msgspec.msgpack.encode(entry)
        self._write(("entry", seq), _ENTER, seq, kind, body, checksum(seq, kind, body))
        self._last = seq
        return seq

    def _headers(self) -> Iterator[Opened]:
        """Yield the first header that is whole."""
        found = (self._decode(*header) for header in self._run(_HEADER)[0])
        yield from (header for header in found if isinstance(header, Opened))

    def _checked(
        self, seq: int, body: bytes, decided: bytes | None, kind: str, *sums: int | None
    ) -> tuple[int, bytes, bytes | None]:
        """Return an entry that was not looked at when the journal was opened."""
        if sums[0] not in (None, checksum(seq, kind, body)):
            body = b""  # which is no entry
        if decided is not None and sums[1] not in (None, checksum(seq, decided)):
            self._tell(f"the decisions on entry {seq} is damaged")
            decided = None
        return seq, body, decided

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
