"""What resizes and cheap hours have brought: the jobs of a daemon again on the virtual clock.

:func:`gain` replays the record of a daemon (:class:`rms.core.model.jobs.Ran`) twice under the same
policy: with resizes, and without. The two replays share one model, so their difference is the
effect of resizes; the distance of the first from the real run is the error of the model.
:func:`hours_gain` does so with the true prices of electricity and with flat ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from rms.core.model.events import HourlyPrices
from rms.core.model.jobs import JobId, JobRan, JobSpec, Mode, Ran
from rms.core.model.speedup import Speedup, corrected
from rms.core.policies import Policy, PolicyError, named
from rms.core.rules.checks import RuleError
from rms.formats.prices import CO2_UNIT, Cost, Prices
from rms.sim.run import figures, simulated
from rms.sim.simulator import Simulation
from rms.wire.users import Gain, HoursGain, JobGain, PricedSchedule, Schedule

SERIAL = 0.05
"""Share of the work that more nodes do not speed up, for jobs without a profile and without
reported speeds at two sizes."""

MEASURED_S = 1.0
"""Least time at a size for which its reported speed counts."""

LEAST_RUN_S = 1e-3
"""Shortest run time in a replay."""

POINTS = 200
"""Most resize points in the run of a job."""

LATER_S = 1.0
"""Starts that differ by less are the same."""

LIMIT_S = 60.0
"""Longest time for a replay."""

AHEAD_S = 60 * 86_400.0
"""Prices are known for so long after the record and the last deadline."""

WITHOUT = {Mode.MALLEABLE: Mode.FIXED, Mode.FLEXIBLE: Mode.MOLDABLE}
"""What the resizable modes become."""


class GainError(ValueError):
    """The jobs cannot be replayed; the text is the reason in a sentence."""


def gain(ran: Ran, *, limit_s: float = LIMIT_S) -> Gain:
    """Return what resizes have brought to the jobs of a record.

    *Without resizes* every malleable job is fixed and every flexible job is moldable; nothing else
    changes: the same submissions, sizes, limits and priorities, the same cluster, power cap and
    policy. A job starts at the size it starts at today; it keeps that size.

    *Run times.* The time of a job on ``n`` nodes is ``k T(n)``. ``T`` is its profile, corrected by
    the speeds that it reported, or a law through these speeds where it has run at two sizes, else
    ``SERIAL + (1 - SERIAL) / n``. ``k`` is such that the job, at the sizes at which it really ran,
    ends when it really ended. A job that still runs counts as over at the time of the record. With
    resizes, a resize costs a job the mean stall of its own resizes (of all resizes where it has
    none), and it comes to a resize point every two boots of a world, so that a resize waits for one
    boot on average.

    *Lent.* A node is lent from the time at which a job gives it up by a resize until the job ends
    or holds as many nodes as it ever did; of that time, the part counts in which another job held
    the node. This is of the real run, not of a replay.

    *Not in the model*: failed and drained nodes, requeues, suspensions and changes of the policy or
    the cluster in between; a held job is submitted when it really started; the run times of jobs
    without a limit are known to the policy.

    Args:
        limit_s: longest time for each of the two replays.

    Raises:
        GainError: no job has started yet, the policy is gone, a replay takes longer than the limit
            or comes to no end.
    """
    jobs = [job for job in ran.jobs if job.spec.smallest_start <= ran.site.nodes]
    if not jobs:
        raise GainError("no job has started yet")
    policy = _policy(ran)
    model = _Model(ran.now_s, jobs)
    runs = {
        resizable: _replayed([model.spec(job, resizable) for job in jobs], ran, policy, limit_s)
        for resizable in (True, False)
    }
    lent = lent_node_s(ran)
    rows = [
        JobGain(
            id=job.spec.id,
            mode=str(job.spec.mode),
            lent_node_s=lent[job.spec.id],
            resizes=len(job.resizes),
            wait_s=job.start_s - job.spec.submit_s,
            with_s=runs[True].waits[job.spec.id],
            without_s=runs[False].waits[job.spec.id],
        )
        for job in sorted(jobs, key=lambda job: job.spec.submit_s)
    ]
    saved = [row.without_s - row.with_s for row in rows]
    real = Schedule(
        makespan_s=max(model.end_s(job) for job in jobs) - model.first_s,
        mean_wait_s=fmean(row.wait_s for row in rows),
        resizes=sum(row.resizes for row in rows),
    )
    with_resizes = runs[True].schedule
    return Gain(
        seq=ran.seq,
        from_s=model.first_s,
        until_s=ran.now_s,
        policy=policy.name,
        nodes=ran.site.nodes,
        jobs=len(jobs),
        left_out=len(ran.jobs) - len(jobs) + ran.dropped,
        lent_node_s=sum(lent.values()),
        real=real,
        with_resizes=with_resizes,
        without=runs[False].schedule,
        mean_saved_s=fmean(saved),
        later=sum(s > LATER_S for s in saved),
        earlier=sum(s < -LATER_S for s in saved),
        start_error_s=fmean(abs(row.with_s - row.wait_s) for row in rows),
        makespan_error=with_resizes.makespan_s / real.makespan_s - 1.0 if real.makespan_s else 0.0,
        rows=rows,
    )


def _policy(ran: Ran) -> Policy:
    try:
        return named(ran.policy)
    except (PolicyError, RuleError) as error:
        raise GainError(f"the policy cannot be used for a replay: {error}") from None


# --- cheap hours -----------------------------------------------------------------------------


def hours_gain(ran: Ran, prices: Prices, *, limit_s: float = LIMIT_S) -> HoursGain:
    """Return what waiting for cheap hours has saved to the jobs of a record, and its cost in time.

    The jobs are replayed as for :func:`gain`, with resizes: once with the true prices, and once
    with the mean of these prices in all hours. Energy costs the true prices in both; both count
    from the first submission to the later one of their two ends.

    Args:
        prices: the true ones; decisions go by what they went by in the record, price or emissions.
        limit_s: longest time for each of the two replays.

    Raises:
        GainError: no job with a deadline has started yet, the policy does not wait for cheap hours,
            the prices have no values for the time, or as for :func:`gain`.
    """
    jobs = [job for job in ran.jobs if job.spec.smallest_start <= ran.site.nodes]
    patient = sum(job.spec.deadline_s is not None for job in jobs)
    if not patient:
        raise GainError("no job with a deadline has started yet")
    policy = _policy(ran)
    if not policy.hours.waits_for_prices:
        raise GainError(f"policy {policy.name} does not wait for cheap hours")
    model = _Model(ran.now_s, jobs)
    specs = [model.spec(job, resizable=True) for job in jobs]
    zero_s = model.first_s
    until_s = max([ran.now_s, *(job.spec.deadline_s or 0.0 for job in jobs)]) + AHEAD_S
    by_co2 = prices.price is None or (ran.prices_unit == CO2_UNIT and prices.carbon is not None)
    true = prices.hourly("co2" if by_co2 else "price", zero_s, until_s, zero_s)
    if true is None:
        raise GainError(f"{prices.source} has no values for the time of the jobs")
    flat = replace(true, values=(fmean(true.values),) * len(true.values))
    runs = [_simulation(specs, ran, policy, limit_s, known) for known in (true, flat)]
    last_s = max(run.drawn[-1][1] for run in runs)
    turnarounds = [model.end_s(job) - job.spec.submit_s for job in jobs]
    return HoursGain(
        seq=ran.seq,
        from_s=zero_s,
        until_s=ran.now_s,
        policy=policy.name,
        nodes=ran.site.nodes,
        jobs=len(jobs),
        patient=patient,
        left_out=len(ran.jobs) - len(jobs) + ran.dropped,
        currency=None if prices.price is None else prices.currency,
        rated=prices.carbon is not None,
        real=PricedSchedule(
            busy_j=sum(job.energy_j for job in jobs),
            mean_turnaround_s=fmean(turnarounds),
            missed=sum(model.end_s(job) > (job.spec.deadline_s or inf) for job in jobs),
            resizes=sum(len(job.resizes) for job in jobs),
        ),
        priced=_priced(runs[0], prices, zero_s, last_s),
        flat=_priced(runs[1], prices, zero_s, last_s),
    )


def _priced(simulation: Simulation, prices: Prices, zero_s: float, last_s: float) -> PricedSchedule:
    """Return the figures of a replay; after its end the nodes draw on until ``last_s``."""
    ledger, paid, over_s = simulation.ledger, Cost(), simulation.drawn[-1][1]
    ledger.advance(simulation.engine.state, last_s)
    drawn = [*simulation.drawn, (over_s, last_s, ledger.power_w)]
    for begin_s, end_s, watts in drawn:
        paid += prices.cost(watts * (end_s - begin_s), zero_s + begin_s, zero_s + end_s)
    jobs = simulation.engine.state.ended.values()
    return PricedSchedule(
        busy_j=sum(ledger.busy_j.values()),
        mean_turnaround_s=fmean((job.end_s or 0.0) - job.spec.submit_s for job in jobs),
        missed=sum((job.end_s or 0.0) > (job.spec.deadline_s or inf) for job in jobs),
        resizes=simulation.resized,
        cluster_j=ledger.cluster_j,
        price=None if prices.price is None else paid.price,
        co2_g=None if prices.carbon is None else paid.co2_g,
    )


# --- nodes that were lent --------------------------------------------------------------------


def lent_node_s(ran: Ran) -> dict[JobId, float]:
    """Return the node seconds that each job gave up by resizes and other jobs used."""
    on_node: dict[int, list[tuple[float, float, JobId]]] = {}
    for job in ran.jobs:
        for node, begin_s, end_s in job.spans:
            on_node.setdefault(node, []).append((begin_s, end_s, job.spec.id))
    return {
        job.spec.id: sum(
            max(0.0, min(end_s, until_s) - max(begin_s, since_s))
            for node, since_s, until_s in _given_up(job, ran.now_s)
            for begin_s, end_s, owner in on_node.get(node, ())
            if owner != job.spec.id
        )
        for job in ran.jobs
    }


def _given_up(job: JobRan, now_s: float) -> list[tuple[int, float, float]]:
    """Return the nodes that a job gave up, with the times from which and until which they count."""
    over: list[tuple[int, float, float]] = []
    given: dict[int, float] = {}  # by node, in the order of time
    end_s = now_s if job.end_s is None else job.end_s
    # The report of a resize comes before the old world has left: sizes count half-way to the next.
    ends = [job.start_s, *(resize.at_s for resize in job.resizes)]
    begins = [*(resize.at_s - resize.stall_s for resize in job.resizes), end_s]
    rests = [(begin_s + until_s) / 2.0 for begin_s, until_s in zip(ends, begins, strict=True)]
    held = _held(job, rests[0])
    most = len(held)
    for resize, rest_s in zip(job.resizes, rests[1:], strict=True):
        before, held = held, _held(job, rest_s)
        most = max(most, len(held))
        for node in sorted(before - held):
            given[node] = max(until for at, _, until in job.spans if at == node and until <= rest_s)
        for node in [node for node in given if node in held]:
            back_s = max(begin for at, begin, _ in job.spans if at == node and begin <= rest_s)
            over.append((node, given.pop(node), back_s))
        for node in list(given)[: max(0, len(given) - (most - len(held)))]:
            over.append((node, given.pop(node), resize.at_s))
    return over + [(node, since_s, end_s) for node, since_s in given.items()]


def _held(job: JobRan, at_s: float) -> set[int]:
    return {node for node, begin_s, end_s in job.spans if begin_s <= at_s < end_s}


# --- the model -------------------------------------------------------------------------------


@dataclass
class _Model:
    """The jobs of a record as a simulator takes them; times count from the first submission."""

    now_s: float
    jobs: Sequence[JobRan]
    first_s: float = field(init=False)
    known: frozenset[str] = field(init=False)
    stall_s: float = field(init=False)
    boot_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.first_s = min(job.spec.submit_s for job in self.jobs)
        arrays = {job.spec.array for job in self.jobs if job.spec.array}
        self.known = frozenset({job.spec.id for job in self.jobs} | arrays)
        resizes = [resize for job in self.jobs for resize in job.resizes]
        self.stall_s = fmean(r.stall_s for r in resizes) if resizes else 0.0
        self.boot_s = fmean(r.boot_s for r in resizes) if resizes else 0.5

    def end_s(self, job: JobRan) -> float:
        """Return the end of a job, the time of the record while it runs."""
        return self.now_s if job.end_s is None else job.end_s

    def spec(self, job: JobRan, resizable: bool) -> JobSpec:
        """Return a job for a replay with or without resizes."""
        spec, run_s = job.spec, self.end_s(job) - job.start_s
        speedup = run_times(job, self.end_s(job))
        mode = spec.mode if resizable else WITHOUT.get(spec.mode, spec.mode)
        can_resize, stalls = mode.resizable, [resize.stall_s for resize in job.resizes]
        rigid = spec.mode is Mode.FIXED and spec.speedup is None
        submit_s = job.start_s if spec.hold else spec.submit_s
        return replace(
            spec,
            submit_s=submit_s - self.first_s,
            mode=mode,
            speedup=None if rigid else speedup,
            run_s=max(LEAST_RUN_S, speedup.time(spec.preferred)) if rigid else None,
            resize_every_s=max(2.0 * self.boot_s, run_s / POINTS, LEAST_RUN_S)
            if can_resize
            else None,
            resize_price_s=(fmean(stalls) if stalls else self.stall_s) if can_resize else 0.0,
            resize_parts=None,
            hold=False,
            begin_s=None if spec.begin_s is None else spec.begin_s - self.first_s,
            deadline_s=None if spec.deadline_s is None else spec.deadline_s - self.first_s,
            after=tuple(after for after in spec.after if after.job in self.known),
        )


def run_times(job: JobRan, end_s: float) -> Speedup:
    """Return the run time of a job against its number of nodes (see :func:`gain`).

    Args:
        end_s: the time of its end.
    """
    spec = job.spec
    measured_s = {
        size: job.steps * seconds / steps
        for size, steps, seconds in job.measured
        if job.steps and steps and seconds >= MEASURED_S
    }
    shape = corrected(spec.speedup, spec.sizes(), measured_s)
    if shape is None:
        shape = Speedup(law=(1.0 - SERIAL, SERIAL))
    work = sum(
        seconds / shape.time(_usable(shape, size)) for size, seconds in _at_sizes(job, end_s)
    )
    return _scaled(shape, work, spec)


def _usable(shape: Speedup, size: int) -> int:
    """Return the size of a speedup that is nearest below a number of nodes."""
    if shape.law is not None:
        return max(1, size)
    return shape.allowed_size(min(max(size, shape.nodes[0]), shape.nodes[-1]))


def _scaled(shape: Speedup, by: float, spec: JobSpec) -> Speedup:
    """Return a speedup with longer times, and with the power of the job's own speedup."""
    if shape.law is not None:
        t1_s, tc_s = shape.law
        by = max(by, LEAST_RUN_S / (t1_s + tc_s))
        return Speedup(law=(by * t1_s, by * tc_s))
    by = max(by, LEAST_RUN_S / max(shape.time_s))
    stated, watts = spec.speedup, tuple[float, ...]()
    if stated is not None and stated.power_w_per_node:
        powers = [stated.power(_usable(stated, n)) for n in shape.nodes]
        watts = tuple(power for power in powers if power is not None)
    return Speedup(
        nodes=shape.nodes,
        time_s=tuple(by * time_s for time_s in shape.time_s),
        power_w_per_node=watts,
        interpolate=shape.interpolate,
    )


