"""Job tables that sites have published, as the records that ``sacct`` would have printed.

PM100: jobs of CINECA's Marconi100 (Antici et al., SC'23 workshops, doi 10.5281/zenodo.10127767);
columns by documentation/job_features.md of github.com/francescoantici/PM100-data.
Eagle: jobs of NREL's cluster of that name (data.openei.org/submissions/5860); columns by the sample
of github.com/NREL/eagle-jobs. Both as Parquet, or as CSV with the same columns.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from rms.formats.config import FileError
from rms.formats.sacct import JOB_ID, Clock, Record, duration_s


class Columns(msgspec.Struct, frozen=True):
    """Which column of a table says what; "" where none does.

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
    "PM100",
    "num_nodes_alloc",
    "num_cores_alloc",
    "time_limit",
    60.0,
    "run_time",
    "job_state",
    "user_id",
    "",
    "",
)
EAGLE = Columns(
    "Eagle",
    "nodes_req",
    "processors_req",
    "wallclock_req",
    1.0,
    "run_time",
    "state",
    "user",
    "account",
    "name",
)
COMMON = ("job_id", "submit_time", "start_time", "end_time")
OTHER = ("eligible_time", "partition")
Row = Mapping[str, Any]


def is_table(first: str) -> bool:
    """Return whether a CSV file is such a table, by its first line."""
    return "submit_time" in first.strip().split(",")


def csv_records(lines: Iterable[str], path: Path, clock: Clock) -> Iterator[Record]:
    """Yield the records of a table that is CSV.

    Raises:
        FileError: it is not one of these tables, or a row does not parse.
    """
    csv.field_size_limit(2**30)  # PM100 has a job's power every 20 s in one field
    try:
        yield from _records(csv.DictReader(lines), path, clock)
    except csv.Error as error:
        raise FileError(f"{path}: expected CSV, got: {error}") from None


def parquet_records(path: Path, clock: Clock) -> Iterator[Record]:
    """Yield the records of a table that is Parquet.

    Raises:
        FileError: pyarrow is not installed, it is not one of these tables, or a row does not parse.
    """
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


def _records(rows: Iterable[Row], path: Path, clock: Clock) -> Iterator[Record]:
    columns: Columns | None = None
    for number, row in enumerate(rows, 1):
        if columns is None:
            columns = _columns(row, path)
        try:
            yield _record(row, columns, clock)
        except ValueError as error:
            raise FileError(f"{path}: expected {error} in job {number} of the table") from None


def _columns(row: Row, path: Path) -> Columns:
    for found in (PM100, EAGLE):
        needed = {*COMMON, found.nodes, found.run, found.state}
        if needed <= set(row):
            return found
    raise FileError(
        f"{path}: expected the columns of PM100 ({', '.join(COMMON)}, {PM100.nodes}, ...) or of "
        f"Eagle ({', '.join(COMMON)}, {EAGLE.nodes}, ...), got {', '.join(map(str, row))[:80]}"
    )


def _record(row: Row, columns: Columns, clock: Clock) -> Record:
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
            found = float(text(name) or 0) * unit
        except ValueError:
            return duration_s(text(name), unit)
        return found if isfinite(found) else 0.0

    submit_s = time("submit_time")
    if submit_s is None:
        raise ValueError("a time in submit_time, got none")
    if not JOB_ID.fullmatch(text("job_id")):
        raise ValueError(f"a job's id, got {text('job_id')[:40]!r}")
    limited = text(columns.limit).upper() not in ("", "INFINITE", "UNLIMITED", "NAN")
    state = text(columns.state).split()
    return Record(
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
