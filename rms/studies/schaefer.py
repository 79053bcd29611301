"""``rms reproduce schaefer``: nodes that go off at night, by the share of malleable jobs.

P. Schäfer, A.-L. Roth, P. Arzt, F. Krull, S. Krenz, F. Wolf, J. Posner: Saving Energy Costs and
Time on Supercomputers: Scheduler-Integrated Recurring Node Shutdown Exploiting Malleable Jobs, SC26
workshops (EESP). Their two schedulers stand beside EASY and the default policy on weeks of the
public log of Theta of 2022, or on the weeks of their study where the user has the logs.
Their rules follow the published program (github FuldaHPC/ElastisimFulda), with its slips:

- EASY (``rigid_easy_backfill``) and the malleable scheduler (``min_steal_agreement``) let a job
  overtake the first waiting one if the present time, in s since the begin of the simulation, is at
  least the run time of the first. So from the first hours on, nothing is reserved for it.
- The malleable scheduler takes a starting job from the list that it iterates over, which skips the
  next one until its next pass.

A waiting job without nodes is promised nodes that running malleable jobs give up, as in
:mod:`rms.studies.posner`, by the same rules.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from math import floor, inf
from operator import attrgetter
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import msgspec

from rms.core.model.events import TRIGGERS, Decision, Event, ResizePoint, Ticked
from rms.core.model.jobs import Job, JobId, JobSpec, Mode, Node, NodePower, Site, Speedup
from rms.core.policies import DEFAULT, Policy, adjusted, named
from rms.core.policies.node_power import ALWAYS_ON, Windows
from rms.core.policies.order import Fcfs
from rms.core.policies.placement import FirstFit, Room, Sizing
from rms.core.policies.policy import Passes
from rms.core.state import State
from rms.formats.config import FileError
from rms.formats.swf import read_trace
from rms.plots import Panel, draw_panels
from rms.sim.run import MissedWindows, chosen
from rms.sim.simulator import Simulation
from rms.studies import experiment
from rms.studies.experiment import Kept, Result, StudyReport
from rms.studies.posner import RULES, AsPlanned, PromisePlan, Promises, Sharing

FOLDER = "schaefer_2026"
SOURCE = "the repository of the paper (github FuldaHPC/ElastisimFulda)"
DATA = experiment.settings("schaefer")
JOBS, THEIRS_LOGS = DATA["jobs"], DATA["theirs"]
BOOT_S: float = DATA["shutdown"]["boot_s"]
DAY_S, HOUR_S, JOULES_PER_KWH = 86400.0, 3600.0, 3.6e6

EASY, THEIR_EASY, THEIRS = "easy", "rigid_easy_backfill", "min_steal_agreement"
CORRECTED = "min_steal_agreement, corrected"
SHORTEST = f"{DEFAULT}, shortest"
MALLEABLE = (THEIRS, CORRECTED, DEFAULT, SHORTEST)
RIGID = (EASY, THEIR_EASY)
"""Policies that resize jobs, and those for which all jobs are rigid."""

SHARES = (0, 25, 50, 75, 100)
"""Per cent of malleable jobs."""

SEEDS = ("S0", "S3", "S7")
SHUTDOWNS = ("F0", "F10", "F30")
SEASONS = ("winter", "spring", "summer", "autumn")
EVERY_S = 60.0
"""Time between regular passes of their schedulers, 10 s in the paper, and between resize points."""


class Cluster(msgspec.Struct, frozen=True):
    """Nodes, their power in W, and the price of electricity.

    Attributes:
        wait_threshold_s: the paper counts energy from the first job on that waits for longer.
        price_per_kwh: of the grid and the sun, USD.
        solar: power of the sun by day, as ``peak_kw`` from ``sunrise_h`` to ``sunset_h``.
    """

    nodes: int
    idle_w: float
    busy_w: float
    off_w: float
    boot_w: float
    wait_threshold_s: float
    price_per_kwh: dict[str, float]
    solar: dict[str, float]


CLUSTERS = msgspec.convert(DATA["cluster"], dict[str, Cluster])
THETA = CLUSTERS["theta"]


def cluster_name(weeks: str) -> str:
    """Return the name of the cluster of a slice of a log."""
    name: str = THEIRS_LOGS[weeks]["cluster"] if weeks in THEIRS_LOGS else "theta"
    return name


# --- Jobs ----------------------------------------------------------------------------------------


def efficiency(parallel: float, nodes: int) -> float:
    """Return the speedup by Amdahl's law over the number of nodes."""
    return (1.0 / ((1.0 - parallel) + parallel / nodes)) / nodes


