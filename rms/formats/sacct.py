"""What Slurm's ``sacct --parsable2`` prints: one :class:`Record` for each line that is about a job.

Columns go by the names in the header, in any order. A job name may hold the separator: what a line
has too many fields then belongs to the name, as long as no other column is free text.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from rms.formats.config import FileError

COMMAND = (
    "SLURM_TIME_FORMAT=%s sacct --allusers --allocations --duplicates --parsable2 --noconvert"
    " --starttime 2025-01-01 --endtime now \\\n    --format="
    "JobID,User,Account,Partition,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,"
    "AllocNodes,NNodes,AllocCPUS,State,JobName"
)
"""What to type on a login node. ``%s`` gives seconds since 1970, which know no change of clocks;
the job's name comes last, so that nothing in it can be taken for another column."""

_NEVER = frozenset(("", "Unknown", "None", "N/A", "INVALID", "NaT", "nan"))
_NO_LIMIT = frozenset(("UNLIMITED", "PARTITION_LIMIT", "INFINITE", "NOT_SET"))
_FREE_TEXT = ("jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir")
JOB_ID = re.compile(r"(\d+(?:_(?:\d+|\[[^\]]*\]?))?(?:\+\d+)?)(\..*)?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?", re.ASCII)
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([KM]?)", re.ASCII)
MISSING = -1
"""Where a column is that a file has not: behind all others, in a field that is empty."""

_UNITS = {"": 1, "K": 1024, "M": 1024**2}


class Record(msgspec.Struct, frozen=True, gc=False):
    """One line of accounting: a job, a part of a heterogeneous one, or one of its attempts.

    Attributes:
        id: as Slurm writes it, also ``123_[5-9]`` and ``123+1``.
        submit_s, eligible_s, start_s, end_s: times in s, None where there is none yet.
        elapsed_s: run time, without the time it was suspended; None where it is not stated.
        limit_s: requested run time, None where it is unlimited or not stated.
        nodes, cpus: what it was given, 0 if nothing.
        state: by Slurm's name.
    """

    id: str
    submit_s: float
    eligible_s: float | None
    start_s: float | None
    end_s: float | None
    elapsed_s: float | None
    limit_s: float | None
    nodes: int
    cpus: int
    state: str
    user: str = ""
    account: str = ""
    partition: str = ""
    name: str = ""


class Clock:
    """Reads times, and refuses a log that has local times in one place and seconds in another."""

    def __init__(self) -> None:
        self._absolute: bool | None = None

    def read(self, text: str) -> float | None:
        """Return seconds since 1970, of a local time as if it were UTC; None of ``Unknown``.

        Raises:
            ValueError: it is no time, or of another kind than those before it.
        """
        if text in _NEVER:
            return None
        if text.isdecimal():
            found, absolute = float(text), True
            if not found:
                return None
        else:
            at = datetime.fromisoformat(text)
            absolute = at.tzinfo is not None
            found = (at if absolute else at.replace(tzinfo=UTC)).timestamp()
        if self._absolute is None:
            self._absolute = absolute
        if absolute is not self._absolute:
            raise ValueError("times of one kind in all files, local or since 1970")
        return found


def records(
    lines: Iterable[str], path: Path, clock: Clock, counts: Counter[str]
) -> Iterator[Record]:
    """Yield the records in the lines of a file, in their order.

    Args:
        path: the file, to be named where a line is wrong.
        clock: one for all files of a log.
        counts: lines that are no record of a job are entered here, by what they are.

    Raises:
        FileError: it is not what ``sacct --parsable2`` prints.
    """
    reader: _Reader | None = None
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        if reader is None or reader.is_header(text):
            reader = _Reader(text, path, clock)
            continue
        try:
            record = reader.record(text)
        except ValueError as error:
            if not line.endswith("\n"):
                counts["cut_short_lines"] += 1
                continue
            raise FileError(f"{path}: expected {error} in line {number}") from None
        if record is None:
            counts["steps"] += 1
        else:
            yield record


