"""``rms profile``: a command for real at several sizes, on a fresh RMS for every size.

A profile is measured in two ways. *Separate*: one run at every size, after a warm-up. *Malleable*:
one run in all, resized to the sizes in turn; its steps are timed at every size, without the
resizes. Energy is that of the books of the RMS, by its meters if there are any, else by its model.

Two laws are fitted to the runs: t(n) = tc + t1 / n, that of Iserte & Rojek (section 3), and
P(n, f) = n (P_S + P_D Eff(n) (f / f_max)^3), that of their equations 1 and 2, with dynamic power
proportional to frequency times the square of the voltage (Ge, Feng & Cameron 2005, after Chauhan et
al., section III), the voltage to the frequency. An optimal operating point is a size, and a
frequency, at which a program needs least energy (Chauhan et al., section III), least energy times
time, or least energy among those that keep a bound of the run time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rms.client.commands import jobs, script_of, submit
from rms.client.connection import ask
from rms.core.books.spans import MODEL
from rms.core.model.jobs import Mode
from rms.formats.profiles import (
    MALLEABLE,
    PROFILES_VARIABLE,
    SEPARATE,
    WAYS,
    Bandwidth,
    Point,
    Profile,
)
from rms.plots import Panel, draw_panels
from rms.studies.embedded import embedded_daemon, wait_until_over
from rms.studies.experiment import tabulate
from rms.wire.terminal import CommandError, columns
from rms.wire.users import (
    OVER,
    AcctAnswer,
    BooksAnswer,
    EnergyRow,
    JobIds,
    JobRow,
    JobSelection,
    NodeRow,
    Options,
    ResizeAnswer,
    ResizeCommand,
)

Answer = TypeVar("Answer")
Vector = NDArray[np.float64]

SAME = 1e-3
"""Values that differ by less than this part count as the same."""

SHORT_S = 3.0
"""Shorter runs have too few reports of meters, one a second, for the idle and the highest power."""

LOOK_S = 0.05
RESIZE_S = 120.0
"""The longest time of a resize, and of a job until its first step."""

METERS_S = 5.0
"""The longest wait for the first report of meters."""

EDGES_S = 0.8
"""Seconds of a job's power that may be another's. The reports of a second at both ends of a run are
of the idle node too, and shared out by the model: with nodes that draw five times as much busy as
idle by the model, up to 0.38 of a report goes to the wrong side."""


class ProfilingError(CommandError):
    """A command that could not be measured."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, 1)


@dataclass(frozen=True)
class ProfilingSetup:
    """The command of a profile, and how it is run.

    Attributes:
        sizes: numbers of nodes, rising.
        repeat: runs at a size; of a malleable run, turns through the sizes.
        engine: of the RMS.
        serve: more options of ``rms serve``.
        folder: output of the runs goes there.
        window_s: time for which the steps of a malleable run are timed at a size.
        say: prints a line of progress.
        metered: whether there are meters: no run begins before their first report.
    """

    command: Sequence[str]
    sizes: Sequence[int]
    repeat: int
    engine: str
    serve: Sequence[str]
    folder: Path
    env: Mapping[str, str]
    window_s: float
    say: Callable[[str], None]
    metered: bool = False

    @contextmanager
    def daemon(self, name: str) -> Iterator[str]:
        """Run an RMS that resizes no job of its own accord and has no profiles."""
        options = ["--engine", self.engine, "--nodes", str(self.sizes[-1]), "--policy", "fifo"]
        with embedded_daemon(
            [*options, *self.serve],
            self.folder / name,
            local=self.engine == "local",
            env={**self.env, PROFILES_VARIABLE: ""},
        ) as server:
            if self.metered:
                _await_meters(server)
            yield server

    def submit(self, server: str, options: Options, name: str) -> str:
        """Hand the command in; return the job's id."""
        output = self.folder.absolute() / f"{name}.out"
        output.unlink(missing_ok=True)
        text = script_of(self.command)
        named = Options(job_name=name, output=str(output)).over(options)
        return submit(server, text, name, named, self.env).ids[0]


def _await_meters(server: str) -> None:
    """Wait for the first report of meters: the energy before it is not measured."""
    until = time.monotonic() + METERS_S
    while time.monotonic() < until:
        rows = ask(list[NodeRow], server, "GET", "/nodes")
        if all(row.power_source != "model" for row in rows):
            return
        time.sleep(LOOK_S)