@lru_cache(maxsize=8192)
def profile(preferred: int, nodes: int) -> tuple[float, int, int]:
    """Return the parallel part, the least and the largest size of a job by its preferred size.

    Args:
        nodes: of the cluster.

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
    return parallel, least, min(nodes, most)


def drawn(
    specs: Iterable[JobSpec], share: int, seed: str, nodes: int = THETA.nodes
) -> list[JobSpec]:
    """Return jobs of which a share is malleable, by a draw for each; a larger share has the others.

    A malleable job can be resized every minute, at no cost; theirs can every second.
    """
    return [
        _malleable(spec, nodes)
        if Random(seed + spec.id.partition(".")[0]).random() >= 1.0 - share / 100.0
        else spec
        for spec in specs
    ]


def _malleable(spec: JobSpec, nodes: int) -> JobSpec:
    parallel, least, most = profile(spec.preferred, nodes)
    assert spec.run_s is not None
    whole_s = spec.run_s / ((1.0 - parallel) + parallel / spec.preferred)
    return msgspec.structs.replace(
        spec,
        nodes_min=least,
        nodes_max=most,
        mode=Mode.FLEXIBLE,
        speedup=Speedup(law=(whole_s * parallel, whole_s * (1.0 - parallel))),
        run_s=None,
        resize_every_s=EVERY_S,
    )


def read_weeks(data: Path, names: Iterable[str]) -> dict[str, list[JobSpec]]:
    """Return the rigid jobs of slices of the logs, by submission, from the midnight (UTC) before.

    The public log is in the folder, in ``traces`` in it or in ``traces`` beside it; those of the
    weeks of the study are in the folder ``schaefer_2026`` of it.
    """
    weeks, public = {}, list[JobSpec]()
    for name in names:
        first, days = DATA["weeks"][name]
        begin_s = datetime.fromisoformat(first).replace(tzinfo=UTC).timestamp()
        if name in THEIRS_LOGS:
            specs = _their_log(data, name)
        else:
            specs = public = public or _log(data)
        weeks[name] = [
            _rigid(spec, begin_s)
            for spec in specs
            if begin_s <= spec.submit_s < begin_s + days * DAY_S
        ]
    return weeks


def _log(data: Path) -> list[JobSpec]:
    """Return the jobs of the public log by submission."""
    file = DATA["log"]
    places = [data / file, data / "traces" / file, data.parent / "traces" / file]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise FileError(f"expected {file} in {data} or in a folder traces there, got neither")
    return sorted(read_trace(path).specs, key=attrgetter("submit_s"))


def _their_log(data: Path, weeks: str) -> list[JobSpec]:
    """Return the jobs of a log of theirs by submission; a repeated number gets a suffix."""
    theirs = THEIRS_LOGS[weeks]
    path: Path = data / FOLDER / theirs["log"]
    rows = experiment.read_rows(path, dict[str, str], theirs["source"])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != theirs["sha256"]:
        raise FileError(f"expected {path} with the sha256 {theirs['sha256']}, got {digest}")
    mark = "\ufeff"  # some programs begin a file with it
    heads = {head.removeprefix(mark): head for head in rows[0]}
    columns = dict[str, str]()
    for name, names in DATA["columns"].items():
        own = [heads[head] for head in names if head in heads]
        if not own:
            raise FileError(f"{path}: expected a column of {', '.join(names)}, got none")
        columns[name] = own[-1]
    specs, times = list[JobSpec](), Counter[str]()
    for line, row in enumerate(rows, 2):
        job, submitted, *figures = (row[column] for column in columns.values())
        try:
            submit_s = datetime.fromisoformat(submitted).replace(tzinfo=UTC).timestamp()
            nodes, run_s = (int(float(figure)) for figure in figures)
        except ValueError as error:
            raise FileError(f"{path}, line {line}: expected a time and numbers: {error}") from None
        times[job] += 1
        name = job if times[job] == 1 else f"{job}.{times[job]}"
        sizes = (max(1, nodes),) * 3
        specs.append(JobSpec(JobId(name), submit_s, *sizes, Mode.FIXED, run_s=float(run_s)))
    return sorted(specs, key=attrgetter("submit_s"))


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
    """Part ``sizing`` of ``rigid_easy_backfill``: all jobs that fit, at the preferred size.

    Attributes:
        again: the next pass may start jobs though nothing but the time has changed.
    """

    def __init__(self) -> None:
        self.again = True

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> PromisePlan:
        """Return the plan of a pass."""
        plan, free, first = PromisePlan(), state.free, None
        self.again = False
        for job in queue:
            if not free:
                break
            first, size = first or job, job.spec.preferred
            if size > len(free):
                continue
            self.again = True
            if _waits_for_time(state, job, first, first.spec.preferred):
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

    def __init__(self, *, reserves: bool) -> None:
        super().__init__(RULES["min"], Promises("steal_agreement"))
        self.reserves = reserves
        self.again = True
        self._before = dict[JobId, int](), dict[Node, JobId]()

    def begin(self, state: State) -> None:
        """Begin a pass, in which the plan may be made more than once.

        A promise of nodes that their job does not give up, as another part of the policy has
        dropped its resize, is dropped.
        """
        promised = self.promises
        if promised.nodes:
            kept = [
                node
                for job in state.running.values()
                if job.requested_size is None
                for node in job.nodes
                if node in promised.nodes
            ]
            broken = {promised.nodes[node] for node in kept}
            if broken:
                self.again = True
                promised.counts = {
                    job: count for job, count in promised.counts.items() if job not in broken
                }
                promised.nodes = {
                    node: job for node, job in promised.nodes.items() if job not in broken
                }
        self._before = dict(promised.counts), dict(promised.nodes)

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> PromisePlan:
        """Return the plan of a pass."""
        counts, nodes = self._before
        self.promises.counts, self.promises.nodes = dict(counts), dict(nodes)
        self.again = False
        plan = super().__call__(state, queue, room)
        self.again = self.again or bool(plan.starts or plan.held)
        return plan

    def start(self, state: State, plan: PromisePlan, waiting: list[Job], free: list[Node]) -> None:
        """Start the jobs that fit, at their least sizes; one behind a start is skipped."""
        if self.reserves:
            self._backfill(state, plan, waiting, free)
            return
        at = 0
        while at < len(waiting) and free:
            job, first = waiting[at], waiting[0]
            size = job.spec.nodes_min
            if size <= len(free):
                if _waits_for_time(state, job, first, first.spec.nodes_min):
                    self.again = True
                else:
                    plan.begin(waiting.pop(at), free[:size], "fits")
                    del free[:size]
            at += 1

    def _backfill(
        self, state: State, plan: PromisePlan, waiting: list[Job], free: list[Node]
    ) -> None:
        """Start the jobs that do not delay the first that does not fit."""
        first, at_s, extra, now = None, inf, 0, state.now_s
        ends = [(end_s, number, job.size) for end_s, number, job in state.ends]
        for job in list(waiting):
            size = job.spec.nodes_min
            end_s = now + job.spec.expected_s(size)
            late = first is not None and end_s > at_s
            if size > len(free) or (late and size > extra):
                if first is None:
                    first = job
                    at_s, extra = _reservation(sorted(ends), len(free), size)
                continue
            extra -= size if late else 0
            ends.append((end_s, job.number, size))
            plan.begin(job, free[:size], "fits")
            waiting.remove(job)
            del free[:size]


def _reservation(ends: Iterable[tuple[float, int, int]], free: int, size: int) -> tuple[float, int]:
    """Return the time at which nodes are free, by expected ends, and the number of further ones."""
    for end_s, _, nodes in ends:
        free += nodes
        if free >= size:
            return end_s, free - size
    return inf, 0


@dataclass(frozen=True)
class TheirPolicy(Policy):
    """A policy with one of the sizings above; a pass that would repeat the last one is left out."""

    def decide(self, state: State, events: Sequence[Event]) -> list[Decision]:
        """Return the decisions after these events."""
        sizing, part = self.sizing, self.node_power
        assert isinstance(sizing, PreferredFit | MinSteal)
        quiet = not sizing.again and all(type(event) is Ticked for event in events)
        if quiet and (not isinstance(part, Windows) or not _at_edge(part, state.now_s)):
            return []
        if isinstance(sizing, MinSteal):
            sizing.begin(state)
        return super().decide(state, events)


def _at_edge(part: Windows, now_s: float) -> bool:
    """Return whether a window begins, boots its nodes, or has ended in the last minute."""
    window, before = part.window(now_s), part.window(now_s - EVERY_S)
    times = window.begin_s, window.end_s - BOOT_S, before.end_s
    return any(0.0 <= now_s - at_s < EVERY_S for at_s in times)


def windows(shutdown: str) -> Windows | None:
    """Return the windows in which a share of the nodes is off."""
    settings = DATA["shutdown"]
    share = settings[shutdown]
    return Windows(off=tuple(settings["windows"]), share=share, ahead=False) if share else None


def policy(name: str, shutdown: str) -> Policy:
    """Return a scheduler of theirs or a policy of ours, for one simulation."""
    off = windows(shutdown)
    if name in (THEIR_EASY, THEIRS, CORRECTED):
        sizing = PreferredFit() if name == THEIR_EASY else MinSteal(reserves=name == CORRECTED)
        return TheirPolicy(
            name=name,
            order=Fcfs(),
            sizing=sizing,
            admission=AsPlanned(),
            placement=FirstFit(),
            passes=AnyChange(),
            node_power=off or ALWAYS_ON,
            text=f'{{"name": "{name}"}}',
        )
    ours = named(DEFAULT if name == SHORTEST else name)
    if name == SHORTEST:
        ours = adjusted(ours, admission={"tail": "shortest"})
    if off is None:
        return chosen(ours, counted=True, ahead=False)
    part = {"part": "windows", "off": list(off.off), "share": off.share}
    return adjusted(ours, node_power=part)


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
        cluster: for prices and nodes.
    """

    at_s: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)
    off: list[int] = field(default_factory=list)
    cluster: Cluster = THETA

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
        prices = self.cluster.price_per_kwh
        grid_usd, solar_usd = prices["grid"], prices["solar"]
        joules, usd = 0.0, 0.0
        for since_s, until_s, watts, _ in self.spans(begin_s, end_s):
            joules += watts * (until_s - since_s)
            for span_s, sun_w in _sun(self.cluster.solar, since_s, until_s):
                solar_w = min(watts, sun_w)
                usd += span_s * (solar_w * solar_usd + (watts - solar_w) * grid_usd)
        return Bill(joules / JOULES_PER_KWH, usd / JOULES_PER_KWH)

    def overruns(self, part: Windows | None, end_s: float) -> list[float]:
        """Return node hours by window in which nodes are on that are to be off."""
        overruns: list[float] = []
        wanted = 0 if part is None else part.nodes(self.cluster.nodes)
        if part is None:
            return overruns
        window = part.window(0.0)
        while window.end_s <= end_s:
            there_s = window.end_s - BOOT_S
            spans = self.spans(max(0.0, window.begin_s), there_s)
            late_s = sum((until - since) * max(0, wanted - off) for since, until, _, off in spans)
            overruns.append(late_s / HOUR_S)
            window = part.window(window.end_s)
        return overruns


