"""The cluster, jobs and policies of ``rms reproduce guim``, and one simulation of them.

What the paper leaves open is a :class:`Variant`; its defaults and the reasons for them are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from random import Random
from statistics import fmean
from time import process_time
from typing import Any, Literal, NamedTuple

import msgspec

from rms.core.contention import Processors, SharedNode
from rms.core.model import JobSpec, Site
from rms.core.policies import Policy, adjusted, named
from rms.core.policies.shared import FirstFitShared, LessConsume
from rms.formats.config import FileError
from rms.formats.swf import read_trace
from rms.sim.run import simulated
from rms.studies.guim_queue import LongQueueEasy

POLICIES = ("easy-reg", "easy-pa", "lc-pa")
BOUND_S = 10.0
"""Run times count as at least this in bounded slowdown."""


@dataclass(frozen=True)
class Variant:
    """What the paper does not say, and what is assumed.

    Attributes:
        size: ``cores``: as many pairs of nodes (one of each kind, 48 processors) as hold the log's
            processors, GPU cores counted, so that BLUE's 1,152 are 24 pairs; ``plain``: GPU cores
            not counted, 16 processors a pair.
        load: submissions come this many times as fast as in the log.
        whole_demand: see :class:`rms.core.contention.SharedNode`.
        fastest_first: first fit takes fast processors first, not node by node.
        threshold: of LessConsume, None for any.
        forecast: LessConsume looks ahead to the ends of neighbours.
        nodes: so many times as many.
        biased: estimates of bandwidth are all too high by the error, not too high or low by lot.
        socket: the GPU's socket is limited to a ninth of its node's bandwidth.
        over_log: slowdown is over the run time in the log, else over the time that a job took.
    """

    size: Literal["cores", "plain"] = "plain"
    load: float = 1.0
    whole_demand: bool = False
    fastest_first: bool = False
    threshold: float | None = None
    forecast: bool = False
    nodes: float = 1.0
    biased: bool = False
    socket: bool = True
    over_log: bool = True


class Grid(NamedTuple):
    """Which simulations are asked for: all the paper's, of the first jobs of each log (0: all)."""

    logs: tuple[str, ...] = ("ctc", "sdsc", "blue")
    mixes: tuple[str, ...] = ("mem", "hybrid", "comp", "equip")
    errors: tuple[int, ...] = (10, 50, 100)
    first: int = 2000


class Case(NamedTuple):
    """One simulation."""

    policy: str
    log: str
    mix: str
    error_pct: int
    variant: Variant = Variant()


def site(data: Mapping[str, Any], processors: int, variant: Variant) -> Site:
    """Return the cluster for a log: as many nodes of one kind as of the other."""
    gb_s, whole = data["gb_s"], variant.whole_demand
    socket_gb_s = gb_s / data["gpu_share"] if variant.socket else gb_s
    behind = Processors(data["gpu_node"]["gpu"], data["gpu_factor"], socket_gb_s)
    kinds = (
        SharedNode(gb_s, (Processors(data["gpu_node"]["plain"]), behind), whole),
        SharedNode(gb_s, (Processors(data["plain_node"]["plain"]),), whole),
    )
    counted = [kind for node in kinds for kind in node.processors]
    if variant.size == "plain":
        counted = [kind for kind in counted if kind.factor == 1.0]
    pairs = ceil(variant.nodes * processors / sum(kind.number for kind in counted))
    slots = pairs * sum(kind.number for node in kinds for kind in node.processors)
    return Site(slots, shared=kinds * pairs, levels=tuple(map(tuple, data["levels"])))


def read_log(folder: Path, file: str) -> list[JobSpec]:
    """Return the jobs of a log, found in a folder of data or in ``traces`` in it.

    Raises:
        FileError: it is in neither.
    """
    found = [path for path in (folder / "traces" / file, folder / file) if path.is_file()]
    if not found:
        raise FileError(f"expected {file} in {folder} or in {folder / 'traces'}, got neither")
    return read_trace(found[0]).specs


def with_bandwidth(
    specs: Iterable[JobSpec], data: Mapping[str, Any], case: Case, seed: int = 1
) -> list[JobSpec]:
    """Return jobs with a bandwidth by the mix, and what is expected of it, off by the error.

    The same job has the same bandwidth whatever the policy and the error.
    """
    demands, weights = data["demands_gb_s"], data["mixes"][case.mix]
    kinds, errors = Random(seed), Random(seed + 1)
    error, variant, found = case.error_pct / 100.0, case.variant, []
    for spec in specs:
        gb_s = kinds.choices(demands, weights)[0]
        off = 1.0 if variant.biased else errors.choice((-1.0, 1.0))
        found.append(
            msgspec.structs.replace(
                spec,
                submit_s=spec.submit_s / variant.load,
                bandwidth_gb_s=gb_s,
                expected_bandwidth_gb_s=gb_s * (1.0 + error * off),
            )
        )
    return found


def policy(name: str, variant: Variant, *, long_queue: bool = True) -> Policy:
    """Return one of the paper's policies, made for one simulation."""
    placement: dict[str, Any] = {
        "part": "less-consume" if name == "lc-pa" else "first-fit-shared",
        "power_aware": name != "easy-reg",
        "fastest_first": variant.fastest_first,
    }
    if name == "lc-pa":
        placement["forecast"] = variant.forecast
        if variant.threshold is not None:
            placement["threshold"] = variant.threshold
    made = adjusted(named("easy"), placement=placement)
    assert isinstance(made.placement, FirstFitShared | LessConsume)
    admission = LongQueueEasy(made.placement.alike) if long_queue else made.admission
    return replace(made, admission=admission)


def run(case: Case, data: Mapping[str, Any], specs: Sequence[JobSpec]) -> dict[str, float]:
    """Run a case; return its figures.

    ``bsld`` and ``bsld_p95`` are bounded slowdowns, ``energy`` is in seconds of a processor at the
    highest level, ``stretch`` is run time over that in the log, ``cpu_s`` the processor time that
    the simulation took.
    """
    begun_s = process_time()
    where = site(data, data["logs"][case.log]["processors"], case.variant)
    jobs = with_bandwidth(specs, data, case)
    simulation, wall_s = simulated(jobs, where, policy(case.policy, case.variant))
    contention = simulation.contention
    assert contention is not None
    slowdowns, waits, took, log = [], [], 0.0, 0.0
    for job in simulation.engine.state.ended.values():
        if job.start_s is None or job.end_s is None:
            continue
        run_s = job.end_s - job.start_s
        own_s = (job.spec.run_s or 0.0) if case.variant.over_log else run_s
        slowdowns.append(max(1.0, (job.end_s - job.spec.submit_s) / max(own_s, BOUND_S)))
        waits.append(job.start_s - job.spec.submit_s)
        took, log = took + run_s, log + (job.spec.run_s or 0.0)
    slowdowns.sort()
    return {
        "bsld": fmean(slowdowns),
        "bsld_p95": slowdowns[int(0.95 * (len(slowdowns) - 1))],
        "energy": contention.energy,
        "wait_s": fmean(waits),
        "stretch": took / log,
        "jobs": float(len(slowdowns)),
        "wall_s": wall_s,
        "cpu_s": process_time() - begun_s,
    }
