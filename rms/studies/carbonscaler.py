"""``rms reproduce carbonscaler``: the width of a job follows the carbon intensity of the hour.

Hanafy et al., CarbonScaler (POMACS 7(3) 57, 2023): a job with a deadline against the same job at
once, in the cheapest hours at one size (suspend and resume; the best static size), and by the
greedy of :mod:`rms.core.policies.cheap_hours`. Then what the greedy leaves out: resizes have a
price, forecasts are wrong, and a job of MPI that runs cannot pause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import msgspec

from rms.core.policies.cheap_hours import (
    DONE,
    Hour,
    HourlySizes,
    Piece,
    Width,
    cheapest,
    cheapest_by_hour,
    efficient_sizes,
)
from rms.formats.config import FileError
from rms.formats.prices import HOURS, JOULES_PER_KWH, Prices, read_prices
from rms.plots import lines as draw_lines
from rms.studies import experiment
from rms.studies.experiment import Result, StudyReport, statements, tabulate, texts

HOUR_S = 3600.0
MADE_UP = experiment.DATA / "carbonscaler_day.toml"

_FILE = experiment.settings("carbonscaler")
JOB_H: int = _FILE["job_h"]

Plan = Callable[[Sequence[Hour], float], HourlySizes | None]
"""A schedule of the work that is left in the hours that are left."""


def profiles() -> dict[str, tuple[Width, ...]]:
    """Return the widths of the programs; on the fewest nodes all of them need as long."""
    measured = experiment.settings("iserte_rojek")
    made = dict[str, tuple[Width, ...]]()
    for name, cluster in _FILE["mpdata"].items():
        table = measured[cluster]
        powers = [n * w for n, w in zip(table["nodes"], table["power_w_per_node"], strict=True)]
        made[name] = _widths(table["nodes"], [1.0 / s for s in table["time_s"]], powers)
    nbody = _FILE["nbody"]
    made["nbody"] = _widths(nbody["nodes"], nbody["throughput"], nbody["power_w"])
    return made


def _widths(
    nodes: Sequence[int], throughput: Sequence[float], watts: Sequence[float]
) -> tuple[Width, ...]:
    whole = throughput[0] * JOB_H * HOUR_S
    rows = zip(nodes, throughput, watts, strict=True)
    return tuple(Width(n, rate / whole, w) for n, rate, w in rows)


# --- hours ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Intensities:
    """Carbon intensities, and where they come from.

    Attributes:
        values: g of CO2 per kWh by hour; None in a gap.
        circular: the first hour follows the last one.
    """

    prices: Prices
    values: tuple[float | None, ...]
    circular: bool

    @classmethod
    def read(cls, path: Path) -> Intensities:
        """Read a file of prices, which has to state carbon intensities by the hour."""
        prices = read_prices(path)
        series = prices.carbon
        if series is None or len(series.values) == 1:
            raise FileError(f"{path}: expected carbon intensities by the hour (gCO2/kWh), got none")
        if not series.times_s:
            return cls(prices, series.values, circular=True)
        first, last = series.times_s[0], series.times_s[-1]
        begins = [first + HOUR_S * n for n in range(round((last - first) / HOUR_S))]
        values = []
        for begin_s in begins:
            cost = prices.cost(JOULES_PER_KWH, begin_s, begin_s + HOUR_S)
            values.append(None if cost.unrated_j else cost.co2_g)
        return cls(prices, tuple(values), circular=False)

    def windows(self, hours: int, most: int) -> list[list[Hour]]:
        """Return times of so many hours without a gap, with begins evenly over the file."""
        count = len(self.values)
        begins = range(count if self.circular else count - hours + 1)
        step = max(1, len(begins) // most)
        windows = []
        for begin in begins[::step][:most]:
            values = [self.values[(begin + n) % count] for n in range(hours)]
            if None not in values:
                windows.append(
                    [Hour(n * HOUR_S, (n + 1) * HOUR_S, v or 0.0) for n, v in enumerate(values)]
                )
        return windows


# --- a job, hour by hour -------------------------------------------------------------------------


@dataclass
class Ran:
    """What a job did: watt-seconds times intensity, share done, and resizes with restarts."""

    cost: float = 0.0
    done: float = 0.0
    resizes: int = 0

    @property
    def late(self) -> bool:
        """Whether it was not over by the deadline."""
        return self.done < 1.0 - DONE


def ran(
    widths: Sequence[Width],
    hours: Sequence[Hour],
    plan: Plan,
    price_s: float,
    error: float = 0.0,
    rng: Random | None = None,
) -> Ran:
    """Run a job by a plan that is made anew at every hour, for the work that is left.

    Args:
        price_s: time without progress of a resize or restart.
        error: intensities after the present hour are forecast with up to this share of error.
    """
    job, now, started = Ran(), None, False
    for at, hour in enumerate(hours):
        if not job.late:
            break
        believed = [hour]
        for begin_s, end_s, value in hours[at + 1 :]:
            wrong = value * (1.0 + error * rng.uniform(-1.0, 1.0)) if rng else value
            believed.append(Hour(begin_s, end_s, wrong))
        made = plan(believed, 1.0 - job.done)
        pieces = (Piece(hour.begin_s, hour.end_s, widths[-1]),) if made is None else made.pieces
        at_s = hour.begin_s
        for begin_s, end_s, width in pieces:
            begin_s, end_s = max(begin_s, hour.begin_s), min(end_s, hour.end_s)
            if end_s <= begin_s or not job.late:
                continue
            other = width != now or begin_s > at_s
            stall_s = price_s if started and other else 0.0
            span_s = min(end_s - begin_s, stall_s + (1.0 - job.done) / width.rate)
            job.resizes += started and other
            job.cost += span_s * width.watts * hour.value
            job.done += max(0.0, span_s - stall_s) * width.rate
            now, started, at_s = width, True, begin_s + span_s
        if at_s < hour.end_s:
            now = None
    return job


def at_once(width: Width, hours: Sequence[Hour]) -> Ran:
    """Run a job at once, at one size."""
    plan = HourlySizes((Piece(hours[0].begin_s, hours[-1].end_s, width),), 0.0, 0.0)
    return ran([width], hours, lambda *_: plan, 0.0)


# --- the study -----------------------------------------------------------------------------------


def savings(name: str, widths: Sequence[Width], windows: Sequence[Sequence[Hour]]) -> list[Any]:
    """Return the row of a profile with a deadline: the greedy beside schedules of one size."""
    able = efficient_sizes(widths)
    sums, late, sizes = dict[str, float](), 0, set[int]()
    for hours in windows:
        greedy, whole = cheapest(able, hours), cheapest(able, hours, pauses=False)
        single = [made for width in widths if (made := cheapest([width], hours)) is not None]
        suspended = cheapest([widths[0]], hours)
        if greedy is None or whole is None or suspended is None:
            late += 1
            continue
        sizes |= {piece.width.nodes for piece in greedy.pieces}
        costs = {
            "at_once": at_once(widths[0], hours).cost,
            "suspend": suspended.cost,
            "static": min(made.cost for made in single),
            "whole": whole.cost,
            "greedy": greedy.cost,
        }
        for kind, cost in costs.items():
            sums[kind] = sums.get(kind, 0.0) + cost
    count = len(windows) - late
    g = {kind: cost / count / JOULES_PER_KWH for kind, cost in sums.items()}
    own = {
        "at_once_g": g["at_once"],
        "greedy_g": g["greedy"],
        **{f"{kind}_pct": less(g["greedy"], g[kind]) for kind in ("at_once", "suspend")},
        "static_pct": less(g["greedy"], g["static"]),
        "whole_pct": less(g["whole"], g["at_once"]),
        "late": float(late),
    }
    row = experiment.row(name, "greedy", own, deadline_h=len(windows[0]), sizes=sorted(sizes))
    return [row]


def less(ours: float, theirs: float) -> float:
    """Return the saving over another value, in per cent."""
    return 100.0 * (1.0 - ours / theirs)


def beside(widths: Sequence[Width], windows: Sequence[Sequence[Hour]]) -> list[dict[str, Any]]:
    """Return rows of jobs whose resizes have a price, and whose forecasts are wrong."""
    able = efficient_sizes(widths)
    base = sum(at_once(widths[0], hours).cost for hours in windows)
    optimum = sum(made.cost for hours in windows if (made := cheapest(able, hours)) is not None)

    def greedy(hours: Sequence[Hour], work: float) -> HourlySizes | None:
        return cheapest(able, hours, work)

    rows = []

    def add(case: str, mode: str, jobs: Sequence[Ran]) -> None:
        cost = sum(job.cost for job in jobs) * len(windows) / len(jobs)
        own = {
            "at_once_pct": less(cost, base),
            "over_pct": 100.0 * (cost / optimum - 1.0),
            "resizes": fmean(job.resizes for job in jobs),
            "late": float(sum(job.late for job in jobs)),
        }
        rows.append(experiment.row(case, mode, own))

    for price_s in map(float, _FILE["prices_s"]):
        case = f"a resize costs {price_s:.0f} s"
        add(case, "greedy, unaware", [ran(able, hours, greedy, price_s) for hours in windows])
        aware = [cheapest_by_hour(able, hours, price_s=price_s) for hours in windows]
        jobs = [Ran() if m is None else Ran(m.cost, m.done, m.resizes) for m in aware]
        add(case, "price known", jobs)
    for error in _FILE["errors_pct"]:
        jobs = []
        for seed in range(_FILE["seeds"]):
            rng = Random(seed)
            jobs += [ran(able, hours, greedy, 0.0, error / 100.0, rng) for hours in windows]
        add(f"forecasts off by up to {error} %", "greedy", jobs)
    return rows


def carbonscaler(carbon: Path | None, figures: Path | None) -> Result:
    """Run the study on a file of hourly carbon intensities, by default on the made-up day."""
    source = Intensities.read(carbon or MADE_UP)
    rows, windows = list[dict[str, Any]](), dict[int, list[list[Hour]]]()
    for deadline_h in _FILE["deadlines_h"]:
        windows[deadline_h] = source.windows(deadline_h, _FILE["starts"])
        if not windows[deadline_h]:
            raise FileError(f"{carbon}: expected {deadline_h} hours without a gap, got fewer")
    for name, widths in profiles().items():
        for deadline_h in _FILE["deadlines_h"]:
            rows += savings(name, widths, windows[deadline_h])
    headline = _FILE["headline"]
    own = next(
        row
        for row in rows
        if row["case"] == headline["profile"] and row["deadline_h"] == headline["deadline_h"]
    )
    keys = ("at_once_pct", "suspend_pct", "static_pct")
    ours = {key: own["values"][key]["ours"] for key in keys}
    stated = statements("carbonscaler")
    if carbon is not None:  # the record is that of the made-up day
        stated = [
            msgspec.structs.replace(
                row, status=row.computed(ours[row.key]), ours=ours[row.key], note=""
            )
            if row.key
            else row
            for row in stated
        ]
    report = StudyReport("carbonscaler", ours, stated)
    more = beside(profiles()[headline["profile"]], windows[headline["deadline_h"]])
    for row in [*rows, *(row for row in more if row["mode"] != "greedy, unaware")]:
        if row["values"]["late"]["ours"]:
            report.wrong.append(
                f"{row['case']}, {row['mode']}: expected every deadline met, got "
                f"{row['values']['late']['ours']:.0f} missed"
            )
    found = {
        "source": source.prices.source,
        "hours": HOURS if source.circular else len(source.values),
        "starts": len(windows[headline["deadline_h"]]),
        "job_h": JOB_H,
    }
    parts = (
        texts(_FILE, "made_up" if carbon is None else "named", **found),
        tabulate(map(_flat, rows), *experiment.form("carbonscaler", "savings")),
        tabulate(map(_flat, more), *experiment.form("carbonscaler", "beside", **headline)),
        texts(_FILE, "notes"),
    )
    values = {**found, "rows": rows + more}
    return report.result(values, parts, lambda folder: draw(rows, folder), figures)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for a table."""
    values = {key: value["ours"] for key, value in row["values"].items()}
    sizes = ", ".join(map(str, row.get("sizes", ())))
    return {**row, **values, "sizes": sizes, "late": f"{values['late']:.0f}"}


def draw(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Draw what the greedy saves over the same job at once, by deadline."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        hours, saved = curves.setdefault(row["case"], ([], []))
        hours.append(float(row["deadline_h"]))
        saved.append(row["values"]["at_once_pct"]["ours"])
    labels = ("deadline (h)", "less CO2 than at once (%)", f"a job of {JOB_H} h")
    draw_lines(curves, folder / "savings.png", labels)