def _sun(
    solar: Mapping[str, float], since_s: float, until_s: float
) -> Iterator[tuple[float, float]]:
    """Yield lengths of the parts of a time, with the power that the sun gives in them in W."""
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
        todo.append(baseline(name))
        for shutdown in shutdowns:
            todo += [ShutdownCase(name, shutdown, rigid) for rigid in RIGID]
            for share in shares:
                for seed in seeds if 0 < share < 100 else SEEDS[:1]:
                    todo += [
                        ShutdownCase(name, shutdown, malleable, share, seed)
                        for malleable in MALLEABLE
                    ]
    return list(dict.fromkeys(todo))


def baseline(weeks: str) -> ShutdownCase:
    """Return the case that all cases of these weeks are compared with."""
    return ShutdownCase(weeks, "F0", EASY)


class Outcome(msgspec.Struct):
    """The figures of a simulation.

    Attributes:
        whole: energy and cost from time 0 to ``end_s``, the last end.
        theirs: energy and cost of a day between the first submission of a job that waits for more
            than their threshold and the last submission, as the paper counts them.
        windows, missed: windows until the last end, and those in which a node that is to be off is
            on later than two minutes, in which jobs come to a resize point, after their begin.
        unavoidable: missed windows of which only jobs keep nodes that would keep nodes of some
            window at any start, and that run into no more of them than at their best one.
        overrun_node_h: node hours of all such nodes, from the begin of the windows on.
    """

    turnaround_s: float
    wait_s: float
    longest_wait_s: float
    run_s: float
    busy_node_h: float
    resizes: int
    windows: int
    missed: int
    unavoidable: int
    overrun_node_h: float
    end_s: float
    whole: Bill
    theirs: Bill


