"""``rms reproduce iserte-rojek``: statements of Iserte & Rojek, and the simulated values.

Nine MPDATA jobs in four modes on two clusters (tables 3 and 4), under ``array-share-paper``, a
model of the paper's system that was fitted to the times of these tables, and under
``array-share``. Run times and powers of a job (tables 1 and 2) are inputs of all simulations.

The paper states the 10 s between two scheduling passes (section 5.1). The rest of the model was
chosen so that it comes close to tables 3 and 4: a job starts at the largest power of two that fits,
gives nodes away at a resize point while others wait, and is never expanded, although the paper
describes expanding. So its times prove nothing. :func:`cross` fits the settings of a grid to the
four times of one cluster; all other times and energies are then predictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise, product
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import msgspec

from rms.core.model.events import Reason, Resize
from rms.core.model.jobs import Job, JobSpec, Mode, NodePower, Site, Speedup
from rms.core.model.speedup import fit_law
from rms.core.policies import Policy, adjusted, named
from rms.core.policies.placement import Room, Sizing
from rms.core.policies.policy import Ticks
from rms.core.state import State
from rms.plots import History, Panel, draw_panels, gantt, power_over_time
from rms.sim.run import Recording, record
from rms.sim.simulator import Simulation
from rms.studies import experiment
from rms.studies.experiment import Data, Result, StudyReport, tabulate
from rms.wire.terminal import columns

COLUMNS = ("time_s", "busy_kj", "idle_kj", "cluster_kj", "allocation_pct")
CLUSTERS = ("m2090", "k80")
MODEL = "array-share-paper"
OURS = "array-share"
ARITHMETIC = "arithmetic on tables 1 and 2"
"""Note of the statements to which no simulation contributes."""


# --- The paper's system: the sizing of policy array-share-paper -----------------------------------


class PaperShare(Sizing, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs start large and are shrunk at resize points while others wait.

    Attributes:
        flexible: the size to which a flexible job is shrunk while others wait. ``share``: the
            largest power of two up to the cluster's nodes over running and waiting jobs; ``half``:
            half its size; ``least``: its smallest size.
        malleable: the same for a malleable job. ``another``: its smallest size, but only where
            that lets another job start at its largest size; ``never``: it keeps its size.
        expand: a job is expanded to twice its size at a resize point where no job waits and so
            many nodes are free.
    """

    flexible: Literal["share", "half", "least"] = "share"
    malleable: Literal["another", "share", "half", "least", "never"] = "another"
    expand: bool = False

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> PaperPlan:
        """Return the plan of a pass."""
        return PaperPlan(self)