class _Reader:
    """Turns lines into records by the names of their columns."""

    def __init__(self, header: str, path: Path, clock: Clock) -> None:
        self._clock = clock
        separators = set(re.findall(r"[^A-Za-z0-9]+", header))
        self._separator = separators.pop() if len(separators) == 1 else "|"
        names = [name.casefold() for name in header.split(self._separator)]
        self._at = {name: at for at, name in enumerate(names)}
        self._width = len(names)
        self._id = self._first("jobid", "jobidraw")
        self._submit = self._first("submit")
        self._start = self._first("start")
        self._end = self._first("end")
        self._state = self._first("state")
        self._elapsed = self._first("elapsedraw", "elapsed")
        self._nodes = [self._first(name) for name in ("allocnodes", "nnodes")]
        self._cpus = [self._first(name) for name in ("alloccpus", "ncpus")]
        self._limit = self._first("timelimitraw", "timelimit")
        self._eligible = self._first("eligible")
        self._user, self._account = self._first("user"), self._first("account")
        self._partition, self._name = self._first("partition"), self._first("jobname")
        wanted = {
            "JobID": self._id,
            "Submit": self._submit,
            "Start": self._start,
            "State": self._state,
            "AllocNodes or NNodes": max(self._nodes),
            "End or ElapsedRaw": max(self._end, self._elapsed),
        }
        missing = [name for name, at in wanted.items() if at == MISSING]
        if missing or " " in self._separator:
            raise FileError(
                f"{path}: expected a line of names as `sacct --parsable2` prints it, with "
                f"{', '.join(missing or wanted)}, got {header[:60]!r}"
            )
        free = [name for name in _FREE_TEXT if name in self._at]
        self._free = self._at[free[0]] if len(free) == 1 else None

    def _first(self, *names: str) -> int:
        """Return the column with the first of these names that there is."""
        return next((self._at[name] for name in names if name in self._at), MISSING)

    def is_header(self, text: str) -> bool:
        """Return whether the line has names, as where one file was put behind another."""
        return "JobID" in text and "Submit" in text.split(self._separator)

    def record(self, text: str) -> Record | None:
        """Return what a line says, None of a step.

        Raises:
            ValueError: it does not parse; the text goes on after "expected".
        """
        fields = self._fields(text)
        found = JOB_ID.fullmatch(fields[self._id])
        if found is None:
            raise ValueError(f"a job's id, got {fields[self._id][:40]!r}")
        if found[2] is not None:
            return None
        submit_s = self._time(fields[self._submit], "Submit")
        eligible_s = self._time(fields[self._eligible], "Eligible")
        submit_s = eligible_s if submit_s is None else submit_s
        if submit_s is None:
            raise ValueError("a time in Submit, got none")
        elapsed, limit = fields[self._elapsed], fields[self._limit]
        unlimited = limit in _NEVER or limit.upper() in _NO_LIMIT
        state = fields[self._state]
        return Record(
            found[1],
            submit_s,
            eligible_s,
            self._time(fields[self._start], "Start"),
            self._time(fields[self._end], "End"),
            None if elapsed in _NEVER else duration_s(elapsed, 1.0),
            None if unlimited else duration_s(limit, 60.0) or None,
            _count(fields[self._nodes[0]]) or self._other(fields, self._nodes),
            _count(fields[self._cpus[0]]) or self._other(fields, self._cpus),
            state.partition(" ")[0].rstrip("+"),
            sys.intern(fields[self._user]),
            sys.intern(fields[self._account]),
            sys.intern(fields[self._partition]),
            fields[self._name],
        )

    def _fields(self, text: str) -> Sequence[str]:
        """Return the fields of a line, and one more that is empty, for columns it has not."""
        fields = text.split(self._separator)
        more = len(fields) - self._width
        if more > 0 and self._free is not None:
            end = self._free + more + 1
            fields[self._free : end] = [self._separator.join(fields[self._free : end])]
        if len(fields) != self._width:
            raise ValueError(f"{self._width} fields between {self._separator!r}, got {len(fields)}")
        fields.append("")
        return fields

    def _other(self, fields: Sequence[str], columns: Sequence[int]) -> int:
        """Return the number of the second column, where the first is not there or says nothing."""
        return 0 if fields[columns[0]] not in _NEVER else _count(fields[columns[1]])

    def _time(self, text: str, name: str) -> float | None:
        try:
            return self._clock.read(text)
        except ValueError as error:
            wanted = str(error) if str(error).startswith("times") else "a time"
            raise ValueError(f"{wanted} in {name}, got {text[:40]!r}") from None


def _count(text: str) -> int:
    """Return the number in ``12``, ``2K`` or nothing."""
    if text.isdecimal():
        return int(text)
    if text in _NEVER:
        return 0
    found = _COUNT.fullmatch(text)
    if found is None:
        raise ValueError(f"a number of nodes or CPUs, got {text[:40]!r}")
    return round(float(found[1]) * _UNITS[found[2]])


def duration_s(text: str, unit_s: float) -> float:
    """Return the seconds of ``1-02:03:04``, ``02:03:04``, ``03:04``, or of a bare number.

    Args:
        unit_s: what a bare number counts.

    Raises:
        ValueError: it is none of these; the text goes on after "expected".
    """
    if text.isdecimal():
        return float(text) * unit_s
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(f"a duration like 1-02:03:04, got {text[:40]!r}")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(86400 * days + 3600 * hours + 60 * minutes + seconds)
