"""``rms reproduce chauhan``: jobs moved together at their optimal operating points, hosts off.

LINPACK, STREAM and NPB on four nodes of twelve cores, with and without the algorithm of Chauhan et
al. The paper says neither which jobs came when, nor what its nodes draw, nor what execution time
is: jobs are drawn by lot, and :func:`chauhan` prints what each assumption decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from rms.studies.chauhan_model import WITH, WITHOUT, Outcome, Variant, Way, levels, pet, run
from rms.wire.terminal import columns

DATA = Path(__file__).parent / "data"
WAYS = {
    "hosts off when idle": Way(off=True),
    "operating points": Way(slowdown=inf),
    "hosts off, jobs moved": Way(off=True, move=True),
    "hosts off, operating points": Way(off=True, slowdown=inf),
    "the algorithm": WITH,
    "the algorithm, no job slower by 5 %": Way(off=True, move=True, slowdown=1.05),
}
VARIANTS = {
    "as above": Variant(),
    "load 0.25": Variant(load=0.25),
    "load 0.75": Variant(load=0.75),
    "all jobs come at once": Variant(once=True),
    "jobs start on the lowest free cores": Variant(spread=False),
    "nodes draw 60 W idle": Variant(idle_w=60.0),
    "nodes draw 150 W idle": Variant(idle_w=150.0),
    "a boot takes 60 s": Variant(boot_s=60.0),
    "a boot takes 600 s": Variant(boot_s=600.0),
    "a migration takes no time": Variant(move_s=0.0),
    "a migration takes 120 s": Variant(move_s=120.0),
    "voltage in proportion to frequency": Variant(linear=True),
    "malleable jobs narrowed too (ours)": Variant(half=2.0),
    "the same, half the cores take 1.5 times": Variant(half=1.5),
}
BOUNDS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5)
COLUMNS = ("saved_pct", "longer_pct", "makespan_pct", "turnaround_pct")
HEADS = ("energy saved", "run times", "makespan", "turnaround")
NOTES = (
    "The paper's 14.4 % are an increase in execution time, it does not say of what: of run times,",
    "or until the last job has ended. Both stand above, and run times with waits (turnaround).",
    "Time over frequency is a f_max / f + 1 - a, power of cores as V^2 f; a, watts, jobs and",
    "when they come are assumed (data/chauhan.toml). Of contention for memory between jobs that",
    "are moved together nothing is known, and none is assumed. A job is moved ten times at most.",
    "How much is idle decides the energy: at a load of 0.25 three times as much is saved as at",
    "0.75; how voltage goes with frequency the run times; how long a boot takes the waits.",
    "Narrowed to half, a job takes twice as long unless that is said.",
    "LINPACK needs least energy at the highest frequency and STREAM at the lowest, as in figures 2",
    "and 5: idle power makes time dear. So the operating point of LINPACK costs no time.",
)


def chauhan(figures: Path | None) -> tuple[dict[str, Any], list[str], bool]:
    """Return the JSON of the experiment, its tables, and whether all that must hold does."""
    data = msgspec.toml.decode((DATA / "chauhan.toml").read_bytes())
    seeds = range(1, data["stream"]["seeds"] + 1)

    @cache
    def runs(way: Way, variant: Variant) -> list[Outcome]:
        return [run(data, way, variant, seed) for seed in seeds]

    def against(way: Way, variant: Variant) -> dict[str, float]:
        return compared(runs(WITHOUT, variant), runs(way, variant))

    usual = Variant()
    ways = {name: against(way, usual) for name, way in WAYS.items()}
    tried = {name: against(WITH, variant) for name, variant in VARIANTS.items()}
    curve = {bound: against(Way(True, True, bound), usual) for bound in BOUNDS}
    points = {name: _best(data, name) for name in data["programs"]}
    wrong = _must_hold(ways, points, data, [*tried.values(), *curve.values()])
    paper = data["paper"]
    rows = [
        {"case": "4 nodes", "mode": name, "values": _values(paper, name, ours)}
        for name, ours in ways.items()
    ]
    lines = [
        f"{len(seeds)} streams of {data['stream']['jobs']} jobs (seeds 1 to {len(seeds)}), energy "
        "and times against EASY at 2.4 GHz on nodes that are always on",
        *_table("", {"paper": paper, **ways}),
        "",
        "Optimal operating points of a node with all cores busy",
        *_points(points),
        "",
        *_table("what the algorithm brings, assumed", tried),
        "",
        *_table("slowdown at most", {f"{bound:g}": found for bound, found in curve.items()}),
        "",
        *NOTES,
        *wrong,
    ]
    result = {
        "experiment": "chauhan",
        "seeds": list(seeds),
        "rows": rows,
        "operating_points": points,
        "sensitivity": [{"assumed": name, **found} for name, found in tried.items()],
        "curve": [{"slowdown": bound, **found} for bound, found in curve.items()],
        "notes": NOTES,
        "wrong": wrong,
    }
    if figures is not None:
        linear = {bound: against(Way(True, True, bound), Variant(linear=True)) for bound in BOUNDS}
        _draw(figures, data, {"as assumed": curve, "voltage as frequency": linear})
        lines.append(f"figures in {figures}")
    return result, lines, not wrong


def compared(without: Sequence[Outcome], outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return what all streams need more or less than without, in per cent, and the counts.

    ``saved_low_pct`` and ``saved_high_pct`` are the least and the most that one stream saves.
    """

    def ratio(key: str) -> float:
        before: float = sum(getattr(each, key) for each in without)
        after: float = sum(getattr(each, key) for each in outcomes)
        return 100.0 * (after / before - 1.0)

    turnaround_s = [sum(o.run_s + o.wait_s for o in each) for each in (without, outcomes)]
    saved = [
        100.0 * (1.0 - own.energy_j / old.energy_j)
        for old, own in zip(without, outcomes, strict=True)
    ]
    return {
        "saved_pct": -ratio("energy_j"),
        "longer_pct": ratio("run_s"),
        "makespan_pct": ratio("makespan_s"),
        "turnaround_pct": 100.0 * (turnaround_s[1] / turnaround_s[0] - 1.0),
        "saved_low_pct": min(saved),
        "saved_high_pct": max(saved),
        "moves": float(sum(each.moves for each in outcomes)),
        "boots": float(sum(each.boots for each in outcomes)),
    }