class PaperPlan:
    """Sizes of one pass."""

    __slots__ = ("_rules",)

    def __init__(self, rules: PaperShare) -> None:
        self._rules = rules

    def start(self, job: Job, free: int) -> int:
        """Return the preferred size, or the largest power of two that fits."""
        if not job.spec.mode.any_start:
            return job.spec.preferred
        fitting = [n for n in _powers(job) if n <= free]
        return fitting[-1] if fitting else job.least

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return the resizes of the jobs that are at a resize point."""
        resizes = []
        for job in state.reached_resize_point:
            if not job.resizable_now:
                continue
            size = self._smaller(state, job) if state.pending else self._larger(job, room)
            if size != job.size and size not in job.refused_sizes:
                nodes = room.resize(job, size)
                count = 0 if nodes else size
                text, code = "makes room for waiting jobs", Reason.MAKES_ROOM
                if size > job.size:
                    text, code = "takes idle nodes", Reason.IDLE_NODES
                resizes.append(Resize(job.spec.id, nodes, text, code, count))
        return resizes

    def _smaller(self, state: State, job: Job) -> int:
        """Return the size to which a job is shrunk while others wait, or its present one."""
        least, largest = job.spec.sizes()[0], job.spec.nodes_max
        rule: str = self._rules.flexible if job.spec.mode.any_start else self._rules.malleable
        if rule == "another":
            enough = state.free_count < largest <= state.free_count + job.size - least
            rule = "least" if enough else "never"
        if rule == "never":
            return job.size
        if rule == "least":
            return least
        share = state.nodes // (len(state.running) + len(state.pending))
        most = share if rule == "share" else job.size // 2
        return min(job.size, max([n for n in _powers(job) if n <= most], default=least))

    def _larger(self, job: Job, room: Room) -> int:
        """Return twice the size of a job where that many nodes are left, or its present size."""
        wider = 2 * job.size
        fits = self._rules.expand and job.size <= room.free
        return wider if fits and wider in job.spec.sizes() else job.size


def _powers(job: Job) -> list[int]:
    return [n for n in job.spec.sizes() if n & (n - 1) == 0]


# --- The study ------------------------------------------------------------------------------------


def iserte_rojek(figures: Path | None) -> Result:
    """Run the study; draw its figures in a folder, if there is one."""
    data = experiment.settings("iserte-rojek")
    theirs = {(c, m): _run(data, c, m, MODEL, data["model"]) for c in CLUSTERS for m in Mode}
    ours = {(c, m): _run(data, c, m, OURS, data["array_share"]) for c in CLUSTERS for m in Mode}
    values = computed(data, theirs)
    report = StudyReport("iserte-rojek", values)
    modes, weights, points = _modes(data, ours), _weights(data), _sensitivity(data)
    powers, fits = _billed(data, theirs), cross(data)
    result = {
        "rows": [
            experiment.row(cluster, str(mode), columns_of(run), published(data, cluster, mode))
            for (cluster, mode), run in theirs.items()
        ],
        "values": values,
        "modes": modes,
        "powers": powers,
        "fits": fits,
        "array_share": weights,
        "sensitivity": points,
    }
    parts = (
        _print_modes(modes),
        _print_billed(powers),
        _print_fits(fits),
        _print_sensitivity(points, data["model"]["resize_every_s"]),
        _print_weights(weights),
    )
    met = [entry for entry in report.rows if entry["status"] == "met"]
    number = sum(entry.get("note") == ARITHMETIC for entry in met)
    text = f"{number} of the {len(met)} that are met are {ARITHMETIC}, without a simulation"

    def draw_all(folder: Path) -> None:
        draw(data, {MODEL: theirs, OURS: ours}, folder)

    return report.result(result, parts, draw_all, figures, ["", text])


def _run(
    data: Data, cluster: str, mode: Mode, policy: str, resize: Mapping[str, float], **sizing: Any
) -> Recording:
    specs, site = jobs(data, cluster, mode, resize["resize_every_s"], resize["resize_price_s"])
    made = adjusted(named(policy), sizing=sizing) if sizing else named(policy)
    return record(specs, site, made)


def jobs(
    data: Data, cluster: str, mode: Mode, every_s: float, price_s: float
) -> tuple[list[JobSpec], Site]:
    """Return the nine jobs with their interval and price of resizes (s), and their cluster."""
    figures = data[cluster]
    sizes = tuple(figures["nodes"])
    speedup = Speedup(sizes, tuple(figures["time_s"]), tuple(figures["power_w_per_node"]))
    resize = {"resize_every_s": every_s, "resize_price_s": price_s}
    specs = [
        experiment.job(number, sizes[-1], 0.0, mode, 1, speedup=speedup, array="mpdata", **resize)
        for number in range(1, data["jobs"] + 1)
    ]
    nodes = figures["cluster_nodes"]
    return specs, Site(nodes, (NodePower(idle_w=figures["idle_w"]),) * nodes)


def columns_of(run: Recording) -> dict[str, float]:
    """Return the columns of tables 3 and 4 (s, kJ, kJ, kJ, per cent)."""
    return {
        "time_s": run.time_s,
        "busy_kj": run.busy_j / 1e3,
        "idle_kj": run.idle_j / 1e3,
        "cluster_kj": run.cluster_j / 1e3,
        "allocation_pct": 100.0 * run.busy_node_s / (len(run.timeline.names) * run.time_s),
    }


def published(data: Data, cluster: str, mode: Mode) -> dict[str, float]:
    """Return a row of table 3 or 4."""
    return dict(zip(COLUMNS, data[cluster]["published"][mode], strict=True))


# --- Values of the statements ---------------------------------------------------------------------


def computed(data: Data, runs: Mapping[tuple[str, Mode], Recording]) -> dict[str, float]:
    """Return the values of all statements by key, from runs by cluster and mode."""
    result = _example(data["example"])
    for cluster in CLUSTERS:
        specs, site = jobs(data, cluster, Mode.FLEXIBLE, 0.0, 0.0)
        speedup = specs[0].speedup
        assert speedup is not None
        named_values = {
            **scaling(speedup),
            "jobs": float(len(specs)),
            "cluster nodes": float(site.nodes),
            **{
                f"{mode} {name}": value
                for mode in Mode
                for name, value in _held(runs[cluster, mode]).items()
            },
            **_ratios({mode: columns_of(runs[cluster, mode]) for mode in Mode}),
        }
        result |= {f"{cluster} {name}": value for name, value in named_values.items()}
    price_s = data["model"]["resize_price_s"]
    result["resize overhead"] = max(
        100.0 * price_s * result[f"{of} resizes"] / result[f"{of} job seconds"]
        for of in (f"{cluster} {mode}" for cluster in CLUSTERS for mode in Mode)
    )
    for column in ("time_s", "cluster_kj"):
        result[f"largest factor {column}"] = max(
            result[f"{cluster} fixed/flexible {column}"] for cluster in CLUSTERS
        )
    for size in (1, 16):
        name = f"time at {size}"
        result[f"m2090/k80 {name}"] = result[f"m2090 {name}"] / result[f"k80 {name}"]
    passes = named(MODEL).passes
    assert isinstance(passes, Ticks)
    result["pass every"] = passes.every_s
    result["k80/m2090 speedup at 16"] = result["k80 speedup at 16"] / result["m2090 speedup at 16"]
    return result


def scaling(speedup: Speedup) -> dict[str, float]:
    """Return the columns of table 1 or 2, and the assumptions of section 3 on them.

    By size: time (s), power (W), energy a node and of all nodes (kJ), speedup t1/tn. Of
    successive sizes, which double: extremes of the ratios of efficiency, power, time and energy,
    the second over the first. Largest deviations (per cent) of times and powers from
    t(n) = tc + t1 / n and from P(n) = Ps + Pd Eff(n), both fitted by least squares.
    """
    sizes, result = speedup.nodes, dict[str, float]()
    energy, factors = [], []
    for n, time_s, watts in zip(sizes, speedup.time_s, speedup.power_w_per_node, strict=True):
        energy.append(n * time_s * watts / 1e3)
        factors.append(speedup.time(1) / time_s)
        result[f"time at {n}"], result[f"power at {n}"] = time_s, watts
        result[f"energy a node at {n}"] = time_s * watts / 1e3
        result[f"energy at {n}"], result[f"speedup at {n}"] = energy[-1], factors[-1]
    efficiency = [speedup.efficiency(n) for n in sizes]
    result["largest efficiency"] = max(efficiency)
    result["least n Eff(n)"] = min(n * entry for n, entry in zip(sizes, efficiency, strict=True))
    for name, values in (
        ("efficiency", efficiency),
        ("power", speedup.power_w_per_node),
        ("time", speedup.time_s),
        ("energy", energy),
    ):
        ratios = [second / first for first, second in pairwise(values)]
        result[f"least ratio of {name}"] = min(ratios)
        result[f"largest ratio of {name}"] = max(ratios)
    result["size of least time"] = float(sizes[speedup.time_s.index(min(speedup.time_s))])
    result["size of least energy"] = float(sizes[energy.index(min(energy))])
    result["size of largest efficiency"] = float(sizes[efficiency.index(max(efficiency))])
    result["largest energy ratio"] = energy[-1] / energy[0]
    result["largest speedup"] = factors[-1]
    result["power ratio"] = speedup.power_w_per_node[0] / speedup.power_w_per_node[-1]
    t1_s, tc_s = fit_law(sizes, speedup.time_s)
    law = [tc_s + t1_s / n for n in sizes]
    result["deviation of times"] = _deviation(law, speedup.time_s)
    slope, static_w = _line(efficiency, speedup.power_w_per_node)
    powers = [static_w + slope * entry for entry in efficiency]
    result["deviation of powers"] = _deviation(powers, speedup.power_w_per_node)
    return result


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return slope, mean_y - slope * mean_x


def _deviation(ours: Iterable[float], theirs: Iterable[float]) -> float:
    return max(100.0 * abs(a / b - 1.0) for a, b in zip(ours, theirs, strict=True))


def intervals(run: Recording) -> list[tuple[float, float, dict[str, int]]]:
    """Return begin and end (s) of the intervals, and the number of nodes by job in them."""
    spans = [(span.start_s, span.end_s or run.time_s, span.job) for span in run.timeline.spans]
    times = sorted({at for start_s, end_s, _ in spans for at in (start_s, end_s)})
    result = []
    for start_s, end_s in pairwise(times):
        held: dict[str, int] = {}
        for begun_s, over_s, job in spans:
            if begun_s <= start_s and end_s <= over_s:
                held[job] = held.get(job, 0) + 1
        result.append((start_s, end_s, held))
    return result


def _held(run: Recording) -> dict[str, float]:
    """Return values on the shares of nodes: jobs at once, their sizes then, shrinks, resizes."""
    parts = intervals(run)
    most = max(len(held) for _, _, held in parts)
    sizes = [sorted(held.values()) for _, _, held in parts if len(held) == most][-1]
    last: dict[str, int] = {}
    starts, steps, shrunk, expanded = [], [1.0], set[str](), set[str]()
    for _, _, held in parts:
        for job, size in held.items():
            before = last.get(job, size)
            if job not in last:
                starts.append(size)
            if size != before:
                (shrunk if size < before else expanded).add(job)
                steps.append(max(size / before, before / size))
        last |= held
    return {
        "jobs at once": float(most),
        "least size": float(sizes[0]),
        "largest size": float(sizes[-1]),
        "nodes in use": float(sum(sizes)),
        "sizes at the start": float(len(set(starts))),
        "jobs shrunk": float(len(shrunk)),
        "shrinks": float(bool(shrunk)),
        "expands": float(bool(expanded)),
        "resizes": float(run.resizes),
        "is resized": float(run.resizes > 0),
        "largest step": max(steps),
        "job seconds": sum((end_s - start_s) * len(held) for start_s, end_s, held in parts),
        **columns_of(run),
    }


def _ratios(rows: Mapping[Mode, Mapping[str, float]]) -> dict[str, float]:
    result = {
        f"{one}/{other} {column}": rows[one][column] / rows[other][column]
        for one in Mode
        for other in Mode
        if one is not other
        for column in ("time_s", "cluster_kj")
    }
    for column in ("time_s", "cluster_kj"):
        others = [rows[mode][column] for mode in Mode if mode is not Mode.FLEXIBLE]
        result[f"next/flexible {column}"] = min(others) / rows[Mode.FLEXIBLE][column]
    return result


def _example(example: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of the example of section 3: three jobs on six nodes (figures 4 to 6).

    Fixed jobs of four nodes are the traditional scenario, flexible ones the proposed one.
    """
    sizes: list[int] = example["sizes"]
    time_s = [
        example["computation_s"] / n + (example["communication_s"] if n > 1 else 0.0) for n in sizes
    ]
    speedup = Speedup(tuple(sizes), tuple(time_s))
    result: dict[str, float] = {}
    for mode in (Mode.FIXED, Mode.FLEXIBLE):
        specs = [
            experiment.job(n, sizes[-1], 0.0, mode, 1, speedup=speedup, array="example")
            for n in range(1, example["jobs"] + 1)
        ]
        run = record(specs, Site(example["nodes"], (NodePower(),) * example["nodes"]), named(OURS))
        held = _held(run)
        final = {job: size for _, _, held_then in intervals(run) for job, size in held_then.items()}
        result |= {f"example {mode} {name}": held[name] for name in ("jobs at once", "time_s")}
        result[f"example {mode} size"] = held["largest size"]
        result[f"example {mode} idle nodes"] = example["nodes"] - held["nodes in use"]
        # Neighbours of a one-dimensional decomposition.
        result[f"example {mode} transfers"] = float(sum(size - 1 for size in final.values()))
    result["example fixed/flexible time"] = (
        result["example fixed time_s"] / result["example flexible time_s"]
    )
    return result


