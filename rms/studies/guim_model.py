"""The cluster, jobs and policies of ``rms reproduce guim``, and one simulation of them.

What the paper leaves open is a :class:`Variant`; its defaults and the reasons for them are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from rms.core.contention import Processors, SharedNode
from rms.core.events import Reason, Start
from rms.core.model import Job, JobSpec, Site
from rms.core.policies import Policy, adjusted, named
from rms.core.policies.admission import Easy, news_only, reservation, start, start_head
from rms.core.policies.placement import Room
from rms.core.policies.shared import SharedRoom
from rms.core.policies.sizing import Plan
from rms.core.state import State
from rms.formats.config import FileError
from rms.formats.swf import read_trace
from rms.sim.run import simulated

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
        biased: estimates of bandwidth are all too high by the error, not too high or low by lot.
        socket: the GPU's socket is limited to a ninth of its node's bandwidth.
        over_log: slowdown is over the run time in the log, else over the time that a job took.
    """

    size: Literal["cores", "plain"] = "plain"
    load: float = 1.0
    whole_demand: bool = False
    fastest_first: bool = False
    threshold: float | None = None
    biased: bool = False
    socket: bool = True
    over_log: bool = True


class Grid(NamedTuple):
    """Which simulations are asked for: all the paper's, of the first jobs of each log."""

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
    pairs = ceil(processors / sum(kind.number for kind in counted))
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


# --- EASY over a long queue ------------------------------------------------------------------


@dataclass
class _Queue:
    """Waiting jobs in order, in arrays, so that a pass does not look at each one."""

    jobs: list[Job] = field(default_factory=list)
    size: Any = field(default_factory=lambda: np.zeros(1024, np.int32))
    span_s: Any = field(default_factory=lambda: np.zeros(1024))
    gone: int = 0

    def add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            at = len(self.jobs)
            if at == len(self.size):
                self.size = np.concatenate([self.size, np.zeros(at, np.int32)])
                self.span_s = np.concatenate([self.span_s, np.zeros(at)])
            self.jobs.append(job)
            self.size[at] = job.spec.preferred
            self.span_s[at] = job.spec.expected_s(job.spec.preferred)

    def remove(self, at: int) -> None:
        self.size[at] = np.iinfo(np.int32).max
        self.gone += 1

    def pack(self) -> None:
        """Forget who is gone once these are most."""
        if self.gone < 512 or 2 * self.gone < len(self.jobs):
            return
        kept = np.flatnonzero(self.size[: len(self.jobs)] < np.iinfo(np.int32).max)
        self.size[: len(kept)], self.span_s[: len(kept)] = self.size[kept], self.span_s[kept]
        self.jobs, self.gone = [self.jobs[at] for at in kept], 0

    def fitting(self, room: SharedRoom, extra: int, span_s: float) -> list[int]:
        """Return who has the size to start now and may end in time or leaves enough free."""
        size, end = self.size[: len(self.jobs)], len(self.jobs)
        # A job that is too large for the free fast processors runs at the speed of slower ones.
        tiers = room.tiers
        free = np.array([number for number, _ in tiers])
        factor = np.array([each for _, each in tiers] + [tiers[-1][1]])
        ends = self.span_s[:end] * factor[np.searchsorted(free, size)] <= span_s
        return [int(at) for at in np.flatnonzero((size <= room.free) & (ends | (size <= extra)))]


class LongQueueEasy:
    """EASY backfilling as :class:`rms.core.policies.admission.Easy` decides it, for long queues.

    It keeps the queue in arrays from pass to pass, so each is made for one simulation, of fixed
    jobs in the order of submission.
    """

    estimates = "requested"

    def __init__(self) -> None:
        self._queue = _Queue()
        self._short = Easy()

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        self._queue.add(state.new_jobs)
        if news_only(state, queue, room):
            return self._short(state, queue, plan, room)
        starts: list[Start] = []
        head = start_head(iter(queue), plan, room, starts)
        if head is None or room.free <= 0:
            return starts
        assert isinstance(room, SharedRoom)
        now, size = state.now_s, plan.start(head, room.free)
        shadow, extra = reservation(state, room, starts, size)
        begun, waiting = {each.job for each in starts}, self._queue
        waiting.pack()
        for at in waiting.fitting(room, extra, shadow - now):
            job = waiting.jobs[at]
            size, job_id = job.spec.preferred, job.spec.id
            if job_id in begun or job_id not in state.pending:
                waiting.remove(at)
                continue
            if job is head or not room.fits(job, size):
                continue
            if size > extra:
                expected_s = job.spec.expected_s(size)
                if now + expected_s > shadow or (
                    now + expected_s * room.offer(job, size).slowdown > shadow
                ):
                    continue
            elif now + job.spec.expected_s(size) * room.offer(job, size).slowdown > shadow:
                extra -= size
            starts.append(start(job, size, room, "backfills", Reason.BACKFILLS))
            waiting.remove(at)
            if room.free <= 0:
                break
        return starts


def policy(name: str, variant: Variant, *, long_queue: bool = True) -> Policy:
    """Return one of the paper's policies, made for one simulation."""
    placement: dict[str, Any] = {
        "part": "less-consume" if name == "lc-pa" else "first-fit-shared",
        "power_aware": name != "easy-reg",
        "fastest_first": variant.fastest_first,
    }
    if name == "lc-pa" and variant.threshold is not None:
        placement["threshold"] = variant.threshold
    made = adjusted(named("easy"), placement=placement)
    admission = LongQueueEasy() if long_queue else made.admission
    return replace(made, admission=admission)


def run(case: Case, data: Mapping[str, Any], specs: Sequence[JobSpec]) -> dict[str, float]:
    """Run a case; return its figures.

    ``bsld`` and ``bsld_p95`` are bounded slowdowns, ``energy`` is in seconds of a processor at the
    highest level, ``stretch`` is run time over that in the log.
    """
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
    }