def _values(
    paper: Mapping[str, float], name: str, ours: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Return each figure with the paper's, where it has one."""
    values = {}
    for column, value in ours.items():
        said = paper.get(column) if name == "the algorithm" else None
        deviation = None if said is None else 100.0 * (value / said - 1.0)
        values[column] = {"paper": said, "ours": value, "deviation_pct": deviation, "note": ""}
    return values


def _best(data: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return the frequency at which a full node needs least energy for a program, and its price."""
    program, idle_w = data["programs"][name], data["node"]["idle_w"]
    above_w = program["cores_w"] + program["memory_w"]
    rows = pet(program, levels(data, Variant()))
    energies = {row: row.time * (idle_w + above_w * row.power) for row in rows}
    best = min(rows, key=energies.__getitem__)
    return {
        "ghz": best.ghz,
        "time_pct": 100.0 * (best.time - 1.0),
        "energy_pct": 100.0 * (energies[best] / energies[rows[-1]] - 1.0),
    }


def _must_hold(
    ways: Mapping[str, Mapping[str, float]],
    points: Mapping[str, Mapping[str, float]],
    data: Mapping[str, Any],
    tried: Sequence[Mapping[str, float]],
) -> list[str]:
    """Return what must hold whatever the paper leaves open, and does not."""
    wrong = []
    for name, at in (("linpack", -1), ("stream", 0)):
        expected, got = data["levels"][at][0], points[name]["ghz"]
        if got != expected:
            wrong.append(f"{name}: expected least energy at {expected} GHz, got {got} GHz")
    parts = "hosts off when idle", "hosts off, jobs moved", "the algorithm"
    for part, name in pairwise(parts):
        if ways[name]["saved_pct"] < ways[part]["saved_pct"]:
            wrong.append(f"{name}: expected to save more than {part}")
    if min(found["saved_pct"] for found in tried) <= 0.0:
        wrong.append("expected the algorithm to save energy under each assumption")
    return wrong


def _table(title: str, rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    cells = [
        [
            name,
            *(f"{found[key]:+.1f} %" if key in found else "-" for key in COLUMNS),
            f"{found['saved_low_pct']:.1f} to {found['saved_high_pct']:.1f} %"
            if "saved_low_pct" in found
            else "-",
            *(f"{found[key]:.0f}" if key in found else "-" for key in ("moves", "boots")),
        ]
        for name, found in rows.items()
    ]
    return columns((title, *HEADS, "saved, of one stream", "moves", "boots"), cells)


def _points(points: Mapping[str, Mapping[str, float]]) -> list[str]:
    cells = [
        [name, f"{row['ghz']:.3f}", f"{row['time_pct']:+.1f} %", f"{row['energy_pct']:+.1f} %"]
        for name, row in points.items()
    ]
    return columns(("", "GHz", "time", "energy"), cells)


def _draw(
    folder: Path, data: Mapping[str, Any], curves: Mapping[str, Mapping[float, Mapping[str, float]]]
) -> None:
    """Draw figure 13 (power over time), figures 2 and 5 (energy over frequency), and the curve."""
    from rms.plots import Panel, draw_panels

    power = {}
    for name, way in (("without", WITHOUT), ("with", WITH)):
        drawn = run(data, way, Variant(), 1).power
        times = [at_s / 3600.0 for at_s, _ in drawn for _ in (0, 1)][1:]
        power[name] = times, [watts for _, watts in drawn for _ in (0, 1)][:-1]
    draw_panels([Panel("power (W)", power, "h")], folder / "figure-13.png", "Stream 1", 1)
    energy = {}
    for name in ("linpack", "stream"):
        program = data["programs"][name]
        above_w = program["cores_w"] + program["memory_w"]
        rows = pet(program, levels(data, Variant()))
        joules = [row.time * (data["node"]["idle_w"] + above_w * row.power) for row in rows]
        energy[name] = [row.ghz for row in rows], [each / joules[-1] for each in joules]
    panel = Panel("energy over that at the highest", energy, "GHz")
    draw_panels([panel], folder / "figures-2-and-5.png", "Operating points", 1)
    saved = {
        name: (
            [found["longer_pct"] for found in curve.values()],
            [found["saved_pct"] for found in curve.values()],
        )
        for name, curve in curves.items()
    }
    panel = Panel("energy saved (%)", saved, "run times longer (%)")
    draw_panels([panel], folder / "curve.png", "As the bound of the slowdown varies", 1)
