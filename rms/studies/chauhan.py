"""``rms reproduce chauhan``: jobs moved together at their optimal operating points, hosts off.

LINPACK, STREAM and NPB on four nodes of twelve cores, with and without the algorithm of Chauhan et
al. The paper states neither its jobs and their times nor the power of its nodes. All that it leaves
open is in ``data/chauhan.toml``, with notes, or an :class:`Unstated`;
:func:`chauhan` prints the effects of assumptions. The statements of figures 8 to 12 are computed
by the policies of rms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import structs

from rms.core.model.contention import Processors, SharedNode
from rms.core.model.events import Decision, PowerOff, PowerOn, Resize
from rms.core.model.jobs import JobId, JobSpec, Mode, Node, NodePower, Site
from rms.core.model.speedup import OperatingPoint, Speedup
from rms.core.policies import Policy, adjusted, named
from rms.core.policies.node_power import Consolidate, Host, feasible, migrations
from rms.core.policies.placement import Lowest, Placement
from rms.core.rules.powercap import PowerBudget
from rms.core.rules.transition import set_clocks
from rms.core.state import State
from rms.plots import Panel, draw_panels
from rms.sim.simulator import Simulation
from rms.studies import experiment
from rms.studies.experiment import Data, Result, StudyReport, tabulate
from rms.wire.terminal import columns

# --- The model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unstated:
    """Assumptions that differ from ``data/chauhan.toml``.

    Attributes:
        load, move_s, idle_w, boot_s: None for the value of the file.
        spread: jobs start with one process on every host in turn, as in figure 8, else on the
            lowest free cores.
        linear: voltage in proportion to frequency.
        once: all jobs come at once.
        half: jobs are malleable, down to half their processes, with run times this much longer;
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
    """The parts of the algorithm that are used: power idle nodes off, move jobs together.

    Attributes:
        slowdown: of a job at its optimal operating point at most; None for the highest frequency.
        undervolt: at the voltage with least energy, not at that of the frequency.
    """

    off: bool = False
    move: bool = False
    slowdown: float | None = None
    undervolt: bool = False


WITHOUT = Way()
WITH = Way(off=True, move=True, slowdown=inf)


@dataclass(frozen=True)
class StreamOutcome:
    """The outcome of one stream of jobs; ``run_s`` and ``wait_s`` are sums over all jobs.

    Attributes:
        moves, boots: numbers of jobs moved or narrowed, and of hosts booted.
        power: times at which the power of the cluster changes, and the power from then on.
    """

    makespan_s: float
    run_s: float
    wait_s: float
    energy_j: float
    moves: int
    boots: int
    power: tuple[tuple[float, float], ...] = ()

    @property
    def turnaround_s(self) -> float:
        """The run times and waits of all jobs."""
        return self.run_s + self.wait_s