# --- Separate runs --------------------------------------------------------------------------------


def separate(setup: ProfilingSetup, mhz: float | None = None) -> list[Point]:
    """Run the command at all sizes, at a clock of ``mhz`` (None for the default); return points."""
    return [_point(setup, size, mhz) for size in setup.sizes]


def warm_up(setup: ProfilingSetup) -> None:
    """Run the command once, uncounted, at the largest size: caches are then the same for all."""
    setup.say("warm-up ...")
    with setup.daemon("warm-up") as server:
        _run(setup, server, setup.sizes[-1], "warm-up")


def _point(setup: ProfilingSetup, size: int, mhz: float | None) -> Point:
    clock = "" if mhz is None else f"-{mhz:g}MHz"
    rows: list[JobRow] = []
    with setup.daemon(f"n{size}{clock}") as server:
        for number in range(setup.repeat):
            setup.say(f"{size} nodes{clock}, run {number + 1} of {setup.repeat} ...")
            rows.append(_run(setup, server, size, f"n{size}{clock}-{number + 1}"))
        settled = {row.id: row for row in settle(server)}
        rows = [settled[row.id] for row in rows]
        books = ask(BooksAnswer, server, "GET", "/books")
    spans = [(row.start_s or row.submit_s, row.end_s or row.submit_s) for row in rows]
    peak_w, idle_w = peak_and_idle(books, spans, spans[0][0])
    return Point(
        nodes=size,
        way=SEPARATE,
        time_s=tuple(end - start for start, end in spans),
        energy_j=tuple(row.energy_j for row in rows),
        source=source_of(rows),
        peak_w=peak_w,
        idle_w=size * idle_w,
        mhz=mhz,
        uncertainty_j=fmean([_uncertainty_j(row) for row in rows]),
        steps=rows[0].steps,
    )


def source_of(rows: Sequence[JobRow]) -> str:
    """Return the source of the energy of jobs; the share of a shared device is an estimate."""
    shared = any(part.estimate for row in rows for part in row.energy)
    named = " and ".join(dict.fromkeys(row.energy_source for row in rows))
    return f"{named} (estimate)" if shared else named


def _uncertainty_j(row: JobRow) -> float:
    """Return the half-width of the energy of an ended job, by its meters."""
    run_s = (row.end_s or 0.0) - (row.start_s or 0.0)
    measured_j = sum(part.joules for part in row.energy if part.source != MODEL)
    edges_j = EDGES_S * measured_j / run_s if run_s > 0.0 else 0.0
    return sum(part.uncertainty_j for part in row.energy) + edges_j


def _run(setup: ProfilingSetup, server: str, size: int, name: str) -> JobRow:
    fixed = Options(nodes=(size, size), preferred=size, mode=Mode.FIXED)
    number = setup.submit(server, fixed, name)
    row = next(row for row in wait_until_over(server) if row.id == number)
    if row.state != "COMPLETED":
        raise ProfilingError(
            f"expected the command to end with status 0 on {size} node{'s' * (size > 1)}, "
            f"got {row.state}; its output is in {row.output}"
        )
    return row


def settle(server: str) -> list[JobRow]:
    """Wait until finished jobs have all their energy, which meters report later; return them."""

    def settled() -> list[JobRow]:
        rows = jobs(server)
        return rows if all(row.summary != "" for row in rows) else []

    return _until(settled, "the energy of jobs that are over")


def peak_and_idle(
    books: BooksAnswer, spans: Sequence[tuple[float, float]], start_s: float
) -> tuple[float, float]:
    """Return a job's highest power in spans of time above the idle power, and that of a node.

    As Chiesi et al. characterise a kernel (section 4.1). The idle power is that of the cluster
    before the run starts.
    """
    curve = books.power_w
    before = [watts for at, watts in curve if at < start_s]
    idle_w = before[-1] if before else min((watts for _, watts in curve), default=0.0)
    highest = max((_highest(curve, *span) for span in spans), default=idle_w)
    return max(0.0, highest - idle_w), idle_w / len(books.nodes)


