"""What ``rms top`` and ``rms report`` show: the daemon's present and past, for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from rms.client.connection import ServerError, ask
from rms.client.report import Report, watts_by_owner, watts_of
from rms.core.books.spans import BALANCE, BalanceError
from rms.drawings import clock
from rms.formats.energy import Account, accounts, check_accounts
from rms.formats.values import fold_slots
from rms.plots import History
from rms.wire.users import (
    OVER,
    Accounts,
    Books,
    BooksAnswer,
    HistoryEntry,
    JobRow,
    NodeRow,
    Snapshot,
)

JOB_HEADS = (
    *("JOBID", "NAME", "STATE", "MODE", "NODES", "STEP", "ENERGY_J", "SOURCE"),
    "NODELIST(REASON)",
)
MODE_HEADS = (
    *("MODE", "JOBS", "COMPLETED", "MEAN WAIT", "95 % WAIT", "SLOWDOWN", "MEAN RUN", "RESIZES"),
    *("ENERGY", "A JOB"),
)
RESIZE_HEADS = (
    *("JOBID", "AT", "STEP", "RANKS", "STRATEGY", "BOOT", "STALL", "MOVE", "MOVED", "RATE"),
    *("TOOK", "SAVES"),
)
BOUND_S = 10.0
MOST_ARRAYS = 10
"""The newest arrays are drawn."""

MOST_BARS = 20
MOST_HISTORIES = 1000
"""The decisions about so many of the newest jobs are asked for."""

END_HEADS = (
    *("JOBID", "NAME", "STATE", "MODE", "WAIT_S", "RUN_S", "RESIZES", "ENERGY_J", "SOURCE"),
    "REASON",
)


def snapshot(server: str) -> Snapshot:
    """Ask a daemon for all that it tells.

    Raises:
        ServerError: it is not there, or refuses.
    """
    return Snapshot(
        ask(list[JobRow], server, "GET", "/jobs"),
        ask(list[NodeRow], server, "GET", "/nodes"),
        ask(BooksAnswer, server, "GET", "/books"),
    )


def full_snapshot(server: str) -> Snapshot:
    """Ask a daemon for all that it tells, energy by owner, node, device and source included.

    Raises:
        ServerError: it is not there, or refuses.
    """
    now = snapshot(server)
    found = ask(Accounts, server, "GET", "/acct")  # jobs, sums and rows of one time
    books = msgspec.structs.replace(now.books, energy=found.energy)
    decisions = {
        job.id: ask(list[HistoryEntry], server, "GET", f"/history/{job.id}")
        for job in found.jobs[-MOST_HISTORIES:]
    }
    return Snapshot(found.jobs, now.nodes, books, found.rows, decisions)


def imbalance(now: Snapshot) -> str:
    """Return in a sentence how the energy of a full snapshot does not add up, "" if it does."""
    try:
        found = Accounts(now.jobs, now.books.energy, now.rows)
        check_accounts(found, accounts(now.rows), whole=True)
    except BalanceError as error:
        return str(error)
    return ""


def summary(now: Snapshot) -> str:
    """Return one line about the cluster."""
    books, states = now.books, [job.state for job in now.jobs]
    held = sum(node.state in ("allocated", "mixed") for node in now.nodes)
    shared = ", an estimate" if any(part.estimate for part in books.energy.sources) else ""
    tasks = f", tasks {books.energy.tasks_j:.0f} J" if books.energy.tasks_j else ""
    watts = books.power_w[-1][1] if books.power_w else 0.0
    return (
        f"policy {books.policy}: {held} of {len(now.nodes)} nodes held, "
        f"{states.count('RUNNING')} jobs run, {states.count('PENDING')} wait, "
        f"{sum(state in OVER for state in states)} are over; {watts:.0f} W now, "
        f"{books.energy.cluster_j:.0f} J so far, of which jobs {books.energy.busy_j:.0f} J{tasks}"
        f"{shared} "
        f"({energy_source(books.energy)})"
    )


def energy_source(energy: Books) -> str:
    """Return where the cluster's energy comes from, with shares where that is mixed."""
    return Account.of(energy.sources).sources if energy.sources else energy.power_source


def present_jobs(now: Snapshot) -> list[list[str]]:
    """Return a row, as ``JOB_HEADS``, for each job that is not over, those that run first."""
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
            Account.of(job.energy).cells[1],
            fold_slots(job.nodes) or f"({job.reason})",
        ]
        for job in alive
    ]


def write_report(now: Snapshot, folder: Path) -> Path:
    """Write a report of all jobs into a folder; return the path of its page.

    Raises:
        ServerError: it cannot be written there.
    """
    try:
        return _report(now).write(folder)
    except OSError as error:
        raise ServerError(f"cannot write a report to {folder}: {error.strerror}") from None


