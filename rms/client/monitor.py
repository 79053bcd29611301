"""What ``rms top`` and ``rms report`` show: the daemon's present and past, for people."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rms.client.connection import ServerError, ask
from rms.client.page import heading, page, paragraph, pictures, table
from rms.core.joules import BALANCE, BalanceError
from rms.formats.energy import Account, accounts, check_accounts, resize_words
from rms.formats.nodelist import fold_slots
from rms.wire.files import write_whole
from rms.wire.users import OVER, Accounts, Books, BooksAnswer, JobRow, NodeRow, Snapshot

JOB_HEADS = (
    *("JOBID", "NAME", "STATE", "MODE", "NODES", "STEP", "ENERGY_J", "SOURCE"),
    "NODELIST(REASON)",
)
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
    return Snapshot(found.jobs, now.nodes, books, found.rows)


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
            job.resizing or job.state,
            job.mode,
            str(job.size or job.nodes_max),
            f"{job.step}/{job.steps}" if job.steps else "",
            f"{job.energy_j:.0f}",
            Account.of(job.energy).cells[1],
            fold_slots(job.nodes) or f"({job.reason})",
        ]
        for job in alive
    ]


def write_report(now: Snapshot, folder: Path) -> Path:
    """Write a page with figures and a table of all jobs, in one file; return its path.

    Raises:
        ServerError: it cannot be written there.
    """
    target = folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(target, _page(now, _figures(now, folder)))
    except OSError as error:
        raise ServerError(f"cannot write a report to {folder}: {error.strerror}") from None
    return target


def _figures(now: Snapshot, folder: Path) -> list[Path]:
    from rms.plots import History, gantt, power_over_time

    books, spans = now.books, now.books.spans
    if not spans:
        return []
    first = min(span.start_s for span in spans)
    seen = History(books.nodes, spans, books.power_w, books.now_s, first, books.power_spans)
    charts = [folder / "nodes.png", folder / "power.png"]
    gantt(seen, charts[0], "who held which node")
    source = energy_source(books.energy)
    power_over_time({books.policy: seen}, charts[1], f"power of the cluster ({source})")
    return charts


def _page(now: Snapshot, charts: Sequence[Path]) -> str:
    """Return the page; figures are inside it, so that it can be sent as one file."""
    rows = [
        [
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
        for job in now.jobs
    ]
    energy = now.books.energy
    sums = (
        ("busy", energy.busy_j),
        *([("tasks", energy.tasks_j)] if energy.tasks_j else []),
        ("idle", energy.idle_j),
        ("off", energy.off_j),
        ("boot", energy.boot_j),
        ("cluster", energy.cluster_j),
    )
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now.books.now_s))
    return page(
        f"rms, {at}",
        [
            paragraph(summary(now)),
            pictures(charts),
            heading(f"Energy (J, {energy_source(energy)})"),
            table((), [(name, f"{joules:.1f}") for name, joules in sums]),
            *_sources(now),
            heading("Jobs"),
            table(END_HEADS, rows),
            *_resizes(now.jobs),
        ],
    )


def _sources(now: Snapshot) -> list[str]:
    """Return a table of who was measured by what, if that is known."""
    if not now.rows:
        return []
    jobs = {job.id for job in now.jobs}
    owners: dict[str, Account] = {}
    for owner, account in accounts(now.rows).items():
        name = "jobs" if owner in jobs else owner
        owners[name] = owners.get(name, Account()) + account
    wrong = imbalance(now)
    agree = f"Jobs, tasks, idle, off and boot are the cluster's energy to {BALANCE:g} of it."
    return [
        table(("", "energy, source"), [(name, each.words) for name, each in owners.items()]),
        paragraph(f"The books do not balance: {wrong}" if wrong else agree),
    ]


def _resizes(jobs: Sequence[JobRow]) -> list[str]:
    """Return a table of all resizes with their energy."""
    rows = [
        (job.id, str(n), resize_words(row)) for job in jobs for n, row in enumerate(job.resizes, 1)
    ]
    return [heading("Resizes"), table(("JOBID", "", "RESIZE"), rows)] if rows else []


def _span(start: float | None, end: float | None) -> str:
    return "" if start is None or end is None else f"{end - start:.1f}"