# --- Other tables of the output -------------------------------------------------------------------


def _modes(data: Data, runs: Mapping[tuple[str, Mode], Recording]) -> list[dict[str, Any]]:
    result = []
    for cluster in CLUSTERS:
        for mode in Mode:
            result.append(_mode(cluster, mode, "any", runs[cluster, mode]))
        for mode in (Mode.MALLEABLE, Mode.FLEXIBLE):
            run = _run(data, cluster, mode, OURS, data["array_share"], sizes="doubling")
            result.append(_mode(cluster, mode, "doubling", run))
    return result


def _mode(cluster: str, mode: Mode, sizes: str, run: Recording) -> dict[str, Any]:
    held = _held(run)
    return {
        "case": cluster,
        "mode": str(mode),
        "sizes": sizes,
        **columns_of(run),
        "resizes": run.resizes,
        "largest_step": held["largest step"],
        "owned_kj": run.owned_j / 1e3,
    }


def _print_modes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["The nine jobs in four modes under array-share, simulated"]
    lines += tabulate(rows, *experiment.form("iserte-rojek", "modes"))
    for cluster in CLUSTERS:
        result = {e["mode"]: e for e in rows if e["case"] == cluster and e["sizes"] == "any"}
        for text, one, other in (
            ("a fitting size at the start (moldable over fixed)", "moldable", "fixed"),
            ("resizing such jobs (flexible over moldable)", "flexible", "moldable"),
            ("resizing jobs of one starting size (malleable over fixed)", "malleable", "fixed"),
        ):
            time_s, joules = (
                100.0 * (result[one][column] / result[other][column] - 1.0)
                for column in ("time_s", "cluster_kj")
            )
            lines.append(f"  {cluster}, {text}: time {time_s:+.1f} %, energy {joules:+.1f} %")
    return lines


