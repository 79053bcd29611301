"""``rms reproduce chiesi``: power capping on GPU nodes (Chiesi et al., sections 3 to 5).

Ten workloads of 1,000 one-GPU jobs on four nodes of four GPUs, with and without knowledge of
power, under several caps. The paper states neither its Markov chain nor durations; those of
``data/chiesi.toml`` are not fitted to its results, and most of its ranges are missed.
:func:`bounds` derives by arithmetic the values that no workload can meet, :func:`variants` varies
the assumptions. M. Chiesi, L. Vanzolini, C. Mucci, E. Franchi Scarselli, R. Guerrieri:
"Power-Aware Job Scheduling on Heterogeneous Multicore Architectures".

:class:`PowerSlot` is the paper's placement, nodes under a power cap, and a part of the policies
``p-fifo`` and ``p-bff``. A node counts with its idle power and that of its jobs, all the
time (equation 1): the power stated for the job, else the peak of its profile, else the power of a
busy slot by the node's model. Tasks with kernels count as the latter. A job may start where that
stays at or below the cap; of such nodes the one with the smallest power slot left takes it, so that
the largest stays free for a more demanding job (figure 2). Equations 3 and 4 are printed with
their inequalities reversed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from rms.core.model.jobs import Job, JobSpec, Node, NodePower, Site
from rms.core.policies import adjusted, named
from rms.core.policies.placement import Placement, Room
from rms.core.state import TASK, State
from rms.plots import lines as draw_lines
from rms.sim.simulator import Simulation
from rms.studies import experiment
from rms.studies.experiment import Data, Result, StudyReport, tabulate
from rms.wire.terminal import columns

POLICIES = ("p-fifo", "p-bff")
INDICES = ("PR", "T", "E", "MD")
NEAR = 5e-2
"""Half the last digit of table 3, in per cent: a mean as near to a range counts as inside."""

Profile = Sequence[tuple[float, float]]
"""Parts of a job one after the other: (share of the run time, share of the job's power)."""

Answer = TypeVar("Answer")
_Case = tuple[str, float, int]


# --- The paper's placement: policies p-fifo and p-bff ---------------------------------------------


class PowerRoom(Room):
    """Free slots during one pass, and the power of nodes or racks by equation 1."""

    free = passed = 0

    def __init__(self, state: State, cap_w: float, per: str) -> None:
        site = state.site
        self._host, self._domain = _hosts(site), _domains(site, per)
        self._cap_w, self.free = cap_w, state.free_count
        self._watts, self._shares = _idle_w(site, self._domain), _Shares(site)
        for job in state.running.values():
            shares = self._shares.of(job.spec, len(job.held))
            for node in job.held:
                host = self._host[node]
                self._watts[self._domain[host]] += shares[self._shares.kind[host]]
        if state.lent:
            shares = self._shares.of(TASK, 1)
            for node, owner in state.lent.items():
                host = self._host[node]
                self._watts[self._domain[host]] += bool(owner) * shares[self._shares.kind[host]]
        self._free: list[list[Node]] = [[] for _ in self._domain]
        for node in state.free_nodes():
            self._free[self._host[node]].append(node)
        # Of hosts with the same power slot the last one takes a job: those that are off come first.
        asleep = {self._host[node] for node in state.asleep}
        self._order = sorted(range(len(self._free)), key=lambda host: host not in asleep)
        self._refused_w = inf

    def fits(self, job: Job, size: int) -> bool:
        """Return whether slots are free where the power of the job fits."""
        shares = self._shares.of(job.spec, size)
        if size > self.free or min(shares) >= self._refused_w:
            return False
        if size == 1:
            fitting = self._select(shares) is not None
        else:
            before = list(self._watts), [list(nodes) for nodes in self._free], self.free
            fitting = len(self._take(shares, size)) == size
            self._watts, self._free, self.free = before
        if not fitting and size == 1:
            self._refused_w = max(shares)  # nor does any job with more on every node
        return fitting

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take slots for a job that fits."""
        return tuple(self._take(self._shares.of(job.spec, size), size))

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the slots of a job at its new size, the present ones if the cap leaves too few."""
        have = job.nodes
        if size <= len(have):
            return have[:size]
        shares, more = self._shares.of(job.spec, size), size - len(have)
        before = list(self._watts), [list(nodes) for nodes in self._free], self.free
        added = self._take(shares, more)
        if len(added) < more:
            self._watts, self._free, self.free = before
            return have
        return (*have, *added)

    def _take(self, shares: Sequence[float], size: int) -> list[Node]:
        nodes: list[Node] = []
        while len(nodes) < size and (host := self._select(shares)) is not None:
            nodes.append(self._free[host].pop(0))
            self._watts[self._domain[host]] += shares[self._shares.kind[host]]
            self.free -= 1
        return nodes

    def _select(self, shares: Sequence[float]) -> int | None:
        """Return the node with the smallest power slot that is not negative (figure 2)."""
        selected, least, kind = None, self._cap_w, self._shares.kind
        for host in self._order:
            nodes = self._free[host]
            slot = self._cap_w - self._watts[self._domain[host]] - shares[kind[host]]
            if nodes and 0.0 <= slot <= least:
                selected, least = host, slot
        return selected


class PowerSlot(Placement, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The node with the smallest power slot left.

    Attributes:
        cap_w: power that no node (or rack) may pass.
        per: the domain of the cap, a node or a rack.
        shared: a daemon allocates single slots, so that jobs share nodes, as in the paper; else,
            and on a cluster of whole nodes, a node has one job.
    """

    cap_w: float
    per: Literal["node", "rack"] = "node"
    shared: bool = False

    pooled: ClassVar[bool] = False
    caps_nodes: ClassVar[bool] = True

    def refusal(self, site: Site, spec: JobSpec) -> str | None:
        """Return the reason why a job can never start: its power alone passes the cap."""
        size = spec.sizes()[-1] if spec.mode.any_start else spec.preferred
        domain, shares = _domains(site, self.per), _Shares(site)
        idle_w, own_w = _idle_w(site, domain), shares.of(spec, size)
        least_w, adds_w = min(
            (idle_w[at] + own_w[shares.kind[host]], own_w[shares.kind[host]])
            for host, at in enumerate(domain)
        )
        if least_w <= self.cap_w:
            return None
        added = f"adds {adds_w:g} W to an idle {self.per}: {least_w:g} W"
        return f"{added}, the cap is {self.cap_w:g} W"

    def __call__(self, state: State) -> PowerRoom:
        """Open the room of a pass."""
        return PowerRoom(state, self.cap_w, self.per)


class _Shares:
    """The power that a job adds to a slot by equation 1 (see the module), by kind of host.

    Attributes:
        kind: kinds of the hosts: hosts of one kind have the same power model and number of slots.
    """

    def __init__(self, site: Site) -> None:
        slots, kinds = Counter(_hosts(site)), dict[tuple[NodePower, int], int]()
        self.kind = [
            kinds.setdefault((model, max(1, slots[host])), len(kinds))
            for host, model in enumerate(site.models)
        ]
        self._kinds = list(kinds)

    def of(self, spec: JobSpec, size: int) -> list[float]:
        """Return the power that a job adds to any of its ``size`` slots, by kind of host, W."""
        if spec.power_w is not None:
            return [spec.power_w / max(1, size)] * len(self._kinds)
        return [model.slot_peak_w(spec, max(1, size), slots) for model, slots in self._kinds]


def _hosts(site: Site) -> Sequence[int]:
    """Return the hosts of the slots."""
    return site.host or range(site.nodes)


def _domains(site: Site, per: str) -> Sequence[int]:
    """Return the power domains of the hosts: their own, or their racks."""
    hosts = max(_hosts(site)) + 1
    return (site.rack or (0,) * hosts) if per == "rack" else range(hosts)


def _idle_w(site: Site, domain: Sequence[int]) -> list[float]:
    watts = [0.0] * (max(domain) + 1)
    for host, at in enumerate(domain):
        watts[at] += site.power[host].idle_w if site.power else 0.0
    return watts


# --- Workloads and simulations --------------------------------------------------------------------


@dataclass(frozen=True)
class MarkovWorkload:
    """Assumptions that differ from ``data/chiesi.toml``; None for the value of the file.

    Attributes:
        mean_w: mean power of the jobs' kernels in W, by a mix of maximum entropy.
        repeat: probability that a job has the kernel of the previous job; else its kernel is drawn
            from the mix.
        duration_s: shortest and longest run time, uniform between them.
        load: submitted work per second over that of all GPUs in a second; jobs arrive at random
            instead of all at once.
    """

    mean_w: float | None = None
    repeat: float | None = None
    duration_s: tuple[float, float] | None = None
    load: float | None = None


VARIANTS = msgspec.convert(experiment.settings("chiesi")["variants"], dict[str, MarkovWorkload])
KERNEL_SHARES = (0.7, 0.55, 0.45, 0.35)
"""Share of a job's run time in which its kernel is on; 0.7 is that of ``data/chiesi.toml``."""


@dataclass(frozen=True)
class CappedOutcome:
    """The outcome of one workload.

    Attributes:
        energy_j: of the nodes until their own last jobs have ended (equation 10).
        node_s: those times, summed (denominator of equation 12).
        peak_w: highest real power of a node.
        scheduled_w: highest power of a node by equation 1, which the scheduler uses.
    """

    time_s: float
    energy_j: float
    node_s: float
    peak_w: float
    scheduled_w: float

    @property
    def deviation_pct(self) -> float:
        """MD: peak over average power (equation 11)."""
        average_w = self.energy_j / self.node_s
        return 100.0 * (self.peak_w - average_w) / average_w


@dataclass(frozen=True)
class CappedSchedule:
    """Times and places of all jobs; they do not depend on the real power of the jobs.

    Attributes:
        jobs: host, start (s), end (s) and power of the kernel (W) of the jobs.
        idle_w: idle power of the hosts.
    """

    jobs: tuple[tuple[int, float, float, float], ...]
    idle_w: tuple[float, ...]

    def outcome(self, profile: Profile) -> CappedOutcome:
        """Return the outcome where every job has this profile."""
        last = [0.0] * len(self.idle_w)
        changes: list[list[tuple[float, float]]] = [[] for _ in self.idle_w]
        scheduled: list[list[tuple[float, float]]] = [[] for _ in self.idle_w]
        share_on = energy_share(profile)
        energy_j = 0.0
        for host, start_s, end_s, watts in self.jobs:
            last[host] = max(last[host], end_s)
            energy_j += watts * share_on * (end_s - start_s)
            scheduled[host] += [(start_s, watts), (end_s, -watts)]
            at, before = 0.0, 0.0
            for span, share in profile:
                at_s = start_s + at * (end_s - start_s)
                changes[host].append((at_s, watts * (share - before)))
                at, before = at + span, share
            changes[host].append((end_s, -watts * before))
        peaks = [_highest(of_host) for of_host in changes]
        most = [_highest(of_host) for of_host in scheduled]
        energy_j += sum(w * end_s for w, end_s in zip(self.idle_w, last, strict=True))
        return CappedOutcome(
            max(last),
            energy_j,
            sum(last),
            max(w + peak for w, peak in zip(self.idle_w, peaks, strict=True)),
            max(w + peak for w, peak in zip(self.idle_w, most, strict=True)),
        )


def _highest(changes: list[tuple[float, float]]) -> float:
    """Return the highest sum of changes; those of one instant come together."""
    most = watts = 0.0
    changes.sort()
    for at, (now_s, change) in enumerate(changes):
        watts += change
        if at + 1 == len(changes) or changes[at + 1][0] - now_s > 1e-9 * max(1.0, now_s):
            most = max(most, watts)
    return most


def energy_share(profile: Profile) -> float:
    """Return a job's mean power over that of its kernel."""
    return sum(span * share for span, share in profile)


def weights(powers: Sequence[float], mean_w: float) -> list[float]:
    """Return shares of kernels whose mix has a mean power and the largest entropy."""
    if not min(powers) < mean_w < max(powers):
        raise ValueError(
            f"expected a mean power between {min(powers):g} and {max(powers):g} W, got {mean_w:g}"
        )
    low, high = -1.0, 1.0
    shares = [1.0 / len(powers)] * len(powers)
    for _ in range(60):
        tilt = 0.5 * (low + high)
        parts = [exp(tilt * (watts - mean_w)) for watts in powers]
        shares = [part / sum(parts) for part in parts]
        mean = sum(share * watts for share, watts in zip(shares, powers, strict=True))
        low, high = (tilt, high) if mean < mean_w else (low, tilt)
    return shares


def workload(data: Data, seed: int, variant: MarkovWorkload | None = None) -> list[JobSpec]:
    """Return the jobs of one workload: a Markov chain over the six kinds.

    Kernel i follows itself with probability s_i = repeat + (1 - repeat) m_i, and kernel j follows
    it in proportion to m_j, so that the mix m is the stationary distribution.
    """
    variant = variant or MarkovWorkload()
    kinds = [float(watts) for watts in data["power_w"].values()]
    mix = [1.0 / len(kinds)] * len(kinds)
    if variant.mean_w is not None:
        mix = weights(kinds, variant.mean_w)
    repeat = data["repeat"] if variant.repeat is None else variant.repeat
    stay = [repeat + (1.0 - repeat) * share for share in mix]
    low, high = variant.duration_s or data["duration_s"]
    every_s = 0.0
    if variant.load is not None:
        every_s = 0.5 * (low + high) / (variant.load * data["hosts"] * data["gpus"])
    profile = tuple((float(span), float(share)) for span, share in data["profile"])
    random = Random(seed)
    (kind,) = random.choices(range(len(kinds)), mix)
    specs: list[JobSpec] = []
    at_s = 0.0
    for number in range(1, data["jobs"] + 1):
        if number > 1 and random.random() >= stay[kind]:
            others = [other for other in range(len(kinds)) if other != kind]
            (kind,) = random.choices(others, [mix[other] for other in others])
        run_s = low + (high - low) * random.random()
        at_s += random.expovariate(1.0 / every_s) if every_s else 0.0
        specs.append(
            experiment.job(number, 1, at_s, run_s=run_s, power_w=kinds[kind], profile=profile)
        )
    return specs


def site(data: Data, gpus: int | None = None) -> Site:
    """Return the cluster: GPUs are slots, their nodes are power domains."""
    hosts, per = data["hosts"], gpus or data["gpus"]
    return Site(
        hosts * per,
        (NodePower(idle_w=data["idle_w"]),) * hosts,
        tuple(slot // per for slot in range(hosts * per)),
    )


def run(specs: list[JobSpec], where: Site, policy: str, cap_w: float | None) -> CappedOutcome:
    """Run a workload under a cap, or without knowledge of power; energy by the ledger."""
    simulation = _simulated(specs, where, policy, cap_w)
    ledger = simulation.ledger
    ledger.check()
    last = [0.0] * len(where.power)
    for job in simulation.engine.state.ended.values():
        host = where.host[job.nodes[0]]
        last[host] = max(last[host], job.end_s or 0.0)
    time_s = max(last)
    after_j = sum(where.power[host].idle_w * (time_s - end_s) for host, end_s in enumerate(last))
    energy_j = ledger.cluster_j - after_j
    scheduled_w = _schedule_of(simulation).outcome(()).scheduled_w
    return CappedOutcome(time_s, energy_j, sum(last), max(ledger.peak_w), scheduled_w)


def schedule(specs: list[JobSpec], where: Site, policy: str, cap_w: float | None) -> CappedSchedule:
    """Return the times and places of all jobs, under a cap or without knowledge of power."""
    plain = [msgspec.structs.replace(spec, profile=()) for spec in specs]
    return _schedule_of(_simulated(plain, where, policy, cap_w))


def _schedule_of(simulation: Simulation) -> CappedSchedule:
    state = simulation.engine.state
    return CappedSchedule(
        tuple(
            (
                state.site.host[job.nodes[0]],
                job.start_s or 0.0,
                job.end_s or 0.0,
                job.spec.power_w or 0.0,
            )
            for job in state.ended.values()
        ),
        tuple(model.idle_w for model in state.site.power),
    )


def _simulated(specs: list[JobSpec], where: Site, policy: str, cap_w: float | None) -> Simulation:
    placement = {"part": "first-fit"} if cap_w is None else {"cap_w": cap_w}
    made = adjusted(named(policy), placement=placement)
    simulation = Simulation(specs, where, made, record=False)
    simulation.run()
    return simulation


@dataclass(frozen=True)
class Runs:
    """All runs of the study, by policy, cap (W) and seed; ``inf`` are those that ignore power.

    ``indices`` of the workloads and their ``means`` are in per cent; ``supply`` has the rows of
    section 5.1.
    """

    outcomes: dict[_Case, CappedOutcome]
    indices: dict[tuple[str, float], list[dict[str, float]]]
    means: dict[str, dict[float, dict[str, float]]]
    supply: list[dict[str, Any]]


def published() -> dict[str, tuple[float, float]]:
    """Return the ranges of table 3 in per cent, by policy, cap and index."""
    return {
        statement.key: statement.paper
        for statement in experiment.statements("chiesi")
        if statement.where == "table 3" and isinstance(statement.paper, tuple)
    }


def measured(data: Data) -> Runs:
    """Run all workloads with and without knowledge of power."""
    specs = {seed: workload(data, seed) for seed in range(1, data["workloads"] + 1)}
    outcomes = _of_cases(run, data, specs, data["caps_w"])
    indices = _indices(outcomes, data["worst_w"])
    means = {p: {cap_w: _means(indices[p, cap_w]) for cap_w in data["caps_w"]} for p in POLICIES}
    return Runs(outcomes, indices, means, _supply(data, specs[1]))


def _of_cases(
    call: Callable[[list[JobSpec], Site, str, float | None], Answer],
    data: Data,
    specs: Mapping[int, list[JobSpec]],
    caps_w: Iterable[float],
) -> dict[_Case, Answer]:
    where = site(data)
    return {
        (policy, cap_w, seed): call(jobs, where, policy, None if cap_w == inf else cap_w)
        for policy in POLICIES
        for cap_w in (inf, *caps_w)
        for seed, jobs in specs.items()
    }


def chiesi(figures: Path | None) -> Result:
    """Run the study; draw its figures in a folder, if there is one."""
    data = experiment.settings("chiesi")
    runs = measured(data)
    values = computed(data, runs)
    report = StudyReport("chiesi", values)
    report.wrong += _must_hold(data, runs)
    _note_ranges(report.rows, runs)
    limits, tried = bounds(data), variants(data)
    rows = [_row(policy, cap_w, indices) for (policy, cap_w), indices in runs.indices.items()]
    unaware_pct = values["MD without a cap"]
    result = {
        "values": values,
        "rows": rows,
        "unaware_md_pct": unaware_pct,
        "bounds": limits,
        "variants": tried,
        "supply": runs.supply,
    }
    parts = (
        _print_ranges(data, rows),
        _print_bounds(data, limits),
        _print_variants(data, tried),
        _print_supply(data, runs.supply),
    )
    return report.result(
        result, parts, lambda folder: _draw(runs.means, unaware_pct, folder), figures
    )


# --- The values of the statements -----------------------------------------------------------------


def computed(data: Data, runs: Runs) -> dict[str, float]:
    """Return the values of all statements by key."""
    means = runs.means
    values = {
        f"{policy} {cap_w:g} {index}": indices[index]
        for policy, by_cap in means.items()
        for cap_w, indices in by_cap.items()
        for index in INDICES
    }
    binding = [cap_w for cap_w in data["caps_w"] if cap_w < data["worst_w"]]
    favoured, specs, where = means["p-bff"][850.0], workload(data, 1), site(data)
    used_w = {spec.power_w for spec in specs}
    hottest = [_one(max(data["power_w"].values()), str(at)) for at in range(where.nodes)]
    values |= {
        **{f"abstract {index}": favoured[index] for index in ("PR", "PW", "T")},
        "conclusion PR": favoured["PR"],
        **{f"850 {index}": favoured[index] for index in ("PR", "T", "E", "PW")},
        "800 PR": fmean(means[policy][800.0]["PR"] for policy in POLICIES),
        "p-fifo 850 time over p-bff": _time(means["p-fifo"][850.0]) / _time(favoured),
        "least time of p-fifo over p-bff": min(
            _time(means["p-fifo"][cap_w]) / _time(means["p-bff"][cap_w]) for cap_w in binding
        ),
        "MD without a cap": _unaware_pct(runs.outcomes),
        "least E": min(means[policy][cap_w]["E"] for policy in POLICIES for cap_w in binding),
        "power over the cap": max(
            max(aware.scheduled_w, aware.peak_w) - cap_w
            for (_, cap_w, _), aware in runs.outcomes.items()
        ),
        "nodes": float(data["hosts"]),
        "GPUs": float(where.nodes),
        "GPUs of a node": float(data["gpus"]),
        "workloads": float(len(runs.indices["p-bff", 850.0])),
        "jobs": float(len(specs)),
        "GPUs of a job": float(max(spec.preferred for spec in specs)),
        "idle power": where.power[0].idle_w,
        "supply": data["supply_w"],
        **{f"power of {name}": w for name, w in data["power_w"].items() if w in used_w},
        **_selection(data),
        "worst case": run(hottest, where, "p-fifo", None).scheduled_w,
    }
    for policy in POLICIES:
        for index in ("T", "E"):
            values[f"{policy} 800 {index}, figure 6"] = means[policy][800.0][index]
        for index in ("PR", "T"):
            values[f"{policy} 900 {index}, figure 6"] = means[policy][900.0][index]
        steps = list(pairwise(means[policy][cap_w] for cap_w in data["caps_w"]))
        values[f"{policy} least ratio of peaks"] = min(
            (100.0 - high["PR"]) / (100.0 - low["PR"]) for low, high in steps
        )
        values[f"{policy} least ratio of times"] = min(
            _time(low) / _time(high) for low, high in steps
        )
    values["MD without a cap over 900 W"] = values["MD without a cap"] - means["p-bff"][900.0]["MD"]
    values["MD of p-bff over p-fifo"] = max(
        means["p-bff"][cap_w]["MD"] / means["p-fifo"][cap_w]["MD"] for cap_w in binding
    )
    values["worst case of five GPUs"] = values["worst case"] + data["gpu_w"]
    values["capped peak of five GPUs"] = runs.supply[1]["peak_w"]
    return values


def _time(indices: Mapping[str, float]) -> float:
    """Return the time of a workload over that without a cap."""
    return 1.0 + indices["T"] / 100.0


def _placed(where: Site, busy: Sequence[Sequence[float]]) -> State:
    per = where.nodes // len(where.power)
    jobs = [
        (_one(watts, f"{host}-{at}"), (per * host + at,))
        for host, powers in enumerate(busy)
        for at, watts in enumerate(powers)
    ]
    return experiment.running(where, jobs)


def _one(watts: float, name: str = "new") -> JobSpec:
    return experiment.job(name, 1, run_s=1.0, power_w=watts)


def _selection(data: Data) -> dict[str, float]:
    """Return the selections of figures 2 and 3, by the placement part of the shipped policies.

    Nodes are numbered from 1 as in figure 3; 0 is none. The powers of the jobs are assumed so
    that the nodes are as its text describes them.
    """
    example = data["example"]
    where, cap_w = site(data), example["cap_w"]
    state, per = _placed(where, example["busy"]), data["gpus"]
    part = PowerSlot(cap_w)

    def selected(state: State, watts: float) -> float:
        room = part(state)
        job = Job(_one(watts))
        return 1.0 + room.place(job, 1)[0] // per if room.fits(job, 1) else 0.0

    first = selected(state, example["job_w"])
    after = [list(powers) for powers in example["busy"]]
    after[int(first) - 1].append(example["job_w"])
    full = [*example["busy"][:2], *[[example["job_w"]] * per] * 2]
    racks = Site(where.nodes, where.power, where.host, (0, 0, 1, 1))
    rack_w = 2.0 * data["idle_w"] + example["job_w"] + example["next_w"] - 1.0
    room = PowerSlot(rack_w, per="rack")(_placed(racks, [[example["job_w"]]]))
    other = Job(_one(example["next_w"]))
    return {
        "figure 3 node": first,
        "figure 3 next node": selected(_placed(where, after), example["next_w"]),
        "figure 3 without nodes 3 and 4": selected(_placed(where, full), example["job_w"]),
        "figure 2 slot of 0": selected(_placed(where, [[]]), cap_w - data["idle_w"]),
        "figure 2 slot below 0": selected(_placed(where, [[]]), cap_w - data["idle_w"] + 1.0),
        "figure 2 slots left": _slots_left(data, example),
        "equation 4 rack": 1.0 + racks.rack[room.place(other, 1)[0] // per],
    }


def _slots_left(data: Data, example: Data) -> float:
    """Return the power slot of the selected node over the least slot of all that fit (W)."""
    slots: dict[int, float] = {
        at: example["cap_w"] - data["idle_w"] - sum(powers) - example["job_w"]
        for at, powers in enumerate(example["busy"], 1)
        if len(powers) < data["gpus"]
    }
    room = PowerSlot(example["cap_w"])(_placed(site(data), example["busy"]))
    node = 1 + room.place(Job(_one(example["job_w"])), 1)[0] // data["gpus"]
    return slots[node] - min(slot for slot in slots.values() if slot >= 0.0)


def bounds(data: Data) -> dict[str, Any]:
    """Return the demands of the published ranges on a workload, by arithmetic on equation 1.

    The jobs' sum of P d joules needs hosts x (cap - idle) watts for T. The peak under a cap is at
    most the cap, so that PR bounds the peak without a cap, and MD the average power. The workload
    with the highest published E has at most the highest T, the one with the lowest T at least the
    lowest E. :func:`_print_bounds` has the formulas, and names the columns of ``rows``; beside them
    are the values that meet all rows, and ``mix_w``, the mean power of the assumed mix.
    """
    paper = published()
    idle_w, gpus = data["idle_w"], data["gpus"]
    mix_w = fmean(data["power_w"].values())
    rows = []
    for policy in POLICIES:
        for cap_w in data["caps_w"]:
            if f"{policy} {cap_w:g} T" not in paper:
                continue
            ends = {index: paper[f"{policy} {cap_w:g} {index}"] for index in INDICES}
            longest = 1.0 + ends["T"][1] / 100.0
            over = [1.0 + end / 100.0 for end in ends["MD"]]
            ratio = max(e / t for e, t in zip(ends["E"], ends["T"], strict=True) if t)
            rows.append(
                {
                    "policy": policy,
                    "cap_w": cap_w,
                    **{index: list(ends[index]) for index in INDICES},
                    "t_least_pct": 100.0 * (gpus * mix_w / (cap_w - idle_w) - 1.0),
                    "mean_w": longest * (cap_w - idle_w) / gpus,
                    "gpu_w": longest * (cap_w / over[0] - idle_w) / gpus,
                    "peak_w": cap_w / (1.0 - ends["PR"][1] / 100.0),
                    "e_over_t_paper": ratio,
                    "e_over_t": idle_w * over[1] / cap_w,
                    "e_peak_w": idle_w * over[1] / ratio,
                }
            )
    return {
        "rows": rows,
        "mix_w": mix_w,
        **{key: min(row[key] for row in rows) for key in ("mean_w", "gpu_w", "peak_w")},
    }


def _least_time(data: Data, cap_w: float) -> dict[int, float]:
    """Return a lower bound of the time of workloads under a cap, in any order (s)."""
    where, least = site(data), {}
    room_w = sum(cap_w - model.idle_w for model in where.power)
    for seed in range(1, data["workloads"] + 1):
        specs = workload(data, seed)
        least[seed] = max(
            sum((spec.power_w or 0.0) * (spec.run_s or 0.0) for spec in specs) / room_w,
            sum(spec.run_s or 0.0 for spec in specs) / where.nodes,
        )
    return least


def variants(data: Data) -> dict[str, Any]:
    """Return the number of means of table 3 inside the published range under other assumptions.

    Schedules do not depend on the real power of jobs, so one serves all :data:`KERNEL_SHARES`.
    ``rows`` are those of the first workloads; ``most`` is the row with the most means inside, over
    all workloads.
    """
    few = range(1, data["variant_workloads"] + 1)
    binding = [cap_w for cap_w in data["caps_w"] if cap_w < data["worst_w"]]
    rows: list[dict[str, Any]] = []
    for name, variant in VARIANTS.items():
        specs = {seed: workload(data, seed, variant) for seed in few}
        made = _of_cases(schedule, data, specs, binding)
        work = [(job.run_s or 0.0, job.power_w or 0.0) for jobs in specs.values() for job in jobs]
        rows.append(
            {
                "assumed": name,
                "mean_w": sum(s * w for s, w in work) / sum(s for s, _ in work),
                "shares": [_counted(data, made, share) for share in KERNEL_SHARES],
            }
        )
    named_shares = [(row["assumed"], share) for row in rows for share in row["shares"]]
    name, row = max(named_shares, key=lambda pair: pair[1]["inside_all"])
    specs = {seed: workload(data, seed, VARIANTS[name]) for seed in range(1, data["workloads"] + 1)}
    most = _counted(data, _of_cases(schedule, data, specs, binding), row["kernel_on"])
    return {"rows": rows, "most": {"assumed": name, "of_few": row["inside_all"], **most}}


def _counted(data: Data, made: Mapping[_Case, CappedSchedule], share: float) -> dict[str, Any]:
    """Return the means of table 3 and the number inside, where a kernel is on for a share."""
    edge, rest = 0.5 * (1.0 - share), data["profile"][0][1]
    profile = [(edge, rest), (share, 1.0), (edge, rest)]
    got = {key: schedule.outcome(profile) for key, schedule in made.items()}
    means = {
        f"{policy} {cap_w:g}": _means(indices)
        for (policy, cap_w), indices in _indices(got, data["worst_w"]).items()
    }
    paper = published()
    misses = [
        f"{case} W: {index} {row[index]:.1f} ({low:.1f} to {high:.1f})"
        for case, row in means.items()
        for index in INDICES
        for low, high in [paper[f"{case} {index}"]]
        if not low - NEAR <= row[index] <= high + NEAR
    ]
    inside = {index: len(means) - sum(f" {index} " in miss for miss in misses) for index in INDICES}
    return {
        "kernel_on": share,
        "inside": inside,
        "inside_all": sum(inside.values()),
        "means": means,
        "misses": misses,
        "md_unaware_pct": _unaware_pct(got),
    }


# --- Tables ---------------------------------------------------------------------------------------


def _note_ranges(rows: Sequence[dict[str, Any]], runs: Runs) -> None:
    """Put the range of our workloads before the notes of table 3."""
    for row in rows:
        if row["where"] == "table 3":
            policy, cap_w, index = row["key"].split()
            got = [workload[index] for workload in runs.indices[policy, float(cap_w)]]
            note = f"; {row['note']}" if row.get("note") else ""
            row["note"] = f"range {min(got):.1f} to {max(got):.1f}{note}"


def _means(indices: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: fmean(workload[key] for workload in indices) for key in indices[0]}


def _indices(
    outcomes: Mapping[_Case, CappedOutcome], worst_w: float
) -> dict[tuple[str, float], list[dict[str, float]]]:
    """Return the indices of the workloads by policy and cap, per cent."""
    by_case: dict[tuple[str, float], list[dict[str, float]]] = {}
    for (policy, cap_w, seed), aware in outcomes.items():
        unaware = outcomes[policy, inf, seed]
        indices = {
            "PR": 100.0 * (unaware.peak_w - aware.peak_w) / unaware.peak_w,
            "T": 100.0 * (aware.time_s - unaware.time_s) / unaware.time_s,
            "E": 100.0 * (aware.energy_j - unaware.energy_j) / unaware.energy_j,
            "MD": aware.deviation_pct,
            "PW": 100.0 * (worst_w - aware.peak_w) / worst_w,
        }
        if cap_w < inf:
            by_case.setdefault((policy, cap_w), []).append(indices)
    return by_case


def _unaware_pct(outcomes: Mapping[_Case, CappedOutcome]) -> float:
    """Return the mean of MD without a cap."""
    return fmean(out.deviation_pct for (_, cap_w, _), out in outcomes.items() if cap_w == inf)


def _row(policy: str, cap_w: float, indices: list[dict[str, float]]) -> dict[str, Any]:
    ranges = published()
    values: dict[str, Any] = {}
    for index in (*INDICES, "PW"):
        series = [workload[index] for workload in indices]
        paper = ranges.get(f"{policy} {cap_w:g} {index}")
        values[index] = {
            "paper": paper,
            "ours": [min(series), max(series)],
            "mean": fmean(series),
            "deviation_pct": None,
            "note": "ranges over ten workloads; those of the paper are not known",
        }
    return {"case": f"{cap_w:g} W", "mode": policy, "values": values}


def _must_hold(data: Data, runs: Runs) -> list[str]:
    wrong = [
        f"{policy}, {cap_w:g} W: expected the cap to hold, got {aware.scheduled_w:g} W"
        for (policy, cap_w, _), aware in runs.outcomes.items()
        if max(aware.scheduled_w, aware.peak_w) > cap_w + 1e-6
    ]
    for policy, by_cap in runs.means.items():
        for low, high in pairwise(data["caps_w"]):
            wrong += [
                f"{policy}: expected {index} to fall from {low:g} to {high:g} W, got "
                f"{by_cap[low][index]:.2f} and {by_cap[high][index]:.2f} %"
                for index in ("PR", "T")
                if by_cap[high][index] > by_cap[low][index] + 1e-9
            ]
        if abs(by_cap[data["worst_w"]]["T"]) > 1e-9:
            wrong.append(f"{policy}: expected T of 0 at the worst case, got {by_cap}")
    least = {cap_w: _least_time(data, cap_w) for cap_w in data["caps_w"]}
    return wrong + [
        f"{policy}, {cap_w:g} W: expected a makespan of at least {least[cap_w][seed]:.1f} s by "
        f"arithmetic, got {aware.time_s:.1f} s"
        for (policy, cap_w, seed), aware in runs.outcomes.items()
        if cap_w < inf and aware.time_s < least[cap_w][seed] - 1e-6
    ]


def _supply(data: Data, specs: list[JobSpec]) -> list[dict[str, Any]]:
    """Return the effects of more GPUs in the nodes, capped at its supply (section 5.1)."""
    rows: list[dict[str, Any]] = []
    most_w, supply_w = max(data["power_w"].values()), data["supply_w"]
    base_s = 0.0
    for gpus in range(data["gpus"], 2 * data["gpus"] + 1):
        aware = run(specs, site(data, gpus), "p-bff", supply_w)
        unaware = run(specs, site(data, gpus), "p-bff", None)
        base_s = base_s or aware.time_s
        rows.append(
            {
                "gpus": gpus,
                "worst_w": data["idle_w"] + gpus * most_w,
                "peak_w": aware.peak_w,
                "speedup": base_s / aware.time_s,
                "slowdown_pct": 100.0 * (aware.time_s / unaware.time_s - 1.0),
            }
        )
    return rows


def _print_ranges(data: Data, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    hits: list[tuple[bool, bool]] = []
    cells = []
    for row in rows:
        cell = [row["mode"], row["case"]]
        for index in (*INDICES, "PW"):
            value = row["values"][index]
            low, high = value["ours"]
            cell.append(f"{value['mean']:.1f} ({low:.1f} to {high:.1f})")
            if (paper := value["paper"]) is not None:
                cell[-1] += f" / {paper[0]:.1f} to {paper[1]:.1f}"
                inside = paper[0] <= value["mean"] <= paper[1]
                hits.append((inside, low <= paper[1] and high >= paper[0]))
        cells.append(cell)
    number, overlap = map(sum, zip(*hits, strict=True))
    return [
        f"Table 3 in per cent: mean (range) of {data['workloads']} workloads / range of the paper.",
        f"{number} of {len(hits)} means are inside the published range, {overlap} of "
        f"{len(hits)} ranges overlap it. A miss of a range is in points",
        "",
        *columns(("policy", "cap", *INDICES, "PW"), cells),
    ]


def _print_bounds(data: Data, limits: Mapping[str, Any]) -> list[str]:
    rows, idle_w = limits["rows"], data["idle_w"]
    form = experiment.form("chiesi", "bounds", **limits)
    cells = tabulate(rows, *form)
    share = energy_share(data["profile"])
    text = experiment.texts(
        data,
        "bounds",
        **{**data, **limits},
        number=len(rows),
        above=sum(row["mean_w"] < limits["mix_w"] for row in rows),
        apart=sum(row["e_over_t_paper"] > row["e_over_t"] for row in rows),
        job_w=limits["peak_w"] - idle_w,
        share=share,
        kernel_w=limits["gpu_w"] / share,
        least_w=min(data["power_w"].values()),
    )
    return [text[0], "", *cells, "", *text[1:]]


def _print_variants(data: Data, tried: Mapping[str, Any]) -> list[str]:
    cells = tabulate(
        tried["rows"],
        ("assumed", "{assumed}"),
        ("mean of jobs", "{mean_w:.0f} W"),
        ("T, p-bff at 850 W", "{shares[0][means][p-bff 850][T]:.1f} %"),
        ("T inside", "{shares[0][inside][T]}"),
        *(
            (
                f"kernel on {share:.0%}",
                "{shares[N][inside_all]} ({shares[N][inside][PR]}, {shares[N][inside][E]}, "
                "{shares[N][inside][MD]})".replace("N", f"{at}"),
            )
            for at, share in enumerate(KERNEL_SHARES)
        ),
    )
    most = tried["most"]
    times = max(share["inside"]["T"] for row in tried["rows"] for share in row["shares"])
    text = experiment.texts(data, "variants", **data, **most, times=times, number=len(published()))
    misses = [f"  {miss}" for miss in most["misses"]]
    return [*text[:2], "", *cells, "", text[2], *misses, *text[3:]]


def _print_supply(data: Data, supply: list[dict[str, Any]]) -> list[str]:
    supply_w = data["supply_w"]
    lines = [f"More GPUs on a supply of {supply_w:g} W a node (p-bff, first workload)"]
    for entry in supply:
        fits = "fits" if entry["worst_w"] <= supply_w else "over it"
        lines.append(
            f"  {entry['gpus']} GPUs  worst case {entry['worst_w']:5.0f} W ({fits:7s})  "
            f"capped peak {entry['peak_w']:5.0f} W  speedup {entry['speedup']:.3f}  "
            f"lost to the cap {entry['slowdown_pct']:.1f} %"
        )
    return lines


def _draw(
    means: Mapping[str, Mapping[float, Mapping[str, float]]], unaware_pct: float, folder: Path
) -> None:
    titles = {
        "PR": "peak reduction (figure 6a)",
        "T": "increase in time (figure 6b)",
        "E": "increase in energy (figure 6c)",
        "PW": "peak reduction against the worst case (figure 6d)",
    }
    for index, title in titles.items():
        series = {
            policy: (list(by_cap), [entry[index] for entry in by_cap.values()])
            for policy, by_cap in means.items()
        }
        labels = ("cap (W)", f"{index} (%)", title)
        draw_lines(series, folder / f"figure-6-{index}.png", labels)
    series = {
        policy: ([e["T"] for e in by_cap.values()], [e["MD"] for e in by_cap.values()])
        for policy, by_cap in means.items()
    }
    series["no cap"] = ([0.0], [unaware_pct])
    labels = ("T (%)", "MD (%)", "peak over average against time (figure 7)")
    draw_lines(series, folder / "figure-7.png", labels)
