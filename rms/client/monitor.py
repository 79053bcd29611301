"""Snapshots of a daemon, in a line and a table (``rms top``) and as a report (``rms report``)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from rms.client.connection import ServerError, ask
from rms.client.report import Cell, Report, SizedJob, sizes_of, watts_by_owner, watts_of
from rms.client.status import (
    GAIN_HEADS,
    HOURS_HEADS,
    STATES,
    ClusterStatus,
    gain_cells,
    gain_words,
    hours_cells,
    hours_words,
    lent_words,
    sizes_words,
    state_look,
)
from rms.core.books.spans import BALANCE, BalanceError
from rms.formats.energy import OwnerEnergy, check_energies, energy_words, owner_energies
from rms.formats.prices import Cost, Prices
from rms.formats.values import fold_slots
from rms.plots import History, mark_words
from rms.wire.live import Mark
from rms.wire.terminal import clock, hms
from rms.wire.users import (
    OVER,
    AcctAnswer,
    Books,
    BooksAnswer,
    Gain,
    HistoryEntry,
    HoursGain,
    JobRow,
    NodeRow,
    Snapshot,
)

JOB_HEADS = "JOBID NAME STATE MODE NODES DONE TIME RESIZES ENERGY NODELIST(REASON)"
MODE_HEADS = (
    *("Mode", "Jobs", "Completed", "Mean wait", "95 % wait", "Slowdown", "Mean run", "Resizes"),
    *("Energy", "Energy a job"),
)
RESIZE_TITLES = (
    *("Job", "Time", "Step", "Ranks", "Strategy", "Boot", "Stall", "Move", "Moved", "Rate"),
    *("Energy", "Saves later"),
)
BOUND_S = 10.0
"""Shortest run time in a bounded slowdown."""

MOST_ARRAYS = 10
"""Number of the newest arrays in a report."""

MOST_BARS = 20
MOST_HISTORIES = 1000
"""Number of the newest jobs with their decisions in a report."""

END_HEADS = (
    "JOBID NAME USER ACCOUNT STATE MODE SUBMITTED WAIT_S RUN_S RESIZES ENERGY_J SOURCE REASON"
)
JOB_TITLES = (
    *("Job", "Name", "User", "Account", "State", "Mode", "Submitted", "Wait", "Run", "Nodes"),
    *("Energy", "Source", "Reason"),
)
USER_HEADS = (
    "USER ACCOUNT JOBS RUNNING PENDING COMPLETED OTHER NODE_H SHARE ENERGY_J MEAN_WAIT_S RESIZES"
)
USER_TITLES = (
    *("User", "Account", "Jobs", "Running", "Pending", "Completed", "Failed or cancelled"),
    *("Node hours", "Share", "Energy", "Mean wait", "Resizes"),
)
MOST_SIZED = 24
"""Most jobs whose sizes over time a report draws."""

GAIN_TITLES = ("", "Real run", "Replay", "Replay without resizes")
HOURS_TITLES = ("", "Real run", "Replay", "Replay with flat prices")

Sizes = Sequence[tuple[float, int]]


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
    tasks = f", tasks {energy_words(energy.tasks_j)}" if energy.tasks_j else ""
    lost = f" (lost work {energy_words(energy.lost.energy_j)})" if energy.lost.times else ""
    return (
        f"Policy {status.policy}, nodes {status.nodes_words} allocated, {status.jobs_words}, "
        f"power {status.power_w:.0f} W, energy {energy_words(energy.cluster_j)}, "
        f"of which jobs {energy_words(energy.busy_j)}{lost}{tasks}{shared} ({_source(now)})"
    )


def _source(now: Snapshot) -> str:
    """Return the source of the cluster's energy, with shares if there are several."""
    energy = now.books.energy
    return OwnerEnergy.of(energy.sources).sources if energy.sources else energy.power_source


def present_jobs(now: Snapshot) -> list[list[str]]:
    """Return the rows of unfinished jobs under :data:`JOB_HEADS`, running ones first."""
    alive = [job for job in now.jobs if job.state not in OVER]
    alive.sort(key=lambda job: job.state == "PENDING")
    now_s = now.books.now_s
    return [
        [
            job.id,
            job.name,
            state_look(job).word,
            job.mode,
            job.nodes_words,
            f"{job.step / job.steps:.0%}" if job.steps else "",
            hms(now_s - (job.submit_s if job.start_s is None else job.start_s)),
            sizes_words(job),
            energy_words(job.energy_j) if job.energy_j else "",
            fold_slots(job.nodes) or f"({job.reason}{_starts_in(job, now_s)})",
        ]
        for job in alive
    ]