def run(case: ShutdownCase, specs: Sequence[JobSpec]) -> Outcome:
    """Run a case."""
    own = CLUSTERS[cluster_name(case.weeks)]
    power = NodePower(
        idle_w=own.idle_w,
        static_w=own.busy_w,
        off_w=own.off_w,
        boot_s=BOOT_S,
        boot_j=own.boot_w * BOOT_S,
    )
    site = Site(own.nodes, (power,) * own.nodes)
    meter = Meter(cluster=own)
    made = policy(case.policy, case.shutdown)
    jobs = drawn(specs, case.share, case.seed, own.nodes)
    part = windows(case.shutdown)
    late = None if part is None else MissedWindows(part)

    def observe(simulation: Simulation) -> None:
        meter.observe(simulation)
        if late is not None:
            late.observe(simulation)

    simulation = Simulation(jobs, site, made, record=False, observer=observe)
    simulation.run()
    simulation.ledger.check()
    times = experiment.job_times(simulation)
    if len(times) < len(specs):
        raise FileError(f"expected every job of {case.weeks} to start, got {len(times)}")
    end_s, last_s = max(job.end_s for job in times), max(spec.submit_s for spec in specs)
    waits_s = [job.submit_s for job in times if job.wait_s > own.wait_threshold_s]
    since_s = min(waits_s, default=0.0)
    kwh, usd = meter.bill(since_s, last_s)
    days = (last_s - since_s) / DAY_S or 1.0
    return Outcome(
        turnaround_s=fmean(job.turnaround_s for job in times),
        wait_s=fmean(job.wait_s for job in times),
        longest_wait_s=max(job.wait_s for job in times),
        run_s=fmean(job.run_s for job in times),
        busy_node_h=simulation.ledger.busy_node_s / HOUR_S,
        resizes=simulation.resized,
        windows=0 if late is None else late.windows,
        missed=0 if late is None else len(late.missed),
        unavoidable=0 if late is None else late.unavoidable,
        overrun_node_h=sum(meter.overruns(part, end_s)),
        end_s=end_s,
        whole=meter.bill(0.0, end_s),
        theirs=Bill(kwh / days, usd / days),
    )