def _highest(curve: Sequence[tuple[float, float]], start_s: float, end_s: float) -> float:
    """Return the highest power in a span of time, that at its beginning included."""
    inside = [watts for at, watts in curve if start_s < at < end_s]
    inside += [watts for at, watts in curve if at <= start_s][-1:]
    return max(inside, default=0.0)


# --- A job of a daemon, beside others -------------------------------------------------------------


class StepEnergy(msgspec.Struct, frozen=True):
    """What a step of a job takes at one size, by the books of a daemon.

    Attributes:
        uncertainty_j: half-width of ``joules``, None where a part is by the model.
    """

    nodes: int
    steps: int
    step_s: float
    joules: float
    uncertainty_j: float | None
    source: str


def steps_of_job(row: JobRow, energy: Sequence[EnergyRow]) -> list[StepEnergy]:
    """Return the energy of a step at each size of a job: its mean power, times seconds a step.

    Resizes are left out. On nodes that jobs share it is the job's share of them.
    """
    rows = [r for r in energy if r.owner == row.id and not r.resize and r.end_s > r.begin_s]
    times = sorted({at for r in rows for at in (r.begin_s, r.end_s)})
    sums: dict[int, list[float]] = {}
    of_size: dict[int, dict[str, float]] = {}
    for begin_s, end_s in pairwise(times):
        present = [r for r in rows if r.begin_s <= begin_s and r.end_s >= end_s]
        size = len({r.node for r in present})
        whole, sources = sums.setdefault(size, [0.0] * 3), of_size.setdefault(size, {})
        whole[0] += end_s - begin_s
        for r in present:
            part = (end_s - begin_s) / (r.end_s - r.begin_s)
            whole[1] += part * r.joules
            whole[2] += part * r.uncertainty_j
            sources[r.source] = sources.get(r.source, 0.0) + part * r.joules
    steps = []
    for seen in row.seen:
        seconds, joules, half_j = sums.get(seen.nodes, [0.0] * 3)
        if not seen.steps or not seconds:
            continue
        sources = {name: own for name, own in of_size[seen.nodes].items() if own}
        step_s = seen.seconds / seen.steps
        half = None if MODEL in sources else half_j / seconds * step_s
        named = " and ".join(sorted(sources, key=lambda name: -sources[name]))
        watts = joules / seconds
        steps.append(StepEnergy(seen.nodes, seen.steps, step_s, watts * step_s, half, named))
    return steps


def job_lines(steps: Sequence[StepEnergy]) -> list[str]:
    """Return the lines of a table of steps."""
    rows = [
        [
            str(each.nodes),
            str(each.steps),
            f"{each.step_s:.4g}",
            f"{each.joules / each.step_s:.1f}",
            f"{each.joules:.4g}",
            "unknown" if each.uncertainty_j is None else f"{each.uncertainty_j:.2g}",
            each.source,
        ]
        for each in steps
    ]
    return columns(["NODES", "STEPS", "S/STEP", "W", "J/STEP", "+-", "SOURCE"], rows)


# --- One run, resized -----------------------------------------------------------------------------


@dataclass(frozen=True)
class StepsWindow:
    """Steps timed at one size: begin, end, and seconds per step."""

    size: int
    begin_s: float
    end_s: float
    step_s: float

    def power_w(self, rows: Sequence[EnergyRow]) -> tuple[float, float]:
        """Return the power in ``rows`` of the job at that size and its half-width, W.

        A row is of one world, so of the whole time at a size.
        """
        at_s = (self.begin_s + self.end_s) / 2
        power_w = half_w = 0.0
        for row in rows:
            span_s = row.end_s - row.begin_s
            if not row.resize and row.begin_s <= at_s <= row.end_s and span_s > 0.0:
                power_w += row.joules / span_s
                edges_j = 0.0 if row.source == MODEL else EDGES_S * row.joules / span_s
                half_w += (row.uncertainty_j + edges_j) / span_s
        return power_w, half_w


