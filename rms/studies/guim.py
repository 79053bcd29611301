"""``rms reproduce guim``: placement by bandwidth and power on nodes with GPUs (Guim et al.).

Three EASY policies on three logs, four mixes of memory-bound and compute-bound jobs, and three
errors of what is expected of bandwidth. The paper leaves open how many nodes there are, among other
things, and its results hang on that: :func:`sensitivity` says by how much.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

from rms.core.model import JobSpec
from rms.formats.config import FileError
from rms.studies.guim_model import POLICIES, Case, Grid, Variant, read_log, run
from rms.wire.terminal import columns

DATA = Path(__file__).parent / "data"
TITLE = "Bounded slowdown and energy, ours; what the paper says in numbers"
NEAR = "The same with twice as many nodes and no limit of the GPU's socket"
COLUMNS = ("bsld", "bsld_p95", "saved_pct")
NEAREST = Variant(nodes=2.0, socket=False)
"""Of those tried, where slowdowns and energy are nearest to what the paper says of BLUE."""

_Line = tuple[Case, int, dict[str, float]]

TRIED = 2000
"""Other assumptions are tried with so many jobs of a log at most."""

VARIANTS = {
    "as above": Variant(),
    "GPU cores count as the log's processors": Variant(size="cores"),
    "jobs come a hundredth as fast": Variant(load=0.01),
    "first fit takes fast processors first": Variant(fastest_first=True),
    "no limit of the GPU's socket": Variant(socket=False),
    "both, and a hundredth as fast": Variant(fastest_first=True, socket=False, load=0.01),
    "an overload costs demand over capacity": Variant(whole_demand=True),
    "all bandwidths expected too high": Variant(biased=True),
    "slowdown over the time a job took": Variant(over_log=False),
    "LessConsume looks ahead to expected ends": Variant(forecast=True),
    "LessConsume-Threshold, 2": Variant(threshold=2.0),
    "LessConsume-Threshold, 1.25": Variant(threshold=1.25),
    "twice as many nodes": Variant(nodes=2.0),
    "four times as many nodes": Variant(nodes=4.0),
    "twice as many, no limit of the GPU's socket": NEAREST,
}
NOTES = (
    "Energy is c V^2 f t of each process with table I. The paper prints (T-k) x T for its time; by",
    "the formula it cites that is the time T-k of a process, which draws nothing while it waits.",
    "Its factor for the bandwidth of a faster process, penalties over the critical one's, is 0",
    "for one without penalty: used is its run time over the critical one's.",
    "The example of section III-C gives the GPU 4 of 18 GB/s, its text a ninth: used is the ninth.",
    "Mix equip sums to 99.6 %: all are normalised. The paper's SDSC log is another one (416",
    "processors, the Paragon); here it is SDSC-SP2. Its CTC counts 512 processors, ours 338.",
    "Expected bandwidth is off by the error, up or down by lot. What is expected of an allocation",
    "is worked out from what is asked for now, or, where that is said, until expected ends.",
    "The paper has no results of LessConsume-Threshold, and names no threshold.",
)


def guim(
    data: Path,
    grid: Grid,
    workers: int,
    figures: Path | None,
    progress: Callable[[str], None] = lambda text: None,
    keep: Path | None = None,
) -> tuple[dict[str, Any], list[str], bool]:
    """Return the JSON of the experiment, its tables, and whether what must hold does.

    Args:
        data: folder with the logs, or with a folder ``traces`` of them.
        grid: which simulations.
        workers: how many of them run at once.
        figures: where figures 3 and 4 are drawn, or None.
        progress: told of each simulation that is over.
        keep: a file with a line for each simulation that is over; those in it are not run again.

    Raises:
        FileError: a log is missing, or ``keep`` holds something else.
    """
    paper = msgspec.toml.decode((DATA / "guim.toml").read_bytes())
    logs = {log: read_log(data, paper["logs"][log]["file"]) for log in grid.logs}
    specs = {log: jobs[: grid.first or None] for log, jobs in logs.items()}
    fewer = {log: jobs[: grid.first or TRIED][:TRIED] for log, jobs in logs.items()}
    first = Case("", grid.logs[-1], grid.mixes[0], grid.errors[0])
    places, near = _places(grid), _published(grid, paper)
    runs = _Runs(paper, workers, progress, keep)
    found = runs.all_of(_each(places), specs)
    more = _each([first._replace(variant=variant) for variant in VARIANTS.values()] + near)
    known = found if specs == fewer else {}
    others = runs.all_of([case for case in more if case not in known], fewer)
    others = {**known, **others}
    rows, beside = _rows(paper, places, found), _rows(paper, near, others)
    wrong = [*_must_hold(found, specs), *_must_hold(others, fewer)]
    tried = sensitivity(first, others)
    lines = [*_table(rows, TITLE), "", *_tried(first, len(fewer[first.log]), tried), ""]
    if near:
        lines += [*_table(beside, f"{NEAR}, {TRIED:,} jobs at most"), ""]
    spent_s = sum(each["cpu_s"] for each in (found | others).values())
    spent = f"{len(found | others)} simulations took {spent_s:,.0f} s of processor time."
    lines += [*NOTES, spent, *wrong]
    if figures is not None:
        _draw(grid, rows, figures)
        lines.append(f"figures in {figures}")
    result = {"experiment": "guim", "jobs_of_each_log": grid.first, "rows": rows, "cpu_s": spent_s}
    result |= {"sensitivity": tried, "nearest": beside, "notes": NOTES, "wrong": wrong}
    return result, lines, not wrong


def _places(grid: Grid) -> list[Case]:
    """Return the cases of a grid, the policy left open."""
    return [
        Case("", log, mix, error)
        for log in grid.logs
        for mix in grid.mixes
        for error in grid.errors
    ]


def _published(grid: Grid, paper: Mapping[str, Any]) -> list[Case]:
    """Return those of them of which the paper gives numbers, under other assumptions."""
    said = {tuple(each["case"][1:]) for each in paper["published"]}
    return [case._replace(variant=NEAREST) for case in _places(grid) if case[1:4] in said]


def _each(places: Iterable[Case]) -> list[Case]:
    """Return the simulations of cases under all policies, each once."""
    cases = [_of_policy(case, policy) for case in places for policy in POLICIES]
    return list(dict.fromkeys(cases))


def _of_policy(case: Case, policy: str) -> Case:
    """Return a case under a policy, without what that does not look at."""
    case = case._replace(policy=policy)
    if policy != "lc-pa":
        case = case._replace(variant=replace(case.variant, threshold=None, forecast=False))
    return case._replace(error_pct=0) if policy == "easy-reg" else case


@dataclass
class _Runs:
    """Simulations, several at once where that is asked for."""

    paper: Mapping[str, Any]
    workers: int
    progress: Callable[[str], None]
    keep: Path | None

    def all_of(
        self, cases: Sequence[Case], specs: Mapping[str, Sequence[JobSpec]]
    ) -> dict[Case, dict[str, float]]:
        """Return the figures of the cases; those that are kept are not run again."""
        kept = self._kept()
        keys = {case: (case, len(specs[case.log])) for case in cases}
        found = {case: kept[key] for case, key in keys.items() if key in kept}
        left = [case for case in cases if case not in found]
        with ExitStack() as stack:
            for case, figures_of in self._each(stack, left, specs):
                found[case] = figures_of
                if self.keep is not None:
                    with self.keep.open("ab") as file:
                        file.write(msgspec.json.encode((*keys[case], figures_of)) + b"\n")
                self.progress(f"{_name(case)}: {len(found)} of {len(cases)}")
        return found

    def _each(
        self, stack: ExitStack, cases: Sequence[Case], specs: Mapping[str, Sequence[JobSpec]]
    ) -> Iterable[tuple[Case, dict[str, float]]]:
        """Run the cases; yield each with its figures as soon as it is over."""
        if self.workers == 1:
            return ((case, run(case, self.paper, specs[case.log])) for case in cases)
        pool = stack.enter_context(
            ProcessPoolExecutor(
                self.workers,
                get_context("fork"),
                initializer=signal.signal,
                initargs=(signal.SIGINT, signal.SIG_DFL),
            )
        )
        at_once = {pool.submit(run, case, self.paper, specs[case.log]): case for case in cases}
        return ((at_once[each], each.result()) for each in as_completed(at_once))

    def _kept(self) -> dict[tuple[Case, int], dict[str, float]]:
        """Return the figures in the file, by case and number of jobs; drop a cut line."""
        if self.keep is None:
            return {}
        try:
            self.keep.touch()
            text = self.keep.read_bytes()
            whole = text[: text.rfind(b"\n") + 1]
            lines = msgspec.json.Decoder(_Line).decode_lines(whole)
            os.truncate(self.keep, len(whole))
        except (OSError, msgspec.DecodeError) as error:
            raise FileError(f"{self.keep}: expected simulations of guim, got: {error}") from None
        return {(case, jobs): figures_of for case, jobs, figures_of in lines}


def _name(case: Case) -> str:
    return f"{case.policy} {case.log} {case.mix} {case.error_pct} %"


def _figures(
    found: Mapping[Case, Mapping[str, float]], place: Case, policy: str
) -> dict[str, float]:
    """Return the figures of a case, with how much less energy it takes than EASY-REG, in %."""
    ours, regular = (found[_of_policy(place, name)] for name in (policy, "easy-reg"))
    return {**ours, "saved_pct": 100.0 * (1.0 - ours["energy"] / regular["energy"])}


def _rows(
    paper: Mapping[str, Any], places: Iterable[Case], found: Mapping[Case, Mapping[str, float]]
) -> list[dict[str, Any]]:
    said = {(*each["case"], each["column"]): each["value"] for each in paper["published"]}
    rows = []
    for place in places:
        _, log, mix, error, _ = place
        for policy in POLICIES:
            ours = _figures(found, place, policy)
            values = {
                key: _value(said.get((policy, log, mix, error, key)), ours[key]) for key in ours
            }
            of = {"log": log, "mix": mix, "error_pct": error}
            rows.append({"case": f"{log} {mix} {error} %", "mode": policy, **of, "values": values})
    return rows


def _value(paper: float | None, ours: float) -> dict[str, Any]:
    deviation = 100.0 * (ours / paper - 1.0) if paper else None
    return {"paper": paper, "ours": ours, "deviation_pct": deviation, "note": ""}


def _must_hold(
    found: Mapping[Case, Mapping[str, float]], specs: Mapping[str, Sequence[JobSpec]]
) -> list[str]:
    """Return what must hold whatever the paper leaves open, and does not."""
    wrong = []
    for case, ours in found.items():
        name = _name(case)
        if ours["jobs"] != len(specs[case.log]):
            wrong.append(f"{name}: expected {len(specs[case.log])} jobs, got {ours['jobs']:.0f}")
        if ours["stretch"] < 1.0 - 1e-9:
            wrong.append(f"{name}: expected bandwidth to cost time, got {ours['stretch']:.3f}")
    return wrong


def sensitivity(first: Case, found: Mapping[Case, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return one case under other assumptions: slowdowns, and energy saved."""
    tried = []
    for name, variant in VARIANTS.items():
        place = first._replace(variant=variant)
        figures_of = {policy: _figures(found, place, policy) for policy in POLICIES}
        tried.append({"assumed": name, **figures_of})
    return tried


