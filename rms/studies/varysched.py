"""``rms reproduce varysched``: what a strategy does to makespan and run times (Süß et al., 5).

The tasks of both applications on the three devices of a Jetson TK1, under each strategy and
governor, by the scheduler that decides live. Kernels share the four cores: where they keep more
of them busy than there are, those on the CPU get equal parts. The paper prints no times of its
kernels: with those assumed here, what its text says of its figures must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rms.core.tasks import Governor
from rms.core.tasks.scheduler import Strategy
from rms.core.tasks.strategies import Banking, Constraint, LongTerm, ShortTerm
from rms.studies.varysched_model import DEVICES, Outcome, simulate
from rms.wire.terminal import columns

WHO = ("paper", "ours")
ENERGY = (("system_j", 0), ("application_j", 0), ("mean_w", 1), ("time_s", 0))
"""Columns of the table of energy, and their decimals."""
ENERGY_NOTES = (
    "Times of one device are the paper's (energy over mean power); our powers follow from those",
    "three rows: idle 41.0 W, processor 32.13 W as soon as one thread works and 6.97 W a thread,",
    "GPU 9.58 W. The row GPU and 2 cores then checks the powers, VarySched the scheduler:",
    "kernels share six threads, as the paper lets them, and copying slows nobody.",
)
DATA = Path(__file__).parent / "data"
STRATEGIES: Mapping[str, Strategy] = {
    "short-term": ShortTerm(),
    "long-term": LongTerm(),
    "banking": Banking(),
    "constraint": Constraint(gpu_when_low=False),
}
VARIANTS: Mapping[str, Strategy] = {
    "long-term, run times known": LongTerm(),
    "constraint, 9 credits pay for the GPU": Constraint(),
}
NOTES = (
    "The paper draws its results and prints the factors above alone; it prints no run times of its",
    "kernels, so ours are chosen (data/varysched.toml): the times below are no results of its own.",
    "With governor low, 9 credits would pay for the GPU alone (section 4.4), but sections 5.1 and",
    "5.2 have constraint use the CPU only: so does ours, and below is what the numbers would give.",
    "Long-term takes a kernel to be twice as fast as one of the next affinity: the paper says that",
    "its factors are inaccurate, and which tasks that leaves to the slowest device.",
    "Figure 8's caption says one hundred instances, section 5 says 24, section 4.5 says 25: used.",
)


def varysched(figures: Path | None) -> tuple[dict[str, Any], list[str], bool]:
    """Return the JSON of the experiment, its tables, and whether what must hold does.

    Args:
        figures: where figures 6 to 9 are drawn, or None.
    """
    data = msgspec.toml.decode((DATA / "varysched.toml").read_bytes())
    found: dict[tuple[str, Governor, str], Outcome] = {}
    for name, application in data["applications"].items():
        times = {device.name: application[f"{device.name}_s"] for device in DEVICES}
        for governor in Governor:
            for title, strategy in {**STRATEGIES, **VARIANTS}.items():
                found[name, governor, title] = simulate(
                    strategy,
                    governor,
                    application["instances"],
                    times,
                    data,
                    known="known" in title,
                )
    said = [*_statements(found), *_energy_statements(energy := _energy(data["table1"]))]
    wrong = [
        f"expected {data['applications'][name]['instances']} tasks to run, got {outcome.tasks}"
        for (name, *_), outcome in found.items()
        if sum(outcome.tasks.values()) != data["applications"][name]["instances"]
    ]
    wrong += [each["statement"] for each in said if not each["holds"]]
    rows = [
        {
            "case": f"{name}, governor {governor}",
            "mode": title,
            "tasks": outcome.tasks,
            "values": {
                "makespan_s": _value(None, outcome.makespan_s),
                "median_s": _value(None, outcome.median_s),
            },
        }
        for (name, governor, title), outcome in found.items()
    ]
    lines = [*_said(said), *(line for name in data["applications"] for line in _table(name, found))]
    rows += [{"case": "table 1", "mode": mode, "values": values} for mode, values in energy.items()]
    lines += _energy_table(energy)
    lines += ["", *NOTES, *(f"does not hold: {each}" for each in wrong)]
    if figures is not None:
        _draw(data["applications"], found, figures)
        lines.append(f"figures in {figures}")
    result = {"experiment": "varysched", "rows": rows, "statements": said, "notes": NOTES}
    return result | {"times_s": data["applications"], "wrong": wrong}, lines, not wrong


def _value(paper: float | None, ours: float) -> dict[str, Any]:
    deviation = 100.0 * (ours / paper - 1.0) if paper else None
    return {"paper": paper, "ours": ours, "deviation_pct": deviation, "note": ""}


def _statements(found: Mapping[tuple[str, Governor, str], Outcome]) -> list[dict[str, Any]]:
    """Return what the paper says in words and numbers, ours beside, and whether it holds."""
    high = {name: found["matmul", Governor.HIGH, name].makespan_s for name in STRATEGIES}
    spread, worst = max(high.values()) / min(high.values()), max(high, key=high.__getitem__)
    next_s = sorted(high.values())[-2]

    def lowered(name: str, strategy: str) -> tuple[float, float]:
        """Return by which factors makespan and median change as the governor is lowered."""
        before, after = (found[name, governor, strategy] for governor in Governor)
        return after.makespan_s / before.makespan_s, after.median_s / before.median_s

    def slower(name: str, strategy: str, than: str) -> float:
        low = Governor.LOW
        return found[name, low, strategy].makespan_s / found[name, low, than].makespan_s

    long_term, constraint, banking = "long-term", "constraint", "banking"
    checks: list[tuple[str, float | None, float, Callable[[float], bool]]] = [
        ("matmul, high: makespans almost alike, longest over shortest", None, spread, under(1.5)),
        (
            "matmul, high: long-term is the worst, over the next",
            None,
            high[long_term] / next_s,
            lambda ratio: worst == long_term,
        ),
        (
            "matmul, low: long-term takes longer than constraint",
            1.4,
            slower("matmul", long_term, constraint),
            over(1.0),
        ),
        (
            "lama, low: constraint takes longer than banking",
            2.5,
            slower("lama", constraint, banking),
            over(2.0),
        ),
    ]
    changes: list[tuple[str, str, int, str, float | None, Callable[[float], bool]]] = [
        ("lama", constraint, 0, "more than doubles", 2.0, over(2.0)),
        ("matmul", "short-term", 0, "stays the same", 1.0, under(1.0 + 1e-9)),
        ("lama", "short-term", 0, "stays the same", 1.0, under(1.0 + 1e-9)),
        ("lama", banking, 0, "is almost constant", 1.0, under(1.1)),
        ("matmul", banking, 0, "rises", None, over(1.0)),
        ("matmul", long_term, 1, "falls", None, under(1.0)),
        ("lama", long_term, 1, "rises", None, over(1.0)),
    ]
    for name, strategy, column, words, paper, holds in changes:
        what = ("makespan", "median run time")[column]
        statement = f"{name}: {strategy}'s {what} {words} as the governor is lowered"
        checks.append((statement, paper, lowered(name, strategy)[column], holds))
    return [
        {"statement": words, **_value(paper, ours), "holds": holds(ours)}
        for words, paper, ours, holds in checks
    ]


def _energy(data: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return table 1: energy, mean power and time of ten runs in each of its columns.

    Where all runs are on one device the time is the paper's, total energy over mean power, and
    so are the powers in ``data``; the others are checks: of the power model (GPU and 2 cores), and
    of the scheduler, which has the three kernels and decides (VarySched).
    """
    columns_ = data["columns"]
    time_s = {name: each["system_j"] / each["mean_w"] for name, each in columns_.items()}
    alone = {name: each["runs_on"] for name, each in columns_.items() if len(each["runs_on"]) == 1}
    each_s = {device: time_s[name] / data["runs"] for name, (device,) in alone.items()}
    ran = simulate(ShortTerm(), Governor.HIGH, data["runs"], each_s, data)
    spans = {name: [(time_s[name], each["runs_on"])] for name, each in columns_.items()}
    found = {}
    for name, each in columns_.items():
        of_it = ran.spans if not each["runs_on"] else spans[name]
        ours_s = sum(span_s for span_s, _ in of_it)
        busy_j = sum(span_s * _busy_w(data, devices) for span_s, devices in of_it)
        system_j, paper_s = busy_j + ours_s * data["idle_w"], time_s[name]
        found[name] = {
            "system_j": _value(each["system_j"], system_j),
            "application_j": _value(each["application_j"], busy_j),
            "mean_w": _value(each["mean_w"], system_j / ours_s),
            "time_s": _value(paper_s, ours_s),
        }
    return found


