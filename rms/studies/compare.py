"""``rms compare``: the same scripts for real in several modes, by turns, in several rounds.

Each round runs every mode once, on a fresh embedded RMS. The order of the modes changes from
round to round (:func:`orders`), so that a drift of the machine does not hit one mode alone. Before
the first round every script runs once, uncounted: compiled code, imports and input files are
then in the caches for every mode alike.

A difference between two modes counts only if their ranges, least to most over the rounds, do not
overlap, and only from three rounds on (:func:`relations`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import combinations
from math import comb
from pathlib import Path
from statistics import median_low
from typing import Any

from rms.client.commands import read_script, submit
from rms.client.connection import ask
from rms.core.books.spans import BalanceError, check_balance
from rms.core.model.jobs import Mode
from rms.formats.jobscript import parse_script
from rms.formats.values import parse_array
from rms.studies.embedded import embedded_daemon, wait_until_over
from rms.wire.terminal import CommandError, columns, refuse_on
from rms.wire.users import (
    OVER,
    BooksAnswer,
    HistoryEntry,
    JobRow,
    NodeRow,
    NodeSpan,
    Options,
)

WARM_UP = "warm-up"

FEWEST_ROUNDS = 3
"""Rounds from which on ranges that do not overlap count as a difference."""

QUANTITIES = {
    "time_s": ("time [s]", 1),
    "busy_j": ("busy [J]", 0),
    "idle_j": ("idle [J]", 0),
    "cluster_j": ("cluster [J]", 0),
}
"""Quantities with a median and a range in the table: heading and number of decimals."""

COMPARED = {"time_s": "Time", "cluster_j": "Energy of the cluster"}
"""Quantities whose differences between modes the table prints."""

PROGRESS_S = 5.0
"""The least time between two progress lines of a mode."""

TAIL_BYTES = 4096
"""Number of the last bytes of a failed job's output that are searched for its last line."""


@dataclass(frozen=True)
class ComparisonSetup:
    """The machine and the settings of a comparison.

    Attributes:
        engine: of the embedded RMS: ``local``, ``slurm-pilot`` or ``slurm``.
        nodes: the number of nodes that take part, None for all.
        delay_s: time between the submissions of two scripts, in order.
        folder: contains a folder for every mode and round (:func:`place`).
        env: environment of the jobs.
        listen: address of the embedded RMS, "" for any.
    """

    engine: str
    nodes: int | None
    policy: str
    delay_s: float
    folder: Path
    env: Mapping[str, str]
    listen: str = ""

    def daemon(self, folder: Path) -> AbstractContextManager[str]:
        """Run the embedded RMS."""
        nodes = [] if self.nodes is None else ["--nodes", str(self.nodes)]
        options = ["--engine", self.engine, "--policy", self.policy, *nodes]
        return embedded_daemon(options, folder, local=self.engine == "local", listen=self.listen)


def compare(
    scripts: Sequence[Path],
    modes: Sequence[Mode],
    setup: ComparisonSetup,
    say: Callable[[str], None],
    times: int = FEWEST_ROUNDS,
) -> dict[str, Any]:
    """Run the scripts in all modes by turns; return the JSON of ``rms compare``.

    ``rounds`` has the order of the modes by round, ``rows`` the rows of :func:`middle`, ``differs``
    those of :func:`relations`.

    Raises:
        ScriptError: a script that cannot be run; nothing has run.
        CommandError: no daemon started, a job of the warm-up failed, or the energy books do not
            balance.
    """
    for script in scripts:
        parse_script(script)  # errors come before the first run
    runs: dict[Mode, list[dict[str, Any]]] = {mode: [] for mode in modes}
    rounds = orders(list(runs), times)
    with refuse_on(BalanceError, exit_code=1):
        warm_up = _warm_up(scripts, setup, say)
        for number, order in enumerate(rounds, 1):
            for mode in order:
                runs[mode].append(_one_mode(scripts, mode, (number, times), setup, say))
    sources = [run.pop("power_source") for of_mode in runs.values() for run in of_mode]
    rows = [middle(of_mode) for of_mode in runs.values()]
    return {
        "engine": setup.engine,
        "nodes": len(rows[0]["nodes"]),
        "policy": setup.policy,
        "power_source": " and ".join(dict.fromkeys(sources)),
        "times": times,
        "rounds": [[str(mode) for mode in order] for order in rounds],
        "warm_up": warm_up,
        "differs": relations(rows),
        "rows": rows,
    }


