"""Figures of a simulation by class of job: waits, turnarounds, energy."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean, median_low
from typing import Any

from rms.core.model.jobs import Job, JobId, JobSpec
from rms.sim.simulator import Simulation

SIZES = (1, 4, 16, 64, 256, 1024)
SIZE_NAMES = ("1", "2-4", "5-16", "17-64", "65-256", "257-1024", "over 1024")
LENGTHS_S = (600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
LENGTH_NAMES = ("to 10 min", "10 min-1 h", "1-6 h", "6-24 h", "over 24 h")
NAMES = (*SIZE_NAMES, *LENGTH_NAMES, "rigid", "malleable", "small", "wide", "short", "long")
ORDER = {name: at for at, name in enumerate(NAMES)}

Row = dict[str, Any]
Kind = Callable[[JobSpec], str]
"""A function of the class of a job."""


def by_class(
    simulation: Simulation, specs: Sequence[JobSpec], chosen: Collection[JobId] = ()
) -> dict[str, list[Row]]:
    """Return figures of the jobs by size, by run time and by mode (malleable or rigid).

    Args:
        simulation: a finished simulation.
        specs: its jobs before they were made malleable: their preferred sizes and run times there
            decide their classes and slowdowns.
        chosen: jobs that count as malleable, whether or not they were made so.

    Returns:
        For ``size``, ``length`` and ``mode`` the rows of :func:`averages`, with their ``class``.
    """
    kinds: dict[str, Kind] = {
        "size": lambda spec: SIZE_NAMES[bisect_left(SIZES, spec.preferred)],
        "length": lambda spec: LENGTH_NAMES[bisect_left(LENGTHS_S, _run_s(spec))],
        "mode": _mode(chosen),
    }
    return _by_kind(simulation, specs, kinds)


def by_half(
    simulation: Simulation, specs: Sequence[JobSpec], chosen: Collection[JobId] = ()
) -> dict[str, list[Row]]:
    """Return the rows of :func:`by_class` with two classes per kind, which all streams have.

    Jobs up to the median size are small, others wide; up to the median run time short, others long.
    """
    size = median_low([spec.preferred for spec in specs] or [0])
    run_s = median_low([_run_s(spec) for spec in specs] or [0.0])
    kinds: dict[str, Kind] = {
        "mode": _mode(chosen),
        "width": lambda spec: "small" if spec.preferred <= size else "wide",
        "length": lambda spec: "short" if _run_s(spec) <= run_s else "long",
    }
    return _by_kind(simulation, specs, kinds)


def _mode(chosen: Collection[JobId]) -> Kind:
    return lambda spec: "malleable" if spec.id in chosen else "rigid"


def _run_s(spec: JobSpec) -> float:
    return spec.time_s(spec.preferred) or 0.0


def _by_kind(
    simulation: Simulation, specs: Sequence[JobSpec], kinds: Mapping[str, Kind]
) -> dict[str, list[Row]]:
    ended, busy_j = simulation.engine.state.ended, simulation.ledger.busy_j
    groups: dict[str, defaultdict[str, list[tuple[Job, float]]]] = {
        kind: defaultdict(list) for kind in kinds
    }
    for spec in specs:
        job = ended.get(spec.id)
        if job is None or job.start_s is None:
            continue
        one = (job, _run_s(spec))
        for kind, class_of in kinds.items():
            groups[kind][class_of(spec)].append(one)
    return {
        kind: [
            {"class": name, **averages(group[name], busy_j)}
            for name in sorted(group, key=ORDER.__getitem__)
        ]
        for kind, group in groups.items()
    }


def averages(jobs: Iterable[tuple[Job, float]], busy_j: Mapping[Any, float]) -> Row:
    """Return waits, turnarounds, slowdowns and energy of jobs that are over.

    Args:
        jobs: jobs with their run times at submission, in s. A slowdown is a turnaround over that
            (10 s at least), so that a job does not look better for having run longer.
        busy_j: energy by job in J.
    """
    pairs = list(jobs)
    waits = sorted((job.start_s or 0.0) - job.spec.submit_s for job, _ in pairs)
    turnarounds = [(job.end_s or 0.0) - job.spec.submit_s for job, _ in pairs]
    rising = sorted(turnarounds)
    slowdowns = [t / max(run_s, 10.0) for t, (_, run_s) in zip(turnarounds, pairs, strict=True)]
    return {
        "jobs": len(pairs),
        "mean_wait_s": fmean(waits) if waits else 0.0,
        "p95_wait_s": waits[int(0.95 * (len(waits) - 1))] if waits else 0.0,
        "max_wait_s": waits[-1] if waits else 0.0,
        "mean_turnaround_s": fmean(turnarounds) if turnarounds else 0.0,
        "p95_turnaround_s": rising[int(0.95 * (len(rising) - 1))] if rising else 0.0,
        "max_turnaround_s": rising[-1] if rising else 0.0,
        "mean_slowdown": fmean(slowdowns) if slowdowns else 0.0,
        "energy_j": sum(busy_j.get(job.spec.id, 0.0) for job, _ in pairs),
        "resizes": sum(job.resize_count for job, _ in pairs),
    }


def class_lines(classes: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return :func:`by_class` as lines of text."""
    lines = [f"{'':12s}     jobs  mean wait   p95 wait  turnaround  slowdown  energy (GJ)"]
    for kind, rows in classes.items():
        lines.append(kind)
        lines += [
            f"  {row['class']:10s}  {row['jobs']:7d}  {row['mean_wait_s']:7.0f} s  "
            f"{row['p95_wait_s']:7.0f} s  {row['mean_turnaround_s']:8.0f} s  "
            f"{row['mean_slowdown']:8.2f}  {row['energy_j'] / 1e9:11.3f}"
            for row in rows
        ]
    return lines