# --- The study -----------------------------------------------------------------------------------


class _Published(msgspec.Struct):
    cluster: str
    malleable_percent: int
    policy: str
    cost_saved_percent: float
    turnaround_change_percent: float
    energy_saved_percent: float


Published = Mapping[tuple[str, str, int], _Published]
"""Published rows by cluster, shutdown and share of malleable jobs."""


def published_results(data: Path) -> Published:
    """Return the published changes against their EASY without shutdown."""
    rows = experiment.read_rows(data / FOLDER / "published.csv", _Published, SOURCE)
    return {(row.cluster, row.policy, row.malleable_percent): row for row in rows}


class ShutdownPlan(NamedTuple):
    """The simulations of the study: all combinations."""

    weeks: tuple[str, ...] = SEASONS
    shutdowns: tuple[str, ...] = SHUTDOWNS
    seeds: tuple[str, ...] = SEEDS


def schaefer(
    data: Path,
    plan: ShutdownPlan,
    workers: int,
    figures: Path | None,
    progress: Callable[[str], None],
    keep: Path | None = None,
) -> Result:
    """Run the study, with the log and the files of ``schaefer_2026`` in ``data``.

    Args:
        keep: file for finished simulations, which are not repeated.
    """
    published = published_results(data)
    specs = read_weeks(data, plan.weeks)
    todo = cases(plan.weeks, plan.shutdowns, SHARES, plan.seeds)
    outcomes = dict[ShutdownCase, Outcome]()
    kept = Kept("schaefer", keep, ShutdownCase, Outcome)

    def run_one(case: ShutdownCase) -> Outcome:
        return run(case, specs[case.weeks])

    for case, outcome in experiment.run_all(run_one, todo, workers, kept):
        outcomes[case] = outcome
        progress(f"{', '.join(map(str, case))} ({len(outcomes)} of {len(todo)})")
    rows = rows_of({case: outcomes[case] for case in todo}, published)
    values = {"theta nodes": float(THETA.nodes), "seeds": float(len(SEEDS))}
    report = StudyReport("schaefer", values)
    parts = [[*_tables(rows), *DATA["notes"]]]
    return report.result({"rows": rows}, parts, lambda folder: _draw(rows, folder), figures)