def _billed(data: Data, runs: Mapping[tuple[str, Mode], Recording]) -> list[dict[str, Any]]:
    """Return the power of a busy node that follows from the rows of tables 3 and 4, and ours."""
    result = []
    for cluster in CLUSTERS:
        figures = data[cluster]
        powers = dict(zip(figures["nodes"], figures["power_w_per_node"], strict=True))
        for mode in Mode:
            paper, run = published(data, cluster, mode), runs[cluster, mode]
            node_s = figures["cluster_nodes"] * paper["time_s"]
            by_share = paper["allocation_pct"] / 100.0 * node_s
            by_idle = node_s - 1e3 * paper["idle_kj"] / figures["idle_w"]
            watts = 1e3 * paper["busy_kj"] / by_idle
            nearest = min(powers, key=lambda n: abs(powers[n] - watts))
            size = figures["final_nodes"]
            result.append(
                {
                    "case": cluster,
                    "mode": str(mode),
                    "by_allocation_node_s": by_share,
                    "by_allocation_w": 1e3 * paper["busy_kj"] / by_share,
                    "by_idle_node_s": by_idle,
                    "allocation_pct": paper["allocation_pct"],
                    "by_idle_pct": 100.0 * by_idle / node_s,
                    "idle_kj": paper["idle_kj"],
                    "by_allocation_idle_kj": (node_s - by_share) * figures["idle_w"] / 1e3,
                    "by_idle_w": watts,
                    "nearest_size": nearest,
                    "nearest_w": powers[nearest],
                    "model_node_s": run.busy_node_s,
                    "model_w": run.busy_j / run.busy_node_s,
                    "size": size,
                    "size_w": powers[size],
                    "at_size_kj": by_share * powers[size] / 1e3,
                    "at_nearest_kj": by_share * powers[nearest] / 1e3,
                    "paper_kj": paper["busy_kj"],
                    "model_kj": run.busy_j / 1e3,
                }
            )
    return result


