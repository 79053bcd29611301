"""Streams of jobs from logs: policies by the share of malleable jobs, beside a lower bound.

Jobs of a log become malleable as in :mod:`rms.studies.malleability`: a share of them by a draw, for
several draws and several speedups. There are means by policy and tails, also by class of job,
and three comparisons: starts with those of EASY on the same jobs, all rigid; jobs that are
malleable with the same jobs, rigid, while others are malleable; and means by the share.
"""

from __future__ import annotations

import argparse
import os
import sys
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import inf, isnan, nan
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec

from rms.core.model.jobs import JobSpec, Site
from rms.core.policies import DEFAULT, POLICIES, named
from rms.formats.config import FileError
from rms.formats.swf import read_trace
from rms.plots import Panel, draw_panels
from rms.sim.classes import by_half
from rms.sim.run import chosen
from rms.studies import experiment
from rms.studies.bounds import turnaround_bound_s
from rms.studies.experiment import read_rows, run_all, tabulate
from rms.studies.malleability import MalleableChange, Row, malleable, measured, powered
from rms.studies.malleability import model as assumptions
from rms.wire.terminal import Parser, at_least, columns, publish, say

BASELINE = "easy"
"""The policy that starts are compared with, all jobs rigid."""


class StreamLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A log, and its machine.

    Attributes:
        file: its name, in the folder of traces; one that ends with ``.csv.gz`` in the other folder.
        nodes: of the machine, in units of ``unit`` processors.
        jobs: the default slice, as the number of its first job, from 0, and of its jobs.
        held_out: no parameter of the default policy was set on it.
        unit: all sizes are multiples of so many processors.
        begin_s, end_s: only jobs submitted from the first time on and before the second.
    """

    file: str
    nodes: int
    jobs: tuple[int, int]
    held_out: bool = True
    unit: int = 1
    begin_s: float = 0.0
    end_s: float = inf


LOGS = {
    name: msgspec.convert(log, StreamLog)
    for name, log in experiment.settings("streams")["logs"].items()
}
SET_ON = "KTH-SP2, Theta-2022-h1 and the streams of rms reproduce posner, seeds S0 to S4"
INTREPID = "public logs of ALCF (github gaganmangat/MTech-Thesis, JobLogs)"


class StreamPlan(NamedTuple):
    """The simulations of a log: all combinations, on a slice of the jobs (None for its default)."""

    policies: tuple[str, ...] = (DEFAULT, "easy", "conservative", "easy-share")
    shares: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    serials: tuple[float, ...] = (0.01, 0.1, 0.5)
    seeds: tuple[int, ...] = (1, 2, 3)
    jobs: tuple[int, int] | None = None


class Stream(NamedTuple):
    """A slice of a log from its job ``first`` on, ``of`` all: rigid jobs by their submissions."""

    name: str
    nodes: int
    specs: Sequence[JobSpec]
    first: int = 0
    of: int = 0


class StreamCase(NamedTuple):
    """One simulation; ``mirrored`` as for :func:`malleable`."""

    stream: str
    policy: str
    share: float
    serial: float
    seed: int
    mirrored: bool = False

    @property
    def change(self) -> MalleableChange:
        """How jobs of the stream become malleable."""
        return MalleableChange(serial=self.serial, seed=self.seed)


class StreamRun(NamedTuple):
    """The row of a case; times of its jobs (nan if never started), and whether one is malleable.

    Jobs are in the order of the stream.
    """

    row: Row
    starts_s: Sequence[float]
    ends_s: Sequence[float]
    resizable: Sequence[bool]


Runs = Mapping[StreamCase, StreamRun]


class _Record(msgspec.Struct):
    id: int
    submit_s: float
    run_s: float
    nodes: int


def read_stream(name: str, traces: Path, external: Path, jobs: tuple[int, int] | None) -> Stream:
    """Read the slice of a log, which must have jobs."""
    log = LOGS[name]
    if log.file.endswith(".csv.gz"):
        specs = [
            experiment.job(row.id, row.nodes, row.submit_s, run_s=row.run_s)
            for row in read_rows(external / log.file, _Record, INTREPID)
        ]
    else:
        specs = read_trace(traces / log.file).specs
    specs = [spec for spec in specs if log.begin_s <= spec.submit_s < log.end_s]
    specs.sort(key=attrgetter("submit_s"))
    first, count = jobs or log.jobs
    part = specs[first : first + count]
    if not part:
        raise FileError(f"expected --jobs from 0 to {len(specs) - 1} of {name}, got {first}")
    return Stream(name, log.nodes, [_in_units(spec, log.unit) for spec in part], first, len(specs))


def _in_units(spec: JobSpec, unit: int) -> JobSpec:
    if unit == 1:
        return spec
    size = -(-spec.preferred // unit)
    return msgspec.structs.replace(spec, nodes_min=size, nodes_max=size, preferred=size)


# --- Simulations ---------------------------------------------------------------------------------


def cases(stream: str, plan: StreamPlan) -> list[StreamCase]:
    """Return the simulations of a stream, the baseline first; none twice.

    Without malleable jobs neither draw nor speedup matters, with all of them the draw does not.
    """
    chosen_ones = [_baseline(stream, plan)]
    for policy in plan.policies:
        for share in plan.shares:
            for serial in plan.serials if share > 0.0 else plan.serials[:1]:
                for seed in plan.seeds if 0.0 < share < 1.0 else plan.seeds[:1]:
                    case = StreamCase(stream, policy, share, serial, seed)
                    chosen_ones.append(case)
                    if _splits(share):
                        chosen_ones.append(case._replace(mirrored=True))
    return list(dict.fromkeys(chosen_ones))


def _baseline(stream: str, plan: StreamPlan) -> StreamCase:
    return StreamCase(stream, BASELINE, 0.0, plan.serials[0], plan.seeds[0])


def _splits(share: float) -> bool:
    """Return whether two sets of this share of the jobs can be disjoint."""
    return 0.0 < share <= 0.5


def run(case: StreamCase, stream: Stream) -> StreamRun:
    """Simulate a case."""
    jobs = malleable(stream.specs, case.share, stream.nodes, case.change, mirrored=case.mirrored)
    site = powered(Site(stream.nodes))
    policy = chosen(named(case.policy), counted=True, ahead=False)
    row, simulation = measured(stream.specs, jobs, site, policy, case.change)
    resizable = [job.mode.resizable for job in jobs]
    ids = {job.id for job in jobs if job.mode.resizable}
    row |= {
        **case._asdict(),
        "bound_s": turnaround_bound_s(jobs, stream.nodes),
        "decisions_per_s": row["decisions"] / row["wall_s"] if row["wall_s"] else 0.0,
        "classes": by_half(simulation, stream.specs, ids),
    }
    ended = [simulation.engine.state.ended[spec.id] for spec in stream.specs]
    starts_s = array("d", (nan if job.start_s is None else job.start_s for job in ended))
    ends_s = array("d", (nan if job.start_s is None else job.end_s or nan for job in ended))
    return StreamRun(row, starts_s, ends_s, resizable)


# --- Comparisons ---------------------------------------------------------------------------------


def later_than(run: StreamRun, base: StreamRun, specs: Sequence[JobSpec], margin_s: float) -> Row:
    """Return the largest excess of starts over another run, and the share above the margin."""
    excesses = [
        (own - other, spec.id)
        for own, other, spec in zip(run.starts_s, base.starts_s, specs, strict=True)
        if not isnan(own - other)
    ]
    if not excesses:
        return {"worst_excess_s": 0.0, "worst_job": None, "later": 0.0}
    worst_s, job = max(excesses, key=lambda excess: excess[0])
    later = sum(excess_s > margin_s for excess_s, _ in excesses)
    return {"worst_excess_s": worst_s, "worst_job": job, "later": later / len(excesses)}


def paired(one: StreamRun, other: StreamRun, specs: Sequence[JobSpec]) -> list[tuple[float, float]]:
    """Return turnarounds, malleable and rigid, of the jobs that are malleable in one run only."""
    pairs = []
    for at, spec in enumerate(specs):
        if one.resizable[at] == other.resizable[at]:
            continue
        resized, rigid = (one, other) if one.resizable[at] else (other, one)
        pair = resized.ends_s[at] - spec.submit_s, rigid.ends_s[at] - spec.submit_s
        if not isnan(sum(pair)):
            pairs.append(pair)
    return pairs


def pays(
    case: StreamCase, runs: Runs, specs: Sequence[JobSpec], seeds: Sequence[int]
) -> Row | None:
    """Compare malleable jobs with the same jobs, rigid, while as many others are malleable.

    See the notes; above a share of a half, the draws of two successive seeds are compared. Of
    the case, its policy, share and serial part count. None without two such runs.
    """
    pairs: list[tuple[float, float]] = []
    if _splits(case.share):
        for seed in seeds:
            own = case._replace(seed=seed)
            pairs += paired(runs[own], runs[own._replace(mirrored=True)], specs)
    elif 0.0 < case.share < 1.0:
        nexts = [*seeds[1:], seeds[0]] if len(seeds) > 2 else seeds[1:]
        for seed, following in zip(seeds, nexts, strict=False):
            first, second = (runs[case._replace(seed=number)] for number in (seed, following))
            pairs += paired(first, second, specs)
    if not pairs:
        return None
    malleable_s, rigid_s = map(fmean, zip(*pairs, strict=True))
    return {
        "pairs": len(pairs),
        "malleable_turnaround_s": malleable_s,
        "rigid_turnaround_s": rigid_s,
        "ratio": malleable_s / rigid_s if rigid_s else 1.0,
        "sooner": sum(one < other for one, other in pairs) / len(pairs),
        "disjoint": _splits(case.share),
    }


def over_seeds(rows: Sequence[Row]) -> Row:
    """Return the row of several draws: means, and of ``max_``, ``worst_`` columns the largest."""
    first = rows[0]
    merged: Row = {}
    for name, value in first.items():
        values = [row[name] for row in rows]
        if name in ("seed", "mirrored", "worst_job", "classes"):
            continue
        if isinstance(value, dict):
            merged[name] = over_seeds(values)
        elif values.count(value) == len(values):
            merged[name] = value
        else:
            merged[name] = (max if name.startswith(("max_", "worst_")) else fmean)(values)
    if "classes" in first:
        merged["classes"] = _classes([row["classes"] for row in rows])
    if "worst_job" in first:
        merged["worst_job"] = max(rows, key=lambda row: row["worst_excess_s"])["worst_job"]
    turnarounds = [row["mean_turnaround_s"] for row in rows if "mean_turnaround_s" in row]
    if turnarounds:
        merged["range_turnaround_s"] = [min(turnarounds), max(turnarounds)]
    return merged


def _classes(several: Sequence[Mapping[str, Sequence[Row]]]) -> dict[str, Row]:
    by_name: dict[str, list[Row]] = {}
    for classes in several:
        for rows in classes.values():
            for row in rows:
                by_name.setdefault(row["class"], []).append(row)
    return {name: over_seeds(rows) for name, rows in by_name.items()}


def study(stream: Stream, plan: StreamPlan, runs: Runs) -> Row:
    """Return the JSON of a stream: rows by policy, share and serial part, over all draws."""
    base, change = runs[_baseline(stream.name, plan)], MalleableChange()
    margin_s = change.every_s + change.price_s
    groups: dict[tuple[str, float, float], list[Row]] = {}
    for case, result in runs.items():
        if case.policy in plan.policies and case.share in plan.shares and not case.mirrored:
            row = result.row | later_than(result, base, stream.specs, margin_s)
            groups.setdefault((case.policy, case.share, case.serial), []).append(row)
    rows = []
    for policy, share, serial in sorted(
        groups, key=lambda key: (plan.policies.index(key[0]), key[1], plan.serials.index(key[2]))
    ):
        case = StreamCase(stream.name, policy, share, serial, plan.seeds[0])
        merged = over_seeds(groups[policy, share, serial])
        rows.append(merged | {"pays": pays(case, runs, stream.specs, plan.seeds)})
    return {
        "nodes": stream.nodes,
        "unit": LOGS[stream.name].unit if stream.name in LOGS else 1,
        "held_out": stream.name not in LOGS or LOGS[stream.name].held_out,
        "first": stream.first,
        "jobs": len(stream.specs),
        "of": stream.of,
        "margin_s": margin_s,
        "rows": rows,
        "rises": rises(rows, plan.serials),
    }


def rises(rows: Sequence[Row], serials: Sequence[float]) -> list[Row]:
    """Return the steps of the share of malleable jobs at which the mean turnaround rises."""
    steps = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        for serial in serials:
            for before, after in pairwise(by_share(rows, policy, serial)):
                by_s = after["mean_turnaround_s"] - before["mean_turnaround_s"]
                if by_s > 0.0:
                    shares = [before["share"], after["share"]]
                    steps.append(
                        {"policy": policy, "serial": serial, "shares": shares, "by_s": by_s}
                    )
    return steps


def by_share(rows: Sequence[Row], policy: str, serial: float) -> list[Row]:
    """Return the rows of a policy and a serial part by their shares; that of 0 is of all parts."""
    own = [
        row
        for row in rows
        if row["policy"] == policy and (row["serial"] == serial or row["share"] == 0.0)
    ]
    return sorted(own, key=lambda row: float(row["share"]))


# --- Tables and figures --------------------------------------------------------------------------

CLASSES = ("rigid", "malleable", "small", "wide", "short", "long")
NAMES = ("policy", "malleable", "f")
FORM = experiment.form("streams", "policies")


def table(name: str, result: Row) -> list[str]:
    """Return the study of a stream as lines of text."""
    unit = f" of {result['unit']} processors" if result["unit"] > 1 else ""
    rows: list[Row] = result["rows"]
    lines = [
        f"{name}: {result['jobs']} jobs from number {result['first']} on of {result['of']}, "
        f"{result['nodes']} nodes{unit}; {_status(result)}",
        "",
        *tabulate(map(_derived, rows), *FORM),
    ]
    for title, column, form in (
        ("mean turnaround", "mean_turnaround_s", ".0f"),
        ("mean wait", "mean_wait_s", ".0f"),
        ("95th percentile of waits", "p95_wait_s", ".0f"),
        ("worst wait", "max_wait_s", ".0f"),
        ("slowdown", "mean_slowdown", ".2f"),
    ):
        cells = [[*_name(row), *_by_class(row, column, form)] for row in rows]
        lines += ["", f"{title} by class:", *columns((*NAMES, *CLASSES), cells)]
    heads = (*NAMES, "worst excess", "of job", "later", "pays", "malleable", "rigid", "sooner")
    lines += [
        "",
        "starts beside those of EASY on rigid jobs (later: by more than "
        f"{result['margin_s']:g} s), and whether being malleable pays:",
        *columns(heads, [_compared(row) for row in rows]),
        "",
        *_rises(result["rises"]),
    ]
    return lines


def _status(result: Row) -> str:
    return "held out" if result["held_out"] else f"parameters of {DEFAULT} were set on it"


def _name(row: Row) -> list[str]:
    serial = "" if row["share"] == 0.0 else f"{row['serial']:g}"
    return [row["policy"], f"{100 * row['share']:.0f} %", serial]


def _derived(row: Row) -> Row:
    _, percent, serial = _name(row)
    low, high = row["range_turnaround_s"]
    ratio = row["mean_turnaround_s"] / row["bound_s"] if row["bound_s"] else None
    return row | {
        "percent": percent,
        "f": serial,
        "of_bound": "" if ratio is None else f"{ratio:.2f}",
        "draws": "" if low == high else f"{low:.0f}-{high:.0f}",
        "node_h": row["node_s"] / 3600,
        "giga_j": row["energy_j"]["cluster"] / 1e9,
    }


def _by_class(row: Row, column: str, form: str) -> list[str]:
    classes = row["classes"]
    return [format(classes[name][column], form) if name in classes else "" for name in CLASSES]


def _compared(row: Row) -> list[str]:
    cells = [*_name(row), f"{row['worst_excess_s']:.0f}", str(row["worst_job"] or "")]
    cells.append(f"{100 * row['later']:.1f} %")
    paid = row["pays"]
    if paid is None:
        return [*cells, "", "", "", ""]
    times = [f"{paid[f'{mode}_turnaround_s']:.0f}" for mode in ("malleable", "rigid")]
    return [*cells, f"{paid['ratio']:.3f}", *times, f"{100 * paid['sooner']:.0f} %"]


def _rises(steps: Sequence[Row]) -> list[str]:
    if not steps:
        return ["mean turnaround rises nowhere with the share of malleable jobs"]
    return [
        "mean turnaround rises with the share of malleable jobs:",
        *(
            f"  {step['policy']}, f = {step['serial']:g}: by {step['by_s']:.0f} s from "
            f"{100 * step['shares'][0]:.0f} to {100 * step['shares'][1]:.0f} %"
            for step in steps
        ),
    ]


def draw(name: str, result: Row, plan: StreamPlan, path: Path) -> None:
    """Draw a stream: curves of the policies over the share of malleable jobs."""
    rows, label = result["rows"], "malleable jobs (%)"
    panels = []
    for title, value in _CURVES.items():
        for serial in plan.serials:
            series = {
                policy: _curve(by_share(rows, policy, serial), value) for policy in plan.policies
            }
            if "turnaround" in title:
                some = by_share(rows, plan.policies[0], serial)
                series["lower bound"] = _curve(some, lambda row: row["bound_s"] / 3600)
            panels.append(Panel(f"{title}, f = {serial:g}", series, label))
    text = f"{name} ({_status(result)}): {result['jobs']} jobs, {result['nodes']} nodes"
    draw_panels(panels, path, text, columns=len(plan.serials))


_CURVES: Mapping[str, Callable[[Row], float | None]] = {
    "mean turnaround (h)": lambda row: row["mean_turnaround_s"] / 3600,
    "mean wait (h)": lambda row: row["mean_wait_s"] / 3600,
    "95th percentile of waits (h)": lambda row: row["p95_wait_s"] / 3600,
    "node hours over those of rigid jobs": lambda row: row["node_s_of_rigid"],
    "energy (GJ)": lambda row: row["energy_j"]["cluster"] / 1e9,
    "turnaround, malleable over rigid": lambda row: row["pays"] and row["pays"]["ratio"],
}


def _curve(
    rows: Sequence[Row], value: Callable[[Row], float | None]
) -> tuple[list[float], list[float]]:
    points = [(100.0 * row["share"], number) for row in rows if (number := value(row)) is not None]
    return [share for share, _ in points], [number for _, number in points]


# --- The command ---------------------------------------------------------------------------------


def streams(
    some: Sequence[Stream],
    plan: StreamPlan,
    workers: int,
    figures: Path | None,
    progress: Callable[[str], None],
) -> tuple[Row, list[str]]:
    """Return the JSON of the study of some streams, and its tables."""
    result: Row = {"study": "streams", "set_on": SET_ON, "plan": plan._asdict(), "streams": {}}
    lines = [*_assumed(some[0]), ""]
    for stream in some:
        todo, runs = cases(stream.name, plan), dict[StreamCase, StreamRun]()

        def run_one(case: StreamCase, stream: Stream = stream) -> StreamRun:
            return run(case, stream)

        for case, outcome in run_all(run_one, todo, workers):
            runs[case] = outcome
            progress(f"{stream.name}: {len(runs)} of {len(todo)} simulations")
        rows = study(stream, plan, {case: runs[case] for case in todo})
        result["streams"][stream.name] = rows
        lines += [*table(stream.name, rows), ""]
        if figures is not None:
            draw(stream.name, rows, plan, figures / f"streams-{stream.name}.png")
    lines += experiment.settings("streams")["notes"]
    if figures is not None:
        lines.append(f"figures in {figures}")
    return result, lines


def _assumed(stream: Stream) -> list[str]:
    speedup, *others = assumptions(MalleableChange(), Site(stream.nodes))
    return [
        f"Parameters of {DEFAULT} were set on {SET_ON}.",
        speedup.replace("f = 0.05 unless stated", "f as stated"),
        *others[:-1],
    ]


def options(argv: Sequence[str], description: str) -> argparse.Namespace:
    """Return the options of the command."""
    plan = StreamPlan()
    command = Parser("streams", description=description, allow_abbrev=False)
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    add = command.add_argument
    add(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="folder with traces and external (default: RMS_TRACES and MALLEABLE_DATA, else "
        "shared/data beside the repository)",
    )
    add("--logs", type=_of(LOGS, "logs"), default=tuple(LOGS), metavar="NAME[,...]")
    add("--policies", type=_of(POLICIES, "policies"), default=plan.policies, metavar="NAME[,...]")
    add("--shares", type=_shares, default=plan.shares, metavar="PCT[,...]", help="malleable jobs")
    add(
        "--serials",
        type=partial(_numbers, what="serial parts of a run time", most=1.0),
        default=plan.serials,
        metavar="F[,...]",
        help="serial parts",
    )
    add("--seeds", type=_seeds, default=plan.seeds, metavar="N[,...]", help="of the draws")
    add("--jobs", type=_slice, metavar="FIRST:COUNT", help="of each log (default: by log)")
    add("--workers", type=at_least(1), default=os.cpu_count() or 1, metavar="N")
    add("--json", metavar="FILE", help="write the result as JSON (- for stdout)")
    add("--figures", type=Path, metavar="FOLDER", help="draw a figure for each log there")
    return command.parse_args(argv)  # type: ignore[no-any-return]


def _of(names: Collection[str], kind: str) -> Callable[[str], tuple[str, ...]]:

    def read(text: str) -> tuple[str, ...]:
        parts = tuple(text.split(","))
        if not set(parts) <= set(names) or len(set(parts)) < len(parts):
            raise argparse.ArgumentTypeError(
                f"expected {kind} of {', '.join(names)}, each once, got {text!r}"
            )
        return parts

    return read


def _numbers(text: str, what: str, most: float) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    good = numbers and all(0.0 <= number <= most for number in numbers)
    if not good or len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(
            f"expected {what}, each from 0 to {most:g} and once, got {text!r}"
        )
    return numbers


def _shares(text: str) -> tuple[float, ...]:
    numbers = _numbers(text, "shares in per cent", 100.0)
    return tuple(number / 100.0 for number in sorted(numbers))


def _seeds(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise argparse.ArgumentTypeError(f"expected whole numbers, each once, got {text!r}")
    return tuple(int(part) for part in parts)


def _slice(text: str) -> tuple[int, int]:
    first, _, count = text.partition(":")
    if not (first.isdecimal() and count.isdecimal() and int(count)):
        raise argparse.ArgumentTypeError(
            f"expected FIRST:COUNT, the number of the first job from 0 and of jobs, got {text!r}"
        )
    return int(first), int(count)


def folders(data: Path | None, beside: Path) -> tuple[Path, Path]:
    """Return the folder of traces and that of other data."""
    if data is not None:
        return data / "traces", data / "external"
    traces = os.environ.get("RMS_TRACES", beside / "traces")
    return Path(traces), Path(os.environ.get("MALLEABLE_DATA", beside / "external"))


def command(arguments: argparse.Namespace, beside: Path) -> int:
    """Read the logs, run the study and print it; data are ``beside`` where no folder is named."""
    traces, external = folders(arguments.data, beside)
    plan = StreamPlan(
        arguments.policies, arguments.shares, arguments.serials, arguments.seeds, arguments.jobs
    )
    read = [read_stream(name, traces, external, plan.jobs) for name in arguments.logs]
    experiment.make_folder(arguments.figures)
    progress = say if sys.stderr.isatty() else lambda text: None
    result, lines = streams(read, plan, arguments.workers, arguments.figures, progress)
    publish(arguments.json, result, lines)
    return 0
