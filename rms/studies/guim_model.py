"""The cluster, jobs and policies of ``rms reproduce guim``, and one simulation of them.

Assumptions that the paper leaves open are a :class:`Variant`. Its defaults follow from the text of
the paper, as the attributes say; :data:`VARIANTS` names the others.
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

from rms.core.model.contention import Pools, Processors, SharedNode
from rms.core.model.jobs import Job, JobSpec, Site
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
    """Assumptions that the paper leaves open or contradicts itself in.

    Attributes:
        size: ``plain``: the plain processors of the cluster are as many as those of the log's
            machine, 16 for a pair of nodes (one of either kind). The run time of a log is that on
            a plain processor (section III-A-3), and section VI asks whether GPU cores improve the
            system, so they come on top. ``cores``: GPU cores count too, 48 for a pair.
        nodes: multiplier of the number of nodes.
        socket: bandwidth of the GPU socket. ``stated``: the share that section III-C sets for the
            evaluated architecture, a ninth of the node's. ``example``: that of the example of the
            same section, 4 of 18 GB/s, which is introduced as a matter of example. ``none``: no
            limit beside the node's.
        fastest_first: first fit takes fast processors first. Default: in the order of the
            reservation table, which lists processors by node (section III-A-1).
        whole_demand: see :class:`rms.core.model.contention.SharedNode`. Default: run times take demand
            over capacity times as long; section IV-A-1 has a factor of 1 for no penalty, and the
            example of section III-C one of 10/4 where 10 of 4 GB/s are in demand.
        exact_pa: EASY-PA sets frequencies by real bandwidths. Section VI states that the error
            does not change its slowdowns, and quotes an energy of EASY-PA for one error; default:
            by expected bandwidths, as the algorithm of section IV-A-2 has it.
        threshold: of LessConsume, None for no threshold; the paper has no results with one.
        forecast: LessConsume looks ahead to the expected ends of neighbours.
        biased: all estimates of bandwidth are too high by the error; default: too high or too low
            at random.
        load: multiplier of the rate of submissions; 1 is that of the log.
    """

    size: Literal["cores", "plain"] = "plain"
    nodes: float = 1.0
    socket: Literal["stated", "example", "none"] = "stated"
    fastest_first: bool = False
    whole_demand: bool = False
    exact_pa: bool = False
    threshold: float | None = None
    forecast: bool = False
    biased: bool = False
    load: float = 1.0


VARIANTS: Mapping[str, tuple[Variant, str]] = {
    "default": (Variant(), "node by node, socket of a ninth, as many plain processors as the log"),
    "fastest-first": (Variant(fastest_first=True), "first fit takes fast processors first"),
    "socket-2/9": (Variant(socket="example"), "GPU socket of 2/9, as in the paper's example"),
    "socket-2/9-fastest-first": (
        Variant(socket="example", fastest_first=True),
        "both of the above",
    ),
    "no-socket": (Variant(socket="none"), "no limit of the GPU socket"),
    "no-socket-fastest-first": (
        Variant(socket="none", fastest_first=True),
        "no limit of the GPU socket, fast processors first",
    ),
    "twice-nodes": (Variant(nodes=2.0), "twice as many nodes"),
    "twice-nodes-no-socket": (
        Variant(nodes=2.0, socket="none"),
        "twice as many nodes, no limit of the GPU socket",
    ),
    "four-times-nodes": (Variant(nodes=4.0), "four times as many nodes"),
    "whole-demand": (Variant(whole_demand=True), "an overload adds demand over capacity"),
    "forecast": (Variant(forecast=True), "LessConsume looks ahead to expected ends"),
    "exact-pa": (Variant(exact_pa=True), "EASY-PA sets frequencies by real bandwidths"),
    "biased": (Variant(biased=True), "all bandwidths are expected too high"),
    "cores": (Variant(size="cores"), "GPU cores count as processors of the log"),
    "threshold-2": (Variant(threshold=2.0), "LessConsume-Threshold, 2"),
    "threshold-1.25": (Variant(threshold=1.25), "LessConsume-Threshold, 1.25"),
    "slow-arrivals": (Variant(load=0.01), "submissions a hundredth as fast"),
    "slow-arrivals-no-socket-fastest-first": (
        Variant(load=0.01, socket="none", fastest_first=True),
        "submissions a hundredth as fast, no limit of the GPU socket, fast processors first",
    ),
}
"""Variants by name, in words; the default one comes first."""


class Grid(NamedTuple):
    """Simulations of one run of the study: by default all cases of the paper.

    Attributes:
        first: jobs of each log, the first ones; 0 for all.
        variants: names of :data:`VARIANTS` that are simulated beside the default one.
    """

    logs: tuple[str, ...] = ("ctc", "sdsc", "blue")
    mixes: tuple[str, ...] = ("mem", "hybrid", "comp", "equip")
    errors: tuple[int, ...] = (10, 50, 100)
    first: int = 2000
    variants: tuple[str, ...] = tuple(VARIANTS)


class Case(NamedTuple):
    """One simulation."""

    policy: str
    log: str
    mix: str
    error_pct: int
    variant: Variant = Variant()


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Results of one simulation.

    Attributes:
        bsld, bsld_p95: mean and 95th percentile of the bounded slowdown: wait and run time over
            run time, which is the time that the job took and counts as 10 s at least (Feitelson
            and Rudolph, the paper's reference 12).
        bsld_log, bsld_log_p95: the same over the run time in the log.
        energy: seconds of a processor at the highest level.
        wait_s: mean wait.
        stretch: sum of run times over the sum of those in the log.
        jobs: jobs that ran.
        queued_pct: share of the time between the first and the last submission in which at least
            one job waits.
        waiting_half_pct, waiting_end_pct: jobs that wait when the middle job and the last job are
            submitted, in per cent of the jobs submitted by then.
        gpu_gb_s, plain_gb_s: mean bandwidth of the processes on GPU cores and on plain processors
            (of what a process needs on a plain processor); 0 if there is none.
        wall_s, cpu_s: wall and processor time of the simulation.
    """

    bsld: float
    bsld_p95: float
    bsld_log: float
    bsld_log_p95: float
    energy: float
    wait_s: float
    stretch: float
    jobs: int
    queued_pct: float
    waiting_half_pct: float
    waiting_end_pct: float
    gpu_gb_s: float
    plain_gb_s: float
    wall_s: float
    cpu_s: float