def _at_sizes(job: JobRan, end_s: float) -> list[tuple[int, float]]:
    """Return the numbers of nodes of a job one after the other, with seconds without stalls."""
    stalls = [(resize.at_s - resize.stall_s, resize.at_s) for resize in job.resizes]
    edges = {job.start_s, end_s}
    for begin_s, until_s in [*(span[1:] for span in job.spans), *stalls]:
        edges |= {at_s for at_s in (begin_s, until_s) if job.start_s < at_s < end_s}
    times = sorted(edges)
    parts = []
    for begin_s, until_s in pairwise(times):
        if any(stall_s <= begin_s < over_s for stall_s, over_s in stalls):
            continue
        if size := len(_held(job, begin_s)):
            parts.append((size, until_s - begin_s))
    return parts


# --- a replay --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Replay:
    schedule: Schedule
    waits: Mapping[JobId, float]


def _simulation(
    specs: Sequence[JobSpec],
    ran: Ran,
    policy: Policy,
    limit_s: float,
    prices: HourlyPrices | None = None,
) -> Simulation:
    progress = _until(time.monotonic() + limit_s, limit_s)
    try:
        return simulated(specs, ran.site, policy, progress=progress, prices=prices)[0]
    except GainError:
        raise
    except Exception as error:  # a user's own part of a policy may raise anything
        raise GainError(f"the jobs cannot be replayed: {error}") from None


