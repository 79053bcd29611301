"""The journal: what the engine saw and decided, in order, durable before anyone acts on it.

One SQLite file (write-ahead log, flushed when that is asked for), held alone by whoever has it
open, until it closes or dies. Its tables:

- ``entries``: ``seq`` (the order), ``kind`` (the name of the type, for people who query the file),
  ``body`` (MessagePack of an event, :class:`Opened` or :class:`PolicySet`; JSON has no infinity).
- ``decisions``: ``seq`` of the event they answer, ``body`` (MessagePack of all of them, in order).
- ``notes``: ``key``, ``value`` (JSON): the present facts outside the engine.
- ``snapshots``: ``seq`` of an entry, ``body``: the scheduler after it (:mod:`rms.core.scheduler.snapshot`).
  A start goes on from the newest that is whole. Entries up to an older one may be gone, but for
  the first header: what is left begins there.
- ``over``: jobs that have been over for long (:mod:`rms.daemon.retirement`), a row each.
- ``damaged``: records that did not fit their checksum when the journal was opened.
- ``energy``: joules by node, time, owner, device and source (:class:`rms.wire.users.EnergyRow`).
  All of them together are the cluster's, once a daemon has ended; of one that was killed, those of
  the model since the last report or change of hands are missing until it is started again. A row
  that does not fit its checksum counts nowhere: the sums tell that it is missing.
- ``tasks``: ``seq``, ``at_s``, ``kind``, ``body`` (MessagePack of a
  :data:`rms.kernels.record.RecordEntry`): what happened to tasks, the newest
  :data:`rms.daemon.journal_writer.MOST_RECORDED` entries.
  Nothing is decided by it; a power cut may cost its last seconds.

``PRAGMA application_id`` tells a journal from other databases, ``PRAGMA user_version`` is
:data:`FORMAT`. **Raise FORMAT with every change of an event or decision type**, of the types they
hold, or of a table: what was written must never be read as something else. (``energy``,
``tasks`` and ``snapshots`` came later and are made where they are missing: a replay fills the first
by the model.) The file itself is :mod:`rms.daemon.journal_file`, what writes it
:mod:`rms.daemon.journal_writer`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rms.core.model.cluster import Cluster
from rms.core.model.events import Decision, Event
from rms.core.policies import named
from rms.daemon.journal_entries import Entry, Opened, PolicySet, Seen, decode
from rms.daemon.journal_file import FORMAT, JournalError, JournalFullError, checksum, prepare, said
from rms.daemon.journal_writer import Writer

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