def rows_of(outcomes: Mapping[ShutdownCase, Outcome], published: Published) -> list[dict[str, Any]]:
    """Return a row by weeks, shutdown, policy and share, means over the draws.

    Energy and cost are those of the time from 0 to the last end of any simulation of these weeks,
    so that all have the same jobs and the same time.
    """
    ends = dict[str, float]()
    for case, outcome in outcomes.items():
        ends[case.weeks] = max(outcome.end_s, ends.get(case.weeks, 0.0))
    groups: dict[ShutdownCase, list[dict[str, float]]] = {}
    for case, outcome in outcomes.items():
        base = outcomes[baseline(case.weeks)]
        ours = compared(case, outcome, base, ends[case.weeks])
        groups.setdefault(case._replace(seed=""), []).append(ours)
    rows = []
    for case, several in groups.items():
        ours = {
            name: (max if name == "longest_wait_s" else fmean)([row[name] for row in several])
            for name in several[0]
        }
        key = cluster_name(case.weeks), case.shutdown, case.share
        theirs = published.get(key) if case.policy == THEIRS else None
        paper = {}
        if theirs is not None:
            paper = {
                "turnaround_pct": theirs.turnaround_change_percent,
                "energy_a_day_pct": -theirs.energy_saved_percent,
                "cost_a_day_pct": -theirs.cost_saved_percent,
            }
        more = case._asdict()
        del more["seed"]
        rows.append(experiment.row(case.weeks, case.policy, ours, paper, **more))
    return rows


def compared(case: ShutdownCase, outcome: Outcome, base: Outcome, end_s: float) -> dict[str, float]:
    """Return the figures of a case, and their changes against another one in per cent."""
    cluster = CLUSTERS[cluster_name(case.weeks)]
    own = whole(case.shutdown, outcome, end_s, cluster)
    other = whole("F0", base, end_s, cluster)
    return {
        "turnaround_s": outcome.turnaround_s,
        "turnaround_pct": _change(outcome.turnaround_s, base.turnaround_s),
        "wait_s": outcome.wait_s,
        "longest_wait_s": outcome.longest_wait_s,
        "run_s": outcome.run_s,
        "busy_node_h": outcome.busy_node_h,
        "kwh": own.kwh,
        "energy_pct": _change(own.kwh, other.kwh),
        "usd": own.usd,
        "cost_pct": _change(own.usd, other.usd),
        "energy_a_day_pct": _change(outcome.theirs.kwh, base.theirs.kwh),
        "cost_a_day_pct": _change(outcome.theirs.usd, base.theirs.usd),
        "resizes": float(outcome.resizes),
        "windows": float(outcome.windows),
        "missed": float(outcome.missed),
        "avoidable": float(outcome.missed - outcome.unavoidable),
        "overrun_node_h": outcome.overrun_node_h,
    }