def _starts_in(job: JobRow, now_s: float) -> str:
    at_s = job.expected_start_s
    return "" if at_s is None else f"; starts in {hms(at_s - now_s)}"


# --- the report ---------------------------------------------------------------------------------


def write_report(
    now: Snapshot,
    folder: Path,
    gain: Gain | str = "",
    prices: Prices | None = None,
    saved: HoursGain | str = "",
) -> Path:
    """Write a report of all jobs into a folder; return the path of its page.

    Args:
        gain: what resizes have brought, or why that is unknown; "" for no such section.
        prices: of electricity, for its cost; None for no such section.
        saved: what cheap hours have saved, as ``gain``.
    """
    try:
        return _report(now, gain, prices, saved).write(folder)
    except OSError as error:
        raise ServerError(f"cannot write a report to {folder}: {error.strerror}") from None


def _report(
    now: Snapshot,
    gain: Gain | str = "",
    prices: Prices | None = None,
    saved: HoursGain | str = "",
) -> Report:
    books = now.books
    if not (now.jobs or books.now_s):
        report = Report("rms")
        report.say(f"No events yet. Policy {books.policy}, {len(now.nodes)} nodes.")
        return report
    report = Report(f"Cluster report, {clock(books.now_s, day=True)}")
    report.say(f"Policy {books.policy}, {_span_words(now)}")
    sizes = sizes_of(books.spans, books.now_s)
    node_s = _node_seconds(now)
    report.tiles(_tiles(now, gain))
    if gain:
        _gain(report, gain)
    if saved:
        _saved(report, saved)
    if books.spans:
        _over_time(report, now, sizes, node_s, prices)
    report.head("Jobs")
    rows = [_ended(report, job, books.now_s, sizes.get(job.id, ())) for job in now.jobs]
    report.table("jobs", JOB_TITLES, rows, END_HEADS.split())
    _users(report, now, node_s)
    _by_mode(report, now.jobs)
    _arrays(report, now.jobs)
    _energy(report, now)
    _resizes(report, now)
    _gain_by_job(report, gain)
    _decisions(report, now)
    return report


def _tiles(now: Snapshot, gain: Gain | str) -> list[tuple[str, str, str]]:
    """Return the most important figures: label, figure, note."""
    status, energy = ClusterStatus.of_snapshot(now), now.books.energy
    states = Counter(state_look(job).word for job in now.jobs)
    begun = [job for job in now.jobs if job.start_s is not None]
    waits = [(job.start_s or 0.0) - job.submit_s for job in begun]
    words = [look.word for look in STATES.values() if look.word not in ("Running", "Pending")]
    others = [f"{states[word]:,} {word}" for word in words if states[word]]
    resized = [len(job.resizes) for job in now.jobs if job.resizes]
    tiles = [
        ("Jobs", f"{len(now.jobs):,}", ", ".join(others) or "none has ended"),
        ("Running", f"{status.running:,}", f"{status.pending:,} Pending"),
        ("Nodes allocated", status.nodes_words, _utilisation(now)),
        ("Energy", energy_words(energy.cluster_j), f"jobs {energy_words(energy.busy_j)}"),
        ("Power", f"{status.power_w:,.0f} W", _source(now)),
        ("Mean wait", hms(fmean(waits)) if waits else "", f"of {len(begun):,} started jobs"),
        ("Resizes", f"{sum(resized):,}", f"of {len(resized):,} job{'s' * (len(resized) != 1)}"),
    ]
    if isinstance(gain, Gain):
        certain = abs(gain.mean_saved_s) > gain.start_error_s
        note = f"by resizes, in a replay; {lent_words(gain.lent_node_s)} lent"
        note = note if certain else f"{note}; within the error of the model"
        saved = hms(abs(gain.mean_saved_s))
        word = "Mean wait avoided" if gain.mean_saved_s >= 0.0 else "Mean wait added"
        tiles.append((word, saved, note))
    return tiles


