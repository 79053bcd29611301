"""Effects of malleability on a log or trace of which some jobs can be resized.

Jobs that are chosen get a speedup t(n) = f t + (1 - f) t s / n, where t is the run time on the
s processors of the log and f the part that does not get faster (Amdahl), and may start or run on a
quarter to four times their processors. No log states f, so the study takes several.
The jobs are chosen among those that match criteria, or all: by a draw below the share, so that a
larger share contains a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower, Site, Speedup
from rms.core.policies import DEFAULT, Policy, named
from rms.plots import Panel, draw_panels
from rms.sim.classes import averages, by_class
from rms.sim.run import chosen, figures, simulated
from rms.sim.simulator import Simulation

POWER = NodePower(idle_w=100.0, static_w=120.0, dynamic_w=80.0)
"""Power of a processor where no cluster file states one: round numbers, to compare shares by."""

SERIALS = (0.05, 0.01, 0.2)
MODES = (Mode.FLEXIBLE, Mode.MALLEABLE, Mode.MOLDABLE)

Row = dict[str, Any]


class MalleableChange(msgspec.Struct, frozen=True):
    """The rules by which rigid jobs become malleable.

    Attributes:
        serial: share of the run time that does not get faster with more processors.
        mode: the mode of these jobs.
        factor: their narrowest and widest size, as a factor of that in the trace.
        every_s, price_s: time between resize points, and the price of a resize.
        seed: of the draw of the jobs.
    """

    serial: float = 0.05
    mode: Mode = Mode.FLEXIBLE
    factor: int = 4
    every_s: float = 300.0
    price_s: float = 10.0
    seed: int = 1


class MalleabilityQuestion(msgspec.Struct, frozen=True):
    """The cases of a comparison.

    Attributes:
        shares: shares of malleable jobs among those that may be chosen, in one row each.
        modes, serials: the first ones are those of all rows; the others are tried at the largest
            share.
        candidates: ids of the jobs that may be chosen, None for all.
    """

    shares: tuple[float, ...]
    modes: tuple[Mode, ...] = MODES
    serials: tuple[float, ...] = SERIALS
    policy: str = DEFAULT
    candidates: frozenset[JobId] | None = None


def malleable(
    specs: Sequence[JobSpec],
    share: float,
    processors: int,
    change: MalleableChange,
    candidates: Collection[JobId] | None = None,
    *,
    mirrored: bool = False,
) -> list[JobSpec]:
    """Return the jobs of a trace, a share of the candidates (all if None) malleable.

    They have the smallest draws, or ``mirrored`` the largest, which differ up to a share of a half.
    """
    random = Random(change.seed)
    draws = [1.0 - random.random() if mirrored else random.random() for _ in specs]
    return [
        _changed(spec, processors, change)
        if draw < share and (candidates is None or spec.id in candidates)
        else spec
        for spec, draw in zip(specs, draws, strict=True)
    ]


def _changed(spec: JobSpec, processors: int, change: MalleableChange) -> JobSpec:
    size, run_s = spec.preferred, spec.run_s
    if not run_s or size > processors:
        return spec
    law = ((1.0 - change.serial) * run_s * size, change.serial * run_s)
    return msgspec.structs.replace(
        spec,
        nodes_min=max(1, size // change.factor),
        nodes_max=min(processors, size * change.factor),
        mode=change.mode,
        speedup=Speedup(law=law),
        run_s=None,
        resize_every_s=change.every_s,
        resize_price_s=change.price_s,
    )


def study(
    specs: Sequence[JobSpec],
    site: Site,
    shares: Sequence[float],
    change: MalleableChange,
    *,
    policy: str = DEFAULT,
    candidates: Collection[JobId] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """Return the figures of ``rms simulate`` by share of malleable jobs, and by class.

    Those that are malleable at the largest share are one class at all shares.
    """
    site = powered(site)
    made = chosen(named(policy), counted=True, ahead=False)
    largest = malleable(specs, max(shares), site.nodes, change, candidates)
    ever = frozenset(job.id for job in largest if job.speedup is not None)
    rows = []
    for share in shares:
        if progress is not None:
            progress(f"{100 * share:.0f} % {change.mode}, serial part {change.serial:g}")
        jobs = malleable(specs, share, site.nodes, change, candidates)
        row, simulation = measured(specs, jobs, site, made, change)
        rows.append({"malleable": share, **row, "classes": by_class(simulation, specs, ever)})
    return rows


MEASURES = (
    "p95_wait_s",
    "max_wait_s",
    "mean_turnaround_s",
    "p95_turnaround_s",
    "max_turnaround_s",
    "mean_slowdown",
)
"""Columns of :func:`rms.sim.classes.averages` that rows of all jobs have too."""


def measured(
    specs: Sequence[JobSpec],
    jobs: Sequence[JobSpec],
    site: Site,
    policy: Policy,
    change: MalleableChange,
) -> tuple[Row, Simulation]:
    """Simulate jobs, which are rigid in ``specs``; return a row of figures, and the simulation.

    ``node_s`` are the node-seconds that jobs held, ``node_s_of_rigid`` these over the demand at
    their preferred sizes.
    """
    simulation, wall_s = simulated(jobs, site, policy)
    ended = simulation.engine.state.ended
    started = [
        (ended[spec.id], spec.run_s or 0.0)
        for spec in specs
        if spec.id in ended and ended[spec.id].start_s is not None
    ]
    means = averages(started, {})
    node_s = simulation.ledger.busy_node_s
    rigid_s = sum(run_s * job.spec.preferred for job, run_s in started)
    row = {
        "malleable_jobs": sum(job.speedup is not None for job in jobs),
        "mode": change.mode.value,
        "serial": change.serial,
        **figures(simulation, jobs, policy, wall_s),
        **{name: means[name] for name in MEASURES},
        "node_s": node_s,
        "node_s_of_rigid": node_s / rigid_s if rigid_s else 1.0,
    }
    return row, simulation


def powered(site: Site) -> Site:
    """Return a cluster with :data:`POWER` if it states no power."""
    return site if site.power else msgspec.structs.replace(site, power=(POWER,) * site.nodes)


def answer(
    specs: Sequence[JobSpec],
    site: Site,
    question: MalleabilityQuestion,
    *,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return the study as JSON: rows by share, by mode and by serial part, and the assumptions."""
    first = MalleableChange(serial=question.serials[0], mode=question.modes[0])
    rows = partial(
        study,
        specs,
        site,
        policy=question.policy,
        candidates=question.candidates,
        progress=progress,
    )
    by_share = rows(question.shares, first)
    most = max(question.shares)
    largest = by_share[question.shares.index(most)]
    by_mode, by_serial = [largest], [largest]
    if most > 0:
        for mode in question.modes[1:]:
            by_mode += rows([most], msgspec.structs.replace(first, mode=mode))
        for serial in question.serials[1:]:
            by_serial += rows([most], msgspec.structs.replace(first, serial=serial))
    return {
        "policy": question.policy,
        "model": model(first, site),
        "candidates": _share_of(specs, question.candidates),
        "change": msgspec.to_builtins(first),
        "rows": by_share,
        "modes": by_mode,
        "sensitivity": sorted(by_serial, key=lambda row: row["serial"]),
    }