def orders(modes: Sequence[Mode], times: int) -> list[list[Mode]]:
    """Return the order of the modes by round.

    Every second round is the one before in reverse, which cancels a linear drift over the two; a
    pair of rounds begins one mode after the previous pair.
    """
    rounds = []
    for number in range(times):
        first = number // 2 % len(modes)
        order = [*modes[first:], *modes[:first]]
        rounds.append(order[::-1] if number % 2 else order)
    return rounds


def place(folder: Path, mode: str, number: int) -> Path:
    """Return the folder in which the jobs of a mode run in a round."""
    return folder / f"{mode}-{number}"


def middle(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a mode: its run of the median time, and the figures of all runs.

    Of an even number of runs it is the lower of the middle two.
    """
    times = [run["time_s"] for run in runs]
    kept = ("round", *QUANTITIES, "off_j", "boot_j", "allocation", "jobs", "note")
    return runs[times.index(median_low(times))] | {
        "ranges": {key: _range([run[key] for run in runs]) for key in (*QUANTITIES, "allocation")},
        "runs": [{key: run[key] for key in kept} for run in runs],
    }


def _range(values: Sequence[float]) -> dict[str, float]:
    return {"least": min(values), "median": median_low(values), "most": max(values)}


def relations(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for all pairs of modes whether they differ in the quantities of :data:`COMPARED`.

    Two modes differ if their ranges do not overlap, in at least :data:`FEWEST_ROUNDS` rounds. Of n
    runs of two equal modes each, in any order alike, this is so in 2 of C(2 n, n) cases: 10 % of
    three rounds, 0.8 % of five. ``ratio`` is the median of ``mode`` over that of ``than``; 1 if
    both are 0.
    """
    pairs = []
    for key in COMPARED:
        for first, second in combinations(rows, 2):
            a, b = first["ranges"][key], second["ranges"][key]
            apart = a["most"] < b["least"] or b["most"] < a["least"]
            enough = min(len(first["runs"]), len(second["runs"])) >= FEWEST_ROUNDS
            pairs.append(
                {
                    "quantity": key,
                    "mode": second["mode"],
                    "than": first["mode"],
                    "ratio": b["median"] / a["median"] if a["median"] else float(not b["median"]),
                    "differs": apart and enough,
                }
            )
    return pairs


class _Progress:
    """Prints the number of ended jobs of a part of the comparison, at most every few seconds."""

    def __init__(self, part: str, say: Callable[[str], None]) -> None:
        self._part, self._say = part, say
        self._begun_s = self._last_s = time.monotonic()
        self._ended = 0
        say(f"{part} ...")

    def __call__(self, rows: Sequence[JobRow]) -> None:
        """Print a line where more jobs have ended than in the last one."""
        ended, now_s = sum(row.state in OVER for row in rows), time.monotonic()
        complete = ended == len(rows)
        if ended > self._ended and (complete or now_s >= self._last_s + PROGRESS_S):
            self._ended, self._last_s = ended, now_s
            at_s = now_s - self._begun_s
            self._say(f"{self._part}: {ended} of {len(rows)} jobs ended, {at_s:.1f} s")


def _refuse_failed(rows: Sequence[JobRow]) -> None:
    """Raise CommandError with the last line of output of the first job that did not complete."""
    for job in rows:
        if job.state in OVER and job.state != "COMPLETED":
            status = "" if job.exit_code is None else f" with exit status {job.exit_code}"
            raise CommandError(
                f"expected the warm-up job {job.name} to complete, got {job.state}{status}: "
                f"{_last_line(job) or job.reason or 'no output'} ({job.output})",
                1,
            )


def _last_line(job: JobRow) -> str:
    """Return the last nonblank line of a job's own output, or ""."""
    try:
        with Path(job.output).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    own = [line for line in lines if line.strip() and not line.startswith("rms: ")]
    return own[-1].strip() if own else ""


def _warm_up(
    scripts: Sequence[Path], setup: ComparisonSetup, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run the scripts once, of an array its first task, at the largest size, the fastest."""
    progress = _Progress("warm-up", say)

    def report(rows: Sequence[JobRow]) -> None:
        _refuse_failed(rows)
        progress(rows)

    folder, begun = setup.folder / WARM_UP, time.monotonic()
    with setup.daemon(folder) as server:
        nodes = len(ask(list[NodeRow], server, "GET", "/nodes"))
        for script in dict.fromkeys(scripts):
            stated = parse_script(script).options
            size = min(stated.sizes[1], nodes)
            array = stated.array and str(parse_array(stated.array).indices[0])
            options = Options(array, (size, size), preferred=size, mode=Mode.FIXED)
            submit(server, read_script(script), script.stem, options, setup.env, folder)
        jobs = wait_until_over(server, report)
    return {
        "jobs": len(jobs),
        "time_s": time.monotonic() - begun,
        "states": [job.state for job in jobs],
    }


def _one_mode(
    scripts: Sequence[Path],
    mode: Mode,
    turn: tuple[int, int],
    setup: ComparisonSetup,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run the scripts in a mode and round (its number, and that of all); return the run."""
    progress = _Progress(f"round {turn[0]} of {turn[1]}, mode {mode}", say)
    folder = place(setup.folder, mode, turn[0])
    with setup.daemon(folder) as server:
        nodes = len(ask(list[NodeRow], server, "GET", "/nodes"))
        for number, script in enumerate(scripts):
            if number:
                time.sleep(setup.delay_s)
            low, high = parse_script(script).options.sizes
            options = Options(mode=mode, nodes=(min(low, nodes), min(high, nodes)))
            submit(server, read_script(script), script.stem, options, setup.env, folder)
        jobs = wait_until_over(server, progress)
        _trace_resizes(server, jobs)
        run = _run(mode, jobs, ask(BooksAnswer, server, "GET", "/books"))
        return {"round": turn[0], **run}


def _trace_resizes(server: str, jobs: Sequence[JobRow]) -> None:
    """Refuse a resize without a journalled decision, or to another size than decided."""
    for job in jobs:
        history = ask(list[HistoryEntry], server, "GET", f"/history/{job.id}")
        decided = [entry.size for entry in history if entry.kind == "resize"]
        for done in job.resizes:
            if done.to_ranks not in decided or done.from_ranks == done.to_ranks:
                raise CommandError(
                    f"job {job.id}: expected a resize that was decided ({decided}), got "
                    f"{done.from_ranks} -> {done.to_ranks}",
                    1,
                )
            decided = decided[decided.index(done.to_ranks) + 1 :]


def _run(mode: Mode, jobs: Sequence[JobRow], books: BooksAnswer) -> dict[str, Any]:
    """Return the figures of one run, whose books must balance, from first submit to last end."""
    energy = books.closed
    assert energy is not None, "the books are closed when the last job has ended"
    first, last = min(job.submit_s for job in jobs), max(map(_end_s, jobs))
    of_jobs = sum(job.energy_j for job in jobs)
    check_balance("jobs' energies to add up to busy", of_jobs, energy.busy_j, energy.cluster_j)
    owned = energy.busy_j + energy.tasks_j + energy.idle_j + energy.off_j + energy.boot_j
    words = "busy, idle, off and boot to add up to the cluster's"
    check_balance(words, owned, energy.cluster_j, energy.cluster_j)
    return {
        "mode": str(mode),
        "power_source": energy.power_source,
        "time_s": last - first,
        "busy_j": energy.busy_j,
        "idle_j": energy.idle_j,
        "off_j": energy.off_j,
        "boot_j": energy.boot_j,
        "cluster_j": energy.cluster_j,
        "allocation": energy.busy_node_s / (len(books.nodes) * (last - first)),
        "jobs": [_job(job, first) for job in jobs],
        "spans": _shifted(books.spans, first, last),
        "power_spans": _shifted(books.power_spans, first, last),
        "power_w": [[at - first, watts] for at, watts in books.power_w if at <= last],
        "nodes": books.nodes,
        "note": _why_no_resize(mode, len(books.nodes), jobs),
    }


def _shifted(spans: Sequence[NodeSpan], first: float, last: float) -> list[dict[str, Any]]:
    return [
        {
            "node": span.node,
            "job": span.job,
            "start_s": span.start_s - first,
            "end_s": (last if span.end_s is None else span.end_s) - first,
        }
        for span in spans
    ]


def _job(job: JobRow, first: float) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state,
        "start_s": None if job.start_s is None else job.start_s - first,
        "end_s": _end_s(job) - first,
        "energy_j": job.energy_j,
        "sha256": job.answer,
        "resizes": [
            {
                "at_s": resize.at_s - first,
                "from": resize.from_ranks,
                "to": resize.to_ranks,
                "bytes": resize.bytes,
                "stall_s": resize.stall_s,
            }
            for resize in job.resizes
        ],
    }


def _end_s(job: JobRow) -> float:
    assert job.end_s is not None, "all jobs are over"
    return job.end_s


def _why_no_resize(mode: Mode, nodes: int, jobs: Sequence[JobRow]) -> str:
    """Return the reason why no job was resized, "" if one was."""
    if any(job.resizes for job in jobs):
        return ""
    if not mode.resizable:
        return f"no resize: a {mode} job keeps its size"
    if nodes == 1:
        return "no resize: one node leaves nothing to share"
    if mode is Mode.MALLEABLE and all(job.nodes_max + 1 > nodes for job in jobs):
        return (
            f"no resize: every job starts at {max(job.nodes_max for job in jobs)} of {nodes} "
            "nodes, which narrowing a running one does not free"
        )
    return "no resize: the policy saw nothing to gain"


def table(result: Mapping[str, Any]) -> list[str]:
    """Return the paper's table (Iserte & Rojek, tables 3 and 4) as lines, with the differences."""
    heads = ["mode", *(head for head, _ in QUANTITIES.values())]
    heads += ["alloc. [%]", "resizes", "completed"]
    cells = []
    for row in result["rows"]:
        runs = row["runs"]
        share = row["ranges"]["allocation"]
        resizes = [sum(len(job["resizes"]) for job in run["jobs"]) for run in runs]
        done = [sum(job["state"] == "COMPLETED" for job in run["jobs"]) for run in runs]
        cells.append(
            [
                row["mode"],
                *(_spread(row["ranges"][key], at) for key, (_, at) in QUANTITIES.items()),
                _spread({name: 100.0 * value for name, value in share.items()}, 1),
                _counts(resizes),
                f"{_counts(done)} of {len(row['jobs'])}",
            ]
        )
    warm_up = result["warm_up"]
    jobs = "1 job" if warm_up["jobs"] == 1 else f"{warm_up['jobs']} jobs"
    return [
        *columns(heads, cells),
        *_differences(result),
        f"Before the first mode each script ran once ({jobs}, "
        f"{warm_up['time_s']:.1f} s), not counted: every mode starts with the same caches.",
        *(f"{row['mode']}: {note}" for row in result["rows"] for note in _notes(row)),
        *_power(result),
    ]


def _spread(values: Mapping[str, float], decimals: int) -> str:
    least, median, most = (f"{values[key]:.{decimals}f}" for key in ("least", "median", "most"))
    return median if least == most else f"{median} ({least}-{most})"


def _counts(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return f"{least}" if least == most else f"{least} to {most}"


def _notes(row: Mapping[str, Any]) -> list[str]:
    """Return the different notes of a mode's runs, with the rounds where it is not all of them."""
    notes: dict[str, list[int]] = {}
    for run in row["runs"]:
        if run["note"]:
            notes.setdefault(run["note"], []).append(run["round"])
    return [
        note if len(rounds) == len(row["runs"]) else f"{note} (round {', '.join(map(str, rounds))})"
        for note, rounds in notes.items()
    ]


def _differences(result: Mapping[str, Any]) -> list[str]:
    """Return the modes that differ, the rule of that, and the causes of the gain."""
    times = result["times"]
    if times < FEWEST_ROUNDS:
        runs = "a single run" if times == 1 else f"{times} runs"
        return [
            f"From {runs} of each mode no difference can be concluded: "
            f"use --times {FEWEST_ROUNDS} or more."
        ]
    if len(result["rows"]) < 2:
        return [f"{times} rounds: medians (least-most)."]
    lines = [
        f"{times} rounds by turns: medians (least-most). Two modes differ if their ranges do not "
        f"overlap; two equal ones would do so in {200.0 / comb(2 * times, times):.2g} % of such "
        "pairs."
    ]
    for key, name in COMPARED.items():
        pairs = [pair for pair in result["differs"] if pair["quantity"] == key]
        apart = [
            f"{pair['mode']} {pair['ratio']:.2f} of {pair['than']}"
            for pair in pairs
            if pair["differs"]
        ]
        alike = [f"{pair['than']} and {pair['mode']}" for pair in pairs if not pair["differs"]]
        lines.append(f"{name}, differences: {', '.join(apart) or 'none'}.")
        if alike:
            lines.append(f"{name}, within the spread of the runs: {', '.join(alike)}.")
    return lines + causes(result)


def causes(result: Mapping[str, Any]) -> list[str]:
    """Return the causes of the gain in time, as far as the modes tell them apart.

    ``moldable`` beside ``fixed`` is the effect of a fitting size at the start, ``flexible`` beside
    ``moldable`` that of resizes on top, ``malleable`` beside ``fixed`` that of resizes of jobs that
    start at their full size.
    """
    rows = {row["mode"]: row for row in result["rows"]}
    lines = []
    for cause, first, second in (
        ("A fitting size at the start", Mode.FIXED, Mode.MOLDABLE),
        ("Resizes after such a start", Mode.MOLDABLE, Mode.FLEXIBLE),
        ("Resizes after a start at full size", Mode.FIXED, Mode.MALLEABLE),
    ):
        if first not in rows or second not in rows:
            continue
        modes = f"{second} beside {first}"
        resized = any(job["resizes"] for run in rows[second]["runs"] for job in run["jobs"])
        if second is not Mode.MOLDABLE and not resized:
            same = "none took place, so both modes do the same; a difference between them is noise"
            lines.append(f"{cause} ({modes}): {same}.")
            continue
        pair = next(
            pair
            for pair in result["differs"]
            if pair["quantity"] == "time_s" and {pair["mode"], pair["than"]} == {first, second}
        )
        ratio = pair["ratio"] if pair["mode"] == second else 1.0 / pair["ratio"]
        effect = (
            f"{100.0 * abs(1.0 - ratio):.0f} % {'less' if ratio < 1.0 else 'more'} time"
            if pair["differs"]
            else "no difference beyond the spread of the runs"
        )
        lines.append(f"{cause} ({modes}): {effect}.")
    return lines


def _power(result: Mapping[str, Any]) -> list[str]:
    power = f"Power is from {result['power_source']}."
    if result["power_source"] == "model":
        power = (
            "Power is modelled, not measured: a busy core draws its static and dynamic power at "
            "efficiency 1, an idle one its idle power."
        )
    return [power]


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the jobs on the nodes and the power of the cluster, in the median runs of the modes."""
    from rms.plots import History, side_by_side

    runs = []
    for row in result["rows"]:
        spans, asleep = (
            [NodeSpan(**span) for span in row.get(key, ())] for key in ("spans", "power_spans")
        )
        history = History(row["nodes"], spans, row["power_w"], row["time_s"], 0.0, asleep)
        among = f" (median of {len(row['runs'])})" if len(row["runs"]) > 1 else ""
        title = f"{row['mode']}: {row['time_s']:.1f} s{among}"
        runs.append((title, history, row["cluster_j"]))
    side_by_side(runs, path, result["power_source"])


def problems(result: Mapping[str, Any]) -> list[str]:
    """Return a sentence for every failed job, and for results that differ between runs."""
    wrong = []
    answers: dict[str, set[str]] = {}
    for row in result["rows"]:
        for run in row["runs"]:
            for job in run["jobs"]:
                if job["state"] != "COMPLETED":
                    where = f"round {run['round']}, mode {row['mode']}"
                    wrong.append(f"job {job['id']} of {where} is {job['state']}")
                answers.setdefault(job["id"], set()).add(job["sha256"])
    wrong += [f"job {job} has other bits in other runs" for job, a in answers.items() if len(a) > 1]
    return wrong
