"""A measured profile as tables, JSON and a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import msgspec

from rms.formats.profiles import MALLEABLE, SEPARATE, WAYS, Bandwidth, Point, Profile
from rms.studies.operating_points import (
    Law,
    differences,
    fit_power,
    fit_time,
    operating_points,
)
from rms.wire.terminal import columns

SHORT_S = 3.0
"""Shorter runs hold too few reports of meters, one a second, to tell idle and highest power."""


def matrices(shown: Profile) -> dict[str, list[Point]]:
    """Return the points of each way that there are, by frequency and size."""
    found = {way: [p for p in shown.points if p.way == way] for way in WAYS}
    return {
        way: sorted(points, key=lambda p: (p.mhz is not None, -(p.mhz or 0.0), p.nodes))
        for way, points in found.items()
        if points
    }


def lines_of(shown: Profile, slowdown: float) -> list[str]:
    """Return the matrices, the laws and the operating points as text."""
    lines = [
        f"{shown.name}: {' '.join(shown.program.words)}",
        f"on {shown.machine}; program {shown.program.sha256[:12]}; {shown.measured}",
    ]
    known = matrices(shown)
    for way, points in known.items():
        how = "separate runs" if way == SEPARATE else "one malleable run, seconds per step x steps"
        lines += ["", f"{how}:", *_table(points), *_laws(points), *_points(points, slowdown)]
    if len(known) == 2:
        lines += ["", "malleable over separate, less 1:", *_difference(shown)]
    if shown.bandwidth is not None:
        lines += ["", *_bandwidth(shown.bandwidth)]
    return lines


def _bandwidth(found: Bandwidth) -> list[str]:
    """Return what is known of memory bandwidth, and from what."""
    alone_s = next(run.time_s for run in found.runs if (run.copies, run.probes) == (1, 0))
    rows = [
        [
            str(run.copies),
            str(run.probes),
            f"{run.time_s:.3f}" if run.copies else "",
            f"{run.time_s / alone_s:.3f}" if run.copies else "",
            f"{run.probe_gb_s:.2f}" if run.probes else "",
        ]
        for run in found.runs
    ]
    process, node = f"{found.process_gb_s:.3g}", f"{found.node_gb_s:.3g}"
    known = f"{process} +- {found.process_error_gb_s:.2g} GB/s"
    most = f"at most {process} GB/s: it was not seen to slow anybody"
    return [
        f"memory bandwidth, mean of {found.rounds} rounds, errors from round to round:",
        *columns(["COPIES", "PROBES", "TIME_S", "SLOWDOWN", "GB/S/PROBE"], rows),
        f"a process asks for {most if found.process_at_most else known}",
        f"the node has {'at least ' * found.node_at_least}{node} +- {found.node_error_gb_s:.2g} "
        f"GB/s; a probe (a = a + s b, one core) moves {found.probe_gb_s:.3g} GB/s alone",
        *found.notes,
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
                f"{100 * base.nodes * base.run_s / (p.nodes * p.run_s):.0f}",
                "" if unknown else f"{p.idle_w:.1f}",
                "" if unknown else f"{p.peak_w:.1f}",
                str(len(p.time_s)),
                p.source,
            ]
        )
    heads = ["NODES", "MHZ", "TIME_S", "SPREAD_S", "W/NODE", "ENERGY_J", "+-_J", "EFF_%"]
    return columns([*heads, "IDLE_W", "PEAK_W", "RUNS", "SOURCE"], rows)


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
    best = operating_points(points, slowdown)
    source = " and ".join(dict.fromkeys(point.source for point in points))

    def row(what: str, p: Point) -> str:
        clock = "" if p.mhz is None else f" at {p.mhz:g} MHz"
        nodes = f"{p.nodes} node{'s' * (p.nodes != 1)}{clock}"
        return f"{what}: {nodes}, {p.run_s:.3f} s, {p.run_j:.1f} J"

    return [
        row("fastest", best.fastest),
        row("least energy", best.energy),
        row("least energy x time", best.delay_product),
        row(f"least energy up to {slowdown:g} times the fastest", best.bounded),
        f"energy from: {source}",
    ]


def _difference(shown: Profile) -> list[str]:
    found = differences(shown.matrix(SEPARATE), shown.matrix(MALLEABLE))
    return columns(
        ["NODES", "TIME_%", "POWER_%", "ENERGY_%"],
        [[str(d.nodes), *(f"{100 * x:+.1f}" for x in (d.time, d.power, d.energy))] for d in found],
    )


def as_json(shown: Profile, slowdown: float) -> dict[str, Any]:
    """Return the profile with what follows from it."""
    found: dict[str, Any] = {**msgspec.to_builtins(shown), "ways": {}}
    for way, points in matrices(shown).items():
        plain = [point for point in points if point.mhz is None]
        best = operating_points(points, slowdown)
        time_law = None
        if len({point.nodes for point in plain}) > 1:
            law = fit_time(plain)
            time_law = {
                "tc_s": law.second,
                "t1_s": law.first,
                "mean_off": law.mean_off,
                "most_off": law.most_off,
            }
        found["ways"][way] = {
            "rows": [
                {
                    "nodes": p.nodes,
                    "mhz": p.mhz,
                    "time_s": p.run_s,
                    "power_w": p.node_w * p.nodes,
                    "energy_j": p.run_j,
                    "source": p.source,
                }
                for p in points
            ],
            "time_law": time_law,
            "operating_points": {
                name: {"nodes": point.nodes, "mhz": point.mhz}
                for name, point in (
                    ("fastest", best.fastest),
                    ("energy", best.energy),
                    ("energy_delay_product", best.delay_product),
                    ("energy_bounded", best.bounded),
                )
            },
        }
    return found


def draw(shown: Profile, path: Path) -> None:
    """Draw time, power and energy against the number of nodes."""
    from rms.plots import Panel, draw_panels

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