def malleable(setup: ProfilingSetup) -> tuple[list[Point], int]:
    """Run the command once, resized to all sizes in turn; return a point for a size, and its steps.

    The run is ended after the last size. The times of a point are those of the whole job at that
    size: its seconds per step times its steps.

    Raises:
        ProfilingError: the run ended too early, was not resized, or reports no steps.
    """
    first, last = setup.sizes[0], setup.sizes[-1]
    options = Options(nodes=(first, last), preferred=first, mode=Mode.MALLEABLE)
    windows: list[StepsWindow] = []
    with setup.daemon("malleable") as server:
        number = setup.submit(server, options, "malleable")
        for turn in range(setup.repeat):
            sizes = setup.sizes if turn % 2 == 0 else tuple(reversed(setup.sizes))
            for size in sizes:
                setup.say(f"{size} nodes, turn {turn + 1} of {setup.repeat} ...")
                _go_to(server, number, size)
                windows.append(_time_steps(server, number, size, setup.window_s))
        ask(JobIds, server, "POST", "/cancel", JobSelection(number))
        wait_until_over(server)
        (over,) = settle(server)
        energy = ask(AcctAnswer, server, "GET", f"/acct?id={number}").rows
        books = ask(BooksAnswer, server, "GET", "/books")
    return [
        _of_windows([w for w in windows if w.size == size], over, energy, books)
        for size in setup.sizes
    ], over.steps


def _of_windows(
    windows: Sequence[StepsWindow], row: JobRow, energy: Sequence[EnergyRow], books: BooksAnswer
) -> Point:
    spans = [(window.begin_s, window.end_s) for window in windows]
    peak_w, idle_w = peak_and_idle(books, spans, row.start_s or row.submit_s)
    time_s = [window.step_s * row.steps for window in windows]
    powers = [window.power_w(energy) for window in windows]
    return Point(
        nodes=windows[0].size,
        way=MALLEABLE,
        time_s=tuple(time_s),
        energy_j=tuple(w * s for (w, _), s in zip(powers, time_s, strict=True)),
        source=source_of([row]),
        peak_w=peak_w,
        idle_w=windows[0].size * idle_w,
        uncertainty_j=fmean([half * s for (_, half), s in zip(powers, time_s, strict=True)]),
        steps=row.steps,
    )


def _row(server: str, number: str) -> JobRow:
    (row,) = jobs(server, number)
    if row.state in OVER and not row.steps:
        raise ProfilingError(
            f"expected a program on dmr, which tells of its steps, got one that was {row.state} "
            f"without a word; its output is in {row.output}"
        )
    if row.state in OVER:
        raise ProfilingError(
            "expected a program that goes on until each size was measured, got one that was "
            f"{row.state} after {row.step} of {row.steps} steps: give it more steps, or --window "
            "a shorter time"
        )
    return row


def _until(look: Callable[[], Answer | None], what: str) -> Answer:
    """Return the first true answer of a function; raise ProfilingError if none comes in time."""
    until = time.monotonic() + RESIZE_S
    while not (answer := look()):
        if time.monotonic() > until:
            raise ProfilingError(f"expected {what} within {RESIZE_S:g} s, got none")
        time.sleep(LOOK_S)
    return answer


def _go_to(server: str, number: str, size: int) -> None:
    _until(lambda: _row(server, number).step > 0, "a program on dmr, that tells of its steps")

    def resized() -> bool:
        row = _row(server, number)
        if row.resizing or row.size == size:
            return not row.resizing
        answer = ask(ResizeAnswer, server, "POST", "/resize", ResizeCommand(number, size))
        if answer.decision == "Never":
            raise ProfilingError(f"expected a resize to {size} nodes, got: {answer.reason}")
        return False

    _until(resized, f"a resize to {size} nodes")


def _time_steps(server: str, number: str, size: int, window_s: float) -> StepsWindow:
    """Time the steps of a job at its size, from one report of its progress to another."""
    _, last = _next_step(server, number, _row(server, number).step)
    begin_s, first = _next_step(server, number, last.step)  # caches are warm by now
    end_s, row = begin_s, first
    while end_s - begin_s < window_s:
        end_s, row = _next_step(server, number, row.step)
    if row.size != size:
        raise ProfilingError(f"expected {size} nodes all the time, got {row.size}")
    return StepsWindow(size, begin_s, end_s, (end_s - begin_s) / (row.step - first.step))


def _next_step(server: str, number: str, step: int) -> tuple[float, JobRow]:
    """Wait until a job reports another step; return the time of the report, and the job's row."""

    def advanced() -> JobRow | None:
        row = _row(server, number)
        return row if row.step != step else None

    row = _until(advanced, "another step")
    return time.time(), row


# --- Laws and operating points --------------------------------------------------------------------