def _busy_w(data: Mapping[str, Any], devices: Sequence[str]) -> float:
    """Return what devices in use add to the idle power of the machine of table 1, in W."""
    threads = min(data["cores"], sum(data["host"][device] for device in devices))
    gpu_w: float = data["gpu_w"] if "gpu" in devices else 0.0
    cpu_w: float = data["cpu_w"] + data["thread_w"] * threads if threads else 0.0
    return cpu_w + gpu_w


def _energy_statements(energy: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what the paper says of table 1: nothing takes less energy or time than VarySched."""
    found = []
    for what, column in (("least energy", "system_j"), ("least time", "time_s")):
        others = [each[column] for name, each in energy.items() if name != "VarySched"]
        own = energy["VarySched"][column]
        paper, ours = (own[who] / min(each[who] for each in others) for who in ("paper", "ours"))
        statement = f"table 1: VarySched takes the {what}, over the next"
        found.append({"statement": statement, **_value(paper, ours), "holds": ours < 1.0})
    return found


def _energy_table(energy: Mapping[str, Mapping[str, Any]]) -> list[str]:
    cells = [
        [name, *(f"{each[kind][who]:,.{digits}f}" for kind, digits in ENERGY for who in WHO)]
        for name, each in energy.items()
    ]
    kinds = ("system, J", "application, J", "mean power, W", "time, s")
    heads = [f"{kind} ({who})" for kind in kinds for who in WHO]
    title = "table 1: energy of ten runs of LAMA's CG"
    return ["", title, *columns(["", *heads], cells), *ENERGY_NOTES]


def under(most: float) -> Callable[[float], bool]:
    """Return what tells whether a number is below another."""
    return lambda value: value < most


def over(least: float) -> Callable[[float], bool]:
    """Return what tells whether a number is above another."""
    return lambda value: value > least


def _said(said: Sequence[Mapping[str, Any]]) -> list[str]:
    cells = [
        [
            each["statement"],
            "" if each["paper"] is None else f"{each['paper']:.3g}",
            f"{each['ours']:.2f}",
            "holds" if each["holds"] else "does not hold",
        ]
        for each in said
    ]
    heads = ("What the paper says", "paper", "ours", "")
    return [*columns(heads, cells)]


def _table(name: str, found: Mapping[tuple[str, Governor, str], Outcome]) -> list[str]:
    cells = []
    for title in {**STRATEGIES, **VARIANTS}:
        both = [found[name, governor, title] for governor in Governor]
        cells.append(
            [
                title,
                *(f"{each.makespan_s:.0f} s" for each in both),
                *(f"{each.median_s:.1f} s" for each in both),
                *(
                    " ".join(f"{each.tasks.get(device.name, 0)}" for device in DEVICES)
                    for each in both
                ),
            ]
        )
    heads = ("strategy", "high", "low", "median, high", "low", "on gpu, cores, core: high", "low")
    return ["", f"{name}: makespan, median run time of a kernel", *columns(heads, cells)]


def _draw(
    applications: Mapping[str, Any],
    found: Mapping[tuple[str, Governor, str], Outcome],
    folder: Path,
) -> None:
    """Draw figures 6 and 8 (makespan), 7 and 9 (median run time)."""
    from rms.plots import Panel, draw_panels

    for name, application in applications.items():
        for number, column in zip(application["figures"], ("makespan_s", "median_s"), strict=True):
            series = {
                f"governor {governor}": (
                    list(STRATEGIES),
                    [getattr(found[name, governor, title], column) for title in STRATEGIES],
                )
                for governor in Governor
            }
            what = "makespan (s)" if column == "makespan_s" else "median run time (s)"
            panel = Panel(what, series, "strategy")
            draw_panels([panel], folder / f"figure-{number}.png", application["title"])