def _span_words(now: Snapshot) -> str:
    """Return the time that the report is about."""
    first_s = min((job.submit_s for job in now.jobs), default=now.books.now_s)
    whole = hms(now.books.now_s - first_s)
    return f"from the first submission at {clock(first_s, day=True)}, {whole} in all."


def _utilisation(now: Snapshot) -> str:
    """Return the share of node time that jobs held since the first one."""
    spans, now_s = now.books.spans, now.books.now_s
    if not spans:
        return ""
    whole_s = now_s - min(span.start_s for span in spans)
    held_s = sum((now_s if s.end_s is None else s.end_s) - s.start_s for s in spans)
    share = held_s / (whole_s * max(1, len(now.books.nodes))) if whole_s else 0.0
    return f"{share:.0%} of the node time"


def _gain(report: Report, gain: Gain | str) -> None:
    """Add what resizes have brought."""
    report.head("What resizes have brought")
    if isinstance(gain, str):
        report.say(f"No replay: {gain}.")
        return
    report.say(" ".join(gain_words(gain)[:2]))
    report.table("gain", GAIN_TITLES, gain_cells(gain), GAIN_HEADS)
    report.say(" ".join(gain_words(gain)[2:]))
    report.say(
        "The replays run the same jobs on a virtual clock under the same policy. Without resizes, "
        "malleable jobs are fixed and flexible jobs are moldable."
    )


def _saved(report: Report, saved: HoursGain | str) -> None:
    """Add what waiting for cheap hours has saved."""
    report.head("What cheap hours have saved")
    if isinstance(saved, str):
        report.say(f"No replay: {saved}.")
        return
    report.say(hours_words(saved)[0])
    report.table("hours", HOURS_TITLES, hours_cells(saved), HOURS_HEADS)
    report.say(" ".join(hours_words(saved)[1:]))
    report.say(
        "The replays run the same jobs on a virtual clock under the same policy. With flat prices "
        "all hours have the mean price; the energy costs the true prices in both."
    )


def _gain_by_job(report: Report, gain: Gain | str) -> None:
    """Add the waits of jobs with and without resizes."""
    if isinstance(gain, str):
        return
    changed = [row for row in gain.rows if row.lent_node_s or abs(row.without_s - row.with_s) > 1.0]
    if changed:
        report.head("Waits with and without resizes")
        report.say("Jobs that lent nodes, or start at another time in the replay without resizes.")
        rows: list[list[str | Cell]] = [
            [
                row.id,
                row.mode,
                _seconds(row.wait_s),
                _seconds(row.with_s),
                _seconds(row.without_s),
                _number(row.lent_node_s / 3600.0, f"{row.lent_node_s / 3600.0:.3g}"),
            ]
            for row in changed
        ]
        titles = ("Job", "Mode", "Wait", "Replay", "Without resizes", "Node hours lent")
        heads = ("JOBID", "MODE", "WAIT_S", "REPLAY_S", "WITHOUT_S", "LENT_NODE_H")
        report.table("gain-by-job", titles, rows, heads)


def _over_time(
    report: Report,
    now: Snapshot,
    sizes: Mapping[str, Sizes],
    node_s: Mapping[str, float],
    prices: Prices | None,
) -> None:
    """Add the nodes, the power and the sizes of jobs over time."""
    books = now.books
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
    report.over_time(history, points, marks, prices=prices)
    if prices is not None:
        _cost(report, points, first, prices)
    begun = [job for job in now.jobs if job.id in sizes and (job.resizes or "_" not in job.id)]
    begun.sort(key=lambda job: (not job.resizes, -node_s.get(job.id, 0.0)))
    shown = sorted(begun[:MOST_SIZED], key=lambda job: job.start_s or 0.0)
    if any(job.resizes for job in shown):
        report.head("Sizes of jobs over time")
        report.say("A bar is as high as the job's number of nodes; the thin line is its wait.")
        jobs = [SizedJob(job.id, job.name, job.submit_s, sizes[job.id]) for job in shown]
        report.sizes(history, jobs)
        if len(sizes) > len(shown):
            what = "resized ones, then the largest by node hours, no tasks of arrays"
            report.say(f"{len(shown)} of {len(sizes):,} jobs: {what}.")