@dataclass(frozen=True)
class Law:
    """Two coefficients by least squares, and the deviations of the measured runs.

    Attributes:
        first, second: of time t1 in s and tc in s; of power P_D and P_S in W of a node.
        first_error, second_error: their standard errors; nan where two runs leave none.
        mean_off, most_off: relative deviation of the runs, mean and largest.
    """

    first: float
    second: float
    first_error: float
    second_error: float
    mean_off: float
    most_off: float


def fit_time(points: Sequence[Point]) -> Law:
    """Return t1 and tc of t(n) = tc + t1 / n through all runs, of two sizes or more."""
    sizes = len({point.nodes for point in points})
    if sizes < 2:
        raise ValueError(f"expected times at two sizes or more, got {sizes}")
    runs = [(1.0 / point.nodes, time_s) for point in points for time_s in point.time_s]
    inverse, time_s = np.asarray(runs).T
    return _least_squares(inverse, time_s)


def fit_power(points: Sequence[Point]) -> Law | None:
    """Return P_D and P_S of the power of a node, P_S + P_D Eff(n) (f / f_max)^3, through all runs.

    If power is the same at all points, P_S is all and P_D none. None if the points do not separate
    the two: all are of one size and frequency, or of the same efficiency.
    """
    smallest = {point.mhz: point for point in sorted(points, key=lambda p: -p.nodes)}
    highest = max((point.mhz for point in points if point.mhz is not None), default=None)
    runs = []
    for point in points:
        first = smallest[point.mhz]
        efficiency = first.nodes * first.run_s / (point.nodes * point.run_s)
        clock = 1.0 if point.mhz is None or highest is None else point.mhz / highest
        for time_s, joules in zip(point.time_s, point.energy_j, strict=True):
            runs.append((efficiency * clock**3, joules / time_s / point.nodes))
    load, watts = np.asarray(runs).T
    if len(points) < 2 or np.ptp(load) < SAME * np.max(load):
        return None
    if np.ptp(watts) < SAME * np.max(watts):
        return Law(0.0, float(watts.mean()), nan, nan, 0.0, 0.0)
    return _least_squares(load, watts)


def _least_squares(x: Vector, y: Vector) -> Law:
    """Return the line y = second + first x; deviations are relative to the runs."""
    design = np.column_stack([x, np.ones_like(x)])
    line, _, _, _ = np.linalg.lstsq(design, y, rcond=None)
    off = design @ line - y
    errors = np.full(2, nan)
    if len(y) > 2:
        variance = float(off @ off) / (len(y) - 2)
        errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    relative = np.abs(off) / np.abs(y)
    (first, second), (of_first, of_second) = line.tolist(), errors.tolist()
    return Law(first, second, of_first, of_second, float(relative.mean()), float(relative.max()))


def operating_points(points: Sequence[Point], slowdown: float) -> dict[str, Point]:
    """Return the measured points with least time, energy, energy times time, and bounded energy.

    The last is least energy among those whose run time is at most ``slowdown`` times the fastest.
    Of equal points the one with fewer nodes counts.
    """
    ordered = sorted(points, key=lambda point: point.nodes)
    fastest = min(ordered, key=lambda point: point.run_s)
    allowed = [point for point in ordered if point.run_s <= slowdown * fastest.run_s]
    return {
        "fastest": fastest,
        "energy": min(ordered, key=lambda point: point.run_j),
        "energy_delay_product": min(ordered, key=lambda point: point.run_j * point.run_s),
        "energy_bounded": min(allowed, key=lambda point: point.run_j),
    }


def differences(separate: Sequence[Point], malleable: Sequence[Point]) -> list[dict[str, float]]:
    """Return the malleable run over the separate ones, less 1, at sizes that both have."""
    by_size = {point.nodes: point for point in malleable}
    return [
        {
            "nodes": point.nodes,
            "time": _ratio(other.run_s, point.run_s),
            "power": _ratio(other.node_w, point.node_w),
            "energy": _ratio(other.run_j, point.run_j),
        }
        for point in separate
        if (other := by_size.get(point.nodes)) is not None
    ]


def _ratio(value: float, base: float) -> float:
    return value / base - 1.0 if base else nan


# --- Tables, JSON and figure ----------------------------------------------------------------------