class Cell(NamedTuple):
    """A cell of a PET matrix (figures 2 to 7), of a node with all cores busy.

    Time, power above idle and energy are over those at the highest frequency and its own voltage.
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
    data: Data, variant: Unstated, *, undervolt: bool = False
) -> tuple[tuple[float, float], ...]:
    """Return frequencies (GHz) and voltages (V), rising; undervolted, all at the lowest VID."""
    if variant.linear:
        return tuple((ghz, ghz / data["levels"][-1][0]) for ghz, _ in data["levels"])
    lowest = min(vid for _, vid in data["levels"])
    return tuple((ghz, volts(data, lowest if undervolt else vid)) for ghz, vid in data["levels"])


def point(
    program: Mapping[str, float], ghz: float, volt: float, top: tuple[float, float]
) -> OperatingPoint:
    """Return time and power of a program at a frequency and voltage, over those at ``top``.

    Time is a f_max / f + 1 - a, with a part a bounded by arithmetic. Power above idle is in
    proportion to V^2 f for the cores, and constant for the memory.
    """
    part, cores_w, memory_w = (program[key] for key in ("arithmetic", "cores_w", "memory_w"))
    return OperatingPoint(
        ghz,
        part * top[0] / ghz + 1.0 - part,
        (cores_w * (volt / top[1]) ** 2 * ghz / top[0] + memory_w) / (cores_w + memory_w),
    )


def pet(
    program: Mapping[str, float], rising: tuple[tuple[float, float], ...]
) -> tuple[OperatingPoint, ...]:
    """Return time and power of a program at frequencies and voltages, see :func:`levels`."""
    return tuple(point(program, ghz, volt, rising[-1]) for ghz, volt in rising)


def matrix(data: Data, program: Mapping[str, float]) -> list[Cell]:
    """Return the PET matrix: frequencies at their own VIDs and at all lower ones (section III-A).

    The time of a program does not depend on the voltage.
    """
    top = levels(data, Unstated())[-1]
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
    """Return the cells of the frequencies at their own VIDs, rising."""
    own = {(ghz, vid) for ghz, vid in data["levels"]}
    return [cell for cell in cells if (cell.ghz, cell.vid) in own]


def optimal(cells: Sequence[Cell]) -> Cell:
    """Return the optimal operating point: least energy, of equals the highest frequency."""
    return min(cells, key=lambda cell: (cell.energy, -cell.ghz))


def site(data: Data, variant: Unstated, *, undervolt: bool = False) -> Site:
    """Return the cluster: cores are slots of hosts, which have a frequency."""
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


def jobs(data: Data, variant: Unstated, seed: int, *, undervolt: bool = False) -> list[JobSpec]:
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
            experiment.job(
                number,
                size,
                0.0 if variant.once else at_s,
                Mode.MALLEABLE,
                size // 2 if variant.half else None,
                speedup=Speedup(
                    (size // 2, size), (half * run_s, run_s), (busy_w,) * 2, interpolate=True
                ),
                limit_s=2.0 * run_s,
                resize_every_s=stream["look_s"],
                resize_price_s=move_s,
                operating_points=pet(program, rising),
            )
        )
        at_s += random.expovariate(1.0 / every_s)
    return specs


class _Spread(Lowest):
    """Free slots, one of every host in turn; of hosts that are off last."""

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


def policy(way: Way, variant: Unstated) -> Policy:
    """Return EASY with the parts of the algorithm that are used."""
    parts: dict[str, dict[str, Any]] = {}
    if way.off:
        parts["node_power"] = {"part": "off-when-idle"}
    if way.move:
        parts["placement"] = {"part": "consolidate", "narrow": variant.half is not None}
    if way.slowdown is not None:
        parts["frequency"] = {"part": "optimal-operating-point", "slowdown": way.slowdown}
    made = adjusted(named("easy"), **parts)
    return replace(made, placement=_Starts(made.placement)) if variant.spread else made


def run(data: Data, way: Way, variant: Unstated, seed: int) -> StreamOutcome:
    """Run a stream of jobs to its end."""
    specs = jobs(data, variant, seed, undervolt=way.undervolt)
    if not way.move:  # the policy uses no resize points
        specs = [structs.replace(spec, mode=Mode.FIXED) for spec in specs]
    drawn_w: list[tuple[float, float]] = []

    def look(simulation: Simulation) -> None:
        simulation.ledger.follow(simulation.engine.state)
        watts = simulation.ledger.power_w
        if not drawn_w or drawn_w[-1][1] != watts:
            drawn_w.append((simulation.engine.state.now_s, watts))

    where = site(data, variant, undervolt=way.undervolt)
    simulation = Simulation(specs, where, policy(way, variant), record=True, observer=look)
    simulation.run()
    ledger, state = simulation.ledger, simulation.engine.state
    ledger.check()
    spans = experiment.job_times(simulation)
    assert len(spans) == len(specs) and not state.pending
    return StreamOutcome(
        makespan_s=max(span.end_s for span in spans),
        run_s=sum(span.run_s for span in spans),
        wait_s=sum(span.wait_s for span in spans),
        energy_j=ledger.cluster_j,
        moves=simulation.resized,
        boots=sum(
            len({state.site.host[node] for node in decision.nodes})
            for _, decision in simulation.decisions
            if isinstance(decision, PowerOn)
        ),
        power=tuple(drawn_w),
    )


_FILE = experiment.settings("chauhan")
WAYS = msgspec.convert(_FILE["ways"], dict[str, Way], strict=False)
VARIANTS = msgspec.convert(_FILE["variants"], dict[str, Unstated])
LOADS: list[float] = _FILE["loads"]
BOUNDS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5)
COLUMNS = ("saved_pct", "longer_pct", "makespan_pct", "turnaround_pct")
HEADS = ("energy saved", "run times", "makespan", "turnaround")


def chauhan(figures: Path | None) -> Result:
    """Run the study; draw its figures in a folder, if there is one."""
    data = experiment.settings("chauhan")
    seeds = range(1, data["stream"]["seeds"] + 1)

    @cache
    def runs(way: Way, variant: Unstated) -> list[StreamOutcome]:
        return [run(data, way, variant, seed) for seed in seeds]

    def against(way: Way, variant: Unstated) -> dict[str, float]:
        return compared(runs(WITHOUT, variant), runs(way, variant))

    usual = Unstated()
    ways = {name: against(way, usual) for name, way in WAYS.items()}
    loads = by_load(data)
    tried = {name: against(WITH, variant) for name, variant in VARIANTS.items()}
    curve = {bound: against(Way(True, True, bound), usual) for bound in BOUNDS}
    points = {name: _best(data, name) for name in data["programs"]}
    values = computed(data, loads)
    report = StudyReport("chauhan", values)
    report.wrong += _must_hold(ways, [*tried.values(), *curve.values(), *loads.values()])
    _note_loads(report.rows, loads)
    keys = {"saved": "saved_pct", "longer": "longer_pct"}
    paper = {
        keys[statement.key]: statement.paper
        for statement in experiment.statements("chauhan")
        if statement.key in keys and isinstance(statement.paper, float)
    }
    rows = [
        experiment.row("4 nodes", name, ours, paper if name == "the algorithm" else None)
        for name, ours in ways.items()
    ]
    shown = {f"{load:g}": row for load, row in loads.items()}
    parts = [
        [
            *experiment.texts(data, "loads", **data["stream"]),
            *_table("load", {"paper": paper, **shown}),
        ],
        [
            *experiment.texts(data, "streams", **data["stream"]),
            *_table("", {"paper": paper, **ways}),
        ],
        [*experiment.texts(data, "points"), *_points(points)],
        _print_matrix(data),
        _table("what the algorithm brings, assumed", tried),
        _table("slowdown at most", {f"{bound:g}": row for bound, row in curve.items()}),
        data["notes"],
    ]
    result = {
        "values": values,
        "seeds": list(seeds),
        "rows": rows,
        "loads": [{"load": load, **row} for load, row in loads.items()],
        "operating_points": points,
        "matrix": {
            name: [cell._asdict() for cell in matrix(data, data["programs"][name])]
            for name in ("linpack", "stream")
        },
        "sensitivity": [{"assumed": name, **row} for name, row in tried.items()],
        "curve": [{"slowdown": bound, **row} for bound, row in curve.items()],
        "notes": data["notes"],
    }

    def draw(folder: Path) -> None:
        linear = {bound: against(Way(True, True, bound), Unstated(linear=True)) for bound in BOUNDS}
        _draw(folder, data, {"as assumed": curve, "voltage as frequency": linear})

    return report.result(result, parts, draw, figures)


# --- Values of the statements ---------------------------------------------------------------------


def by_load(data: Data) -> dict[float, dict[str, float]]:
    """Return the effects of the algorithm by load, that of the study among them."""
    seeds = range(1, data["stream"]["seeds"] + 1)
    results = {}
    for load in sorted({*LOADS, data["stream"]["load"]}):
        variant = Unstated(load=load)
        without, outcomes = (
            [run(data, way, variant, seed) for seed in seeds] for way in (WITHOUT, WITH)
        )
        results[load] = compared(without, outcomes)
    return results


def computed(data: Data, loads: Mapping[float, Mapping[str, float]]) -> dict[str, float]:
    """Return the values of all statements by key, with the effects of :func:`by_load`."""
    where, algorithm = site(data, Unstated()), loads[data["stream"]["load"]]
    rising = levels(data, Unstated())
    low, high = min(loads), max(loads)
    return {
        "nodes": float(len(where.power)),
        "cores": float(where.nodes / len(where.power)),
        "highest frequency": rising[-1][0],
        "lowest frequency": rising[0][0],
        "lowest vid": float(data["levels"][0][1]),
        "highest vid": float(data["levels"][-1][1]),
        **{f"frequency of vid {vid}": float(ghz) for ghz, vid in data["levels"][:2]},
        "voltage of the next vid": min(
            volts(data, vid + 1) / volts(data, vid) for _, vid in data["levels"]
        ),
        "voltages of the highest frequency": float(
            sum(cell.ghz == rising[-1][0] for cell in matrix(data, data["programs"]["linpack"]))
        ),
        "largest job": float(max(data["stream"]["sizes"])),
        "jobs of one node": float(data["cores"] in data["stream"]["sizes"]),
        "programs": float(len({name.partition("-")[0] for name in data["programs"]})),
        "saved": algorithm["saved_pct"],
        "longer": algorithm["longer_pct"],
        "section 6 saved": algorithm["saved_pct"],
        "section 6 longer": algorithm["longer_pct"],
        "energy with over without": 1.0 - algorithm["saved_pct"] / 100.0,
        "time with over without": 1.0 + algorithm["longer_pct"] / 100.0,
        "saved at the highest load over the lowest": loads[high]["saved_pct"]
        / loads[low]["saved_pct"],
        **_square(data),
        **_over_voltage(data, "linpack"),
        **_over_voltage(data, "stream"),
        **_figure_8(),
        **_figure_9(),
        **_figure_10(),
        **_figure_11(where.power[0]),
        **_figure_12(),
    }


def _note_loads(rows: Sequence[dict[str, Any]], loads: Mapping[float, Mapping[str, float]]) -> None:
    """Put the range over loads before the notes of the two results of section V."""
    for row in rows:
        for key, column in (("saved", "saved_pct"), ("longer", "longer_pct")):
            if row.get("key") == key:
                got = [row[column] for row in loads.values()]
                over = f"{min(got):.1f} to {max(got):.1f} % over the loads below"
                row["note"] = f"{over}; {row.get('note', '')}"


def _square(data: Data) -> dict[str, float]:
    """Return power over frequency times the square of voltage, the largest over the least."""
    program = {"arithmetic": 1.0, "cores_w": 1.0, "memory_w": 0.0}
    ratios = [
        cell.power / (cell.ghz * volts(data, cell.vid) ** 2) for cell in matrix(data, program)
    ]
    return {"power over V^2 f": max(ratios) / min(ratios)}


def _over_voltage(data: Data, name: str) -> dict[str, float]:
    """Return the values of figures 2 to 7 for a program, by two readings of their VIDs.

    As voltages: the highest frequency at its own VID over the same at the lowest VID, and at the
    lowest VID the largest value over all frequencies over the least. As multipliers of the clock:
    the highest level over the lowest one, at their own voltages.
    """
    cells = matrix(data, data["programs"][name])
    own, lowest = own_voltages(data, cells), min(cell.vid for cell in cells)
    top, under = own[-1], next(c for c in cells if (c.ghz, c.vid) == (own[-1].ghz, lowest))
    column = [cell for cell in cells if cell.vid == lowest]
    result = {
        f"{name} optimal vid": float(optimal(cells).vid),
        f"{name} optimal level": float(optimal(own).vid),
    }
    for key in ("energy", "time"):
        values = [getattr(cell, key) for cell in column]
        result[f"{name} {key} over voltage"] = getattr(top, key) / getattr(under, key)
        result[f"{name} {key} at one voltage"] = 100.0 * (max(values) / min(values) - 1.0)
        result[f"{name} {key} over clock"] = getattr(own[-1], key) / getattr(own[0], key)
    result[f"{name} performance over voltage"] = under.time / top.time
    result[f"{name} performance over clock"] = own[0].time / own[-1].time
    return result


def _only_moved(name: str, size: int, run_s: float = 1000.0, at_s: float = 0.0) -> JobSpec:
    return experiment.job(
        name,
        size,
        at_s,
        Mode.MALLEABLE,
        speedup=Speedup(law=(run_s * size, 0.0)),
        limit_s=run_s,
        resize_every_s=5.0,
        resize_price_s=1.0,
    )


_EXAMPLE_POWER = NodePower(100.0, 200.0, 0.0, off_w=10.0, boot_s=20.0, boot_j=3000.0)


def _example_site(hosts: int, cores: int, rising: Sequence[tuple[float, float]] = ()) -> Site:
    nodes = (SharedNode(inf, (Processors(cores),)),) * hosts
    return Site(hosts * cores, (_EXAMPLE_POWER,) * hosts, shared=nodes, levels=tuple(rising))


def _figure_8() -> dict[str, float]:
    """Return the place of the job of four processes after the migration, and idle nodes."""
    four, other = _only_moved("2", 4), _only_moved("1", 4)
    jobs_ = (other, (0, 1, 2, 3)), (four, (4, 5, 8, 9))
    state = experiment.running(_example_site(2, 8), jobs_)
    after = {job.spec.id: job.nodes for job in state.running.values()}
    for resize in Consolidate().migrations(state, state.free, (), None):
        after[resize.job] = resize.nodes
    busy = {node // 8 for nodes in after.values() for node in nodes}
    return {
        "figure 8 processes on node 1": float(sum(node < 8 for node in after[four.id])),
        "figure 8 idle nodes": float(2 - len(busy)),
    }


def _host(at: int, free: int, used: int, clock: float = 1.0, *, movable: bool = True) -> Host:
    return Host(at, [Node(10 * at + n) for n in range(free)], used, clock, movable=movable)


def _pairs(*hosts: Host) -> list[tuple[int, int]]:
    """Return the migrations of figure 9 as (source, destination)."""
    pairs = []
    for source, destination in migrations(hosts):
        pairs.append((source.at, destination.at))
        destination.free = destination.free[source.used :]
        destination.used += source.used
        source.used = 0
    return pairs


def _figure_9() -> dict[str, float]:
    """Return the nodes that figure 9 empties, numbered from 1 (its text has no example)."""
    first = _pairs(_host(1, 0, 6), _host(2, 2, 4), _host(3, 4, 2), _host(4, 5, 1))
    chain = _pairs(_host(1, 3, 3), _host(2, 4, 2), _host(3, 5, 1))
    return {
        "figure 9 source": float(first[0][0]),
        "figure 9 full nodes": float(sum(1 in pair for pair in first)),
        "figure 9 emptied": float(len({source for source, _ in chain})),
        "figure 9 without room": float(len(_pairs(_host(1, 1, 5), _host(2, 2, 4)))),
    }


def _figure_10() -> dict[str, float]:
    """Return the pairs that figure 10 selects, and the clock of a node that takes a faster job."""

    def pair(bottom: Host, *others: Host) -> tuple[float, float]:
        selected = feasible(bottom, others)
        return (0.0, 0.0) if selected is None else (float(selected[0].at), float(selected[1].at))

    near, far, full = _host(1, 2, 4, 0.7), _host(2, 3, 3, 1.0), _host(3, 1, 5, 0.6)
    back = pair(_host(4, 4, 2, 0.6, movable=False), full, _host(1, 1, 4, 0.9))
    rising = ((1.0, 0.5), (2.0, 1.0))
    points = tuple(pet({"arithmetic": 0.5, "cores_w": 1.0, "memory_w": 1.0}, rising))
    slow, fast = (structs.replace(_only_moved(name, 1), operating_points=points) for name in "12")
    state = experiment.running(_example_site(1, 2, rising), ((slow, (0,)), (fast, (1,))))
    for name, clock in (("1", 0.5), ("2", 1.0)):
        state.running[JobId(name)].requested_frequencies = (clock,)
    set_clocks(state)
    shares = [min(job.frequencies, default=1.0) for job in state.running.values()]
    return {
        "figure 10 best match": pair(_host(4, 4, 2, 0.6), far, near, full)[1],
        "figure 10 without the match": pair(_host(4, 4, 2, 0.6), full, far)[1],
        "figure 10 other way": back[0],
        "figure 10 nowhere": pair(_host(4, 4, 2, 0.6, movable=False), full)[1],
        "figure 10 raised clock": min(shares) * rising[-1][0],
    }


def _figure_11(model: NodePower) -> dict[str, float]:
    """Return the gap from which a node of the study is switched off (s), and by its formula.

    The formula has no power of a node that is off, which :meth:`NodePower.off_pays` counts.
    """
    low, high = 0.0, 1e6
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if model.off_pays(middle) else (middle, high)
    return {
        "figure 11 gap over formula": high / max(model.boot_s, model.boot_j / model.idle_w),
        "figure 11 nothing scheduled": float(model.off_pays(inf)),
        "figure 11 shorter than a boot": float(model.off_pays(0.99 * model.boot_s)),
    }


def _figure_12() -> dict[str, float]:
    """Return the times of switches and migrations in an example on two nodes of four cores.

    Job 2 ends at 50 s: job 3 moves to the first node, the second goes off until job 4 comes at
    400 s. A migration takes 1 s, a boot 20 s.
    """
    specs = [
        _only_moved("1", 3),
        _only_moved("2", 1, 50.0),
        _only_moved("3", 1),
        _only_moved("4", 4, 50.0, 400.0),
    ]
    made = adjusted(
        named("easy"), placement={"part": "consolidate"}, node_power={"part": "off-when-idle"}
    )
    simulation = Simulation(specs, _example_site(2, 4), made, record=True)
    simulation.run()
    switched = [
        (at_s, type(decision))
        for at_s, decision in simulation.decisions
        if at_s >= 50.0 and isinstance(decision, PowerOff | PowerOn | Resize)
    ]
    first = {kind: at_s for at_s, kind in reversed(switched)}
    start_s = simulation.engine.state.ended[JobId("4")].start_s or 0.0
    return {
        "figure 12 migration": first[Resize],
        "figure 12 off": first[PowerOff],
        "figure 12 on": first[PowerOn],
        "figure 12 start": start_s,
    }


# --- What the algorithm brings --------------------------------------------------------------------


def compared(
    without: Sequence[StreamOutcome], outcomes: Sequence[StreamOutcome]
) -> dict[str, float]:
    """Return the differences of all streams from those without, in per cent, and the counts.

    ``saved_low_pct`` and ``saved_high_pct`` are the least and the most that one stream saves.
    """

    def total(streams: Sequence[StreamOutcome], key: str) -> float:
        return float(sum(getattr(stream, key) for stream in streams))

    def longer_pct(key: str) -> float:
        return 100.0 * (total(outcomes, key) / total(without, key) - 1.0)

    saved = [
        100.0 * (1.0 - own.energy_j / old.energy_j)
        for old, own in zip(without, outcomes, strict=True)
    ]
    return {
        "saved_pct": -longer_pct("energy_j"),
        "longer_pct": longer_pct("run_s"),
        "makespan_pct": longer_pct("makespan_s"),
        "turnaround_pct": longer_pct("turnaround_s"),
        "saved_low_pct": min(saved),
        "saved_high_pct": max(saved),
        "moves": total(outcomes, "moves"),
        "boots": total(outcomes, "boots"),
    }


def _best(data: Data, name: str) -> dict[str, float]:
    """Return the point of least energy of a full node for a program, and its costs."""
    cells = matrix(data, data["programs"][name])
    best, lower = optimal(own_voltages(data, cells)), optimal(cells)
    return {
        "ghz": best.ghz,
        "vid": best.vid,
        "time_pct": 100.0 * (best.time - 1.0),
        "energy_pct": 100.0 * (best.energy - 1.0),
        "undervolted_ghz": lower.ghz,
        "undervolted_vid": lower.vid,
        "undervolted_time_pct": 100.0 * (lower.time - 1.0),
        "undervolted_energy_pct": 100.0 * (lower.energy - 1.0),
    }


def _must_hold(
    ways: Mapping[str, Mapping[str, float]], tried: Sequence[Mapping[str, float]]
) -> list[str]:
    wrong = []
    parts = "hosts off when idle", "hosts off, jobs moved", "the algorithm"
    for part, name in pairwise(parts):
        if ways[name]["saved_pct"] < ways[part]["saved_pct"]:
            wrong.append(f"{name}: expected to save more than {part}")
    if min(row["saved_pct"] for row in tried) <= 0.0:
        wrong.append("expected the algorithm to save energy under each assumption")
    return wrong


def _table(title: str, rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    cells = [
        [
            name,
            *(f"{row[key]:+.1f} %" if key in row else "-" for key in COLUMNS),
            f"{row['saved_low_pct']:.1f} to {row['saved_high_pct']:.1f} %"
            if "saved_low_pct" in row
            else "-",
            *(f"{row[key]:.0f}" if key in row else "-" for key in ("moves", "boots")),
        ]
        for name, row in rows.items()
    ]
    return columns((title, *HEADS, "saved, of one stream", "moves", "boots"), cells)


def _points(points: Mapping[str, Mapping[str, float]]) -> list[str]:
    rows = [{"name": name, **point} for name, point in points.items()]
    columns_ = [("", "{name}")]
    for title, of in (("", ""), (", any VID", "undervolted_")):
        columns_ += [
            ("GHz" + title, f"{{{of}ghz:.3f}}"),
            ("VID" + title, f"{{{of}vid:.0f}}"),
            ("time" + title, f"{{{of}time_pct:+.1f}} %"),
            ("energy" + title, f"{{{of}energy_pct:+.1f}} %"),
        ]
    return tabulate(rows, *columns_)


def _print_matrix(data: Data) -> list[str]:
    """Return the energies of figures 2 and 5 as the model has them."""
    lines = []
    for name in ("linpack", "stream"):
        cells = matrix(data, data["programs"][name])
        vids = sorted({cell.vid for cell in cells})
        energies = {(cell.ghz, cell.vid): cell.energy for cell in cells}
        rows = [
            [
                f"{ghz:.3f} GHz",
                *(f"{energies[ghz, vid]:.3f}" if (ghz, vid) in energies else "-" for vid in vids),
            ]
            for ghz, _ in data["levels"]
        ]
        lines += ["", *columns((f"energy of {name}, VID", *map(str, vids)), rows)]
    ghz, vid = data["levels"][-1]
    return [*experiment.texts(data, "matrix", ghz=ghz, vid=vid), *lines]


def _draw(
    folder: Path, data: Data, curves: Mapping[str, Mapping[float, Mapping[str, float]]]
) -> None:
    """Draw figure 13 (power over time), figures 2 and 5 (energy over frequency), and the curve."""
    power = {}
    for name, way in (("without", WITHOUT), ("with", WITH)):
        drawn = run(data, way, Unstated(), 1).power
        times = [at_s / 3600.0 for at_s, _ in drawn for _ in (0, 1)][1:]
        power[name] = times, [watts for _, watts in drawn for _ in (0, 1)][:-1]
    draw_panels([Panel("power (W)", power, "h")], folder / "figure-13.png", "Stream 1", 1)
    energy = {}
    for name in ("linpack", "stream"):
        cells = own_voltages(data, matrix(data, data["programs"][name]))
        energy[name] = [cell.ghz for cell in cells], [cell.energy for cell in cells]
    panel = Panel("energy over that at the highest", energy, "GHz")
    draw_panels([panel], folder / "figures-2-and-5.png", "Operating points", 1)
    saved = {
        name: (
            [row["longer_pct"] for row in curve.values()],
            [row["saved_pct"] for row in curve.values()],
        )
        for name, curve in curves.items()
    }
    panel = Panel("energy saved (%)", saved, "run times longer (%)")
    draw_panels([panel], folder / "curve.png", "As the bound of the slowdown varies", 1)
