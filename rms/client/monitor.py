"""Snapshots of a daemon, in a line and a table (``rms top``) and as a report (``rms report``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from rms.client.connection import ServerError, ask
from rms.client.report import Report, watts_by_owner, watts_of
from rms.client.status import ClusterStatus
from rms.core.books.spans import BALANCE, BalanceError
from rms.formats.energy import OwnerEnergy, check_energies, owner_energies
from rms.formats.values import fold_slots
from rms.plots import History, mark_words
from rms.wire.live import Mark
from rms.wire.terminal import clock
from rms.wire.users import OVER, AcctAnswer, BooksAnswer, HistoryEntry, JobRow, NodeRow, Snapshot

JOB_HEADS = "JOBID NAME STATE MODE NODES STEP ENERGY_J SOURCE NODELIST(REASON)"
MODE_HEADS = (
    *("MODE", "JOBS", "COMPLETED", "MEAN WAIT", "95 % WAIT", "SLOWDOWN", "MEAN RUN", "RESIZES"),
    *("ENERGY", "A JOB"),
)
RESIZE_HEADS = "JOBID AT STEP RANKS STRATEGY BOOT STALL MOVE MOVED RATE TOOK SAVES"
BOUND_S = 10.0
"""Shortest run time in a bounded slowdown."""

MOST_ARRAYS = 10
"""Number of the newest arrays in a report."""

MOST_BARS = 20
MOST_HISTORIES = 1000
"""Number of the newest jobs with their decisions in a report."""

END_HEADS = "JOBID NAME STATE MODE WAIT_S RUN_S RESIZES ENERGY_J SOURCE REASON"


def snapshot(server: str) -> Snapshot:
    """Return jobs, nodes and books of a daemon."""
    return Snapshot(
        ask(list[JobRow], server, "GET", "/jobs"),
        ask(list[NodeRow], server, "GET", "/nodes"),
        ask(BooksAnswer, server, "GET", "/books"),
    )


def full_snapshot(server: str) -> Snapshot:
    """Return a snapshot with decisions, and energy by owner, node, device and source."""
    now = snapshot(server)
    accounting = ask(AcctAnswer, server, "GET", "/acct")  # jobs, sums and rows of one time
    books = msgspec.structs.replace(now.books, energy=accounting.energy)
    decisions = {
        job.id: ask(list[HistoryEntry], server, "GET", f"/history/{job.id}")
        for job in accounting.jobs[-MOST_HISTORIES:]
    }
    return Snapshot(accounting.jobs, now.nodes, books, accounting.rows, decisions)


def imbalance(now: Snapshot) -> str:
    """Return the difference between sums of the energy in a sentence, "" if they agree."""
    try:
        accounting = AcctAnswer(now.jobs, now.books.energy, now.rows)
        check_energies(accounting, owner_energies(now.rows), whole=True)
    except BalanceError as error:
        return str(error)
    return ""


def summary(now: Snapshot) -> str:
    """Return one line about the cluster."""
    status, energy = ClusterStatus.of_snapshot(now), now.books.energy
    shared = ", an estimate" if any(part.estimate for part in energy.sources) else ""
    tasks = f", tasks {energy.tasks_j:.0f} J" if energy.tasks_j else ""
    return (
        f"Policy {status.policy}, nodes {status.nodes_words} allocated, {status.jobs_words}, "
        f"power {status.power_w:.0f} W, energy {energy.cluster_j:.0f} J, "
        f"of which jobs {energy.busy_j:.0f} J{tasks}{shared} ({_source(now)})"
    )


def _source(now: Snapshot) -> str:
    """Return the source of the cluster's energy, with shares if there are several."""
    energy = now.books.energy
    return OwnerEnergy.of(energy.sources).sources if energy.sources else energy.power_source


def present_jobs(now: Snapshot) -> list[list[str]]:
    """Return the rows of unfinished jobs under :data:`JOB_HEADS`, running ones first."""
    alive = [job for job in now.jobs if job.state not in OVER]
    alive.sort(key=lambda job: job.state == "PENDING")
    return [
        [
            job.id,
            job.name,
            job.state,
            job.mode,
            job.nodes_words,
            f"{job.step}/{job.steps}" if job.steps else "",
            f"{job.energy_j:.0f}",
            OwnerEnergy.of(job.energy).cells[1],
            fold_slots(job.nodes) or f"({job.reason})",
        ]
        for job in alive
    ]


# --- the report ---------------------------------------------------------------------------------


def write_report(now: Snapshot, folder: Path) -> Path:
    """Write a report of all jobs into a folder; return the path of its page."""
    try:
        return _report(now).write(folder)
    except OSError as error:
        raise ServerError(f"cannot write a report to {folder}: {error.strerror}") from None


def _report(now: Snapshot) -> Report:
    books = now.books
    if not (now.jobs or books.now_s):
        report = Report("rms")
        report.say(f"No events yet. Policy {books.policy}, {len(now.nodes)} nodes.")
        return report
    report = Report(f"rms, {clock(books.now_s, day=True)}")
    report.say(summary(now))
    if books.spans:
        report.head("Nodes over time")
        first = min(span.start_s for span in books.spans)
        history = History(
            nodes=books.nodes,
            spans=books.spans,
            power_w=books.power_w,
            end_s=books.now_s,
            start_s=first,
            power_spans=books.power_spans,
        )
        rows = [row for row in now.rows if row.end_s > first]
        points = watts_by_owner(rows, first, books.now_s) if rows else watts_of(history)
        marks = {
            job.id: [(row.at_s, mark_words(Mark.of(job.id, row))) for row in job.resizes]
            for job in now.jobs
            if job.resizes
        }
        report.over_time(history, points, marks)
    _by_mode(report, now.jobs)
    _arrays(report, now.jobs)
    _energy(report, now)
    _resizes(report, now.jobs)
    report.head("Jobs")
    report.table("jobs", END_HEADS.split(), [_ended(job) for job in now.jobs])
    _decisions(report, now)
    return report


