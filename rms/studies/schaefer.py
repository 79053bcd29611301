"""``rms reproduce schaefer``: nodes that go off at night, by the share of malleable jobs.

P. Schäfer, A.-L. Roth, P. Arzt, F. Krull, S. Krenz, F. Wolf, J. Posner: Saving Energy Costs and Time
on Supercomputers: Scheduler-Integrated Recurring Node Shutdown Exploiting Malleable Jobs, SC26
workshops (EESP). Their two schedulers stand beside EASY and the default policy on weeks of the
public log of Theta of 2022; the weeks of their study are not public. Their rules follow the
published program (github FuldaHPC/ElastisimFulda), with its slips:

- EASY (``rigid_easy_backfill``) and the malleable scheduler (``min_steal_agreement``) let a job
  overtake the first waiting one if the present time, in s since the begin of the simulation, is at
  least the run time of the first. So from the first hours on, nothing is reserved for it.
- The malleable scheduler takes a starting job from the list that it iterates over, which skips the
  next one until its next pass.

A waiting job without nodes is promised nodes that running malleable jobs give up, as in
:mod:`rms.studies.posner`, by the same rules.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from math import floor
from operator import attrgetter
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import msgspec

from rms.core.model.events import TRIGGERS, ResizePoint
from rms.core.model.jobs import Job, JobSpec, Mode, Node, NodePower, Site, Speedup
from rms.core.policies import DEFAULT, Policy, adjusted, named
from rms.core.policies.node_power import ALWAYS_ON, Windows
from rms.core.policies.order import Fcfs
from rms.core.policies.placement import FirstFit, Room, Sizing
from rms.core.policies.policy import Passes
from rms.core.state import State
from rms.formats.config import FileError
from rms.formats.swf import read_trace
from rms.sim.run import chosen
from rms.sim.simulator import Simulation
from rms.studies import experiment
from rms.studies.posner import RULES, AsPlanned, PromisePlan, Promises, Sharing

DATA = experiment.settings("schaefer")
THETA, JOBS = DATA["theta"], DATA["jobs"]
DAY_S, HOUR_S, JOULES_PER_KWH = 86400.0, 3600.0, 3.6e6

EASY, THEIR_EASY, THEIRS = "easy", "rigid_easy_backfill", "min_steal_agreement"
SHARES = (0, 25, 50, 75, 100)
"""Per cent of malleable jobs."""

SEEDS = ("S0", "S3", "S7")
SHUTDOWNS = ("F0", "F10", "F30")
SEASONS = ("winter", "spring", "summer", "autumn")
EVERY_S = 60.0
"""Time between regular passes of their schedulers; theirs is 10 s on Theta."""


# --- Jobs ----------------------------------------------------------------------------------------


def efficiency(parallel: float, nodes: int) -> float:
    """Return the speedup by Amdahl's law over the number of nodes."""
    return (1.0 / ((1.0 - parallel) + parallel / nodes)) / nodes


@lru_cache(maxsize=8192)
def profile(preferred: int) -> tuple[float, int, int]:
    """Return the parallel part, the least and the largest size of a job by its preferred size.

    The part is that whose efficiency at the preferred size is next above the stated one, the
    largest of all if there is none, and the least of all for a single node.
    """
    parts: list[float] = JOBS["parallel"]
    aim = JOBS["preferred_efficiency"]
    above = [part for part in parts if efficiency(part, preferred) > aim]
    parallel = min(above, key=lambda part: efficiency(part, preferred)) if above else max(parts)
    if preferred == 1:
        parallel = min(parts)
    most = preferred
    while efficiency(parallel, most + 1) > JOBS["most_efficiency"]:
        most += 1
    least = max(1, int(preferred * JOBS["least_of_preferred"]))
    return parallel, least, min(THETA["nodes"], most)


def drawn(specs: Iterable[JobSpec], share: int, seed: str) -> list[JobSpec]:
    """Return jobs of which a share is malleable, by a draw for each; a larger share has the others.

    A malleable job can be resized between two of its equal parts, of about a second, at no cost.
    """
    return [
        _malleable(spec) if Random(f"{seed}{spec.id}").random() >= 1.0 - share / 100.0 else spec
        for spec in specs
    ]


