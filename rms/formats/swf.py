"""Traces in the standard workload format (Chapin et al. 1999; Parallel Workloads Archive).

A file that is missing or no trace raises :class:`rms.formats.config.FileError`.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from rms.core.model.jobs import Job, JobId, JobSpec, Mode
from rms.formats.config import FileError
from rms.wire.files import write_output

FIELDS = 18
USER = 11
"""Index of the field with a job's user, the twelfth."""

UNKNOWN = "-1"


@dataclass
class Trace:
    """A trace, and counts of incomplete records.

    Attributes:
        specs: its jobs in the file's order.
        processors: the cluster's size by the header, or None.
        skipped: records without a run time or a size, which are left out.
        raised: jobs whose requested time was below their run time, and was raised to it.
    """

    specs: list[JobSpec]
    processors: int | None
    skipped: int
    raised: int


def read_trace(path: Path, *, mode: Mode = Mode.FIXED) -> Trace:
    """Read a trace, also a compressed one.

    A job's size is the requested one, else the allocated one; its limit is the requested time. Its
    account is its user's number, "" without one.
    """
    trace = Trace([], None, 0, 0)
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="ascii", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.startswith(";"):
                    _record(line, number, path, mode, trace)
                    continue
                name, _, value = line.lstrip("; ").partition(":")
                if name == "MaxProcs" and value.split()[:1] and value.split()[0].isdigit():
                    trace.processors = int(value.split()[0])
    except FileNotFoundError:
        raise FileError(f"expected a trace, got {path}, which does not exist") from None
    except (OSError, EOFError) as error:
        raise FileError(f"{path}: expected a trace, got: {error}") from None
    if not trace.specs:
        raise FileError(f"{path}: expected at least one job that ran, got none")
    return trace


def _record(line: str, number: int, path: Path, mode: Mode, trace: Trace) -> None:
    fields = line.split()
    if not fields:
        return
    try:
        submit, run, allocated, requested, limit = (float(fields[at]) for at in (1, 3, 4, 7, 8))
        if not isfinite(submit + run + allocated + requested + limit):
            raise ValueError(line)
    except (ValueError, IndexError):
        raise FileError(
            f"{path}: expected {FIELDS} numbers in line {number}, got {line.strip()[:60]!r}"
        ) from None
    size = int(requested if requested > 0 else allocated)
    if size < 1 or run < 0:
        trace.skipped += 1
        return
    if submit < 0:
        raise FileError(
            f"{path}: expected a submission at 0 or later in line {number}, got {submit:g}"
        )
    if 0 < limit < run:
        trace.raised += 1
        limit = run
    user = fields[USER] if len(fields) > USER else UNKNOWN
    trace.specs.append(
        JobSpec(
            JobId(fields[0]),
            submit,
            size,
            size,
            size,
            mode,
            limit_s=limit if limit > 0 else None,
            run_s=run,
            account="" if user == UNKNOWN else sys.intern(user),
        )
    )


def write_trace(path: Path, jobs: Iterable[Job], nodes: int, note: str) -> None:
    """Write ended jobs as a trace, with their real waits and run times.

    A job whose id is no number (``7_3``) has its place in ``jobs`` as its number. Its account is
    its user, by number: named accounts are numbered in the order of their jobs.
    """
    over = [job for job in jobs if job.start_s is not None and job.end_s is not None]
    numbered = all(job.spec.id.isdecimal() for job in over)
    users = _numbers(job.spec.account for job in over)
    lines = [f"; MaxProcs: {nodes}", f"; Note: {note}"]
    for number, job in enumerate(over, 1):
        spec = job.spec
        assert job.start_s is not None and job.end_s is not None
        limit = -1 if spec.limit_s is None else spec.limit_s
        values = [
            spec.id if numbered else number,
            f"{spec.submit_s:.10g}",
            f"{job.start_s - spec.submit_s:.10g}",
            f"{job.end_s - job.start_s:.10g}",
            job.size,
            -1,
            -1,
            spec.preferred,
            f"{limit:.10g}",
            -1,
            int(job.state == "COMPLETED"),
            users[spec.account],
            *[-1] * 6,
        ]
        lines.append(" ".join(map(str, values)))
    write_output(path, "\n".join(lines) + "\n")


def _numbers(accounts: Iterable[str]) -> dict[str, str]:
    """Return the numbers of accounts, their own if all have one; "" is unknown."""
    names = dict.fromkeys(name for name in accounts if name)
    own = all(name.isdecimal() for name in names)
    numbers = {name: name if own else str(place) for place, name in enumerate(names, 1)}
    return {"": UNKNOWN, **numbers}