def _cost(
    report: Report, points: Sequence[tuple[float, Sequence[float]]], first_s: float, prices: Prices
) -> None:
    """Add the cost of the energy of all nodes, beside that of the same energy drawn evenly."""
    paid, whole_j, before_s = Cost(), 0.0, first_s
    for at_s, watts in points:
        joules = sum(watts) * (at_s - before_s)
        paid, whole_j, before_s = paid + prices.cost(joules, before_s, at_s), whole_j + joules, at_s
    even = prices.cost(whole_j, first_s, before_s)
    report.head("Cost of energy")
    report.say(
        f"By the prices of {prices.words}; beside the same energy drawn evenly over the time."
    )
    rows: list[list[str | Cell]] = []
    values = (paid.price, even.price, paid.unpriced_j), (paid.co2_g, even.co2_g, paid.unrated_j)
    for (kind, name, unit), (cost, evenly, unknown_j) in zip(prices.units, values, strict=True):
        if prices.series(kind) is not None:
            share = "" if not evenly else f"{round(1.0 - cost / evenly, 3) + 0.0:.1%}"
            unit = unit.removesuffix("/kWh")
            figures = (_number(value, f"{value:.4g} {unit}") for value in (cost, evenly))
            rows.append([name, *figures, share, energy_words(unknown_j)])
    titles = ("", "Cost", "Drawn evenly", "Saved", "Energy without a value")
    report.table("cost", titles, rows, ("KIND", "COST", "EVENLY", "SAVED", "UNKNOWN"))


def _ended(report: Report, job: JobRow, now_s: float, sizes: Sizes) -> list[str | Cell]:
    end_s = now_s if job.end_s is None else job.end_s
    energy, source = OwnerEnergy.of(job.energy).cells
    return [
        job.id,
        job.name,
        job.user,
        job.account,
        report.state(job),
        job.mode,
        _date(job.submit_s, now_s),
        _seconds(None if job.start_s is None else job.start_s - job.submit_s),
        _seconds(None if job.start_s is None else end_s - job.start_s),
        _size(job, sizes),
        _number(job.energy_j, energy_words(job.energy_j), energy),
        source,
        Cell(job.reason, kind="long" if job.reason else ""),
    ]


def _date(at_s: float, now_s: float) -> Cell:
    """Return a time of day; the date, and the time before the report, where the pointer rests."""
    exact = clock(at_s, day=True)
    title = f"{exact}, {hms(now_s - at_s)} before this report"
    return Cell(clock(at_s), exact, title, "nowrap", f"{at_s:.3f}")


def _seconds(seconds: float | None) -> Cell:
    if seconds is None:
        return Cell("", "", kind="n", key="-1")
    return Cell(hms(seconds), f"{seconds:.1f}", f"{seconds:.1f} s", "n", f"{seconds:.3f}")


def _number(value: float, text: str, csv: str | None = None) -> Cell:
    return Cell(text, f"{value:.6g}" if csv is None else csv, kind="n", key=f"{value:.6g}")


def _size(job: JobRow, sizes: Sizes) -> Cell:
    """Return the number of nodes of a job; of a resized one also its sizes over time."""
    ranks = " ".join(f"{r.from_ranks}→{r.to_ranks}" for r in job.resizes) or "0"
    if not job.resizes:
        return Cell(job.nodes_words, ranks, kind="nowrap", key=str(job.size))
    mark = SizedJob(job.id, job.name, job.submit_s, sizes).spark() if len(sizes) > 1 else ""
    return Cell(sizes_words(job), ranks, f"ranks: {ranks}", "nowrap", str(job.size), mark)


def _node_seconds(now: Snapshot) -> Mapping[str, float]:
    """Return the node seconds by owner, from the rows of energy."""
    ends: dict[tuple[str, str, float], float] = {}
    for row in now.rows:
        key = row.owner, row.node, row.begin_s
        ends[key] = max(row.end_s, ends.get(key, row.end_s))
    node_s: defaultdict[str, float] = defaultdict(float)
    for (owner, _, begin_s), end_s in ends.items():
        node_s[owner] += end_s - begin_s
    return node_s


