"""Cluster, programs, jobs and policies of ``rms reproduce chauhan``, and one simulation of them.

Time and power of a program over frequency and voltage (its PET matrix): t(f) = a f_max / f + 1 - a
of which a is bounded by arithmetic, and power above idle in proportion to V^2 f for its cores,
without it for its memory. Everything that the paper leaves open is in ``data/chauhan.toml`` or a
:class:`Variant`.

Voltages are part of the study alone: cpufreq sets frequencies, and no part of rms lowers a voltage.
Every job of the study can be migrated, as with the checkpoints of the paper. Live, only programs
that use dmr can be: LINPACK, STREAM and NPB as they are cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import Any, ClassVar, NamedTuple

from msgspec import structs

from rms.core.model.contention import Processors, SharedNode
from rms.core.model.events import Decision, PowerOn, Resize
from rms.core.model.jobs import JobId, JobSpec, Mode, Node, NodePower, Site
from rms.core.model.speedup import OperatingPoint, Speedup
from rms.core.policies import Policy, adjusted, named
from rms.core.policies.placement import Lowest, Placement
from rms.core.rules.powercap import PowerBudget
from rms.core.state import State
from rms.sim.simulator import Hooks, Simulation

Data = Mapping[str, Any]


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
        undervolt: of the voltages of a frequency the one with least energy, not its own.
    """

    off: bool = False
    move: bool = False
    slowdown: float | None = None
    undervolt: bool = False


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


class Cell(NamedTuple):
    """A cell of a PET matrix (figures 2 to 7), of a node with all cores busy.

    Attributes:
        ghz, vid: frequency and voltage identification.
        time, power, energy: run time, power above idle and energy of the node, over those at the
            highest frequency and its own voltage.
    """

    ghz: float
    vid: int
    time: float
    power: float
    energy: float


def volts(data: Data, vid: int) -> float:
    """Return the voltage of a VID."""
    base, step = data["volts"]
    return float(base + step * vid)


def levels(
    data: Data, variant: Variant, *, undervolt: bool = False
) -> tuple[tuple[float, float], ...]:
    """Return frequencies (GHz) and voltages (V), rising.

    Args:
        undervolt: each frequency at the lowest VID, else at its own.
    """
    if variant.linear:
        return tuple((ghz, ghz / data["levels"][-1][0]) for ghz, _ in data["levels"])
    lowest = min(vid for _, vid in data["levels"])
    return tuple((ghz, volts(data, lowest if undervolt else vid)) for ghz, vid in data["levels"])


def point(
    program: Mapping[str, float], ghz: float, volt: float, top: tuple[float, float]
) -> OperatingPoint:
    """Return time and power of a program at a frequency and voltage, over those at ``top``."""
    part, cores_w, memory_w = (program[key] for key in ("arithmetic", "cores_w", "memory_w"))
    return OperatingPoint(
        ghz,
        part * top[0] / ghz + 1.0 - part,
        (cores_w * (volt / top[1]) ** 2 * ghz / top[0] + memory_w) / (cores_w + memory_w),
    )


def pet(
    program: Mapping[str, float], rising: tuple[tuple[float, float], ...]
) -> tuple[OperatingPoint, ...]:
    """Return time and power of a program over frequency.

    Args:
        rising: frequencies and voltages, see :func:`levels`.
    """
    return tuple(point(program, ghz, volt, rising[-1]) for ghz, volt in rising)


def matrix(data: Data, program: Mapping[str, float]) -> list[Cell]:
    """Return the PET matrix: each frequency at its own VID and at all lower ones (section III-A).

    The time of a program does not depend on the voltage.
    """
    top = levels(data, Variant())[-1]
    idle_w, above_w = data["node"]["idle_w"], program["cores_w"] + program["memory_w"]
    lowest = min(vid for _, vid in data["levels"])
    cells = []
    for ghz, own in data["levels"]:
        for vid in range(lowest, own + 1):
            row = point(program, ghz, volts(data, vid), top)
            energy = row.time * (idle_w + above_w * row.power) / (idle_w + above_w)
            cells.append(Cell(ghz, vid, row.time, row.power, energy))
    return cells


