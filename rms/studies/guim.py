"""``rms reproduce guim``: placement by bandwidth and power on nodes with GPUs (Guim et al.).

Three EASY policies on three logs, four mixes of memory-bound and compute-bound jobs, and three
errors of what is expected of bandwidth. The paper leaves open how many nodes there are, among other
things, and its results hang on that: :func:`sensitivity` says by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from rms.core.model import JobSpec
from rms.studies.guim_model import POLICIES, Case, Grid, Variant, read_log, run
from rms.wire.terminal import columns

DATA = Path(__file__).parent / "data"
COLUMNS = ("bsld", "bsld_p95", "saved_pct")
NEAREST = Variant(nodes=2.0, socket=False)
"""Of those tried, where slowdowns and energy are nearest to what the paper says of BLUE."""

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
    "LessConsume looks ahead to expected ends": Variant(ahead=True),
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
) -> tuple[dict[str, Any], list[str], bool]:
    """Return the JSON of the experiment, its tables, and whether what must hold does.

    Args:
        data: folder with the logs, or with a folder ``traces`` of them.
        grid: which simulations.
        workers: how many of them run at once.
        figures: where figures 3 and 4 are drawn, or None.
        progress: told of each simulation that is over.

    Raises:
        FileError: a log is missing.
    """
    paper = msgspec.toml.decode((DATA / "guim.toml").read_bytes())
    logs = {log: read_log(data, paper["logs"][log]["file"]) for log in grid.logs}
    specs = {log: jobs[: grid.first or None] for log, jobs in logs.items()}
    fewer = {log: jobs[: grid.first or TRIED][:TRIED] for log, jobs in logs.items()}
    first = Case("", grid.logs[-1], grid.mixes[0], grid.errors[0])
    todo = [(case, specs[case.log]) for case in _cases(grid)]
    more = [(case, fewer[case.log]) for case in _assuming(first)]
    ours = []
    for (case, _), figures_of in zip(
        [*todo, *more], _run_all([*todo, *more], paper, workers), strict=True
    ):
        ours.append(figures_of)
        progress(f"{_name(case)}: {len(ours)} of {len(todo) + len(more)}")
    found = {case: figures_of for (case, _), figures_of in zip(todo, ours, strict=False)}
    for case in list(found):
        if case.policy == "easy-reg":
            found.update({case._replace(error_pct=e): found[case] for e in grid.errors})
    others = {
        case: figures_of for (case, _), figures_of in zip(more, ours[len(todo) :], strict=True)
    }
    rows = _rows(paper, grid, found)
    wrong = [*_must_hold(found, specs), *_must_hold(others, fewer)]
    tried = sensitivity(first, others)
    lines = [*_table(rows), "", *_tried(first, len(fewer[first.log]), tried), "", *NOTES, *wrong]
    if figures is not None:
        _draw(grid, rows, figures)
        lines.append(f"figures in {figures}")
    result = {"experiment": "guim", "jobs_of_each_log": grid.first, "rows": rows}
    return result | {"sensitivity": tried, "notes": NOTES, "wrong": wrong}, lines, not wrong


def _cases(grid: Grid) -> list[Case]:
    """Return the simulations of a grid; EASY-REG knows nothing of bandwidth, so of no error."""
    return [
        Case(policy, log, mix, error)
        for log in grid.logs
        for mix in grid.mixes
        for error in grid.errors
        for policy in POLICIES
        if policy != "easy-reg" or error == grid.errors[0]
    ]


def _assuming(first: Case) -> list[Case]:
    """Return one case under all assumptions, for all policies, each once."""
    cases = [
        _of_policy(first._replace(policy=policy, variant=variant))
        for variant in VARIANTS.values()
        for policy in POLICIES
    ]
    return list(dict.fromkeys(cases))


def _of_policy(case: Case) -> Case:
    """Return a case without what is said of LessConsume, where that does not place the jobs."""
    if case.policy == "lc-pa":
        return case
    return case._replace(variant=replace(case.variant, threshold=None, ahead=False))


def _run_all(
    todo: Sequence[tuple[Case, Sequence[JobSpec]]], paper: Mapping[str, Any], workers: int
) -> Iterable[dict[str, float]]:
    """Run the cases, several at once where that is asked for; yield in their order."""
    cases, papers, jobs = [case for case, _ in todo], [paper] * len(todo), [j for _, j in todo]
    if workers == 1:
        yield from map(run, cases, papers, jobs)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(run, cases, papers, jobs)


def _name(case: Case) -> str:
    return f"{case.policy} {case.log} {case.mix} {case.error_pct} %"


def _saved(found: Mapping[Case, Mapping[str, float]], case: Case) -> float:
    """Return how much less energy a case takes than EASY-REG, in per cent."""
    regular = found[case._replace(policy="easy-reg")]["energy"]
    return 100.0 * (1.0 - found[case]["energy"] / regular)


def _rows(
    paper: Mapping[str, Any], grid: Grid, found: Mapping[Case, Mapping[str, float]]
) -> list[dict[str, Any]]:
    said = {(*each["case"], each["column"]): each["value"] for each in paper["published"]}
    rows = []
    for log in grid.logs:
        for mix in grid.mixes:
            for error in grid.errors:
                for policy in POLICIES:
                    case = Case(policy, log, mix, error)
                    ours = {**found[case], "saved_pct": _saved(found, case)}
                    values = {key: _value(said.get((*case[:4], key)), ours[key]) for key in ours}
                    place = {"log": log, "mix": mix, "error_pct": error}
                    name = f"{log} {mix} {error} %"
                    rows.append({"case": name, "mode": policy, **place, "values": values})
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
        entry: dict[str, Any] = {"assumed": name}
        for policy in POLICIES:
            case = _of_policy(first._replace(policy=policy, variant=variant))
            regular = _of_policy(case._replace(policy="easy-reg"))
            saved = 100.0 * (1.0 - found[case]["energy"] / found[regular]["energy"])
            entry[policy] = {**found[case], "saved_pct": saved}
        tried.append(entry)
    return tried


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
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
    return [
        "Bounded slowdown and energy, ours; what the paper says in numbers",
        *columns(heads, cells),
    ]


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
