"""The journal: the events and decisions of the scheduler, durable before they are carried out.

One SQLite file (write-ahead log, flushed on request), held alone by the process that has it open
until it closes it or dies. Its tables:

- ``entries``: ``seq`` (the order), ``kind`` (the name of the type, for people who query the file),
  ``body`` (MessagePack of an event, :class:`Opened` or :class:`PolicySet`; JSON has no infinity).
- ``decisions``: ``seq`` of the event they answer, ``body`` (MessagePack of all of them, in order).
- ``notes``: ``key``, ``value`` (JSON): facts outside the scheduler (:mod:`rms.daemon.store.notes`).
- ``snapshots``: ``seq`` of an entry, ``body``: the scheduler after it
  (:mod:`rms.core.scheduler.snapshot`). A start goes on from the newest whole snapshot. Entries up
  to an older one may be deleted, except the first header.
- ``over``: jobs that ended long ago (:mod:`rms.daemon.store.archive`), one row per job.
- ``damaged``: records that did not fit their checksum when the journal was opened.
- ``energy``: joules by node, time, owner, device and source (:class:`rms.wire.users.EnergyRow`).
  A row that does not fit its checksum is left out of all sums.
- ``tasks``: ``seq``, ``at_s``, ``kind``, ``body`` (MessagePack of a
  :data:`rms.kernels.record.RecordEntry`): the newest :data:`MOST_RECORDED` events of tasks.

``PRAGMA application_id`` tells a journal from other databases, ``PRAGMA user_version`` is
:data:`rms.daemon.store.file.FORMAT`; a journal of another format is refused.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from rms.core.model.cluster import Cluster
from rms.core.model.contention import SharedNode
from rms.core.model.events import Decision, Event
from rms.core.model.jobs import NodePower
from rms.core.policies import named
from rms.daemon.store.file import CountFiles, JournalCount, checksum, prepare, sqlite_errors
from rms.daemon.store.file import JournalError as JournalError
from rms.daemon.store.file import JournalFullError as JournalFullError
from rms.daemon.store.notes import MarkNote, NextNote, Note
from rms.kernels.record import RecordEntry
from rms.wire.files import sync_folder
from rms.wire.users import EnergyRow, HistoryEntry, JobRow

N = TypeVar("N", bound=Note)


# --- entries -------------------------------------------------------------------------------------


class Opened(msgspec.Struct, frozen=True, tag=True):
    """A header: a daemon has started with these nodes, their power models and this policy.

    A :class:`Reopened` follows where the cluster is another than that of the entries before.
    """

    nodes: tuple[str, ...]
    policy: str
    power: tuple[NodePower, ...] = ()
    where: str = ""  # tells a cluster from another one with the same nodes
    widths: tuple[int, ...] = ()  # the nodes' numbers of slots
    at_once: int = 0  # the maximum number of jobs that are resized at once, 0 for any number
    # hosts whose slots are the ``nodes``; ``power`` is theirs then
    shared: tuple[SharedNode, ...] = ()
    levels: tuple[tuple[float, float], ...] = ()  # the frequencies of nodes, with voltages


class PolicySet(msgspec.Struct, frozen=True, tag=True):
    """Another policy decides on every event from here on."""

    at_s: float
    policy: str
    # how the policy before failed on the event before this entry; "" where a user chose. The
    # decisions on that event are of both policies, so no replay decides it again.
    reason: str = ""


class Seen(msgspec.Struct, frozen=True, tag=True):
    """An event and the decisions on it; None if a crash came before these were recorded."""

    seq: int
    event: Event
    decisions: tuple[Decision, ...] | None


Entry = Opened | PolicySet | Seen

_entry = msgspec.msgpack.Decoder(Opened | PolicySet | Event)
_decisions = msgspec.msgpack.Decoder(tuple[Decision, ...])
_recorded = msgspec.msgpack.Decoder(RecordEntry)
_encode = msgspec.msgpack.encode

_ENTER = "INSERT INTO entries (seq, kind, body, sum) VALUES (?, ?, ?, ?)"
_DECIDE = """INSERT OR IGNORE INTO decisions (seq, body, sum) SELECT seq, ?, ? FROM entries
    WHERE seq = ? AND kind NOT IN ('Opened', 'PolicySet')"""
_PAGE = """SELECT seq, entries.body, decisions.body, kind, entries.sum, decisions.sum
    FROM entries LEFT JOIN decisions USING (seq) WHERE seq > ? ORDER BY seq LIMIT 1000"""
_HEADER = "SELECT seq, body, NULL FROM entries WHERE kind = 'Opened' ORDER BY seq LIMIT 1"
# A damaged journal may have decisions on an entry that is lost: its number is not used again.
_NEWEST_ENTRY = """SELECT ifnull(max(seq), 0)
    FROM (SELECT seq FROM entries UNION ALL SELECT seq FROM decisions)"""


# --- snapshots, pruning --------------------------------------------------------------------------

_SNAPSHOTS = "SELECT seq FROM snapshots WHERE seq <= ? ORDER BY seq DESC"
_SAVE = "INSERT OR REPLACE INTO snapshots (seq, body, sum) VALUES (?, ?, ?)"
_PRUNE = (
    """DELETE FROM decisions WHERE seq IN
        (SELECT seq FROM decisions WHERE seq <= ? ORDER BY seq LIMIT ?)""",
    """DELETE FROM entries WHERE seq IN (SELECT seq FROM entries
        WHERE seq <= ? AND seq > (SELECT min(seq) FROM entries WHERE kind = 'Opened')
        ORDER BY seq LIMIT ?)""",
)
PRUNED = 1000  # number of entries that are deleted at once: requests are answered in between


# --- notes, archived jobs, energy, tasks ---------------------------------------------------------

_NOTE = "INSERT OR REPLACE INTO notes (key, value, sum) VALUES (?, ?, ?)"
_NOTES = "SELECT key, value FROM notes WHERE key >= ? AND key < ? ORDER BY key"
_DROP = "DELETE FROM notes WHERE key >= ? AND key <= ?"
_LAST = chr(0x10FFFF)  # behind every character of a key


class Archived(msgspec.Struct, frozen=True):
    """A job that ended long ago: its row and the history of decisions about it."""

    row: JobRow
    history: list[HistoryEntry] = []


class UnknownJobError(ValueError):
    """An id belongs to no job, present or archived."""


_archived = msgspec.msgpack.Decoder(Archived)

_ARCHIVE = "INSERT OR REPLACE INTO over (id, state, body, sum) VALUES (?, ?, ?, ?)"
_ARCHIVED = "SELECT id, body, sum FROM over WHERE id = ? OR (id > ? AND id < ?)"
_ALL_ARCHIVED = "SELECT id, body, sum FROM over WHERE id > ? ORDER BY id LIMIT 1000"
_NEWEST_ARCHIVED = """SELECT id, body, sum FROM over
    WHERE rowid > ? AND rowid <= ? AND instr(body, ?) ORDER BY rowid DESC LIMIT ?"""

_FIELDS = EnergyRow.__struct_fields__
_ROW = ", ".join(_FIELDS)
_WHOLE = f"sum = checksum({_ROW})"
_BOOK = f"INSERT OR REPLACE INTO energy ({_ROW}, sum) VALUES ({', '.join('?' * 13)})"
_BOOKED = f"SELECT {_ROW} FROM energy WHERE {_WHOLE}"
_SUMS = f"""SELECT owner, NULL, resize, node, '', source, max(begin_s), max(end_s), sum(joules),
    sum(uncertainty_j), max(estimate), sum(replaced_j) FROM energy
    WHERE (source != 'model' OR replaced_j != 0) AND {_WHOLE}
    GROUP BY owner, resize, node, source, begin_s >= ?"""
_NEWEST = f"""SELECT {_ROW} FROM energy JOIN (
        SELECT node, max(begin_s) AS newest_s, min(CASE WHEN end_s > ? THEN begin_s END) AS first_s
        FROM energy GROUP BY node
    ) USING (node) WHERE begin_s >= min(newest_s, ifnull(first_s, newest_s)) AND {_WHOLE}
    ORDER BY begin_s"""

MOST_RECORDED = 100_000  # number of events of tasks that are kept; a task has three or four
_RECORD = "INSERT INTO tasks (at_s, kind, body) VALUES (?, ?, ?)"
_FORGET = "DELETE FROM tasks WHERE seq <= (SELECT max(seq) FROM tasks) - ?"


class Journal:
    """An open journal, for one thread at a time. Every method may raise :class:`JournalError`.

    A record that cannot be written for want of room is kept in memory and written, in order, as
    soon as there is room: only :meth:`flush` and :meth:`whole` raise :class:`JournalFullError`.

    Attributes:
        began: its first header as it was when the journal was opened, None if it was new.
        counted: the count beside the journal when it was opened, None if there was none.
        damage: a sentence per lost or damaged record: by checksums and at the end once it is open,
            by gaps once it was read.
        last: the number of the newest entry.
        written, synced: the number of statements that have changed it; how many are on disk.
    """

    def __init__(self, path: Path, db: sqlite3.Connection, damage: Sequence[str] = ()) -> None:
        self.path, self.damage = path, list(damage)
        self._db = db
        self.written, self.synced, self._log = 0, 0, -1
        self._late: dict[tuple[object, ...], tuple[str, tuple[Any, ...]]] = {}
        self._strict = False
        self.last = int(self._run(_NEWEST_ENTRY)[0][0][0])
        self._count = CountFiles(path)
        self.counted = self._count.read()
        if self.counted is not None and self.counted.entries > self.last:
            lost = _missing(self.last + 1, self.counted.entries)
            self.damage.append(f"{lost}: it is damaged, or an older journal was restored")
        self._mark, self._next = self.noted(MarkNote), self.noted(NextNote)
        self._unchecked = max(self.snapshots(), default=0)
        self.began = self._header()
        self._nodes = None if self.began is None else self.began.nodes

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open a journal, or create it; refuse a broken one, one of another format, one in use."""
        with sqlite_errors(path):  # a daemon's threads may share it, behind their lock
            db = sqlite3.connect(path.absolute(), timeout=0, check_same_thread=False)
            try:
                return cls(path, db, prepare(db, path))
            except BaseException:
                db.close()
                raise

    def close(self) -> None:
        """Release the file; a second time does nothing."""
        self._db.close()
        self._count.close()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- entering ----------------------------------------------------------------------------

    def header(self, cluster: Cluster, policy: str, where: str = "", at_once: int = 0) -> None:
        """Enter the start of a daemon.

        The nodes must be those that the journal began with, unless ``where`` states where they
        are. Whether jobs share nodes stays as it was in any case.
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
        kinds_now = [node.processors for node in cluster.shared]
        if (
            self.began is not None
            and not where
            and [node.processors for node in self.began.shared] != kinds_now
        ):
            expected = "nodes with the kinds of processors of the first start"
            raise JournalError(f"{self.path}: expected {expected}, got others")
        opened = Opened(
            names,
            named(policy).key,
            power=cluster.power,
            where=where,
            widths=cluster.widths,
            at_once=at_once,
            shared=cluster.shared,
            levels=cluster.levels,
        )
        with self.whole():
            self._enter(opened)
        self._nodes = names

    def policy(self, name: str, at_s: float) -> None:
        """Enter that another policy decides from here on."""
        self._enter(PolicySet(at_s, named(name).key))

    def append(self, event: Event, notes: Sequence[Note] = ()) -> int:
        """Enter an event and notes, all or nothing; return the event's sequence number."""
        if not notes:
            return self._enter(event)
        self._together(lambda: self._enter(event), notes)
        return self.last

    def decided(self, seq: int, decisions: Sequence[Decision]) -> None:
        """Enter the decisions on an event, once."""
        body = _encode(tuple(decisions))
        written = self._write(("decided", seq), _DECIDE, body, checksum(seq, body), seq)
        if written == 0:
            raise JournalError(f"{self.path}: expected an event without decisions, got entry {seq}")

    def replaced(self, seq: int, decisions: Sequence[Decision], entry: PolicySet) -> None:
        """Enter the decisions on an event on which the policy failed, and its replacement."""

        def enter() -> None:
            self.decided(seq, decisions)
            self._enter(entry)

        self._together(enter)

    def _enter(self, entry: Opened | PolicySet | Event) -> int:
        if self._nodes is None and not isinstance(entry, Opened):
            raise JournalError(f"{self.path}: expected a header first, got {type(entry).__name__}")
        seq, kind, body = self.last + 1, type(entry).__name__, _encode(entry)
        self._write(("entry", seq), _ENTER, seq, kind, body, checksum(seq, kind, body))
        self.last = seq
        return seq

    # --- notes -------------------------------------------------------------------------------

    def note(self, *notes: Note) -> None:
        """Write notes, all or nothing; a note replaces the one of its key."""
        if len(notes) > 1:
            self._together(lambda: None, notes)
            return
        for note in notes:
            key, value = note.key, note.value()
            self._write(("note", key), _NOTE, key, value, checksum(key, value))
            if isinstance(note, MarkNote):
                self._mark = note
            elif isinstance(note, NextNote):
                self._next = note

    def noted(self, kind: type[N], of: str = "") -> N:
        """Return the note of a kind about a job, a host and the like; default values without."""
        key = kind(of).key
        rows, _ = self._run(_NOTES, key, f"{key}\0")
        return kind.read(rows[0][1]) if rows else kind(of)

    def notes(self, kind: type[N]) -> dict[str, N]:
        """Return the notes of a kind by the ids or names that they are about, sorted."""
        prefix, notes = f"{kind.kind()}/", list[N]()
        for key, value in self._run(_NOTES, prefix, f"{prefix}{_LAST}")[0]:
            try:
                notes.append(kind.read(value))
            except ValueError as error:
                self._add_damage(f"note {key} is damaged: {error}")
        return {note.of: note for note in notes}

    # --- archived jobs -----------------------------------------------------------------------

    def archive(self, jobs: Sequence[Archived], keys: Iterable[str]) -> None:
        """Keep the rows of ended jobs, and drop notes by keys or prefixes (with a slash)."""
        with self.whole():
            for job in jobs:
                body, job_id = _encode(job), job.row.id
                self._run(_ARCHIVE, job_id, job.row.state, body, checksum(job_id, body))
            ends = [(key, key + _LAST if key.endswith("/") else key) for key in keys]
            self._run(_DROP, *ends, many=True)

    def archived(self, job: str) -> list[Archived]:
        """Return the archived job of an id; of an array's id all archived jobs of it."""
        return _whole(self._run(_ARCHIVED, job, f"{job}_", f"{job}_{_LAST}")[0])

    def all_archived(self) -> Iterator[Archived]:
        """Yield all archived jobs, page by page."""
        after = ""
        while rows := self._run(_ALL_ARCHIVED, after)[0]:
            yield from _whole(rows)
            after = rows[-1][0]

    def archived_number(self) -> int:
        """Return the number of archived jobs."""
        return int(self._run("SELECT ifnull(max(rowid), 0) FROM over")[0][0][0])

    def newest_archived(self, skip: int, most: int, text: str = "") -> list[Archived]:
        """Return at most so many archived jobs, or those with a text among these, newest first."""
        last = self.archived_number() - skip
        return _whole(self._run(_NEWEST_ARCHIVED, last - most, last, text.encode(), most)[0])

    def archived_states(self, array: str) -> list[tuple[str, str]]:
        """Return the ids and states of the archived jobs of an array."""
        within = "SELECT id, state FROM over WHERE id > ? AND id < ?"
        return list(self._run(within, f"{array}_", f"{array}_{_LAST}")[0])

    def archived_ids(self) -> set[str]:
        """Return the ids of all archived jobs."""
        return {job for (job,) in self._run("SELECT id FROM over")[0]}

    def archived_among(self, jobs: Iterable[str]) -> list[str]:
        """Return the archived ones of these jobs."""
        if not self._run("SELECT 1 FROM over LIMIT 1")[0]:
            return []
        return [job for job in jobs if self._run("SELECT 1 FROM over WHERE id = ?", job)[0]]

    # --- energy ------------------------------------------------------------------------------

    def book(self, rows: Sequence[EnergyRow], notes: Sequence[Note] = ()) -> None:
        """Enter energy and notes, all or nothing; a row replaces the one of its key."""

        def enter() -> None:
            for row in rows:
                key = row.node, row.begin_s, row.owner, row.device, row.source
                values = msgspec.structs.asdict(row)
                for name, value in values.items():  # as SQLite keeps them, for the checksum
                    if name.endswith(("_s", "_j")) or name == "joules":
                        values[name] = float(value)
                values["estimate"] = int(row.estimate)
                body = tuple(values.values())
                self._write(("energy", *key), _BOOK, *body, checksum(*body))

        self._together(enter, notes)

    def energy(self, owner: str | None = None) -> list[EnergyRow]:
        """Return all rows of energy, or those of an owner, by node and time."""
        if owner is None:
            return self._energy_rows(_BOOKED)
        return self._energy_rows(f"{_BOOKED} AND owner = ?", owner)

    def energy_sums(self, since_s: float) -> list[EnergyRow]:
        """Return sums of rows by owner, resize, node and source; those begun since a time apart."""
        return self._energy_rows(_SUMS, since_s)

    def newest_energy(self, since_s: float) -> list[EnergyRow]:
        """Return the rows of every node's last span, and all that end after a time, rising."""
        return self._energy_rows(_NEWEST, since_s)

    def _energy_rows(self, statement: str, *values: Any) -> list[EnergyRow]:
        return [
            msgspec.convert(dict(zip(_FIELDS, row, strict=True)), EnergyRow, strict=False)
            for row in self._run(statement, *values)[0]
        ]

    # --- events of tasks ---------------------------------------------------------------------

    def record(self, entries: Sequence[RecordEntry]) -> None:
        """Keep events of tasks, where there is room, and delete the oldest."""
        rows = [(entry.at_s, type(entry).__name__, _encode(entry)) for entry in entries]
        with contextlib.suppress(JournalFullError), self.whole():
            self._run(_RECORD, *rows, many=True)
            self._run(_FORGET, MOST_RECORDED)

    def recorded(self) -> list[RecordEntry]:
        """Return the events of tasks, in order."""
        rows, _ = self._run("SELECT seq, body FROM tasks ORDER BY seq")
        try:
            return [_recorded.decode(body) for _, body in rows]
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise JournalError(f"{self.path}: expected tasks' entries, got: {error}") from None

    # --- reading -----------------------------------------------------------------------------

    def read(self, after: int = 0) -> Iterator[Entry]:
        """Yield every whole entry behind ``after`` in order, those appended meanwhile included.

        From the beginning (0) a header is the first.
        """
        begins = after == 0
        # Page by page: a reader that stops half-way leaves no open statement, which would lock.
        while rows := self._run(_PAGE, after)[0]:
            for row in rows:
                entry = self._decode(*self._checked(*row))
                if begins and not isinstance(entry, Opened) and (header := self._header()):
                    yield header  # the first is lost: the next serves
                if after + 1 < row[0]:
                    self._add_damage(_missing(after + 1, row[0] - 1))
                after, begins = row[0], False
                if entry is not None:
                    yield entry

    def since(self, after: int, kinds: Collection[str], most: int) -> tuple[list[Any], int]:
        """Return the newest ``(number, entry)`` of some kinds, and the number of all of these."""
        those = f"FROM entries WHERE seq > ? AND kind IN ({','.join('?' * len(kinds))})"
        number = self._run(f"SELECT count(*) {those}", after, *kinds)[0][0][0]
        newest = f"SELECT seq, body, NULL {those} ORDER BY seq DESC LIMIT ?"
        rows = self._run(newest, after, *kinds, most)[0]
        return [(row[0], self._decode(*row)) for row in reversed(rows)], number

    def _header(self) -> Opened | None:
        rows = self._run(_HEADER)[0]
        entry = self._decode(*rows[0]) if rows else None
        return entry if isinstance(entry, Opened) else None

    def _checked(
        self, seq: int, body: bytes, decided: bytes | None, kind: str, *sums: int | None
    ) -> tuple[int, bytes, bytes | None]:
        """Return an entry and its decisions; check those that were not checked at opening."""
        if seq > self._unchecked:
            return seq, body, decided
        if sums[0] != checksum(seq, kind, body):
            body = b""  # which is no entry
        if decided is not None and sums[1] != checksum(seq, decided):
            self._add_damage(f"the decisions on entry {seq} is damaged")
            decided = None
        return seq, body, decided

    def _decode(self, seq: int, body: bytes, decided: bytes | None) -> Entry | None:
        """Return an entry, None for one that this version cannot have written."""
        try:
            entry: Opened | PolicySet | Event = _entry.decode(body)
            if isinstance(entry, Opened | PolicySet):
                return entry
            return Seen(seq, entry, None if decided is None else _decisions.decode(decided))
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            self._add_damage(f"entry {seq} is damaged: {error}")
            return None

    def _add_damage(self, sentence: str) -> None:
        if sentence not in self.damage:
            self.damage.append(sentence)

    # --- snapshots ---------------------------------------------------------------------------

    def snapshots(self) -> list[int]:
        """Return the numbers of the entries after which there are snapshots, newest first."""
        return [seq for (seq,) in self._run(_SNAPSHOTS, self.last)[0]]

    def snapshot(self, seq: int) -> bytes:
        """Return the snapshot after an entry."""
        body: bytes = self._run("SELECT body FROM snapshots WHERE seq = ?", seq)[0][0][0]
        return body

    def begins(self) -> int:
        """Return the entry behind which none is pruned: 0, or that of the oldest snapshot."""
        oldest = min(self.snapshots(), default=0)
        (number,) = self._run("SELECT count(*) FROM entries WHERE seq <= ?", oldest)[0][0]
        return 0 if number == oldest else oldest

    def save(self, body: bytes, keep: int | None, after: int | None = None) -> None:
        """Keep a snapshot, and delete unneeded ones.

        Two are for a start, should the newer be damaged; the others are some of those between,
        from which the rest will begin when older entries are pruned. At least ``keep`` entries stay
        behind the oldest, None for all.
        """
        last = self.last if after is None else after
        older = self.snapshots()[::-1]
        span = last if keep is None else max(1, keep // 4)
        spaced, at = set[int](), -span
        for seq in older:
            if seq >= at + span:
                spaced.add(seq)
                at = seq
        drop = [seq for seq in older[:-1] if seq not in spaced]
        if keep is not None and (beyond := [seq for seq in older if seq <= last - keep]):
            drop += [seq for seq in older if seq < beyond[-1]]
        with self.whole():
            self._run(_SAVE, last, body, checksum(last, body))
            for seq in dict.fromkeys(drop):
                self._run("DELETE FROM snapshots WHERE seq = ?", seq)

    def prune(self, keep: int) -> bool:
        """Delete some entries before the oldest snapshot; return whether there may be more."""
        until = min(self.snapshots(), default=0)
        if until > self.last - keep:
            return False
        with self.whole():
            deleted = [self._run(statement, until, PRUNED)[1].rowcount for statement in _PRUNE]
        return max(deleted) == PRUNED

    # --- transactions, the disk --------------------------------------------------------------

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Write all records of the block at once; after a JournalFullError none is kept."""
        self._catch_up()
        before = self.last, self._mark, self._next
        self._run("BEGIN")
        self._strict = True
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            self.last, self._mark, self._next = before
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        finally:
            self._strict = False

    def _together(self, enter: Callable[[], object], notes: Sequence[Note] = ()) -> None:
        """Enter records in one transaction; on a full disk later, with all that waits then."""

        def work() -> None:
            enter()
            for note in notes:
                self.note(note)

        if self._strict:  # it is part of one already
            work()
            return
        try:
            with self.whole():
                work()
        except JournalFullError:
            work()

    def flush(self) -> None:
        """Write all entered records to disk, so that a power cut does not lose them.

        A killed daemon loses nothing that it entered. After a JournalFullError the records are
        tried again.
        """
        work = self.flushing()
        if work is not None:
            work()

    def flushing(self) -> Callable[[], None] | None:
        """Return a function that flushes the records entered so far, None if all are on disk.

        It may be called in another thread, and raises as :meth:`flush`, as this does.
        """
        self._catch_up()
        upto, counted = self.written, JournalCount(self.last, self._mark, self._next)
        if self.synced >= upto:
            return None
        with self._disk():
            if self._log < 0:
                sync_folder(self.path.absolute().parent)  # that the files are there
                self._log = os.open(f"{self.path.absolute()}-wal", os.O_RDONLY)

        def work() -> None:
            with self._disk():
                os.fsync(self._log)  # as synchronous = FULL does after every statement
            self.synced = max(self.synced, upto)
            self._count.write(counted)

        return work

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            got = f"{self.path}: expected a journal on disk, got {error}"
            raise JournalFullError(got) from None

    def caught_up(self) -> bool:
        """Write the records that are not in the file yet; return whether all are."""
        try:
            self._catch_up()
        except JournalFullError:
            return False
        return True

    def _catch_up(self) -> None:
        """Write the records that did not fit before, at once."""
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

    def _write(self, what: tuple[object, ...], statement: str, *values: Any) -> int | None:
        """Write a record; return the number of rows, None if it is to be written later."""
        if not self._late:
            try:
                return self._run(statement, *values)[1].rowcount
            except JournalFullError:
                if self._strict:
                    raise
        self._late[what] = statement, values
        return None

    def _run(
        self, statement: str, *values: Any, many: bool = False
    ) -> tuple[list[Any], sqlite3.Cursor]:
        with sqlite_errors(self.path):
            execute = self._db.executemany if many else self._db.execute
            cursor = execute(statement, values)
            self.written += not statement.startswith("SELECT")
            return cursor.fetchall(), cursor


def _whole(rows: Iterable[tuple[str, bytes, int]]) -> list[Archived]:
    """Return the archived jobs of rows that fit their checksum."""
    return [_archived.decode(body) for job, body, crc in rows if crc == checksum(job, body)]


def _missing(first: int, last: int) -> str:
    return (
        f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"
    )