def own_voltages(data: Data, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells at which each frequency has its own VID, rising."""
    own = {(ghz, vid) for ghz, vid in data["levels"]}
    return [cell for cell in cells if (cell.ghz, cell.vid) in own]


def optimal(cells: Sequence[Cell]) -> Cell:
    """Return the optimal operating point: least energy, of equals the highest frequency."""
    return min(cells, key=lambda cell: (cell.energy, -cell.ghz))


def site(data: Data, variant: Variant, *, undervolt: bool = False) -> Site:
    """Return the cluster: cores are slots of hosts with a frequency each."""
    node, hosts = data["node"], data["nodes"]
    idle_w = node["idle_w"] if variant.idle_w is None else variant.idle_w
    boot_s = node["boot_s"] if variant.boot_s is None else variant.boot_s
    power = NodePower(idle_w, off_w=node["off_w"], boot_s=boot_s, boot_j=boot_s * idle_w)
    return Site(
        hosts * data["cores"],
        (power,) * hosts,
        shared=(SharedNode(inf, (Processors(data["cores"]),)),) * hosts,
        levels=levels(data, variant, undervolt=undervolt),
    )


def jobs(data: Data, variant: Variant, seed: int, *, undervolt: bool = False) -> list[JobSpec]:
    """Return a stream of jobs by lot; the same with and without the algorithm."""
    stream, random = data["stream"], Random(seed)
    rising, names = levels(data, variant, undervolt=undervolt), list(data["programs"])
    lower = (rising[-1][1] / levels(data, variant)[-1][1]) ** 2
    other = [name for name in names if name.startswith("npb")]
    low_s, high_s = stream["run_s"]
    load = stream["load"] if variant.load is None else variant.load
    move_s = stream["move_s"] if variant.move_s is None else variant.move_s
    idle_w = data["node"]["idle_w"] if variant.idle_w is None else variant.idle_w
    mean_size = sum(stream["sizes"]) / len(stream["sizes"])
    every_s = mean_size * 0.5 * (low_s + high_s) / (load * data["nodes"] * data["cores"])
    half = variant.half or 2.0
    at_s, specs = 0.0, []
    for number in range(1, stream["jobs"] + 1):
        kind = random.choice(("linpack", "stream", "npb"))
        name = random.choice(other) if kind == "npb" else kind
        size, run_s = random.choice(stream["sizes"]), random.uniform(low_s, high_s)
        program = dict(data["programs"][name])
        program["cores_w"] *= lower
        busy_w = idle_w + program["cores_w"] + program["memory_w"]
        specs.append(
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
                operating_points=pet(program, rising),
            )
        )
        at_s += random.expovariate(1.0 / every_s)
    return specs


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


class _Starts(Placement):
    """A placement that starts jobs spread out, and moves them as another does."""

    shared: ClassVar[bool] = True
    migrates: ClassVar[bool] = True

    def __init__(self, other: Placement) -> None:
        self._other = other

    def __call__(self, state: State) -> Lowest:
        return _Spread(state)

    def migrations(
        self,
        state: State,
        free: Sequence[Node],
        decided: Sequence[Decision],
        budget: PowerBudget | None,
    ) -> list[Resize]:
        return self._other.migrations(state, free, decided, budget)


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


def run(data: Data, way: Way, variant: Variant, seed: int) -> Outcome:
    """Run a stream of jobs to its end."""
    specs = jobs(data, variant, seed, undervolt=way.undervolt)
    if not way.move:  # nobody asks for its resize points
        specs = [structs.replace(spec, mode=Mode.FIXED) for spec in specs]
    drawn_w: list[tuple[float, float]] = []

    def look(simulation: Simulation) -> None:
        simulation.ledger.follow(simulation.engine.state)
        watts = simulation.ledger.power_w
        if not drawn_w or drawn_w[-1][1] != watts:
            drawn_w.append((simulation.engine.state.now_s, watts))

    hooks = Hooks(record=True, observer=look)
    where = site(data, variant, undervolt=way.undervolt)
    simulation = Simulation(specs, where, policy(way, variant), hooks=hooks)
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