def _malleable(spec: JobSpec) -> JobSpec:
    parallel, least, most = profile(spec.preferred)
    assert spec.run_s is not None
    whole_s = spec.run_s / ((1.0 - parallel) + parallel / spec.preferred)
    return msgspec.structs.replace(
        spec,
        nodes_min=least,
        nodes_max=most,
        mode=Mode.FLEXIBLE,
        speedup=Speedup(law=(whole_s * parallel, whole_s * (1.0 - parallel))),
        run_s=None,
        resize_parts=max(1, int(spec.run_s)),
    )


def read_weeks(data: Path, names: Iterable[str]) -> dict[str, list[JobSpec]]:
    """Return the rigid jobs of slices of the log, by submission, from the midnight (UTC) before.

    The log is in the folder, in ``traces`` in it or in ``traces`` beside it.
    """
    file = THETA["log"]
    places = [data / file, data / "traces" / file, data.parent / "traces" / file]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise FileError(f"expected {file} in {data} or in a folder traces there, got neither")
    specs = sorted(read_trace(path).specs, key=attrgetter("submit_s"))
    weeks = {}
    for name in names:
        first, days = DATA["weeks"][name]
        begin_s = datetime.fromisoformat(first).replace(tzinfo=UTC).timestamp()
        weeks[name] = [
            _rigid(spec, begin_s)
            for spec in specs
            if begin_s <= spec.submit_s < begin_s + days * DAY_S
        ]
    return weeks


def _rigid(spec: JobSpec, begin_s: float) -> JobSpec:
    run_s = max(1.0, spec.run_s or 0.0)
    return msgspec.structs.replace(
        spec,
        submit_s=spec.submit_s - begin_s,
        run_s=run_s,
        limit_s=JOBS["limit_factor"] * run_s,
    )


# --- The published schedulers --------------------------------------------------------------------


def _waits_for_time(state: State, job: Job, first: Job, size: int) -> bool:
    """Return whether a job that fits is taken to delay the first one."""
    return job is not first and state.now_s < first.spec.expected_s(size)


class AnyChange(Passes):
    """Part ``passes``: after all events but resize points, and every minute."""

    every_s: float | None = EVERY_S

    triggers: ClassVar[frozenset[type]] = TRIGGERS - {ResizePoint}
    start_triggers: ClassVar[frozenset[type]] = triggers


class PreferredFit(Sizing):
    """Part ``sizing`` of ``rigid_easy_backfill``: all jobs that fit, at the preferred size."""

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> PromisePlan:
        """Return the plan of a pass."""
        plan, free, first = PromisePlan(), state.free, None
        for job in queue:
            if not free:
                break
            first, size = first or job, job.spec.preferred
            if size > len(free) or _waits_for_time(state, job, first, first.spec.preferred):
                continue
            plan.begin(job, free[:size], "fits")
            del free[:size]
        return plan


class MinSteal(Sharing):
    """Part ``sizing`` of ``min_steal_agreement``, for one simulation.

    Jobs start at their least sizes. Those without nodes are promised nodes of running jobs, which
    shrink to their least sizes, the job that is most above it first; the rest goes to the running
    job that is least above it, up to its largest size.
    """

    def __init__(self) -> None:
        super().__init__(RULES["min"], Promises("steal_agreement"))
        self._again = True

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> PromisePlan:
        """Return the plan of a pass; of one that would repeat the last, an empty one."""
        if not (state.needs_pass or state.new_jobs or self._again):
            return PromisePlan()
        self._again = False
        plan = super().__call__(state, queue, room)
        self._again = self._again or bool(plan.starts or plan.held)
        return plan

    def start(self, state: State, plan: PromisePlan, waiting: list[Job], free: list[Node]) -> None:
        """Start the jobs that fit, at their least sizes; one behind a start is skipped."""
        at = 0
        while at < len(waiting) and free:
            job, first = waiting[at], waiting[0]
            size = job.spec.nodes_min
            if size <= len(free):
                if _waits_for_time(state, job, first, first.spec.nodes_min):
                    self._again = True
                else:
                    plan.begin(waiting.pop(at), free[:size], "fits")
                    del free[:size]
            at += 1