def _change(value: float, base: float) -> float:
    return 100.0 * (value / base - 1.0) if base else 0.0


def whole(shutdown: str, outcome: Outcome, end_s: float, cluster: Cluster = THETA) -> Bill:
    """Return energy and cost until a later time, with nodes idle or off meanwhile."""
    rest = Meter(cluster=cluster)
    nodes, off, begin_s = cluster.nodes, 0, outcome.end_s
    part = windows(shutdown)
    edges = [(begin_s, 0)]
    if part is not None:
        off, window = part.nodes(nodes), part.window(begin_s)
        edges = [] if window.begin_s <= begin_s else edges
        while window.begin_s < end_s:
            edges += [(max(begin_s, window.begin_s), off), (window.end_s, 0)]
            window = part.window(window.end_s)
    for at_s, asleep in edges:
        rest.at_s.append(at_s)
        rest.watts.append((nodes - asleep) * cluster.idle_w + asleep * cluster.off_w)
        rest.off.append(asleep)
    more = rest.bill(begin_s, end_s)
    return Bill(outcome.whole.kwh + more.kwh, outcome.whole.usd + more.usd)


# --- Tables and figures --------------------------------------------------------------------------

FORM = experiment.form("schaefer", "policies")
PUBLISHED = {"turnaround_pct": "paper_turnaround", "cost_a_day_pct": "paper_cost"}


def _tables(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for weeks, shutdown in dict.fromkeys((row["weeks"], row["shutdown"]) for row in rows):
        own = [row for row in rows if (row["weeks"], row["shutdown"]) == (weeks, shutdown)]
        first, days = DATA["weeks"][weeks]
        share = DATA["shutdown"][shutdown]
        text = (
            f"{weeks}: {days} days from {first} on, {100 * share:.0f} % of the nodes off at night"
        )
        lines += [text, "", *experiment.tabulate([_printed_row(row) for row in own], *FORM), ""]
    return lines


def _printed_row(row: Mapping[str, Any]) -> dict[str, Any]:
    values = row["values"]
    paper = {
        name: "" if values[column]["paper"] is None else f"{values[column]['paper']:+.1f} %"
        for column, name in PUBLISHED.items()
    }
    rigid = row["mode"] in RIGID
    return {
        **{column: value["ours"] for column, value in values.items()},
        **paper,
        "mode": row["mode"],
        "share": "all rigid" if rigid else f"{row['share']} %",
        "turnaround_h": values["turnaround_s"]["ours"] / HOUR_S,
        "wait_h": values["wait_s"]["ours"] / HOUR_S,
        "longest_h": values["longest_wait_s"]["ours"] / HOUR_S,
        "mwh": values["kwh"]["ours"] / 1000.0,
    }


def _draw(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Draw changes of turnaround and cost against the share of malleable jobs, by shutdown."""
    for shutdown in dict.fromkeys(row["shutdown"] for row in rows):
        panels = []
        for weeks in dict.fromkeys(row["weeks"] for row in rows):
            for column, title in (("turnaround_pct", "turnaround"), ("cost_pct", "cost of energy")):
                series = {mode: _curve(rows, weeks, shutdown, mode, column) for mode in MALLEABLE}
                text = f"{weeks}: {title} against EASY (%)"
                panels.append(Panel(text, series, "malleable jobs (%)"))
        draw_panels(panels, folder / f"schaefer-{shutdown}.png", shutdown)


def _curve(
    rows: Sequence[Mapping[str, Any]], weeks: str, shutdown: str, mode: str, column: str
) -> tuple[list[float], list[float]]:
    own = [
        row
        for row in rows
        if (row["weeks"], row["shutdown"], row["mode"]) == (weeks, shutdown, mode)
    ]
    return [row["share"] for row in own], [row["values"][column]["ours"] for row in own]
