"""A cluster's past as a workload: accounting records become jobs with a size and a run time.

What is left out or changed on the way is counted: steps, jobs that never started or still run,
parts of heterogeneous jobs, attempts that were requeued, records of one job at several sizes.
"""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import msgspec

from rms.core.model.jobs import JobId, JobSpec, Mode, sort_key
from rms.formats.config import FileError
from rms.formats.ids import ScriptError, parse_ids
from rms.formats.jobtables import csv_records, is_table, parquet_records
from rms.formats.sacct import Clock, Record, records

Unit = Literal["nodes", "cpus"]
"""What a job's size counts."""

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
    """The jobs of a log, by submission, and what was made of its records.

    Attributes:
        begin_s: the time that is 0 on the jobs' clock, in s since 1970 (of local times: as if UTC).
        largest: the most nodes (or CPUs) that they held at once.
        counts: how many records were left out or changed, by what they were.
        shared: share of jobs, and of node time, with less than half of the CPUs of their nodes.
    """

    jobs: list[LoggedJob]
    begin_s: float
    largest: int
    counts: dict[str, int]
    shared: tuple[float, float] = (0.0, 0.0)

    def figures(self, processors: int, by: Unit) -> dict[str, Any]:
        """Return what happened, by the log: the counts, and waits and utilization as they were.

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
    """Read the files of one cluster's accounting, in any order; what two of them have counts once.

    Raises:
        FileError: one is missing, is not such a file, or no job in them has run.
    """
    counts: Counter[str] = Counter()
    clock = Clock()
    found: list[Record] = []
    for path in paths:
        try:
            found += _read(path, clock, counts)
        except FileNotFoundError:
            raise FileError(f"expected a log, got {path}, which does not exist") from None
        except (OSError, EOFError) as error:
            raise FileError(f"{path}: expected a log, got: {error}") from None
    log = assemble(found, by, counts)
    if not log.jobs:
        raise FileError(f"{paths[0]}: expected at least one job that ran, got none")
    return log


def _read(path: Path, clock: Clock, counts: Counter[str]) -> Iterator[Record]:
    """Yield the records of a file of whatever kind, read once: it may be a pipe."""
    if path.suffix == ".parquet":
        yield from parquet_records(path, clock)
        return
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", errors="replace") as file:
        first = file.readline()
        lines = chain([first], file)
        if is_table(first):
            yield from csv_records(lines, path, clock)
        else:
            yield from records(lines, path, clock, counts)


def assemble(found: Iterable[Record], by: Unit, counts: Counter[str]) -> JobLog:
    """Return the jobs that records tell of.

    Args:
        found: the records, in any order, some perhaps several times.
        counts: what was left out or changed is entered here too.
    """
    ran = [record for record in _once(found, counts) if _has_run(record, counts)]
    shared = _sharing(ran)
    attempts = [attempt for job in _by_job(ran) for attempt in _attempts(job, counts)]
    attempts = [(name, _without_endless_limit(record)) for name, record in attempts]
    limits = _longest_limits(attempts)
    jobs = [_logged(name, each, by, limits, counts) for name, each in attempts]
    begin_s = min((job.submit_s for job in jobs), default=0.0)
    jobs = [
        msgspec.structs.replace(job, submit_s=job.submit_s - begin_s, start_s=job.start_s - begin_s)
        for job in sorted(jobs, key=_in_turn)
    ]
    return JobLog(jobs, begin_s, _most_at_once(jobs), dict(sorted((+counts).items())), shared)


def _in_turn(job: LoggedJob) -> tuple[float, tuple[int, int]]:
    """Return what jobs are sorted by: submission, then id, which rises with it."""
    return job.submit_s, sort_key(job.id.partition("#")[0])


def _once(found: Iterable[Record], counts: Counter[str]) -> Iterator[Record]:
    """Yield each record once; of one that still ran in one file, what another says of its end."""
    kept: dict[tuple[str, float | None, float | None], Record] = {}
    for record in found:
        # A job that waited has its start in a later file, so waiting ones are told by submission.
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


def _has_run(record: Record, counts: Counter[str]) -> bool:
    """Return whether a record has a start, an end and nodes; else enter why not."""
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


def _by_job(ran: Sequence[Record]) -> Iterator[list[Record]]:
    """Yield the records of each job by start: its parts, attempts and sizes."""
    groups: defaultdict[str, list[Record]] = defaultdict(list)
    for record in ran:
        groups[record.id.partition("+")[0]].append(record)
    for group in groups.values():
        yield sorted(group, key=lambda record: (record.start_s or 0.0, record.submit_s))


def _attempts(job: Sequence[Record], counts: Counter[str]) -> Iterator[tuple[str, Record]]:
    """Yield each attempt of a job to run, with an id of its own."""
    name = job[0].id.partition("+")[0]
    made: list[Record] = []
    resizing = False
    for parts in _together(job):
        record = _heterogeneous(parts, counts)
        if resizing:
            made[-1] = _resized(made[-1], record)
        else:
            made.append(record)
        resizing = record.state == "RESIZING"
        counts["resizes_in_the_log"] += resizing
    counts["requeued"] += len(made) - 1
    for number, record in enumerate(made, 1):
        yield (name if number == 1 else f"{name}#{number}"), record


def _together(job: Sequence[Record]) -> Iterator[list[Record]]:
    """Yield the parts of each attempt: ids that differ, until one comes again."""
    parts: list[Record] = []
    for record in job:
        if any(record.id == part.id for part in parts):
            yield parts
            parts = []
        parts.append(record)
    yield parts


def _heterogeneous(parts: Sequence[Record], counts: Counter[str]) -> Record:
    """Return the parts of a heterogeneous job, which run together, as one."""
    if len(parts) == 1:
        return parts[0]
    counts["heterogeneous"] += 1
    return msgspec.structs.replace(
        max(parts, key=_run_s),
        nodes=sum(part.nodes for part in parts),
        cpus=sum(part.cpus for part in parts),
    )


def _resized(before: Record, after: Record) -> Record:
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


def _run_s(record: Record) -> float:
    """Return how long it ran: as stated, else from start to end."""
    if record.elapsed_s is not None:
        return record.elapsed_s
    return max(0.0, (record.end_s or 0.0) - (record.start_s or 0.0))


def _without_endless_limit(record: Record) -> Record:
    if record.limit_s is None or record.limit_s < NO_LIMIT_FROM_S:
        return record
    return msgspec.structs.replace(record, limit_s=None)


def _longest_limits(attempts: Iterable[tuple[str, Record]]) -> dict[str, float]:
    """Return the longest limit that a job of each partition has requested, "" for all."""
    longest: dict[str, float] = {}
    for _, record in attempts:
        for name in (record.partition, ""):
            longest[name] = max(longest.get(name, 0.0), record.limit_s or 0.0)
    return longest


def _logged(
    name: str, record: Record, by: Unit, limits: dict[str, float], counts: Counter[str]
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
    return LoggedJob(
        name,
        submit_s,
        start_s,
        run_s,
        size,
        limit_s,
        record.state,
        record.user,
        record.account,
        record.partition,
        record.name,
    )


def _sharing(ran: Sequence[Record]) -> tuple[float, float]:
    """Return the share of jobs, and of node time, with a part of their nodes' CPUs.

    A node is taken to have as many CPUs as a job of its partition had on one at most.
    """
    cores: dict[str, float] = {}
    for record in ran:
        per_node = record.cpus / record.nodes
        cores[record.partition] = max(cores.get(record.partition, 0.0), per_node)
    part = [each for each in ran if each.cpus < HALF * cores[each.partition] * each.nodes]
    if not part:
        return 0.0, 0.0
    node_s = sum(each.nodes * _run_s(each) for each in ran)
    part_s = sum(each.nodes * _run_s(each) for each in part)
    return len(part) / len(ran), part_s / node_s if node_s else 0.0


def _most_at_once(jobs: Iterable[LoggedJob]) -> int:
    """Return the most that jobs held at one time; who ends at a time gives way to who starts."""
    changes: list[tuple[float, int]] = []
    for job in jobs:
        if job.run_s > 0:
            changes += [(job.start_s, job.size), (job.start_s + job.run_s, -job.size)]
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return max([most, *(job.size for job in jobs)], default=0)
