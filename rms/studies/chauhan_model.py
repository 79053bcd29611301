"""Cluster, programs, jobs and policies of ``rms reproduce chauhan``, and one simulation of them.

Time and power of a program over frequency (its PET matrix): t(f) = a f_max / f + 1 - a of which a
is bounded by arithmetic, and power above idle in proportion to V^2 f for its cores, without it for
its memory. Everything that the paper leaves open is in ``data/chauhan.toml`` or a :class:`Variant`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Any

from msgspec import structs

from rms.core.clocks import drawn
from rms.core.contention import Processors, SharedNode
from rms.core.events import PowerOn
from rms.core.model import JobId, JobSpec, Mode, Node, NodePower, Site
from rms.core.policies import Policy, adjusted, named
from rms.core.policies.placement import Lowest
from rms.core.speedup import OperatingPoint, Speedup
from rms.core.state import State
from rms.sim.simulator import Hooks, Simulation


@dataclass(frozen=True)
class Variant:
    """What the paper does not say, where it differs from ``data/chauhan.toml``.

    Attributes:
        load, move_s, idle_w, boot_s: instead of those there, None for these.
        spread: jobs start with one process on each host in turn, as in figure 8, else on the
            lowest free cores.
        linear: voltage in proportion to frequency.
        once: all jobs come at once.
        half: jobs are malleable, down to half their processes, where they run so much longer;
            None for jobs that are moved only. Not in the paper.
    """

    load: float | None = None
    move_s: float | None = None
    idle_w: float | None = None
    boot_s: float | None = None
    spread: bool = True
    linear: bool = False
    once: bool = False
    half: float | None = None


@dataclass(frozen=True)
class Way:
    """What of the algorithm is used.

    Attributes:
        off: idle nodes are powered off.
        move: jobs are moved together.
        slowdown: each job at its optimal operating point, of those at which it is no slower; None
            for the highest frequency.
    """

    off: bool = False
    move: bool = False
    slowdown: float | None = None


WITHOUT = Way()
WITH = Way(off=True, move=True, slowdown=inf)


@dataclass(frozen=True)
class Outcome:
    """What came of one stream of jobs.

    Attributes:
        makespan_s: from the first submission to the last end.
        run_s, wait_s: of all jobs, summed.
        energy_j: of the cluster in that time.
        moves, boots: how often jobs were moved or narrowed, and hosts booted.
        power: time and power of the cluster whenever it changed.
    """

    makespan_s: float
    run_s: float
    wait_s: float
    energy_j: float
    moves: int
    boots: int
    power: tuple[tuple[float, float], ...] = ()


def levels(data: Mapping[str, Any], variant: Variant) -> tuple[tuple[float, float], ...]:
    """Return frequencies and voltages, rising."""
    base, step = data["volts"]
    if variant.linear:
        return tuple((ghz, ghz / data["levels"][-1][0]) for ghz, _ in data["levels"])
    return tuple((ghz, base + step * vid) for ghz, vid in data["levels"])


def pet(
    program: Mapping[str, float], volts: tuple[tuple[float, float], ...]
) -> tuple[OperatingPoint, ...]:
    """Return time and power of a program over frequency."""
    highest, part = volts[-1][0], program["arithmetic"]
    cores_w, memory_w = program["cores_w"], program["memory_w"]
    return tuple(
        OperatingPoint(
            ghz,
            part * highest / ghz + 1.0 - part,
            (cores_w * drawn(volts, (), ghz / highest) + memory_w) / (cores_w + memory_w),
        )
        for ghz, _ in volts
    )


def site(data: Mapping[str, Any], variant: Variant) -> Site:
    """Return the cluster: cores are slots of hosts with a frequency each."""
    node, hosts = data["node"], data["nodes"]
    idle_w = node["idle_w"] if variant.idle_w is None else variant.idle_w
    boot_s = node["boot_s"] if variant.boot_s is None else variant.boot_s
    power = NodePower(idle_w, off_w=node["off_w"], boot_s=boot_s, boot_j=boot_s * idle_w)
    return Site(
        hosts * data["cores"],
        (power,) * hosts,
        shared=(SharedNode(inf, (Processors(data["cores"]),)),) * hosts,
        levels=levels(data, variant),
    )


def jobs(data: Mapping[str, Any], variant: Variant, seed: int) -> list[JobSpec]:
    """Return a stream of jobs by lot; the same with and without the algorithm."""
    stream, random = data["stream"], Random(seed)
    volts, names = levels(data, variant), list(data["programs"])
    other = [name for name in names if name.startswith("npb")]
    low_s, high_s = stream["run_s"]
    load = stream["load"] if variant.load is None else variant.load
    move_s = stream["move_s"] if variant.move_s is None else variant.move_s
    idle_w = data["node"]["idle_w"] if variant.idle_w is None else variant.idle_w
    mean_size = sum(stream["sizes"]) / len(stream["sizes"])
    every_s = mean_size * 0.5 * (low_s + high_s) / (load * data["nodes"] * data["cores"])
    half = variant.half or 2.0
    at_s, found = 0.0, []
    for number in range(1, stream["jobs"] + 1):
        kind = random.choice(("linpack", "stream", "npb"))
        name = random.choice(other) if kind == "npb" else kind
        size, run_s = random.choice(stream["sizes"]), random.uniform(low_s, high_s)
        program = data["programs"][name]
        busy_w = idle_w + program["cores_w"] + program["memory_w"]
        found.append(
            JobSpec(
                JobId(str(number)),
                0.0 if variant.once else at_s,
                size // 2 if variant.half else size,
                size,
                size,
                Mode.MALLEABLE,
                Speedup((size // 2, size), (half * run_s, run_s), (busy_w,) * 2, interpolate=True),
                limit_s=2.0 * run_s,
                resize_every_s=stream["look_s"],
                resize_price_s=move_s,
                operating_points=pet(program, volts),
            )
        )
        at_s += random.expovariate(1.0 / every_s)
    return found


class _Spread(Lowest):
    """Free slots, one of each host in turn; of hosts that are off last."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        turn: dict[int, int] = {}
        order: list[tuple[bool, int, Node]] = []
        asleep, host = set(state.asleep), state.site.host
        for node in state.free_nodes():
            at = turn[host[node]] = turn.get(host[node], 0) + 1
            order.append((node in asleep, at, node))
        self._nodes = iter([node for _, _, node in sorted(order)])


