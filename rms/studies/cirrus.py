"""``rms reproduce cirrus``: 11,635 jobs of 28 days on EPCC's Cirrus, first quarter of 2024.

EPCC's study (github EPCCed/mira-cirrus-elastisim) ran them under FCFS, as they were and as
moldable jobs. Its schedules stand beside ours, then our policies beside the real schedule. No paper
of it was at hand: the statements are its results and the real schedule. Times of its files are in
units of 100 s, cut off; what it calls nodes are cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Annotated, Any

import msgspec

from rms.core.model.jobs import JobSpec, Mode, Site, Speedup
from rms.core.policies import DEFAULT, named
from rms.core.policies.placement import AsAsked
from rms.formats.config import FileError
from rms.plots import lines as draw_lines
from rms.sim.run import chosen
from rms.sim.simulator import Passes, Simulation
from rms.studies import experiment
from rms.studies.experiment import Result, StudyReport, read_rows
from rms.wire.terminal import columns

SOURCE = "the jobs and results of github EPCCed/mira-cirrus-elastisim"
POLICIES = ("fifo", "easy", "conservative", "easy-share", "array-share", DEFAULT)
CORES = 13_249
"""As its platform file counts them, from 100 to 13348 with both ends; Cirrus has one less."""

UNIT_S = 100.0
NEAR, SEEDS = 1e-6, 10
"""Events this near to one another, in units, count as one instant where orders are drawn."""

RESIZE_EVERY, RESIZE_PRICE = 3.0, 0.1
"""In units: resizable jobs come to a resize point every 300 s, and a resize costs them 10 s."""

REAL = "real log"

_FILE = experiment.settings("cirrus")
ORDERS: dict[Passes, str] = _FILE["orders"]
PUBLISHED = ("mean_wait_100s", "starts_as_published")
WAITS = ("mean_wait_s", "median_wait_s", "p95_wait_s", "mean_turnaround_s")
STATED = (*WAITS, "mean_bounded_slowdown", "utilization", "start_error_s")
"""Figures that are statements: of the first policies, and but the last of the real log."""

HOURS = (*WAITS, "start_error_s")


class CirrusJob(msgspec.Struct):
    """A job of ``cirrus_2024q1.csv.gz``; times in units."""

    id: str
    submit: Annotated[float, msgspec.Meta(ge=0)]
    nodes: Annotated[int, msgspec.Meta(ge=1)]
    run: Annotated[float, msgspec.Meta(gt=0)]
    start_rigid: float


class MoldableStart(msgspec.Struct):
    """Its published start as a moldable job, with 6 significant digits."""

    id: str
    start: float


class RealTimes(msgspec.Struct):
    """Its real start and end."""

    id: str
    start: float
    end: float


@dataclass(frozen=True)
class CirrusLog:
    """The three files, job by job in the order of submission."""

    jobs: Sequence[CirrusJob]
    moldable: Sequence[MoldableStart]
    real: Sequence[RealTimes]


@dataclass(frozen=True)
class CoreSchedule:
    """Starts and ends of the jobs of the log, in units.

    Attributes:
        busy: core-units used until the last submission.
    """

    starts: Sequence[float]
    ends: Sequence[float]
    busy: float
    resizes: int = 0


CoreSchedules = dict[tuple[str, Mode], CoreSchedule]
"""By name of the policy and mode of the jobs; the real log is ``(REAL, Mode.FIXED)``."""


def read_log(data: Path) -> CirrusLog:
    """Read the study's three files, which must have the same jobs."""
    files = ("cirrus_2024q1", "cirrus_2024q1_moldable", "cirrus_2024q1_real")
    paths = [data / f"{name}.csv.gz" for name in files]
    jobs = read_rows(paths[0], CirrusJob, SOURCE)
    moldable = read_rows(paths[1], MoldableStart, SOURCE)
    real = read_rows(paths[2], RealTimes, SOURCE)
    ids = [job.id for job in jobs]
    for path, rows in ((paths[1], moldable), (paths[2], real)):
        if [row.id for row in rows] != ids:
            raise FileError(f"{path}: expected the {len(ids)} jobs of {paths[0].name}, got others")
    return CirrusLog(jobs, moldable, real)