def _ended(job: JobRow) -> list[str]:
    return [
        job.id,
        job.name,
        job.state,
        job.mode,
        _span(job.submit_s, job.start_s),
        _span(job.start_s, job.end_s),
        " ".join(f"{r.from_ranks}→{r.to_ranks}" for r in job.resizes) or "0",
        *OwnerEnergy.of(job.energy).cells,
        job.reason,
    ]


def _by_mode(report: Report, jobs: Sequence[JobRow]) -> None:
    """Add waits, slowdowns and energy of completed jobs, by mode."""
    by_mode: dict[str, list[JobRow]] = {}
    for job in jobs:
        if job.start_s is not None and job.end_s is not None:
            by_mode.setdefault(job.mode, []).append(job)
    if not by_mode:
        return
    rows = []
    for mode, own in by_mode.items():
        waits = sorted((job.start_s or 0.0) - job.submit_s for job in own)
        slow = [_slowdown(job) for job in own]
        joules = sum(job.energy_j for job in own)
        rows.append(
            [
                mode,
                str(len(own)),
                str(sum(job.state == "COMPLETED" for job in own)),
                f"{fmean(waits):.1f} s",
                f"{waits[int(0.95 * (len(waits) - 1))]:.1f} s",
                f"{fmean(slow):.2f}",
                f"{fmean((job.end_s or 0.0) - (job.start_s or 0.0) for job in own):.1f} s",
                str(sum(len(job.resizes) for job in own)),
                f"{joules:.1f} J",
                f"{joules / len(own):.1f} J",
            ]
        )
    report.head("By mode")
    report.table("modes", MODE_HEADS, rows)
    report.say(f"Completed jobs. Slowdown: (wait + run) / run, runs of {BOUND_S:g} s at least.")


def _slowdown(job: JobRow) -> float:
    """Return the bounded slowdown (Feitelson et al. 1997)."""
    start_s, end_s = job.start_s or 0.0, job.end_s or 0.0
    return max(1.0, (end_s - job.submit_s) / max(end_s - start_s, BOUND_S))


def _arrays(report: Report, jobs: Sequence[JobRow]) -> None:
    arrays: dict[str, dict[int, str]] = {}
    for job in jobs:
        array, _, index = job.id.partition("_")
        if index:
            arrays.setdefault(array, {})[int(index)] = job.state
    if arrays:
        report.head("Job arrays")
    for array, states in list(arrays.items())[-MOST_ARRAYS:]:
        report.tasks(array, states)


def _energy(report: Report, now: Snapshot) -> None:
    energy = now.books.energy
    sums = [
        ("busy", energy.busy_j),
        *([("tasks", energy.tasks_j)] if energy.tasks_j else []),
        ("idle", energy.idle_j),
        ("off", energy.off_j),
        ("boot", energy.boot_j),
        ("cluster", energy.cluster_j),
    ]
    report.head(f"Energy (J, {_source(now)})")
    report.table("energy", ("of", "J"), [(name, f"{joules:.1f}") for name, joules in sums])
    _sources(report, now)
    most = sorted(now.jobs, key=lambda job: -job.energy_j)[:MOST_BARS]
    if most and most[0].energy_j > 0.0:
        report.head("Jobs with the most energy", 3)
        report.bars("energy-by-job", [(f"{j.id} {j.name}"[:24], j.energy_j) for j in most], "J")


def _sources(report: Report, now: Snapshot) -> None:
    if not now.rows:
        return
    jobs = {job.id for job in now.jobs}
    owners: dict[str, OwnerEnergy] = {}
    for owner, energy in owner_energies(now.rows).items():
        name = "jobs" if owner in jobs else owner
        owners[name] = owners.get(name, OwnerEnergy()) + energy
    wrong = imbalance(now)
    agree = f"Jobs, tasks, idle, off and boot are the cluster's energy to {BALANCE:g} of it."
    rows = [(name, own.words) for name, own in owners.items()]
    report.table("sources", ("", "energy, source"), rows)
    report.say(f"The books do not balance: {wrong}" if wrong else agree)


def _resizes(report: Report, jobs: Sequence[JobRow]) -> None:
    rows = [
        [
            job.id,
            clock(row.at_s, day=True),
            str(row.step),
            f"{row.from_ranks} → {row.to_ranks}",
            row.strategy,
            f"{row.boot_s:.2f} s",
            f"{row.stall_s:.3f} s",
            f"{row.move_s:.3f} s",
            f"{row.bytes / 1e6:.1f} MB",
            f"{row.gb_per_s:.2f} GB/s",
            "" if row.energy_j is None else f"{row.energy_j:.2f} J",
            "" if row.saved_j is None else f"{row.saved_j:.1f} J",
        ]
        for job in jobs
        for row in job.resizes
    ]
    if rows:
        report.head("Resizes")
        report.table("resizes", RESIZE_HEADS.split(), rows)


def _decisions(report: Report, now: Snapshot) -> None:
    rows = []
    for job, entries in now.decisions.items():
        for entry in entries:
            at, size = clock(entry.at_s, day=True), str(entry.size or "")
            rows.append([at, job, entry.kind, size, entry.code, entry.reason])
    if rows:
        report.head("Decisions")
        rows.sort(key=lambda row: row[0])
        report.table("decisions", ("AT", "JOBID", "WHAT", "NODES", "CODE", "REASON"), rows)


def _span(start: float | None, end: float | None) -> str:
    return "" if start is None or end is None else f"{end - start:.1f}"