def site(data: Mapping[str, Any], processors: int, variant: Variant) -> Site:
    """Return the cluster for a log: as many nodes of one kind as of the other."""
    gb_s, whole = data["gb_s"], variant.whole_demand
    socket_gb_s = gb_s / {"none": 1.0, **data["over_socket"]}[variant.socket]
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
    """Return the jobs of a log in a folder of data or in ``traces`` in it.

    Raises:
        FileError: it is in neither.
    """
    paths = [path for path in (folder / "traces" / file, folder / file) if path.is_file()]
    if not paths:
        raise FileError(f"expected {file} in {folder} or in {folder / 'traces'}, got neither")
    return read_trace(paths[0]).specs


def with_bandwidth(
    specs: Iterable[JobSpec], data: Mapping[str, Any], case: Case, seed: int = 1
) -> list[JobSpec]:
    """Return jobs with a bandwidth by the mix, and an expected one that is off by the error.

    The same job has the same bandwidth whatever the policy and the error.
    """
    demands, weights = data["demands_gb_s"], data["mixes"][case.mix]
    kinds, errors = Random(seed), Random(seed + 1)
    error, variant, jobs = case.error_pct / 100.0, case.variant, []
    for spec in specs:
        gb_s = kinds.choices(demands, weights)[0]
        off = 1.0 if variant.biased else errors.choice((-1.0, 1.0))
        jobs.append(
            msgspec.structs.replace(
                spec,
                submit_s=spec.submit_s / variant.load,
                bandwidth_gb_s=gb_s,
                expected_bandwidth_gb_s=gb_s * (1.0 + error * off),
            )
        )
    return jobs


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