def model(change: MalleableChange, site: Site) -> list[str]:
    """Return the assumptions, in words."""
    power = site.power[0] if site.power else POWER
    source = "of the cluster file" if site.power else "round numbers"
    return [
        f"speedup: t(n) = f t + (1 - f) t s / n, t the run time on the s processors of the log, "
        f"f = {change.serial:g} unless stated; {change.factor} times narrower to "
        f"{change.factor} times wider",
        f"resize points {change.every_s:g} s apart, a resize costs {change.price_s:g} s; limits "
        "are those requested, scaled as the run time",
        f"power ({source}): idle {power.idle_w:g} W, running {power.static_w:g} W + "
        f"{power.dynamic_w:g} W x efficiency",
        "slowdown: turnaround over the run time in the log, of 10 s at least",
    ]


def _share_of(specs: Sequence[JobSpec], candidates: frozenset[JobId] | None) -> dict[str, Any]:
    meant = [spec for spec in specs if candidates is None or spec.id in candidates]
    work = sum((spec.run_s or 0.0) * spec.preferred for spec in specs)
    own = sum((spec.run_s or 0.0) * spec.preferred for spec in meant)
    return {"jobs": len(meant), "of": len(specs), "share_of_work": own / work if work else 0.0}


def table(result: dict[str, Any]) -> list[str]:
    """Return the study as lines of text."""
    some = result["candidates"]
    lines = [
        f"policy {result['policy']}; {some['jobs']} of {some['of']} jobs may be chosen, "
        f"{100 * some['share_of_work']:.0f} % of the work",
        *result["model"],
        "",
        *_rows("by share of malleable jobs", result["rows"]),
    ]
    if len(result["modes"]) > 1:
        lines += ["", *_rows("by what they allow", result["modes"])]
    if len(result["sensitivity"]) > 1:
        lines += ["", *_rows("by the serial part f: how much hangs on it", result["sensitivity"])]
    before, after = ends(result["rows"])
    if before is not after:
        lines += ["", *_by_class(before, after)]
    return lines


