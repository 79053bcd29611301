"""What would malleability bring on my log: a trace whose jobs can be resized, in part.

A share of a trace's jobs is given a speedup t(n) = f t + (1 - f) t s / n, where t is the run time
on its s processors and f the part that does not get faster (Amdahl), and may start and run on a
quarter to four times its processors. Which jobs: those whose draw falls below the share, so that
a larger share contains a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from rms.core.model import JobSpec, Mode, NodePower, Site, Speedup
from rms.core.policies import named
from rms.sim.run import chosen, figures, simulated

POWER = NodePower(idle_w=100.0, static_w=120.0, dynamic_w=80.0)
"""Power of a processor where no cluster file states one: round numbers, to compare shares by."""


class Change(msgspec.Struct, frozen=True):
    """How rigid jobs are made malleable.

    Attributes:
        serial: share of the run time that does not get faster with more processors.
        mode: what the jobs then allow.
        factor: how much narrower and wider than the trace says they may run.
        every_s, price_s: time between resize points, and what a resize costs.
        seed: of the draw that says which jobs.
    """

    serial: float = 0.05
    mode: Mode = Mode.FLEXIBLE
    factor: int = 4
    every_s: float = 300.0
    price_s: float = 10.0
    seed: int = 1


def malleable(
    specs: Sequence[JobSpec], share: float, processors: int, change: Change
) -> list[JobSpec]:
    """Return the jobs of a trace, a share of them malleable."""
    draw = Random(change.seed)
    return [_changed(spec, processors, change) if draw.random() < share else spec for spec in specs]


def _changed(spec: JobSpec, processors: int, change: Change) -> JobSpec:
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
    change: Change,
    *,
    policy: str = "easy-share",
    progress: Callable[[float], None] | None = None,
) -> list[dict[str, Any]]:
    """Return the figures of ``rms simulate`` for each share of malleable jobs."""
    if not site.power:
        site = msgspec.structs.replace(site, power=(POWER,) * site.nodes)
    made = chosen(named(policy), counted=True, ahead=False)
    rows = []
    for share in shares:
        if progress is not None:
            progress(share)
        jobs = malleable(specs, share, site.nodes, change)
        simulation, wall_s = simulated(jobs, site, made)
        rows.append({"malleable": share, **figures(simulation, jobs, made, wall_s)})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the study as lines of text."""
    lines = [
        "malleable  mean wait  bounded slowdown  utilization  energy (GJ)  makespan (d)  resizes"
    ]
    for row in rows:
        lines.append(
            f"{100 * row['malleable']:7.0f} %  {row['mean_wait_s']:9.0f}  "
            f"{row['mean_bounded_slowdown']:16.2f}  {row['utilization']:11.4f}  "
            f"{row['energy_j']['cluster'] / 1e9:11.3f}  {row['makespan_s'] / 86400:12.2f}  "
            f"{row['resizes']:7d}"
        )
    return lines


def draw(rows: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Draw the study."""
    from rms.plots import panels

    columns = {
        "mean wait (h)": [row["mean_wait_s"] / 3600 for row in rows],
        "mean bounded slowdown": [row["mean_bounded_slowdown"] for row in rows],
        "utilization (%)": [100 * row["utilization"] for row in rows],
        "energy (GJ)": [row["energy_j"]["cluster"] / 1e9 for row in rows],
    }
    panels([100 * row["malleable"] for row in rows], columns, path, "malleable jobs (%)", title)