def _table(rows: Sequence[Mapping[str, Any]], title: str) -> list[str]:
    heads = ("log, mix, error", "policy", "BSLD", "95th", "energy saved", "run time / log", "paper")
    cells = []
    for row in rows:
        values = row["values"]
        said = [
            f"{column} {values[column]['paper']:g}"
            for column in COLUMNS
            if values[column]["paper"] is not None
        ]
        ours = {key: value["ours"] for key, value in values.items()}
        cells.append(
            [
                row["case"],
                row["mode"],
                f"{ours['bsld']:.1f}",
                f"{ours['bsld_p95']:.1f}",
                f"{ours['saved_pct']:.1f} %",
                f"{ours['stretch']:.2f}",
                ", ".join(said),
            ]
        )
    return [title, *columns(heads, cells)]


def _tried(first: Case, jobs: int, tried: Sequence[Mapping[str, Any]]) -> list[str]:
    heads = ("assumed", *(f"BSLD {p}" for p in POLICIES), *(f"saved {p}" for p in POLICIES[1:]))
    cells = [
        [
            entry["assumed"],
            *(f"{entry[policy]['bsld']:.1f}" for policy in POLICIES),
            *(f"{entry[policy]['saved_pct']:.1f} %" for policy in POLICIES[1:]),
        ]
        for entry in tried
    ]
    case = f"{first.log} {first.mix} {first.error_pct} %"
    title = f"What the paper leaves open, for {case}, {jobs:,} jobs"
    return [title, *columns(heads, cells)]


def _draw(grid: Grid, rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Draw figure 3 (bounded slowdowns) and figure 4 (energy saved)."""
    from rms.plots import Panel, draw_panels

    def panel(log: str, column: str, policies: Sequence[str], title: str) -> Panel:
        series = {}
        for policy in policies:
            own = [row for row in rows if (row["log"], row["mode"]) == (log, policy)]
            names = [f"{row['mix']} {row['error_pct']}" for row in own]
            series[policy] = names, [row["values"][column]["ours"] for row in own]
        return Panel(title, series, "mix, error of bandwidth (%)")

    slowdowns = [
        panel(log, column, POLICIES, f"{title}, {log}")
        for log in grid.logs
        for column, title in (("bsld", "average"), ("bsld_p95", "95th percentile"))
    ]
    draw_panels(slowdowns, folder / "figure-3.png", "Bounded slowdown", columns=2)
    saved = [panel(log, "saved_pct", POLICIES[1:], log) for log in grid.logs]
    draw_panels(saved, folder / "figure-4.png", "Energy saved against EASY-REG (%)", columns=3)