def matrices(shown: Profile) -> dict[str, list[Point]]:
    """Return the points of the measured ways, by frequency and size."""
    ways = {way: [p for p in shown.points if p.way == way] for way in WAYS}
    return {
        way: sorted(points, key=lambda p: (p.mhz is not None, -(p.mhz or 0.0), p.nodes))
        for way, points in ways.items()
        if points
    }


def lines_of(shown: Profile, slowdown: float) -> list[str]:
    """Return the matrices, the laws and the operating points as text."""
    lines = [
        f"{shown.name}: {' '.join(shown.program.words)}",
        f"on {shown.machine}; program {shown.program.sha256[:12]}; {shown.measured}",
    ]
    by_way = matrices(shown)
    for way, points in by_way.items():
        how = "separate runs" if way == SEPARATE else "one malleable run, seconds per step x steps"
        lines += ["", f"{how}:", *_table(points), *_laws(points), *_points(points, slowdown)]
    if len(by_way) == 2:
        lines += ["", "malleable over separate, less 1:", *_difference(shown)]
    if shown.bandwidth is not None:
        lines += ["", *_bandwidth(shown.bandwidth)]
    return lines


def _bandwidth(shared: Bandwidth) -> list[str]:
    alone_s = next(run.time_s for run in shared.runs if (run.copies, run.probes) == (1, 0))
    rows = [
        [
            str(run.copies),
            str(run.probes),
            f"{run.time_s:.3f}" if run.copies else "",
            f"{run.time_s / alone_s:.3f}" if run.copies else "",
            f"{run.probe_gb_s:.2f}" if run.probes else "",
        ]
        for run in shared.runs
    ]
    process, node = f"{shared.process_gb_s:.3g}", f"{shared.node_gb_s:.3g}"
    exact = f"{process} +- {shared.process_error_gb_s:.2g} GB/s"
    most = f"at most {process} GB/s: it was not seen to slow anybody"
    return [
        f"memory bandwidth, mean of {shared.rounds} rounds, errors from round to round:",
        *columns(["COPIES", "PROBES", "TIME_S", "SLOWDOWN", "GB/S/PROBE"], rows),
        f"a process asks for {most if shared.process_at_most else exact}",
        f"the node has {'at least ' * shared.node_at_least}{node} +- {shared.node_error_gb_s:.2g} "
        f"GB/s; a probe (a = a + s b, one core) moves {shared.probe_gb_s:.3g} GB/s alone",
        *shared.notes,
    ]


def _table(points: Sequence[Point]) -> list[str]:
    first = {point.mhz: point for point in reversed(points)}
    rows = []
    for p in points:
        base = first[p.mhz]
        unknown = p.source != "model" and p.run_s < SHORT_S
        rows.append(
            [
                str(p.nodes),
                "as is" if p.mhz is None else f"{p.mhz:g}",
                f"{p.run_s:.3f}",
                f"{p.spread_s:.3f}",
                f"{p.node_w:.1f}",
                f"{p.run_j:.1f}",
                f"{p.uncertainty_j:.1f}" if p.uncertainty_j else "",
                f"{p.run_j / p.steps:.4g}" if p.steps else "",
                f"{p.uncertainty_j / p.steps:.2g}" if p.steps and p.uncertainty_j else "",
                f"{100 * base.nodes * base.run_s / (p.nodes * p.run_s):.0f}",
                "" if unknown else f"{p.idle_w:.1f}",
                "" if unknown else f"{p.peak_w:.1f}",
                str(len(p.time_s)),
                p.source,
            ]
        )
    heads = ["NODES", "MHZ", "TIME_S", "SPREAD_S", "W/NODE", "ENERGY_J", "+-_J"]
    return columns([*heads, "J/STEP", "+-", "EFF_%", "IDLE_W", "PEAK_W", "RUNS", "SOURCE"], rows)