def _print_billed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    shown = [{**entry, "nearest": _nodes(entry["nearest_size"])} for entry in rows]
    lines = [
        "The power of a busy node that tables 3 and 4 imply: busy energy over busy node-seconds,",
        "which follow from the allocation, and again from the idle energy",
        *tabulate(shown, *experiment.form("iserte-rojek", "powers")),
    ]
    for entry in rows:
        if entry["mode"] != Mode.FLEXIBLE:
            continue
        node_s, off = entry["by_allocation_node_s"], entry["model_kj"] / entry["paper_kj"] - 1.0
        lines += [
            f"  {entry['case']} flexible, {node_s:,.0f} busy node-s by its allocation:",
            f"    x {entry['size_w']:.1f} W, the power at {_nodes(entry['size'])} (section 5.2): "
            f"{entry['at_size_kj']:,.0f} kJ",
            f"    x {entry['nearest_w']:.1f} W, the power at {_nodes(entry['nearest_size'])}: "
            f"{entry['at_nearest_kj']:,.0f} kJ; published: {entry['paper_kj']:,.0f} kJ",
            f"    the model, at the power of every size it has: {entry['model_kj']:,.0f} kJ "
            f"({100.0 * off:+.1f} %)",
        ]
    return lines


def _nodes(number: int) -> str:
    return f"{number} node" if number == 1 else f"{number} nodes"