def windows(shutdown: str) -> Windows | None:
    """Return the windows in which a share of the nodes is off."""
    settings = DATA["shutdown"]
    share = settings[shutdown]
    return Windows(off=tuple(settings["windows"]), share=share) if share else None


def policy(name: str, shutdown: str) -> Policy:
    """Return a scheduler of theirs or a policy of ours, for one simulation."""
    off = windows(shutdown)
    if name in (THEIR_EASY, THEIRS):
        return Policy(
            name=name,
            order=Fcfs(),
            sizing=PreferredFit() if name == THEIR_EASY else MinSteal(),
            admission=AsPlanned(),
            placement=FirstFit(),
            passes=AnyChange(),
            node_power=off or ALWAYS_ON,
            text=f'{{"name": "{name}"}}',
        )
    if off is None:
        return chosen(named(name), counted=True, ahead=False)
    part = {"part": "windows", "off": list(off.off), "share": off.share}
    return adjusted(named(name), node_power=part)


# --- Power, and its price ------------------------------------------------------------------------


class Bill(NamedTuple):
    """Energy and its cost."""

    kwh: float = 0.0
    usd: float = 0.0


@dataclass
class Meter:
    """Power of the cluster and its nodes that are off, over time, for :class:`Simulation`.

    Attributes:
        at_s, watts, off: times at which one of them changes, rising, and the values from then on.
    """

    at_s: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)
    off: list[int] = field(default_factory=list)

    def observe(self, simulation: Simulation) -> None:
        """Record the state after an event."""
        state, ledger = simulation.engine.state, simulation.ledger
        ledger.follow(state)
        now, watts, off = state.now_s, ledger.power_w, len(state.off)
        if self.at_s and self.at_s[-1] == now:
            self.watts[-1], self.off[-1] = watts, off
        elif not self.at_s or self.watts[-1] != watts or self.off[-1] != off:
            self.at_s.append(now)
            self.watts.append(watts)
            self.off.append(off)

    def spans(self, begin_s: float, end_s: float) -> Iterator[tuple[float, float, float, int]]:
        """Yield begins and ends of times of one power within a time, the power and nodes off."""
        first = max(0, bisect_right(self.at_s, begin_s) - 1)
        for at in range(first, len(self.at_s)):
            since_s = max(begin_s, self.at_s[at])
            until_s = min(end_s, self.at_s[at + 1]) if at + 1 < len(self.at_s) else end_s
            if since_s >= end_s:
                return
            if until_s > since_s:
                yield since_s, until_s, self.watts[at], self.off[at]

    def bill(self, begin_s: float, end_s: float) -> Bill:
        """Return the energy of a time and its cost: what the sun does not give is bought."""
        grid_usd, solar_usd = THETA["price_per_kwh"]["grid"], THETA["price_per_kwh"]["solar"]
        joules, usd = 0.0, 0.0
        for since_s, until_s, watts, _ in self.spans(begin_s, end_s):
            joules += watts * (until_s - since_s)
            for span_s, sun_w in _sun(since_s, until_s):
                solar_w = min(watts, sun_w)
                usd += span_s * (solar_w * solar_usd + (watts - solar_w) * grid_usd)
        return Bill(joules / JOULES_PER_KWH, usd / JOULES_PER_KWH)

    def overruns(self, part: Windows | None, end_s: float) -> list[float]:
        """Return node hours by window in which nodes are on that are to be off."""
        overruns: list[float] = []
        wanted = 0 if part is None else int(part.share * THETA["nodes"] + 1e-9)
        if part is None:
            return overruns
        window = part.window(0.0)
        while window.end_s <= end_s:
            there_s = window.end_s - THETA["boot_s"]
            spans = self.spans(max(0.0, window.begin_s), there_s)
            late_s = sum((until - since) * max(0, wanted - off) for since, until, _, off in spans)
            overruns.append(late_s / HOUR_S)
            window = part.window(window.end_s)
        return overruns