def _laws(points: Sequence[Point]) -> list[str]:
    lines = []
    for mhz in dict.fromkeys(point.mhz for point in points):
        own = [point for point in points if point.mhz == mhz]
        if len({point.nodes for point in own}) < 2:
            continue
        law = fit_time(own)
        at = "" if mhz is None else f" at {mhz:g} MHz"
        terms = f"{_term(law.second, law.second_error)} s + {_term(law.first, law.first_error)} s/n"
        no_law = "; no speedup law: more nodes took longer" if law.first < 0.0 else ""
        lines.append(f"t(n){at} = {_signed(terms)}{_off(law)}{no_law}")
    power = fit_power(points)
    if power is not None:
        terms = f"{_term(power.second, power.second_error)} W + "
        terms += f"{_term(power.first, power.first_error)} W Eff(n) (f/f_max)^3"
        no_law = (
            "; no law of power: a term is below 0" if min(power.first, power.second) < 0 else ""
        )
        lines.append(f"P(n, f) = n ({_signed(terms)}){_off(power)}{no_law}")
    return lines


def _term(value: float, error: float) -> str:
    return f"{value:.4g}" if isnan(error) else f"({value:.4g} +- {error:.2g})"


def _signed(terms: str) -> str:
    return terms.replace("+ -", "- ")


def _off(law: Law) -> str:
    if isnan(law.first_error):
        return ", through two runs: their error is not known"
    return f", off by {100 * law.mean_off:.1f} % on average, {100 * law.most_off:.1f} % at most"


def _points(points: Sequence[Point], slowdown: float) -> list[str]:
    titles = (
        "fastest",
        "least energy",
        "least energy x time",
        f"least energy up to {slowdown:g} times the fastest",
    )
    lines = []
    for title, p in zip(titles, operating_points(points, slowdown).values(), strict=True):
        clock = "" if p.mhz is None else f" at {p.mhz:g} MHz"
        nodes = f"{p.nodes} node{'s' * (p.nodes != 1)}{clock}"
        lines.append(f"{title}: {nodes}, {p.run_s:.3f} s, {p.run_j:.1f} J")
    source = " and ".join(dict.fromkeys(point.source for point in points))
    return [*lines, f"energy from: {source}"]


def _difference(shown: Profile) -> list[str]:
    percent = [
        {name: 100 * number if name != "nodes" else number for name, number in row.items()}
        for row in differences(shown.matrix(SEPARATE), shown.matrix(MALLEABLE))
    ]
    return tabulate(
        percent,
        ("NODES", "{nodes}"),
        ("TIME_%", "{time:+.1f}"),
        ("POWER_%", "{power:+.1f}"),
        ("ENERGY_%", "{energy:+.1f}"),
    )


def as_json(shown: Profile, slowdown: float) -> dict[str, Any]:
    """Return the profile with its laws and operating points."""
    ways: dict[str, Any] = {}
    for way, points in matrices(shown).items():
        plain = [point for point in points if point.mhz is None]
        time_law = None
        if len({point.nodes for point in plain}) > 1:
            law = fit_time(plain)
            time_law = {
                "tc_s": law.second,
                "t1_s": law.first,
                "mean_off": law.mean_off,
                "most_off": law.most_off,
            }
        ways[way] = {
            "rows": [
                {
                    "nodes": p.nodes,
                    "mhz": p.mhz,
                    "time_s": p.run_s,
                    "power_w": p.node_w * p.nodes,
                    "energy_j": p.run_j,
                    "uncertainty_j": p.uncertainty_j or None,
                    "source": p.source,
                    "steps": p.steps or None,
                }
                for p in points
            ],
            "time_law": time_law,
            "operating_points": {
                name: {"nodes": point.nodes, "mhz": point.mhz}
                for name, point in operating_points(points, slowdown).items()
            },
        }
    return {**msgspec.to_builtins(shown), "ways": ways}


def draw(shown: Profile, path: Path) -> None:
    """Draw time, power and energy against the number of nodes."""
    figures: dict[str, Callable[[Point], float]] = {
        "time (s)": lambda point: point.run_s,
        "power of a node (W)": lambda point: point.node_w,
        "energy (J)": lambda point: point.run_j,
    }
    panels = []
    for title, value in figures.items():
        series: dict[str, tuple[Sequence[Any], Sequence[float]]] = {}
        for way, points in matrices(shown).items():
            for mhz in dict.fromkeys(point.mhz for point in points):
                own = [point for point in points if point.mhz == mhz]
                name = way if mhz is None else f"{way}, {mhz:g} MHz"
                series[name] = [p.nodes for p in own], [value(p) for p in own]
        panels.append(Panel(title, series, "nodes"))
    draw_panels(panels, path, f"{shown.name}, {shown.points[0].source}", columns=3)
