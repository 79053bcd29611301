"""Simulated schedules with and without resizes, as pictures of nodes over time.

Nine equal jobs on 20 nodes, as Iserte & Rojek measured them, and streams of jobs by the workload
model of Lublin & Feitelson. The simulator has the engine and the policies of the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import exp
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any, Protocol

from rms.core.model.jobs import Job, JobId, JobSpec, Mode, Site
from rms.core.policies import named
from rms.formats.config import read_cluster, read_workload
from rms.plots import History
from rms.sim.run import Recording
from rms.sim.simulator import Simulation
from rms.studies.malleability import MalleableChange, malleable, powered

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, LINES = 72, 10
"""Size of a picture in characters."""
BLOCKS = "█▓▒░"
BARS = " ▁▂▃▄▅▆▇█"
COLOURS = (75, 215, 114, 204, 180, 141, 80, 222, 168)
"""Of 256, for terminals."""

NODES, JOBS, LOAD = 128, 400, 0.9
SEEDS = (1, 2, 3, 4, 5)
SHARE = 0.5


class Say(Protocol):
    """Prints lines; ``detail`` is what runs (``progress.Progress``)."""

    detail: str

    def __call__(self, line: str, coloured: str | None = None) -> None: ...


@dataclass(frozen=True)
class Run:
    """A finished simulation: the holders of its nodes, its jobs, and its number of resizes."""

    title: str
    history: History
    jobs: Sequence[Job]
    resizes: int

    def mean_s(self, seconds: Callable[[Job], float]) -> float:
        """Return a mean over the jobs."""
        return fmean(map(seconds, self.jobs))


def simulate(
    title: str, specs: Sequence[JobSpec], site: Site, policy: str, *, drawn: bool = True
) -> Run:
    """Run jobs to their ends; only where it is ``drawn``, which takes time, with a history."""
    recording = Recording(_spans(site.nodes))
    observer = recording.observe if drawn else None
    simulation = Simulation(specs, site, named(policy), record=False, observer=observer)
    simulation.run()
    jobs = list(simulation.engine.state.ended.values())
    end_s = max(job.end_s or 0.0 for job in jobs)
    spans = recording.timeline.spans
    return Run(title, History(recording.timeline.names, spans, (), end_s), jobs, simulation.resized)


def _spans(nodes: int) -> Any:
    from rms.core.books.spans import Spans

    spans = Spans([str(number + 1) for number in range(nodes)])
    spans.open(0.0, dict.fromkeys(spans.names, 0.0))
    return spans


# --- nine jobs on the paper's 20 nodes -----------------------------------------------------------


def nine_jobs(folder: Path, say: Say) -> bool:
    """Show nine jobs in the four modes; return whether resizes shorten the schedule."""
    work = ROOT / "jobs" / "nine-k80.toml"
    site = Site(20, read_cluster(ROOT / "jobs" / "k80.toml").power)
    runs = {}
    for mode in Mode:
        specs = read_workload(work, mode)
        runs[mode] = simulate(str(mode), specs, site, "array-share")
    shown = [runs[Mode.FIXED], runs[Mode.MALLEABLE]]
    longest_s = max(run.history.end_s for run in shown)
    for run in shown:
        kind = "without resizes" if run.title == Mode.FIXED else f"with {run.resizes} resizes"
        say(f"   {kind}: {run.history.end_s:,.0f} s, simulated")
        for line, coloured in held_lines(run.history, longest_s, LINES):
            say(line, coloured)
    say(time_axis(longest_s, 60.0, "min"))
    fixed, resized = (run.history.end_s for run in shown)
    either, both = (runs[mode].history.end_s for mode in (Mode.MOLDABLE, Mode.FLEXIBLE))
    say(f"   Jobs that start on 16 nodes: {1 - resized / fixed:.0%} less time with resizes.")
    say(
        f"   Jobs that start at any size: {either:,.0f} s, with resizes {both:,.0f} s "
        f"({1 - both / either:.0%} less)."
    )
    say.detail = "drawing"
    picture = folder / "nine-jobs.png"
    draw([runs[mode] for mode in Mode], picture, "Nine jobs on 20 nodes, simulated", 60.0, "min")
    say(f"   Picture of all four modes: {picture}")
    return resized < fixed and both <= either


def held_lines(history: History, longest_s: float, lines: int) -> Iterable[tuple[str, str]]:
    """Yield lines of a picture of the jobs on the nodes, plain and coloured.

    A line is one node of a group; a run of cells begins with its job's number.
    """
    rows = len(history.rows)
    names = {job: job.rpartition("_")[2] for job in history.jobs}
    cells: dict[int, list[str]] = {row: [""] * COLUMNS for row in range(rows)}
    for row, job, start_s, length_s in history.bars():
        first = round(COLUMNS * start_s / longest_s)
        last = round(COLUMNS * (start_s + length_s) / longest_s)
        cells[row][first:last] = [job] * (last - first)
    order = {job: at for at, job in enumerate(history.jobs)}
    for line in range(lines):
        plain, coloured = "", ""
        for job, run in groupby(cells[line * rows // lines]):
            length = len(list(run))
            if not job:
                plain, coloured = plain + "·" * length, coloured + "·" * length
                continue
            plain += names[job] + BLOCKS[order[job] % len(BLOCKS)] * (length - len(names[job]))
            shade = COLOURS[order[job] % len(COLOURS)]
            filled = names[job] + "█" * (length - len(names[job]))
            coloured += f"\033[38;5;{shade}m{filled}\033[0m"
        yield f"   |{plain}|", f"   |{coloured}|"


def time_axis(longest_s: float, unit_s: float, unit: str) -> str:
    """Return the line below a picture."""
    end = f"{longest_s / unit_s:.0f} {unit}"
    return f"    0{end:>{COLUMNS - 1}}"


# --- a stream ------------------------------------------------------------------------------------


def lublin(seed: int, nodes: int = NODES, jobs: int = JOBS, load: float = LOAD) -> list[JobSpec]:
    """Return rigid jobs whose sizes and run times follow a published model.

    U. Lublin, D. Feitelson: The workload on parallel supercomputers: modeling the characteristics
    of rigid jobs, J. Parallel Distrib. Comput. 63 (2003), for machines of 128 nodes, without the
    distinction of batch and interactive jobs. Arrivals are those of its rush hours, without the
    daily cycle, stretched to a load: node-seconds of all jobs over those until the last arrival.
    """
    random = Random(seed)
    drawn, at_s = [], 0.0
    for _ in range(jobs):
        kind = random.random()
        low, high = (0.8, 4.5) if random.random() <= 0.86 else (4.5, 7.0)
        exponent = random.uniform(low, high)
        size = 1
        if kind > 0.244:
            size = round(2 ** (round(exponent) if kind <= 0.244 + 0.576 else exponent))
        short = random.random() <= 0.78 - 0.0054 * size
        # exp(12) s is the longest run time of the model, exp(13) s its longest pause.
        run_s = exp(_gamma(random, *((4.2, 0.94) if short else (312.0, 0.03)), 12.0))
        drawn.append((at_s, size, run_s))
        at_s += exp(_gamma(random, 10.2303, 0.4871, 13.0))
    stretch = sum(size * run_s for _, size, run_s in drawn) / (nodes * load * at_s)
    return [
        JobSpec(
            JobId(str(number)),
            submit_s * stretch,
            *(size, size, size),
            Mode.FIXED,
            limit_s=run_s,
            run_s=run_s,
        )
        for number, (submit_s, size, run_s) in enumerate(drawn, 1)
    ]


def _gamma(random: Random, shape: float, scale: float, most: float) -> float:
    value = most + 1.0
    while value > most:
        value = random.gammavariate(shape, scale)
    return value


WAYS = {
    "rigid": (0.0, Mode.FIXED, "all jobs rigid"),
    "moldable": (SHARE, Mode.MOLDABLE, "half of them start at any size"),
    "flexible": (SHARE, Mode.FLEXIBLE, "half of them are resized too"),
}


def stream(folder: Path, say: Say) -> bool:
    """Show streams with and without resizes; return whether resizes shorten waits in all."""
    site = powered(Site(NODES))
    say(f"   {JOBS} jobs at a load of {LOAD:.0%}; resizable ones have a serial part of 5 %, resize")
    say("   points 300 s apart, and a resize costs them 10 s.")
    means: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    first: dict[str, Run] = {}
    for seed in SEEDS:
        rigid = lublin(seed)
        for way, (share, mode, words) in WAYS.items():
            change = MalleableChange(mode=mode, seed=seed)
            specs = malleable(rigid, share, NODES, change)
            run = simulate(words, specs, site, "backfill-share", drawn=seed == SEEDS[0])
            waits = run.mean_s(_wait_s), run.mean_s(lambda job: _wait_s(job) + _run_s(job))
            means[way].append(waits)
            first.setdefault(way, run)
    shown = [first["rigid"], first["flexible"]]
    longest_s = max(run.history.end_s for run in shown)
    most = max(max(waiting(run.jobs, longest_s)) for run in shown)
    for run in shown:
        kind = "without resizes" if run is first["rigid"] else f"with {run.resizes} resizes"
        say(f"   {kind}, simulated; {run.title}")
        for line in busy_lines(run, longest_s, LINES):
            say(line)
        queue = "".join(
            BARS[-(-number * (len(BARS) - 1) // most) if most else 0]
            for number in waiting(run.jobs, longest_s)
        )
        say(f"   |{queue}| waiting jobs, {max(waiting(run.jobs, longest_s))} at most")
    say(time_axis(longest_s, 3600.0, "h"))
    say(f"   {len(SEEDS)} streams, means over {JOBS} jobs each: median (least-most)")
    say(f"   {'':32s} {'wait':>20s} {'turnaround':>20s}")
    for way, (_, _, words) in WAYS.items():
        cells = [_range(values, 60.0) for values in zip(*means[way], strict=True)]
        say(f"   {words:32s} {cells[0] + ' min':>20s} {cells[1] + ' min':>20s}")
    better = [
        1 - flexible[0] / min(rigid[0], moldable[0])
        for rigid, moldable, flexible in zip(*means.values(), strict=True)
    ]
    say(
        f"   With resizes the wait is {min(better):.0%} to {max(better):.0%} below the shorter one "
        "without, in each stream."
        if min(better) > 0
        else "   Not in each stream is the wait shorter with resizes."
    )
    say.detail = "drawing"
    picture = folder / "stream.png"
    title = f"{JOBS} jobs on {NODES} nodes, simulated"
    draw(list(first.values()), picture, title, 3600.0, "h")
    say(f"   Picture: {picture}")
    return min(better) > 0


def _wait_s(job: Job) -> float:
    return (job.start_s or 0.0) - job.spec.submit_s


def _run_s(job: Job) -> float:
    return (job.end_s or 0.0) - (job.start_s or 0.0)


def _range(values: Sequence[float], unit: float) -> str:
    low, middle, high = (each(values) / unit for each in (min, median, max))
    return f"{middle:.0f} ({low:.0f}-{high:.0f})"


def busy_lines(run: Run, longest_s: float, lines: int) -> Iterable[str]:
    """Yield lines of a picture of how many nodes are busy: with rigid jobs, with others above."""
    others = {job.spec.id for job in run.jobs if job.spec.mode is not Mode.FIXED}
    busy = [[0.0, 0.0] for _ in range(COLUMNS)]
    step_s = longest_s / COLUMNS
    for _, job, start_s, length_s in run.history.bars():
        end_s = start_s + length_s
        for column in range(int(start_s / step_s), min(COLUMNS, int(end_s / step_s) + 1)):
            inside_s = min(end_s, (column + 1) * step_s) - max(start_s, column * step_s)
            busy[column][job in others] += max(0.0, inside_s) / step_s
    unit = len(run.history.rows) / lines
    for line in reversed(range(lines)):
        level = (line + 0.5) * unit
        text = "".join(
            "█" if rigid >= level else "▒" if rigid + other >= level else " "
            for rigid, other in busy
        )
        mark = {lines - 1: f" {len(run.history.rows)} nodes", 0: " █ rigid ▒ resizable"}
        yield f"   |{text}|{mark.get(line, '') if others or line else ' █ rigid'}"


def waiting(jobs: Sequence[Job], longest_s: float) -> list[int]:
    """Return how many jobs wait at the middle of each column."""
    times = [(column + 0.5) * longest_s / COLUMNS for column in range(COLUMNS)]
    return [sum(job.spec.submit_s <= at_s < (job.start_s or 0.0) for job in jobs) for at_s in times]


# --- files ---------------------------------------------------------------------------------------


def blocks(history: History) -> Iterable[tuple[str, float, float, list[int]]]:
    """Yield ``(job, start, length, rows)`` of neighbouring rows that a job held together."""
    held: dict[tuple[str, float, float], list[int]] = {}
    for row, job, start_s, length_s in history.bars():
        held.setdefault((job, start_s, length_s), []).append(row)
    for (job, start_s, length_s), rows in held.items():
        for _, run in groupby(enumerate(sorted(rows)), lambda each: each[1] - each[0]):
            yield job, start_s, length_s, [row for _, row in run]


def draw(runs: Sequence[Run], path: Path, title: str, unit_s: float, unit: str) -> None:
    """Draw the jobs on the nodes over time, runs one below the other on one scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    longest_s = max(run.history.end_s for run in runs)
    figure, charts = pyplot.subplots(
        len(runs), 1, figsize=(9.0, 1.0 + 1.9 * len(runs)), sharex=True, layout="constrained"
    )
    shades = matplotlib.colormaps["tab20"]
    for run, axes in zip(runs, charts, strict=True):
        order = {job: at for at, job in enumerate(run.history.jobs)}
        for job, start_s, length_s, rows in blocks(run.history):
            axes.broken_barh(
                [(start_s / unit_s, length_s / unit_s)],
                (rows[0] - 0.5, rows[-1] - rows[0] + 1),
                color=shades(order[job] % shades.N),
                linewidth=0,
            )
        end = f"ends after {run.history.end_s / unit_s:.1f} {unit}"
        axes.set_title(f"{run.title}: {end}, {run.resizes} resizes", fontsize=9, loc="left")
        axes.set(
            ylabel="node", xlim=(0, longest_s / unit_s), ylim=(-0.5, len(run.history.rows) - 0.5)
        )
    charts[-1].set_xlabel(f"time since the first submission ({unit})")
    figure.suptitle(title, fontsize=11)
    part = path.with_suffix(".part.png")
    figure.savefig(part, dpi=110)
    part.replace(path)
    pyplot.close(figure)