def _sun(since_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    """Yield lengths of the parts of a time, with the power that the sun gives in them in W."""
    solar = THETA["solar"]
    rise_s, set_s = solar["sunrise_h"] * HOUR_S, solar["sunset_h"] * HOUR_S
    peak_w = 1000.0 * solar["peak_kw"]
    while since_s < until_s:
        day_s = floor(since_s / DAY_S) * DAY_S
        light = rise_s <= since_s - day_s < set_s
        if light:
            next_s = day_s + set_s
        else:
            next_s = day_s + rise_s + (DAY_S if since_s - day_s >= set_s else 0.0)
        next_s = min(next_s, until_s)
        yield next_s - since_s, peak_w if light else peak_w * solar["night_fraction"]
        since_s = next_s


# --- Simulations ---------------------------------------------------------------------------------


class ShutdownCase(NamedTuple):
    """One simulation: a slice of the log, a share of malleable jobs by a draw, a policy."""

    weeks: str
    shutdown: str
    policy: str
    share: int = 0
    seed: str = SEEDS[0]


def cases(
    weeks: Iterable[str], shutdowns: Sequence[str], shares: Sequence[int], seeds: Sequence[str]
) -> list[ShutdownCase]:
    """Return all simulations; draws matter only where some jobs are malleable and some are not."""
    todo = []
    for name in weeks:
        todo.append(ShutdownCase(name, "F0", EASY, 0, SEEDS[0]))
        for shutdown in shutdowns:
            todo += [ShutdownCase(name, shutdown, rigid) for rigid in (EASY, THEIR_EASY)]
            for share in shares:
                for seed in seeds if 0 < share < 100 else SEEDS[:1]:
                    todo += [
                        ShutdownCase(name, shutdown, malleable, share, seed)
                        for malleable in (THEIRS, DEFAULT)
                    ]
    return list(dict.fromkeys(todo))


class Outcome(msgspec.Struct):
    """The figures of a simulation.

    Attributes:
        whole: energy and cost from time 0 to ``end_s``, the last end.
        theirs: energy and cost of a day between the first submission of a job that waits for more
            than their threshold and the last submission, as the paper counts them.
        overrun_node_h: of nodes that are on in windows in which they are to be off.
    """

    turnaround_s: float
    wait_s: float
    longest_wait_s: float
    run_s: float
    busy_node_h: float
    resizes: int
    windows: int
    missed: int
    overrun_node_h: float
    end_s: float
    whole: Bill
    theirs: Bill


def run(case: ShutdownCase, specs: Sequence[JobSpec]) -> Outcome:
    """Run a case."""
    power = NodePower(
        idle_w=THETA["idle_w"],
        static_w=THETA["busy_w"],
        off_w=THETA["off_w"],
        boot_s=THETA["boot_s"],
        boot_j=THETA["boot_w"] * THETA["boot_s"],
    )
    site = Site(THETA["nodes"], (power,) * THETA["nodes"])
    meter = Meter()
    made = policy(case.policy, case.shutdown)
    jobs = drawn(specs, case.share, case.seed)
    simulation = Simulation(jobs, site, made, record=False, observer=meter.observe)
    simulation.run()
    simulation.ledger.check()
    times = experiment.job_times(simulation)
    if len(times) < len(specs):
        raise FileError(f"expected every job of {case.weeks} to start, got {len(times)}")
    end_s, last_s = max(job.end_s for job in times), max(spec.submit_s for spec in specs)
    late = [job.submit_s for job in times if job.wait_s > THETA["wait_threshold_s"]]
    since_s = min(late, default=0.0)
    kwh, usd = meter.bill(since_s, last_s)
    days = (last_s - since_s) / DAY_S or 1.0
    overruns = meter.overruns(windows(case.shutdown), last_s)
    return Outcome(
        turnaround_s=fmean(job.turnaround_s for job in times),
        wait_s=fmean(job.wait_s for job in times),
        longest_wait_s=max(job.wait_s for job in times),
        run_s=fmean(job.run_s for job in times),
        busy_node_h=simulation.ledger.busy_node_s / HOUR_S,
        resizes=simulation.resized,
        windows=len(overruns),
        missed=sum(hours > 1e-6 for hours in overruns),
        overrun_node_h=sum(overruns),
        end_s=end_s,
        whole=meter.bill(0.0, end_s),
        theirs=Bill(kwh / days, usd / days),
    )