def specs(log: CirrusLog, mode: Mode) -> list[JobSpec]:
    """Return the jobs in a mode: as they were, or on half to twice their cores as in the study."""
    jobs = []
    for row in log.jobs:
        if mode is Mode.FIXED:
            jobs.append(experiment.job(row.id, row.nodes, row.submit, run_s=row.run))
            continue
        jobs.append(
            experiment.job(
                row.id,
                2 * row.nodes,
                row.submit,
                mode,
                max(1, row.nodes // 2),
                speedup=Speedup(law=(row.run * row.nodes, 0.0)),
                resize_every_s=RESIZE_EVERY if mode.resizable else None,
                resize_price_s=RESIZE_PRICE if mode.resizable else 0.0,
            )
        )
    return jobs


def simulated(
    jobs: Sequence[JobSpec], policy: str, passes: Passes, cores: int = CORES
) -> CoreSchedule:
    """Run the jobs on counted cores."""
    last, busy = max(job.submit_s for job in jobs), -1.0

    def look(simulation: Simulation) -> None:
        nonlocal busy
        if busy < 0.0 and simulation.engine.state.now_s >= last:
            busy = simulation.ledger.busy_node_s

    made = chosen(named(policy), counted=True, passes=passes, ahead=False)
    simulation = Simulation(jobs, Site(cores), made, passes=passes, record=False, observer=look)
    simulation.run()
    ended = [simulation.engine.state.ended[job.id] for job in jobs]
    starts, ends = [job.start_s or 0.0 for job in ended], [job.end_s or 0.0 for job in ended]
    return CoreSchedule(starts, ends, busy, simulation.resized)


def real_schedule(log: CirrusLog) -> CoreSchedule:
    """Return the schedule of the real log."""
    last = log.jobs[-1].submit
    busy = sum(
        job.nodes * max(0.0, min(row.end, last) - row.start)
        for job, row in zip(log.jobs, log.real, strict=True)
    )
    return CoreSchedule([row.start for row in log.real], [row.end for row in log.real], busy)


def cirrus(
    data: Path, figures: Path | None, progress: Callable[[str], None] = lambda text: None
) -> Result:
    """Run the study; draw its figures in a folder, if there is one.

    A line of progress comes before the simulations of the second part.
    """
    log = read_log(data)
    rows, lines = published(log)
    schedules = {(REAL, Mode.FIXED): real_schedule(log)}
    for mode in (Mode.FIXED, Mode.MOLDABLE, Mode.FLEXIBLE):
        jobs = specs(log, mode)
        for policy in POLICIES:
            if mode.resizable and isinstance(named(policy).sizing, AsAsked):
                continue  # it resizes no job: the same as with moldable jobs
            progress(f"{policy}, {mode} jobs")
            schedules[policy, mode] = simulated(jobs, policy, "per-timestamp")
    more, table = against_the_log(log, schedules)
    report = StudyReport("cirrus", computed(log, rows + more))
    values = {"unit_s": UNIT_S, "rows": rows + more, "notes": _FILE["notes"]}
    parts = (lines, table, _FILE["notes"])
    return report.result(values, parts, lambda folder: draw(log, schedules, folder), figures)


def computed(log: CirrusLog, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the values of the statements by key, from the rows of the study."""
    values = {"jobs": float(len(log.jobs)), "cores": float(CORES)}
    for row in rows:
        own = {key: value["ours"] for key, value in row["values"].items()}
        if row["against"] != REAL:
            values |= {f"{row['case']} {key}": own[key] for key in PUBLISHED}
        elif row["mode"] == Mode.FIXED and row["case"] in (REAL, *POLICIES[:3]):
            stated = STATED[:-1] if row["case"] == REAL else STATED
            values |= {f"{row['case']} {key}": own[key] for key in stated}
    return values


# --- The published schedules ---------------------------------------------------------------------


def published(log: CirrusLog) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of both published schedules and their lines."""
    jobs, number = specs(log, Mode.FIXED), len(log.jobs)
    schedule = simulated(jobs, "fifo", "per-event")
    equal = _equal(log, schedule)
    less = _equal(log, simulated(jobs, "fifo", "per-event", CORES - 1))
    mean = fmean(job.start_rigid - job.submit for job in log.jobs)
    note = f"{less} with {CORES - 1} cores, those of the machine"
    rows = [_row("rigid", Mode.FIXED, (mean, number), (mean_wait(log, schedule), equal), note)]
    lines = [
        f"Published schedules of {number} jobs on {CORES} cores, FCFS; waits in units of 100 s",
        f"  rigid: {equal} of {number} starts as published ({note}), mean wait {mean:.4f}",
    ]
    more, others = _moldable(log)
    return [*rows, *more], [*lines, *others]


def _moldable(log: CirrusLog) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of the moldable schedule by the order of events, and their lines."""
    jobs = specs(log, Mode.MOLDABLE)
    mean = fmean(row.start - job.submit for job, row in zip(log.jobs, log.moldable, strict=True))
    schedules = {order: simulated(jobs, "fifo", order) for order in ORDERS}
    drawn = sorted(mean_wait(log, _drawn(jobs, seed)) for seed in range(SEEDS))
    together = _shared_instants(log, schedules["ends-first"])
    rows, lines = [], [f"  moldable: {_FILE['moldable']}; published mean wait {mean:.4f}"]
    for order, words in ORDERS.items():
        ours, equal = mean_wait(log, schedules[order]), _as_printed(log, schedules[order])
        paper = mean, len(jobs)
        case = f"moldable, {order}"
        rows.append(_row(case, Mode.MOLDABLE, paper, (ours, equal), _FILE["moldable_note"]))
        lines.append(
            f"    {words:36s} mean wait {ours:.4f} ({_pct(ours, mean):+.2f} %), "
            f"{equal} starts as published"
        )
    rows[0]["drawn_mean_wait_100s"] = drawn
    lines += [
        f"    submissions before or after ends by lot, {SEEDS} times: mean wait {drawn[0]:.2f} to "
        f"{drawn[-1]:.2f}",
        f"    At {together} times an end and a submission fall together: {_FILE['moldable_note']}.",
    ]
    return rows, lines


def _row(
    case: str, mode: Mode, paper: tuple[float, int], ours: tuple[float, int], note: str
) -> dict[str, Any]:
    theirs = dict(zip(PUBLISHED, paper, strict=True))
    values = dict(zip(PUBLISHED, ours, strict=True))
    return experiment.row(case, str(mode), values, theirs, note, against="published schedule")


def _equal(log: CirrusLog, schedule: CoreSchedule) -> int:
    return sum(a == job.start_rigid for a, job in zip(schedule.starts, log.jobs, strict=True))


def mean_wait(log: CirrusLog, schedule: CoreSchedule) -> float:
    """Return the mean wait in units."""
    return fmean(a - job.submit for a, job in zip(schedule.starts, log.jobs, strict=True))


def _as_printed(log: CirrusLog, schedule: CoreSchedule) -> int:
    """Return the number of starts that are the published ones, which have 6 significant digits."""
    return sum(
        abs(a - row.start) <= (0.0501 if row.start >= 1e4 else 0.00501)
        for a, row in zip(schedule.starts, log.moldable, strict=True)
    )


def _shared_instants(log: CirrusLog, schedule: CoreSchedule) -> int:
    """Return the number of times at which both a submission and an end take place."""
    submits = {job.submit for job in log.jobs}
    ends = {round(a) for a in schedule.ends if abs(a - round(a)) <= NEAR}
    return len(ends.intersection(submits))


def _drawn(jobs: Sequence[JobSpec], seed: int) -> CoreSchedule:
    """Run the jobs with submissions just before or just after the ends of their instants."""
    draw = Random(seed)
    moved = [
        msgspec.structs.replace(job, submit_s=max(0.0, job.submit_s + draw.choice((-NEAR, NEAR))))
        for job in jobs
    ]
    return simulated(moved, "fifo", "per-event")


def _pct(ours: float, paper: float) -> float:
    return 100.0 * (ours / paper - 1.0)


def against_the_log(
    log: CirrusLog, schedules: CoreSchedules
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row for every schedule, with the real log as the paper's figure, and the table."""
    real = figures_of(log, schedules[REAL, Mode.FIXED])
    rows, cells = [], []
    for (policy, mode), schedule in schedules.items():
        ours = figures_of(log, schedule)
        rows.append(experiment.row(policy, str(mode), ours, real, against=REAL))
        off = _pct(ours["mean_wait_s"], real["mean_wait_s"])
        cells.append([policy, str(mode), *(f"{ours[key] / 3600:.2f}" for key in HOURS)])
        cells[-1] += [f"{ours['mean_bounded_slowdown']:.2f}", f"{100 * ours['utilization']:.2f}"]
        cells[-1] += [f"{off:+.1f} %", str(schedule.resizes)]
    title = "Our policies beside the real log; times in hours"
    return rows, [title, "", *(f"  {line}" for line in columns(_FILE["heads"], cells))]


def figures_of(log: CirrusLog, schedule: CoreSchedule) -> dict[str, float]:
    """Return the columns of a schedule, times in s.

    Bounded slowdown is by run times of at least 10 s, utilization until the last submission.
    """
    rows = list(zip(log.jobs, schedule.starts, schedule.ends, strict=True))
    waits = sorted((start - job.submit) * UNIT_S for job, start, _ in rows)
    slowdowns = [
        max(1.0, (end - job.submit) / max(end - start, 10.0 / UNIT_S)) for job, start, end in rows
    ]
    off = [abs(start - row.start) for start, row in zip(schedule.starts, log.real, strict=True)]
    window = log.jobs[-1].submit - log.jobs[0].submit
    return {
        "mean_wait_s": fmean(waits),
        "median_wait_s": median(waits),
        "p95_wait_s": waits[int(0.95 * (len(waits) - 1))],
        "mean_turnaround_s": fmean((end - job.submit) * UNIT_S for job, _, end in rows),
        "mean_bounded_slowdown": fmean(slowdowns),
        "utilization": schedule.busy / (CORES * window) if window else 0.0,
        "start_error_s": UNIT_S * fmean(off),
        "resizes": float(schedule.resizes),
    }


def draw(log: CirrusLog, schedules: CoreSchedules, folder: Path) -> None:
    """Draw the distribution of waits and the mean wait by day of submission."""
    days = [int(job.submit * UNIT_S // 86_400) for job in log.jobs]
    shares = [float(share) for share in range(101)]
    for mode in (Mode.FIXED, Mode.MOLDABLE, Mode.FLEXIBLE):
        distribution, by_day = {}, {}
        for (policy, own), schedule in schedules.items():
            if policy != REAL and own is not mode:
                continue
            hours = [
                (start - job.submit) * UNIT_S / 3600
                for job, start in zip(log.jobs, schedule.starts, strict=True)
            ]
            rising, most = sorted(hours), len(hours) - 1
            distribution[policy] = (shares, [rising[int(s * most / 100)] for s in shares])
            of_day: dict[int, list[float]] = {}
            for day, wait in zip(days, hours, strict=True):
                of_day.setdefault(day, []).append(wait)
            by_day[policy] = ([*map(float, of_day)], [fmean(waits) for waits in of_day.values()])
        title = f"Cirrus, 28 days of 2024, {mode} jobs"
        labels = ("jobs that waited no longer (%)", "wait (h)", title)
        draw_lines(distribution, folder / f"waits-{mode}.png", labels, marker="", linear_to=0.1)
        labels = ("day of submission", "mean wait (h)", title)
        draw_lines(by_day, folder / f"waits-by-day-{mode}.png", labels)