def _weights(data: Data) -> list[dict[str, Any]]:
    rows = []
    for cluster in CLUSTERS:
        for energy, price_s in ((0.0, 10.0), (0.0, 0.0), (0.5, 10.0), (1.0, 10.0)):
            resize = {**data["array_share"], "resize_price_s": price_s}
            run = _run(data, cluster, Mode.FLEXIBLE, OURS, resize, energy=energy)
            rows.append(
                {
                    "case": cluster,
                    "energy": energy,
                    "price_s": price_s,
                    "time_s": run.time_s,
                    "cluster_kj": run.cluster_j / 1e3,
                    "resizes": run.resizes,
                }
            )
    return rows


def _print_weights(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        "array-share on flexible jobs: weight on energy, price of a resize",
        *(
            f"  {entry['case']:6s} energy {entry['energy']:3.1f}  price {entry['price_s']:4.0f} s  "
            f"{entry['time_s']:8.1f} s  {entry['cluster_kj']:8.1f} kJ  "
            f"{entry['resizes']:3d} resizes"
            for entry in rows
        ),
    ]


def _sensitivity(data: Data) -> list[dict[str, Any]]:
    rows = []
    for cluster in CLUSTERS:
        for mode in (Mode.MALLEABLE, Mode.FLEXIBLE):
            times = {}
            for every_s in data["model"]["sensitivity_s"]:
                resize = {"resize_every_s": every_s, "resize_price_s": 0.0}
                times[f"{every_s:g}"] = _run(data, cluster, mode, MODEL, resize).time_s
            rows.append({"case": cluster, "mode": str(mode), "time_s": times})
    return rows


def _print_sensitivity(rows: Iterable[Mapping[str, Any]], fitted_s: float) -> list[str]:
    lines = [f"{MODEL} against the interval of resize points (fitted: {fitted_s:g} s)"]
    for entry in rows:
        text = "  ".join(f"{every} s: {time_s:,.0f}" for every, time_s in entry["time_s"].items())
        lines.append(f"  {entry['case']:6s} {entry['mode']:10s} {text}")
    return lines