def _users(report: Report, now: Snapshot, node_s: Mapping[str, float]) -> None:
    """Add the usage of users and accounts."""
    groups: dict[tuple[str, str], list[JobRow]] = {}
    for job in now.jobs:
        groups.setdefault((job.user, job.account), []).append(job)
    whole_s = sum(node_s.get(job.id, 0.0) for job in now.jobs)
    rows = []
    for (user, account), jobs in groups.items():
        own_s = sum(node_s.get(job.id, 0.0) for job in jobs)
        states = Counter(job.state for job in jobs)
        waits = [job.start_s - job.submit_s for job in jobs if job.start_s is not None]
        joules = sum(job.energy_j for job in jobs)
        row: list[str | Cell] = [
            user,
            account,
            f"{len(jobs):,}",
            f"{states['RUNNING']:,}",
            f"{states['PENDING']:,}",
            f"{states['COMPLETED']:,}",
            f"{sum(states[state] for state in OVER) - states['COMPLETED']:,}",
            _number(own_s / 3600.0, f"{own_s / 3600.0:.3g}"),
            f"{own_s / whole_s:.0%}" if whole_s else "",
            _number(joules, energy_words(joules)),
            _seconds(fmean(waits) if waits else None),
            str(sum(len(job.resizes) for job in jobs)),
        ]
        rows.append((own_s, row))
    if rows:
        report.head("Users and accounts")
        rows.sort(key=lambda pair: -pair[0])
        report.table("users", USER_TITLES, [row for _, row in rows], USER_HEADS.split())


def _by_mode(report: Report, jobs: Sequence[JobRow]) -> None:
    """Add waits, slowdowns and energy of completed jobs, by mode."""
    by_mode: dict[str, list[JobRow]] = {}
    for job in jobs:
        if job.start_s is not None and job.end_s is not None:
            by_mode.setdefault(job.mode, []).append(job)
    if not by_mode:
        return
    rows: list[list[str | Cell]] = []
    for mode, own in by_mode.items():
        waits = sorted((job.start_s or 0.0) - job.submit_s for job in own)
        slow = [_slowdown(job) for job in own]
        joules = sum(job.energy_j for job in own)
        rows.append(
            [
                mode,
                str(len(own)),
                str(sum(job.state == "COMPLETED" for job in own)),
                _seconds(fmean(waits)),
                _seconds(waits[int(0.95 * (len(waits) - 1))]),
                f"{fmean(slow):.2f}",
                _seconds(fmean((job.end_s or 0.0) - (job.start_s or 0.0) for job in own)),
                str(sum(len(job.resizes) for job in own)),
                _number(joules, energy_words(joules)),
                _number(joules / len(own), energy_words(joules / len(own))),
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
        *([("lost work (of busy)", energy.lost.energy_j)] if energy.lost.times else []),
    ]
    report.head("Energy")
    rows: list[list[str | Cell]] = [
        [name, _number(joules, energy_words(joules), f"{joules:.1f}"), _share(joules, energy)]
        for name, joules in sums
    ]
    report.table("energy", ("Of", "Energy", "Share"), rows, ("of", "J", "share"))
    _sources(report, now)
    most = sorted(now.jobs, key=lambda job: -job.energy_j)[:MOST_BARS]
    if most and most[0].energy_j > 0.0:
        report.head("Jobs with the most energy", 3)
        report.bars("energy-by-job", [(f"{j.id} {j.name}"[:24], j.energy_j) for j in most], "J")


def _share(joules: float, energy: Books) -> str:
    return f"{joules / energy.cluster_j:.1%}" if energy.cluster_j else ""


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
    report.table("sources", ("Owner", "Energy, source"), rows)
    report.say(f"The books do not balance: {wrong}" if wrong else agree)


def _resizes(report: Report, now: Snapshot) -> None:
    rows: list[list[str | Cell]] = [
        [
            job.id,
            _date(row.at_s, now.books.now_s),
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
        for job in now.jobs
        for row in job.resizes
    ]
    if rows:
        report.head("Resizes")
        report.table("resizes", RESIZE_TITLES, rows)


def _decisions(report: Report, now: Snapshot) -> None:
    entries = [(entry, job) for job, own in now.decisions.items() for entry in own]
    entries.sort(key=lambda pair: pair[0].at_s)
    rows: list[list[str | Cell]] = [
        [
            _date(entry.at_s, now.books.now_s),
            job,
            entry.kind,
            str(entry.size or ""),
            entry.code,
            entry.reason,
        ]
        for entry, job in entries
    ]
    if rows:
        report.head("Decisions")
        heads = ("AT", "JOBID", "WHAT", "NODES", "CODE", "REASON")
        titles = ("Time", "Job", "Decision", "Nodes", "Code", "Reason")
        report.table("decisions", titles, rows, heads)
