"""A cluster's past as a workload: accounting records become jobs with a size and a run time.

Records are the output of ``sacct --parsable2``, one :class:`LogRecord` per line of a job, or rows
of tables that sites have published.

Columns go by the names in the header, in any order. A job name may hold the separator: surplus
fields of a line then belong to the name, unless another column is free text too. A file that is
missing or of another form raises :class:`rms.formats.config.FileError`.
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import msgspec

from rms.core.model.jobs import JobId, JobSpec, Mode, sort_key
from rms.formats.config import FileError
from rms.formats.values import ScriptError, parse_ids, seconds_of

COMMAND = (
    "SLURM_TIME_FORMAT=%s sacct --allusers --allocations --duplicates --parsable2 --noconvert"
    " --starttime 2025-01-01 --endtime now \\\n    --format="
    "JobID,User,Account,Partition,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,"
    "AllocNodes,NNodes,AllocCPUS,State,JobName"
)
"""The command for a login node. ``%s`` gives seconds since 1970, without changes of clocks; the
job's name comes last, so that no part of it can be taken for another column."""

_NEVER = frozenset(("", "Unknown", "None", "N/A", "INVALID", "NaT", "nan"))
_NO_LIMIT = frozenset(("UNLIMITED", "PARTITION_LIMIT", "INFINITE", "NOT_SET"))
_FREE_TEXT = ("jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir")
JOB_ID = re.compile(r"(\d+(?:_(?:\d+|\[[^\]]*\]?))?(?:\+\d+)?)(\..*)?", re.ASCII)
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([KM]?)", re.ASCII)
MISSING = -1
"""Place of a column that a file lacks: behind all others, in an empty field."""

_UNITS = {"": 1, "K": 1024, "M": 1024**2}


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One line of accounting: a job, a part of a heterogeneous one, or one of its attempts.

    Attributes:
        id: as Slurm writes it, also ``123_[5-9]`` and ``123+1``.
        submit_s, eligible_s, start_s, end_s: times in s, None where there is none yet.
        elapsed_s: run time, without the time it was suspended; None where it is not stated.
        limit_s: requested run time, None where it is unlimited or not stated.
        nodes, cpus: its allocation, 0 for none.
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


class LogClock:
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
            at_s, absolute = float(text), True
            if not at_s:
                return None
        else:
            at = datetime.fromisoformat(text)
            absolute = at.tzinfo is not None
            at_s = (at if absolute else at.replace(tzinfo=UTC)).timestamp()
        if self._absolute is None:
            self._absolute = absolute
        if absolute is not self._absolute:
            raise ValueError("times of one kind in all files, local or since 1970")
        return at_s


def records(
    lines: Iterable[str], path: Path, clock: LogClock, counts: Counter[str]
) -> Iterator[LogRecord]:
    """Yield the records in the lines of a file, in their order.

    Args:
        path: the file, for error messages.
        clock: one for all files of a log.
        counts: counts of lines that are no record of a job, by kind.
    """
    reader: _SacctReader | None = None
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        if reader is None or reader.is_header(text):
            reader = _SacctReader(text, path, clock)
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