class _Starts:
    """A placement that starts jobs spread out, and moves them as another does."""

    shared = True

    def __init__(self, other: Any) -> None:
        self.migrations = getattr(other, "migrations", None)

    def __call__(self, state: State) -> Lowest:
        return _Spread(state)


def policy(way: Way, variant: Variant) -> Policy:
    """Return EASY with what of the algorithm is used."""
    parts: dict[str, dict[str, Any]] = {}
    if way.off:
        parts["node_power"] = {"part": "off-when-idle"}
    if way.move:
        parts["placement"] = {"part": "consolidate", "narrow": variant.half is not None}
    if way.slowdown is not None:
        parts["frequency"] = {"part": "optimal-operating-point", "slowdown": way.slowdown}
    made = adjusted(named("easy"), **parts)
    return replace(made, placement=_Starts(made.placement)) if variant.spread else made


def run(data: Mapping[str, Any], way: Way, variant: Variant, seed: int) -> Outcome:
    """Run a stream of jobs to its end."""
    specs = jobs(data, variant, seed)
    if not way.move:  # nobody asks for its resize points
        specs = [structs.replace(spec, mode=Mode.FIXED) for spec in specs]
    drawn_w: list[tuple[float, float]] = []

    def look(simulation: Simulation) -> None:
        simulation.ledger.follow(simulation.engine.state)
        watts = simulation.ledger.power_w
        if not drawn_w or drawn_w[-1][1] != watts:
            drawn_w.append((simulation.engine.state.now_s, watts))

    hooks = Hooks(record=True, observer=look)
    simulation = Simulation(specs, site(data, variant), policy(way, variant), hooks=hooks)
    simulation.run()
    ledger, state = simulation.ledger, simulation.engine.state
    ledger.check()
    ended = state.ended.values()
    assert len(ended) == len(specs) and not state.pending
    return Outcome(
        makespan_s=max(job.end_s or 0.0 for job in ended),
        run_s=sum((job.end_s or 0.0) - (job.start_s or 0.0) for job in ended),
        wait_s=sum((job.start_s or 0.0) - job.spec.submit_s for job in ended),
        energy_j=ledger.cluster_j,
        moves=simulation.resized,
        boots=sum(
            len({state.site.host[node] for node in each.nodes})
            for _, each in simulation.decisions
            if isinstance(each, PowerOn)
        ),
        power=tuple(drawn_w),
    )