# --- The model fitted to one cluster --------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Free parameters of the model, the last three as in :class:`PaperShare`.

    ``starts`` is the most starts in one scheduling pass, 0 for any number.
    """

    resize_every_s: float
    resize_price_s: float
    starts: int
    flexible: str
    malleable: str
    expand: bool

    def __str__(self) -> str:
        starts = "any number of starts" if self.starts == 0 else f"{self.starts} start"
        return (
            f"every {self.resize_every_s:g} s, price {self.resize_price_s:g} s, {starts} a pass, "
            f"flexible {self.flexible}, malleable {self.malleable}, "
            f"{'expanded' if self.expand else 'never expanded'}"
        )

    def policy(self) -> Policy:
        """Return the policy."""
        sizing = {"flexible": self.flexible, "malleable": self.malleable, "expand": self.expand}
        admission = {"part": "in-order"} | ({"at_most": self.starts} if self.starts else {})
        return adjusted(named(MODEL), sizing=sizing, admission=admission)


def all_settings(data: Data) -> list[Setting]:
    """Return all settings of the grid."""
    grid = data["grid"]
    names = [field.name for field in fields(Setting)]
    return [Setting(*values) for values in product(*(grid[name] for name in names))]


def shipped(data: Data) -> Setting:
    """Return the setting of ``array-share-paper``, with the interval that was fitted to it."""
    model = data["model"]
    return Setting(model["resize_every_s"], model["resize_price_s"], 1, "share", "another", False)


class Times:
    """Time from the first submission to the last end of the nine jobs, s, by setting.

    The rule for a mode has no effect in another one, so most simulations serve several settings.
    """

    def __init__(self, data: Data) -> None:
        self._data = data
        self._times: dict[tuple[Any, ...], float] = {}

    def __call__(self, setting: Setting, cluster: str, mode: Mode) -> float:
        """Return the time, s."""
        key: tuple[Any, ...] = (cluster, mode, setting.starts)
        if mode.resizable:
            rule = setting.flexible if mode.any_start else setting.malleable
            key = (*key, setting.resize_every_s, setting.resize_price_s, rule, setting.expand)
        if key not in self._times:
            resize = setting.resize_every_s, setting.resize_price_s
            specs, site = jobs(self._data, cluster, mode, *resize)
            run = Simulation(specs, site, setting.policy(), record=False)
            run.run()
            self._times[key] = max(job.end_s or 0.0 for job in run.engine.state.ended.values())
        return self._times[key]

    def error_pct(self, setting: Setting, clusters: Sequence[str]) -> float:
        """Return the root mean square of the deviations from the published times, per cent."""
        off = [
            self(setting, cluster, mode) / published(self._data, cluster, mode)["time_s"] - 1.0
            for cluster in clusters
            for mode in Mode
        ]
        return 100.0 * sqrt(sum(entry**2 for entry in off) / len(off))


def cross(data: Data) -> dict[str, Any]:
    """Fit the model on both clusters, alone and together; predict the values that a fit lacks.

    Twice: with the interval of resize points as the only free parameter, and with all. A fit has
    its setting, the number of others as good, its error on the times that were used, and the
    deviation of all columns, per cent.
    """
    times, whole = Times(data), all_settings(data)
    own = shipped(data)
    intervals = [replace(own, resize_every_s=entry) for entry in data["grid"]["resize_every_s"]]
    fits = []
    alone = [(cluster,) for cluster in CLUSTERS]
    for grid, free, fitted_on in (
        (intervals, "the interval of resize points", alone),
        (whole, "all parameters", [*alone, CLUSTERS]),
    ):
        for used in fitted_on:
            errors = {entry: times.error_pct(entry, used) for entry in grid}
            best = min(errors, key=lambda entry: errors[entry])
            fits.append(
                {
                    "fitted_on": list(used),
                    "free": free,
                    "settings": len(grid),
                    "setting": str(best),
                    "equally_good": sum(e <= errors[best] + 1e-9 for e in errors.values()) - 1,
                    "fit_error_pct": errors[best],
                    "shipped_error_pct": errors[own],
                    "shipped_rank": 1 + sum(e < errors[own] - 1e-9 for e in errors.values()),
                    "rows": list(_deviations(data, best, used)),
                }
            )
    return {"grid": dict(data["grid"]), "fits": fits}


def _deviations(data: Data, setting: Setting, used: Sequence[str]) -> Iterator[dict[str, Any]]:
    for cluster, mode in product(CLUSTERS, Mode):
        specs, site = jobs(data, cluster, mode, setting.resize_every_s, setting.resize_price_s)
        ours = columns_of(record(specs, site, setting.policy()))
        paper = published(data, cluster, mode)
        yield {
            "case": cluster,
            "mode": str(mode),
            "time": "fitted" if cluster in used else "predicted",
            "ours": ours,
            "deviation_pct": {
                name: 100.0 * (value / paper[name] - 1.0) for name, value in ours.items()
            },
        }


def _print_fits(result: Mapping[str, Any]) -> list[str]:
    lines = ["The model fitted to the four times of one cluster, and what it predicts of the other"]
    lines += [
        f"  {name}: {', '.join(str(value) for value in values)}"
        for name, values in result["grid"].items()
    ]
    heads = ("  cluster", "mode", "time is", "s", "time", "busy", "idle", "cluster E", "allocation")
    for fit in result["fits"]:
        lines += [
            "",
            f"  {fit['free']} fitted on {' and '.join(fit['fitted_on'])} ({fit['settings']} "
            f"settings): {fit['setting']}",
            f"  error of the fitted times {fit['fit_error_pct']:.2f} % (root mean square), "
            f"{fit['equally_good']} others as good; array-share-paper as shipped: "
            f"{fit['shipped_error_pct']:.2f} %, rank {fit['shipped_rank']}",
        ]
        cells = []
        for entry in fit["rows"]:
            time_s, off = entry["ours"]["time_s"], entry["deviation_pct"]
            words = [f"  {entry['case']}", entry["mode"], entry["time"], f"{time_s:.0f}"]
            cells.append([*words, *(f"{off[name]:+.1f} %" for name in COLUMNS)])
        lines += columns(heads, cells)
    return lines


def draw(
    data: Data, runs: Mapping[str, Mapping[tuple[str, Mode], Recording]], folder: Path
) -> None:
    """Draw the cluster's power and nodes in four modes, and mean powers of one job by size.

    The paper's figures 9 and 10 are measured power profiles of one job; without its GPUs only the
    means of tables 1 and 2 can be drawn, as a constant over the run time of a size.
    """
    for cluster in CLUSTERS:
        for policy, by_mode in runs.items():
            histories = {
                str(mode): History(
                    run.timeline.names, run.timeline.spans, run.timeline.power_w, run.time_s
                )
                for mode in Mode
                for run in [by_mode[cluster, mode]]
            }
            path = folder / f"cluster-power-{cluster}-{policy}.png"
            power_over_time(histories, path, f"{cluster}, {policy}, simulated")
            for name, history in histories.items():
                path = folder / f"gantt-{cluster}-{policy}-{name}.png"
                gantt(history, path, f"{cluster}, {name}")
        panels = [
            Panel(title, steps(data, cluster, whole=whole), "time (s)")
            for title, whole in (("one GPU (W)", False), ("all GPUs of the job (W)", True))
        ]
        draw_panels(
            panels,
            folder / f"mean-power-by-size-{cluster}.png",
            f"{cluster}: mean power of one job (tables 1, 2), not a measured profile",
        )


def steps(data: Data, cluster: str, *, whole: bool) -> dict[str, tuple[list[float], list[float]]]:
    """Return a constant power (W) of a node, or of the ``whole`` job, over its time, by size."""
    figures = data[cluster]
    rows = zip(figures["nodes"], figures["time_s"], figures["power_w_per_node"], strict=True)
    return {
        _nodes(n): ([0.0, time_s, time_s], [watts, watts, 0.0])
        for n, time_s, mean_w in rows
        for watts in [mean_w * (n if whole else 1)]
    }