class _SacctReader:
    """Turns lines into records by the names of their columns."""

    def __init__(self, header: str, path: Path, clock: LogClock) -> None:
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
        """Return whether the line has names, as in concatenated files."""
        return "JobID" in text and "Submit" in text.split(self._separator)

    def record(self, text: str) -> LogRecord | None:
        """Return the record of a line, None for a step.

        Raises:
            ValueError: it does not parse; the message continues after "expected".
        """
        fields = self._fields(text)
        job_id = JOB_ID.fullmatch(fields[self._id])
        if job_id is None:
            raise ValueError(f"a job's id, got {fields[self._id][:40]!r}")
        if job_id[2] is not None:
            return None
        submit_s = self._time(fields[self._submit], "Submit")
        eligible_s = self._time(fields[self._eligible], "Eligible")
        submit_s = eligible_s if submit_s is None else submit_s
        if submit_s is None:
            raise ValueError("a time in Submit, got none")
        elapsed, limit = fields[self._elapsed], fields[self._limit]
        unlimited = limit in _NEVER or limit.upper() in _NO_LIMIT
        state = fields[self._state]
        return LogRecord(
            job_id[1],
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
        """Return the fields of a line, and an empty one for missing columns."""
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
        """Return the number of the second column, if the first is missing or empty."""
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
    parsed = _COUNT.fullmatch(text)
    if parsed is None:
        raise ValueError(f"a number of nodes or CPUs, got {text[:40]!r}")
    return round(float(parsed[1]) * _UNITS[parsed[2]])


def duration_s(text: str, unit_s: float) -> float:
    """Return the seconds of ``1-02:03:04``, ``02:03:04``, ``03:04``, or of a bare number.

    Args:
        unit_s: the unit of a bare number.

    Raises:
        ValueError: the text does not parse; the message continues after "expected".
    """
    if text.isdecimal():
        return float(text) * unit_s
    seconds = seconds_of(text.partition(".")[0], unit_s) if ":" in text else None
    if seconds is None:
        raise ValueError(f"a duration like 1-02:03:04, got {text[:40]!r}")
    return seconds


# --- Job tables that sites have published ---------------------------------------------------------
#
# PM100: jobs of CINECA's Marconi100 (Antici et al., SC'23 workshops, doi 10.5281/zenodo.10127767);
# columns by documentation/job_features.md of github.com/francescoantici/PM100-data.
# Eagle: jobs of NREL's cluster of that name (data.openei.org/submissions/5860); columns by the
# sample of github.com/NREL/eagle-jobs. Both as Parquet, or as CSV with the same columns.


class Columns(msgspec.Struct, frozen=True):
    """Names of the columns of a table; "" for missing ones.

    Attributes:
        limit_s: unit of the requested time, in s.
    """

    name: str
    nodes: str
    cpus: str
    limit: str
    limit_s: float
    run: str
    state: str
    user: str
    account: str
    job_name: str


PM100 = Columns(
    *("PM100", "num_nodes_alloc", "num_cores_alloc", "time_limit", 60.0, "run_time", "job_state"),
    *("user_id", "", ""),
)
EAGLE = Columns(
    *("Eagle", "nodes_req", "processors_req", "wallclock_req", 1.0, "run_time", "state"),
    *("user", "account", "name"),
)
COMMON = ("job_id", "submit_time", "start_time", "end_time")
OTHER = ("eligible_time", "partition")
Row = Mapping[str, Any]


def parquet_records(path: Path, clock: LogClock) -> Iterator[LogRecord]:
    """Yield the records of a table that is Parquet."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise FileError(
            f"expected pyarrow to read {path}: pip install 'malleable-mpi[parquet]', or bring CSV"
        ) from None
    wanted = {*COMMON, *OTHER, *msgspec.structs.astuple(PM100), *msgspec.structs.astuple(EAGLE)}
    try:
        file = parquet.ParquetFile(path)
        names = [name for name in file.schema_arrow.names if name in wanted]
        batches = file.iter_batches(columns=names)
        yield from _records((row for batch in batches for row in batch.to_pylist()), path, clock)
    except ArrowException as error:
        raise FileError(f"{path}: expected a Parquet file, got: {error}") from None


def _records(rows: Iterable[Row], path: Path, clock: LogClock) -> Iterator[LogRecord]:
    columns: Columns | None = None
    for number, row in enumerate(rows, 1):
        if columns is None:
            columns = _columns(row, path)
        try:
            yield _record(row, columns, clock)
        except ValueError as error:
            raise FileError(f"{path}: expected {error} in job {number} of the table") from None


def _columns(row: Row, path: Path) -> Columns:
    for table in (PM100, EAGLE):
        needed = {*COMMON, table.nodes, table.run, table.state}
        if needed <= set(row):
            return table
    raise FileError(
        f"{path}: expected the columns of PM100 ({', '.join(COMMON)}, {PM100.nodes}, ...) or of "
        f"Eagle ({', '.join(COMMON)}, {EAGLE.nodes}, ...), got {', '.join(map(str, row))[:80]}"
    )


def _record(row: Row, columns: Columns, clock: LogClock) -> LogRecord:
    def text(name: str) -> str:
        value = row.get(name)
        return "" if value is None else str(value)

    def time(name: str) -> float | None:
        value = row[name]
        try:
            return clock.read(value.isoformat() if isinstance(value, datetime) else text(name))
        except ValueError:
            raise ValueError(f"a time in {name}, got {text(name)[:40]!r}") from None

    def number(name: str, unit: float = 1.0) -> float:
        try:
            value = float(text(name) or 0) * unit
        except ValueError:
            return duration_s(text(name), unit)
        return value if isfinite(value) else 0.0

    submit_s = time("submit_time")
    if submit_s is None:
        raise ValueError("a time in submit_time, got none")
    if not JOB_ID.fullmatch(text("job_id")):
        raise ValueError(f"a job's id, got {text('job_id')[:40]!r}")
    limited = text(columns.limit).upper() not in ("", "INFINITE", "UNLIMITED", "NAN")
    state = text(columns.state).split()
    return LogRecord(
        text("job_id"),
        submit_s,
        None if "eligible_time" not in row else time("eligible_time"),
        time("start_time"),
        time("end_time"),
        number(columns.run),
        number(columns.limit, columns.limit_s) or None if limited else None,
        round(number(columns.nodes)),
        round(number(columns.cpus)),
        state[0] if state else "",
        sys.intern(text(columns.user)),
        sys.intern(text(columns.account)),
        sys.intern(text("partition")),
        text(columns.job_name),
    )


# --- From records to jobs -------------------------------------------------------------------------
#
# Records that are left out or changed are counted: steps, jobs that never started or still run,
# parts of heterogeneous jobs, attempts that were requeued, records of one job at several sizes.

Unit = Literal["nodes", "cpus"]
"""The unit of a job's size."""

NO_LIMIT_FROM_S = 365 * 86400.0
"""Slurm calls jobs without a limit unlimited, or gives them a year."""

CLOCK_CHANGE_S = 3600.0
HALF = 0.5
"""A job with fewer than this share of its nodes' CPUs is taken to share them."""


class LoggedJob(msgspec.Struct, frozen=True, gc=False):
    """A job that has run.

    Attributes:
        id: as Slurm writes it; later attempts of a requeued job are ``123#2``, ``123#3``.
        submit_s: when it was eligible to run (no hold, dependency or begin time left), in s since
            the first such time of the log.
        start_s, run_s: when it started, on the same clock, and how long it ran.
        size: nodes, or CPUs.
        limit_s: requested run time, None where none is stated.
    """

    id: str
    submit_s: float
    start_s: float
    run_s: float
    size: int
    limit_s: float | None
    state: str
    user: str
    account: str
    partition: str
    name: str

    def spec(self, mode: Mode = Mode.FIXED) -> JobSpec:
        """Return it as a job to simulate; a log without accounts has users in their place."""
        size = self.size
        return JobSpec(
            JobId(self.id),
            self.submit_s,
            size,
            size,
            size,
            mode,
            limit_s=self.limit_s,
            run_s=self.run_s,
            account=self.account or self.user,
        )


class JobLog(msgspec.Struct):
    """The jobs of a log, by submission, and counts of changed records.

    Attributes:
        begin_s: the time that is 0 on the jobs' clock, in s since 1970 (of local times: as if UTC).
        largest: the most nodes (or CPUs) that they held at once.
        counts: how many records were left out or changed, by kind.
        shared: share of jobs, and of node time, with less than half of the CPUs of their nodes.
    """

    jobs: list[LoggedJob]
    begin_s: float
    largest: int
    counts: dict[str, int]
    shared: tuple[float, float] = (0.0, 0.0)

    def figures(self, processors: int, by: Unit) -> dict[str, Any]:
        """Return figures of the log: the counts, and waits and utilization as they were.

        Args:
            processors: size of the cluster, in nodes or CPUs.
        """
        jobs = self.jobs
        end_s = max(job.start_s + job.run_s for job in jobs)
        busy = sum(job.size * job.run_s for job in jobs)
        return {
            "begin": datetime.fromtimestamp(self.begin_s, UTC).isoformat()[:19],
            "jobs": len(jobs),
            "sizes": by,
            "cluster": processors,
            "counts": self.counts,
            "largest_held_at_once": self.largest,
            "share_of_jobs_on_parts_of_nodes": self.shared[0],
            "share_of_node_time_on_parts_of_nodes": self.shared[1],
            "mean_wait_s": fmean(job.start_s - job.submit_s for job in jobs),
            "mean_turnaround_s": fmean(job.start_s + job.run_s - job.submit_s for job in jobs),
            "mean_bounded_slowdown": fmean(
                max(1.0, (job.start_s + job.run_s - job.submit_s) / max(job.run_s, 10.0))
                for job in jobs
            ),
            "makespan_s": end_s,
            "utilization": busy / (processors * end_s) if end_s else 0.0,
        }


def read_log(paths: Sequence[Path], by: Unit = "nodes") -> JobLog:
    """Read the files of one cluster's accounting, in any order; repeated records count once."""
    counts: Counter[str] = Counter()
    clock = LogClock()
    rows: list[LogRecord] = []
    for path in paths:
        try:
            rows += _read(path, clock, counts)
        except FileNotFoundError:
            raise FileError(f"expected a log, got {path}, which does not exist") from None
        except (OSError, EOFError) as error:
            raise FileError(f"{path}: expected a log, got: {error}") from None
    log = assemble(rows, by, counts)
    if not log.jobs:
        raise FileError(f"{paths[0]}: expected at least one job that ran, got none")
    return log


def _read(path: Path, clock: LogClock, counts: Counter[str]) -> Iterator[LogRecord]:
    """Yield the records of a file of any kind, read once: it may be a pipe."""
    if path.suffix == ".parquet":
        yield from parquet_records(path, clock)
        return
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", errors="replace") as file:
        first = file.readline()
        lines = chain([first], file)
        if "submit_time" not in first.strip().split(","):
            yield from records(lines, path, clock, counts)
            return
        csv.field_size_limit(2**30)  # PM100 has a job's power every 20 s in one field
        try:
            yield from _records(csv.DictReader(lines), path, clock)
        except csv.Error as error:
            raise FileError(f"{path}: expected CSV, got: {error}") from None


def assemble(rows: Iterable[LogRecord], by: Unit, counts: Counter[str]) -> JobLog:
    """Return the jobs of records.

    Args:
        rows: the records, in any order, some perhaps repeated.
        counts: counts of records that are left out or changed.
    """
    ran = [record for record in _once(rows, counts) if _has_run(record, counts)]
    shared = _sharing(ran)
    attempts = [attempt for job in _by_job(ran) for attempt in _attempts(job, counts)]
    limits = _longest_limits(attempts)
    jobs = [_logged(name, record, by, limits, counts) for name, record in attempts]
    begin_s = min((job.submit_s for job in jobs), default=0.0)
    jobs = [
        msgspec.structs.replace(job, submit_s=job.submit_s - begin_s, start_s=job.start_s - begin_s)
        for job in sorted(jobs, key=lambda job: (job.submit_s, sort_key(job.id.partition("#")[0])))
    ]
    return JobLog(jobs, begin_s, _most_at_once(jobs), dict(sorted((+counts).items())), shared)


def _once(rows: Iterable[LogRecord], counts: Counter[str]) -> Iterator[LogRecord]:
    """Yield every record once; of repeated ones the one with an end."""
    kept: dict[tuple[str, float | None, float | None], LogRecord] = {}
    for record in rows:
        # A job that waited has its start in a later file, so pending ones go by submission.
        at = record.submit_s if record.start_s is None else None
        key = (record.id, record.start_s, at)
        before = kept.get(key)
        if before is None:
            kept[key] = record
            continue
        counts["repeated"] += 1
        if before.end_s is None:
            kept[key] = record
    yield from kept.values()


def _has_run(record: LogRecord, counts: Counter[str]) -> bool:
    """Return whether a record has a start, an end and nodes; else count the reason."""
    over = record.end_s is not None or (record.state not in _NOT_OVER and record.elapsed_s)
    cancelled = record.state == "CANCELLED" and record.elapsed_s == 0.0
    if record.start_s is None or record.nodes < 1 or record.state == "PENDING" or cancelled:
        waits = record.state in ("PENDING", "REQUEUED")
        counts["waiting" if waits else "cancelled_before_start"] += _tasks(record.id)
        return False
    if not over or record.state in _NOT_OVER:
        counts["still_running"] += 1
        return False
    if record.end_s is not None and record.end_s < record.start_s - CLOCK_CHANGE_S:
        counts["ended_before_they_started"] += 1
        return False
    return True


_NOT_OVER = frozenset(("RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING"))


def _tasks(job_id: str) -> int:
    """Return how many jobs ``123_[5-9]`` is."""
    if "[" not in job_id:
        return 1
    try:
        return len(parse_ids(job_id.partition("+")[0]).indices or (0,))
    except ScriptError:  # sacct cuts long lists
        return 1


def _by_job(ran: Sequence[LogRecord]) -> Iterator[list[LogRecord]]:
    """Yield the records of every job by start: its parts, attempts and sizes."""
    groups: defaultdict[str, list[LogRecord]] = defaultdict(list)
    for record in ran:
        groups[record.id.partition("+")[0]].append(record)
    for group in groups.values():
        yield sorted(group, key=lambda record: (record.start_s or 0.0, record.submit_s))


def _attempts(job: Sequence[LogRecord], counts: Counter[str]) -> Iterator[tuple[str, LogRecord]]:
    """Yield the attempts of a job to run, with ids of their own."""
    name = job[0].id.partition("+")[0]
    made: list[LogRecord] = []
    resizing = False
    for parts in _together(job):
        record = _heterogeneous(parts, counts)
        if record.limit_s is not None and record.limit_s >= NO_LIMIT_FROM_S:
            record = msgspec.structs.replace(record, limit_s=None)
        if resizing:
            made[-1] = _resized(made[-1], record)
        else:
            made.append(record)
        resizing = record.state == "RESIZING"
        counts["resizes_in_the_log"] += resizing
    counts["requeued"] += len(made) - 1
    for number, record in enumerate(made, 1):
        yield (name if number == 1 else f"{name}#{number}"), record


def _together(job: Sequence[LogRecord]) -> Iterator[list[LogRecord]]:
    """Yield the parts of every attempt: ids that differ, until one comes again."""
    parts: list[LogRecord] = []
    for record in job:
        if any(record.id == part.id for part in parts):
            yield parts
            parts = []
        parts.append(record)
    yield parts


def _heterogeneous(parts: Sequence[LogRecord], counts: Counter[str]) -> LogRecord:
    """Return the parts of a heterogeneous job, which run together, as one."""
    if len(parts) == 1:
        return parts[0]
    counts["heterogeneous"] += 1
    return msgspec.structs.replace(
        max(parts, key=_run_s),
        nodes=sum(part.nodes for part in parts),
        cpus=sum(part.cpus for part in parts),
    )


def _resized(before: LogRecord, after: LogRecord) -> LogRecord:
    """Return two records of one job, at one size and the next, as one of the same node time."""
    spans = _run_s(before), _run_s(after)
    run_s = sum(spans)
    weights = [span / run_s if run_s else 0.5 for span in spans]
    return msgspec.structs.replace(
        before,
        end_s=after.end_s,
        elapsed_s=run_s,
        nodes=max(1, round(before.nodes * weights[0] + after.nodes * weights[1])),
        cpus=max(1, round(before.cpus * weights[0] + after.cpus * weights[1])),
        state=after.state,
    )


def _run_s(record: LogRecord) -> float:
    """Return the run time: as stated, else from start to end."""
    if record.elapsed_s is not None:
        return record.elapsed_s
    return max(0.0, (record.end_s or 0.0) - (record.start_s or 0.0))


def _longest_limits(attempts: Iterable[tuple[str, LogRecord]]) -> dict[str, float]:
    """Return the longest requested limit by partition, and under "" that of all."""
    longest: dict[str, float] = {}
    for _, record in attempts:
        for name in (record.partition, ""):
            longest[name] = max(longest.get(name, 0.0), record.limit_s or 0.0)
    return longest


def _logged(
    name: str, record: LogRecord, by: Unit, limits: dict[str, float], counts: Counter[str]
) -> LoggedJob:
    start_s, run_s = record.start_s or 0.0, _run_s(record)
    if record.end_s is not None:
        lost_s = record.end_s - start_s - run_s
        changed = abs(abs(lost_s) - CLOCK_CHANGE_S) <= 2.0
        counts["clock_changes"] += changed
        counts["suspended"] += lost_s > 2.0 and not changed
    submit_s = max(record.submit_s, record.eligible_s or record.submit_s)
    counts["held_back"] += submit_s > record.submit_s + 60.0
    if submit_s > start_s:  # local times, and the clocks were put back meanwhile
        submit_s = min(record.submit_s, start_s)
    limit_s = record.limit_s
    if limit_s is None:
        limit_s = limits.get(record.partition) or limits.get("") or None
        counts["without_a_limit"] += 1
    if limit_s is not None and limit_s < run_s:
        counts["raised_limits"] += 1
        limit_s = run_s
    size = record.nodes if by == "nodes" else record.cpus
    if size < 1:
        raise FileError(f"expected AllocCPUS of job {name} with --by cpus, got none")
    labels = record.state, record.user, record.account, record.partition, record.name
    return LoggedJob(name, submit_s, start_s, run_s, size, limit_s, *labels)


def _sharing(ran: Sequence[LogRecord]) -> tuple[float, float]:
    """Return the share of jobs, and of node time, with a part of their nodes' CPUs.

    A node is taken to have as many CPUs as a job of its partition had on one at most.
    """
    cores: dict[str, float] = {}
    for record in ran:
        per_node = record.cpus / record.nodes
        cores[record.partition] = max(cores.get(record.partition, 0.0), per_node)
    part = [row for row in ran if row.cpus < HALF * cores[row.partition] * row.nodes]
    if not part:
        return 0.0, 0.0
    node_s = sum(record.nodes * _run_s(record) for record in ran)
    part_s = sum(record.nodes * _run_s(record) for record in part)
    return len(part) / len(ran), part_s / node_s if node_s else 0.0


def _most_at_once(jobs: Iterable[LoggedJob]) -> int:
    """Return the most that jobs held at one time; ends come before starts of the same time."""
    changes: list[tuple[float, int]] = []
    for job in jobs:
        if job.run_s > 0:
            changes += [(job.start_s, job.size), (job.start_s + job.run_s, -job.size)]
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return max([most, *(job.size for job in jobs)], default=0)