def run(case: Case, data: Mapping[str, Any], specs: Sequence[JobSpec]) -> Figures:
    """Run a case; return its figures."""
    begun_s = process_time()
    where = site(data, data["logs"][case.log]["processors"], case.variant)
    jobs = with_bandwidth(specs, data, case)
    simulation, wall_s = simulated(jobs, where, policy(case.policy, case.variant))
    contention = simulation.contention
    assert contention is not None
    spans = [
        _Span(job, job.spec.submit_s, job.start_s, job.end_s)
        for job in simulation.engine.state.ended.values()
        if job.start_s is not None and job.end_s is not None
    ]
    usual = sorted(_bounded_slowdown(span, span.end_s - span.start_s) for span in spans)
    over_log = sorted(_bounded_slowdown(span, span.log_s) for span in spans)
    assert simulation.engine.state.pools is not None
    queued_pct, half_pct, end_pct = _queue(spans)
    gpu_gb_s, plain_gb_s = _by_kind(spans, simulation.engine.state.pools)
    return Figures(
        fmean(usual),
        usual[int(0.95 * (len(usual) - 1))],
        fmean(over_log),
        over_log[int(0.95 * (len(over_log) - 1))],
        contention.energy,
        fmean(span.start_s - span.submit_s for span in spans),
        sum(span.end_s - span.start_s for span in spans) / sum(span.log_s for span in spans),
        len(spans),
        queued_pct,
        half_pct,
        end_pct,
        gpu_gb_s,
        plain_gb_s,
        wall_s,
        process_time() - begun_s,
    )


class _Span(NamedTuple):
    """A job that is over, with its times."""

    job: Job
    submit_s: float
    start_s: float
    end_s: float

    @property
    def log_s(self) -> float:
        """Its run time in the log."""
        return self.job.spec.run_s or 0.0


def _bounded_slowdown(span: _Span, run_s: float) -> float:
    """Return wait and run time over a run time, which counts as 10 s at least."""
    return max(1.0, (span.end_s - span.submit_s) / max(run_s, BOUND_S))


def _queue(spans: Sequence[_Span]) -> tuple[float, float, float]:
    """Return how long jobs wait, and how many halfway and at the end (see :class:`Figures`)."""
    ordered = sorted(spans, key=lambda span: (span.submit_s, span.job.number))
    first_s, last_s = ordered[0].submit_s, ordered[-1].submit_s
    queued_s, covered_s = 0.0, first_s
    for span in ordered:
        begin_s, until_s = max(span.submit_s, covered_s), min(span.start_s, last_s)
        if until_s > begin_s:
            queued_s, covered_s = queued_s + until_s - begin_s, until_s
    queued_pct = 100.0 * queued_s / (last_s - first_s) if last_s > first_s else 0.0
    half = ordered[: (len(ordered) + 1) // 2]
    return queued_pct, _waiting_pct(half), _waiting_pct(ordered)


def _waiting_pct(spans: Sequence[_Span]) -> float:
    """Return the share of jobs that wait when the last of them is submitted."""
    now_s = spans[-1].submit_s
    return 100.0 * sum(span.start_s > now_s for span in spans) / len(spans)


def _by_kind(spans: Iterable[_Span], pools: Pools) -> tuple[float, float]:
    """Return the mean bandwidth of a process on a GPU core and on a plain processor, in GB/s."""
    sums, numbers = [0.0, 0.0], [0, 0]
    for span in spans:
        on_gpu = sum(pools.factor[pools.of_slot[slot]] > 1.0 for slot in span.job.nodes)
        for kind, number in enumerate((on_gpu, len(span.job.nodes) - on_gpu)):
            sums[kind] += number * (span.job.spec.bandwidth_gb_s or 0.0)
            numbers[kind] += number
    gpu, plain = (
        total / number if number else 0.0 for total, number in zip(sums, numbers, strict=True)
    )
    return gpu, plain