def ends(rows: Sequence[Row]) -> tuple[Row, Row]:
    """Return the rows with the smallest and the largest share."""
    return min(rows, key=lambda row: row["malleable"]), max(rows, key=lambda row: row["malleable"])


def _rows(title: str, rows: Sequence[Row]) -> list[str]:
    lines = [
        f"{title}:",
        "malleable  mode       f      mean wait  turnaround  slowdown  utilization  energy (GJ)  "
        "makespan (d)  resizes",
    ]
    lines += [
        f"{100 * row['malleable']:7.0f} %  {row['mode']:9s}  {row['serial']:4.2f}  "
        f"{row['mean_wait_s']:9.0f} s  {row['mean_turnaround_s']:8.0f} s  "
        f"{row['mean_slowdown']:8.2f}  {row['utilization']:11.4f}  "
        f"{row['energy_j']['cluster'] / 1e9:11.3f}  {row['makespan_s'] / 86400:12.2f}  "
        f"{row['resizes']:7d}"
        for row in rows
    ]
    return lines


def _by_class(before: Row, after: Row) -> list[str]:
    shares = f"{100 * before['malleable']:.0f} % and {100 * after['malleable']:.0f} % malleable"
    lines = [
        f"by class of job ({shares}; sizes and run times as in the log):",
        f"{'':12s}     jobs        mean wait (s)       turnaround (s)           slowdown"
        "          energy (GJ)",
    ]
    for kind, rows in after["classes"].items():
        olds = {row["class"]: row for row in before["classes"][kind]}
        lines.append(kind)
        for row in rows:
            old = olds.get(row["class"])
            lines.append(
                f"  {row['class']:10s}  {row['jobs']:7d}  "
                + "  ".join(_pair(old, row, *column) for column in _CLASS_COLUMNS)
            )
    return lines


_CLASS_COLUMNS = (
    ("mean_wait_s", 1.0, "9.0f"),
    ("mean_turnaround_s", 1.0, "9.0f"),
    ("mean_slowdown", 1.0, "8.2f"),
    ("energy_j", 1e9, "8.3f"),
)


def _pair(old: Row | None, new: Row, name: str, scale: float, form: str) -> str:
    width = int(form.partition(".")[0])
    was = " " * width if old is None else format(old[name] / scale, form)
    return f"{was} {format(new[name] / scale, form)}"


def draw(result: dict[str, Any], path: Path, title: str) -> None:
    """Draw the study: figures against the share, by class, by mode and by serial part."""
    rows, (before, after) = result["rows"], ends(result["rows"])
    shares = [100 * row["malleable"] for row in rows]
    panels = [
        Panel(name, {"": (shares, [scale(row) for row in rows])}, "malleable jobs (%)")
        for name, scale in _OVERALL.items()
    ]
    if before is not after:
        panels += [
            _class_panel(f"mean wait (h) by {label}", before, after, kind)
            for kind, label in (("size", "processors"), ("length", "run time"))
        ]
    for name, label, key in (("modes", "mode", "mode"), ("sensitivity", "serial part f", "serial")):
        if len(result[name]) > 1:
            waits = [row["mean_wait_s"] / 3600 for row in result[name]]
            series = {"": ([str(row[key]) for row in result[name]], waits)}
            panels.append(Panel(f"mean wait (h) by {label}", series, label))
    draw_panels(panels, path, title)


_OVERALL: dict[str, Callable[[Row], float]] = {
    "mean wait (h)": lambda row: row["mean_wait_s"] / 3600,
    "mean turnaround (h)": lambda row: row["mean_turnaround_s"] / 3600,
    "mean slowdown": lambda row: row["mean_slowdown"],
    "utilization (%)": lambda row: 100 * row["utilization"],
    "energy (GJ)": lambda row: row["energy_j"]["cluster"] / 1e9,
}


def _class_panel(title: str, before: Row, after: Row, kind: str) -> Panel:
    series = {
        f"{100 * row['malleable']:.0f} %": (
            [of_class["class"] for of_class in row["classes"][kind]],
            [of_class["mean_wait_s"] / 3600 for of_class in row["classes"][kind]],
        )
        for row in (before, after)
    }
    return Panel(title, series, "")