def _replayed(specs: Sequence[JobSpec], ran: Ran, policy: Policy, limit_s: float) -> _Replay:
    simulation = _simulation(specs, ran, policy, limit_s)
    sums: dict[str, Any] = figures(simulation, specs, policy, 0.0)
    schedule = Schedule(
        makespan_s=sums["makespan_s"],
        mean_wait_s=sums["mean_wait_s"],
        resizes=sums["resizes"],
        energy_j=sums["energy_j"]["cluster"],
        busy_j=sums["energy_j"]["busy"],
    )
    return _Replay(schedule, _waits(simulation, specs))


def _waits(simulation: Simulation, specs: Sequence[JobSpec]) -> dict[JobId, float]:
    waits = {}
    for spec in specs:
        job = simulation.engine.state.ended.get(spec.id)
        if job is None or job.start_s is None:
            raise GainError(f"the jobs cannot be replayed: job {spec.id} does not start")
        waits[spec.id] = job.start_s - spec.submit_s
    return waits


def _until(until_s: float, limit_s: float) -> Callable[[int], None]:
    """Return a function that refuses to go on after a time."""

    def check(done: int) -> None:
        if time.monotonic() > until_s:
            raise GainError(f"expected a replay of at most {limit_s:g} s, got {done} jobs by then")

    return check
