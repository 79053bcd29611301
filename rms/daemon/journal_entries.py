"""What a journal holds: entries with what was decided on them, and rows of energy."""

from __future__ import annotations

from typing import Any

import msgspec

from rms.core.model.contention import SharedNode
from rms.core.model.events import Decision, Event
from rms.core.model.jobs import NodePower
from rms.daemon.journal_file import FORMAT, checksum
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