def _report(now: Snapshot) -> Report:
    books = now.books
    if not (now.jobs or books.now_s):
        found = Report("rms")
        found.say(f"Nothing has happened yet. Policy {books.policy}, {len(now.nodes)} nodes.")
        return found
    found = Report(f"rms, {clock(books.now_s, day=True)}")
    found.say(summary(now))
    if books.spans:
        found.head("Nodes over time")
        first = min(span.start_s for span in books.spans)
        seen = History(
            books.nodes, books.spans, books.power_w, books.now_s, first, books.power_spans
        )
        rows = [row for row in now.rows if row.end_s > first]
        points = watts_by_owner(rows, first, books.now_s) if rows else watts_of(seen)
        found.over_time(seen, points, {job.id: _marks(job) for job in now.jobs if job.resizes})
    _by_mode(found, now.jobs)
    _arrays(found, now.jobs)
    _energy(found, now)
    _resizes(found, now.jobs)
    found.head("Jobs")
    found.table("jobs", END_HEADS, [_ended(job) for job in now.jobs])
    _decisions(found, now)
    return found


def _ended(job: JobRow) -> list[str]:
    return [
        job.id,
        job.name,
        job.state,
        job.mode,
        _span(job.submit_s, job.start_s),
        _span(job.start_s, job.end_s),
        " ".join(f"{r.from_ranks}→{r.to_ranks}" for r in job.resizes) or "0",
        *Account.of(job.energy).cells,
        job.reason,
    ]


def _marks(job: JobRow) -> list[tuple[float, str]]:
    """Return a job's resizes, in words."""
    return [
        (
            row.at_s,
            f"job {job.id}: {row.from_ranks} to {row.to_ranks} ranks ({row.strategy}), "
            f"stall {row.stall_s:.3g} s, {row.bytes / 1e6:.1f} MB",
        )
        for row in job.resizes
    ]


def _by_mode(found: Report, jobs: Sequence[JobRow]) -> None:
    """Enter waits, slowdowns and energy of the jobs that are over, by mode."""
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
    found.head("By mode")
    found.table("modes", MODE_HEADS, rows)
    found.say(f"Jobs that are over. Slowdown: (wait + run) / run, runs of {BOUND_S:g} s at least.")


def _slowdown(job: JobRow) -> float:
    """Return the bounded slowdown (Feitelson et al. 1997)."""
    start_s, end_s = job.start_s or 0.0, job.end_s or 0.0
    return max(1.0, (end_s - job.submit_s) / max(end_s - start_s, BOUND_S))


def _arrays(found: Report, jobs: Sequence[JobRow]) -> None:
    arrays: dict[str, dict[int, str]] = {}
    for job in jobs:
        array, _, index = job.id.partition("_")
        if index:
            arrays.setdefault(array, {})[int(index)] = job.state
    if arrays:
        found.head("Job arrays")
    for array, states in list(arrays.items())[-MOST_ARRAYS:]:
        found.tasks(array, states)


def _energy(found: Report, now: Snapshot) -> None:
    energy = now.books.energy
    sums = [
        ("busy", energy.busy_j),
        *([("tasks", energy.tasks_j)] if energy.tasks_j else []),
        ("idle", energy.idle_j),
        ("off", energy.off_j),
        ("boot", energy.boot_j),
        ("cluster", energy.cluster_j),
    ]
    found.head(f"Energy (J, {energy_source(energy)})")
    found.table("energy", ("of", "J"), [(name, f"{joules:.1f}") for name, joules in sums])
    _sources(found, now)
    most = sorted(now.jobs, key=lambda job: -job.energy_j)[:MOST_BARS]
    if most and most[0].energy_j > 0.0:
        found.head("Jobs that took most", 3)
        found.bars("energy-by-job", [(f"{j.id} {j.name}"[:24], j.energy_j) for j in most], "J")


def _sources(found: Report, now: Snapshot) -> None:
    """Enter who was measured by what, if that is known."""
    if not now.rows:
        return
    jobs = {job.id for job in now.jobs}
    owners: dict[str, Account] = {}
    for owner, account in accounts(now.rows).items():
        name = "jobs" if owner in jobs else owner
        owners[name] = owners.get(name, Account()) + account
    wrong = imbalance(now)
    agree = f"Jobs, tasks, idle, off and boot are the cluster's energy to {BALANCE:g} of it."
    found.table("sources", ("", "energy, source"), [(o, each.words) for o, each in owners.items()])
    found.say(f"The books do not balance: {wrong}" if wrong else agree)


def _resizes(found: Report, jobs: Sequence[JobRow]) -> None:
    """Enter all resizes, with what they took and saved."""
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
        found.head("Resizes")
        found.table("resizes", RESIZE_HEADS, rows)


def _decisions(found: Report, now: Snapshot) -> None:
    rows = [
        [
            clock(entry.at_s, day=True),
            job,
            entry.kind,
            str(entry.size or ""),
            entry.code,
            entry.reason,
        ]
        for job, entries in now.decisions.items()
        for entry in entries
    ]
    if rows:
        found.head("Decisions")
        rows.sort(key=lambda row: row[0])
        found.table("decisions", ("AT", "JOBID", "WHAT", "NODES", "CODE", "REASON"), rows)


def _span(start: float | None, end: float | None) -> str:
    return "" if start is None or end is None else f"{end - start:.1f}"
