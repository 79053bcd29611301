"""``rms reproduce iserte-rojek``: what Iserte & Rojek state, and what comes out here.

Nine MPDATA jobs in four modes on two clusters (tables 3 and 4), under ``array-share-paper``, a
model of the paper's system that was fitted to the times of these tables, and under
``array-share``. Run times and powers of a job (tables 1 and 2) are inputs of all simulations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower, Site, Speedup
from rms.core.model.speedup import fit_law
from rms.core.policies import adjusted, named
from rms.core.policies.policy import Ticks
from rms.sim.run import Recording, record
from rms.studies import statements
from rms.studies.iserte_rojek_fit import CLUSTERS, MODEL, Data, cross, jobs, printed, published, row
from rms.wire.terminal import columns

DATA = Path(__file__).parent / "data"
OURS = "array-share"
ARITHMETIC = "arithmetic on tables 1 and 2"
"""Note of the statements to which no simulation contributes."""


def iserte_rojek(figures: Path | None) -> tuple[dict[str, Any], list[str], bool]:
    """Run the study.

    Args:
        figures: folder for its figures, or None.

    Returns:
        Its JSON, its lines, and whether every statement has its recorded status.
    """
    data = read()
    theirs = {(c, m): _run(data, c, m, MODEL, data["model"]) for c in CLUSTERS for m in Mode}
    ours = {(c, m): _run(data, c, m, OURS, data["array_share"]) for c in CLUSTERS for m in Mode}
    values = computed(data, theirs)
    compared, wrong = statements.compare(statements.statements("iserte-rojek"), values)
    modes, weights, points = _modes(data, ours), _weights(data), _sensitivity(data)
    powers, fits = _billed(data, theirs), cross(data)
    result = {
        "experiment": "iserte-rojek",
        "rows": _rows(data, theirs),
        "statements": compared,
        "values": values,
        "modes": modes,
        "powers": powers,
        "fits": fits,
        "array_share": weights,
        "sensitivity": points,
        "wrong": wrong,
    }
    lines = [*statements.table(compared), "", _arithmetic(compared), *wrong]
    for part in (
        _print_modes(modes),
        _print_billed(powers),
        printed(fits),
        _print_sensitivity(points, data["model"]["resize_every_s"]),
        _print_weights(weights),
    ):
        lines += ["", *part]
    if figures is not None:
        draw(data, {MODEL: theirs, OURS: ours}, figures)
        lines += ["", f"figures in {figures}"]
    return result, lines, not wrong


def _rows(data: Data, runs: Mapping[tuple[str, Mode], Recording]) -> list[dict[str, Any]]:
    """Return tables 3 and 4 beside the model of the paper's system."""
    found = []
    for (cluster, mode), run in runs.items():
        ours = row(run)
        values = {
            column: statements.column_of(paper, ours[column])
            for column, paper in published(data, cluster, mode).items()
        }
        found.append({"case": cluster, "mode": str(mode), "values": values})
    return found


def _arithmetic(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the sentence on the statements that compare tables 1 and 2 with themselves."""
    met = [entry for entry in rows if entry["status"] == "met"]
    number = sum(entry.get("note") == ARITHMETIC for entry in met)
    return f"{number} of the {len(met)} that are met are {ARITHMETIC}, without a simulation"


def read() -> Data:
    """Return tables 1 to 4 and the settings of the study."""
    data: dict[str, Any] = msgspec.toml.decode((DATA / "iserte_rojek.toml").read_bytes())
    return data


def _run(
    data: Data, cluster: str, mode: Mode, policy: str, resize: Mapping[str, float], **sizing: Any
) -> Recording:
    specs, site = jobs(data, cluster, mode, resize["resize_every_s"], resize["resize_price_s"])
    made = adjusted(named(policy), sizing=sizing) if sizing else named(policy)
    return record(specs, site, made)


# ---------------------------------------------------------------------------------------------
# The values of the statements


def computed(data: Data, runs: Mapping[tuple[str, Mode], Recording]) -> dict[str, float]:
    """Return the values of all statements by key.

    Args:
        runs: the nine jobs under the model of the paper's system, by cluster and mode.
    """
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
            **_ratios({mode: row(runs[cluster, mode]) for mode in Mode}),
        }
        result |= {f"{cluster} {name}": value for name, value in named_values.items()}
    price_s = data["model"]["resize_price_s"]
    result["resize overhead"] = max(
        100.0
        * price_s
        * result[f"{cluster} {mode} resizes"]
        / result[f"{cluster} {mode} job seconds"]
        for cluster in CLUSTERS
        for mode in Mode
    )
    for column in ("time_s", "cluster_kj"):
        result[f"largest factor {column}"] = max(
            result[f"{cluster} fixed/flexible {column}"] for cluster in CLUSTERS
        )
    result["m2090/k80 time at 1"] = result["m2090 time at 1"] / result["k80 time at 1"]
    result["m2090/k80 time at 16"] = result["m2090 time at 16"] / result["k80 time at 16"]
    passes = named(MODEL).passes
    assert isinstance(passes, Ticks)
    result["pass every"] = passes.every_s
    speedups = (result[f"{cluster} speedup at 16"] for cluster in ("k80", "m2090"))
    result["k80/m2090 speedup at 16"] = next(speedups) / next(speedups)
    return result


def scaling(speedup: Speedup) -> dict[str, float]:
    """Return the columns of table 1 or 2, and what section 3 assumes of them.

    Args:
        speedup: time (s) and power (W a node) at each size, as the simulation has them.

    Returns:
        By size: time (s), power (W), energy a node and of all nodes (kJ), speedup t1/tn. Of
        successive sizes, which double: extremes of the ratios of efficiency, power, time and
        energy, the second over the first. Largest deviations (per cent) of times and powers from
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
    """Return slope and intercept of the line of least squares."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return slope, mean_y - slope * mean_x


def _deviation(ours: Iterable[float], theirs: Iterable[float]) -> float:
    return max(100.0 * abs(a / b - 1.0) for a, b in zip(ours, theirs, strict=True))


def intervals(run: Recording) -> list[tuple[float, float, dict[str, int]]]:
    """Return between which times (s) which jobs held how many nodes."""
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
    """Return how the nodes were shared: jobs at once, their sizes then, shrinks, resizes."""
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
        **row(run),
    }


def _ratios(rows: Mapping[Mode, Mapping[str, float]]) -> dict[str, float]:
    """Return the ratios of times and of cluster energies of two modes."""
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
    """Return what section 3's example gives: three jobs on six nodes (figures 4 to 6).

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
            JobSpec(JobId(str(n)), 0.0, 1, sizes[-1], sizes[-1], mode, speedup, array="example")
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


# ---------------------------------------------------------------------------------------------
# The other tables of the output


def _modes(data: Data, runs: Mapping[tuple[str, Mode], Recording]) -> list[dict[str, Any]]:
    """Return the four modes under ``array-share``, and resizes by a factor of two only."""
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
        **row(run),
        "resizes": run.resizes,
        "largest_step": held["largest step"],
        "owned_kj": run.owned_j / 1e3,
    }


def _print_modes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    heads = ["  cluster", "mode", "resizes to", "time s", "busy kJ", "idle kJ", "cluster kJ"]
    heads += ["allocation", "resizes"]
    cells = [
        [
            f"  {entry['case']}",
            entry["mode"],
            entry["sizes"],
            f"{entry['time_s']:,.0f}",
            f"{entry['busy_kj']:,.0f}",
            f"{entry['idle_kj']:,.0f}",
            f"{entry['cluster_kj']:,.0f}",
            f"{entry['allocation_pct']:.1f} %",
            str(entry["resizes"]),
        ]
        for entry in rows
    ]
    lines = ["The nine jobs in four modes under array-share, simulated", *columns(heads, cells)]
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
    """Return the power of a busy node that follows from each row of tables 3 and 4.

    Busy node-seconds follow twice from a row: from its allocation, and as the rest of all
    node-seconds after those that its idle energy means. Beside them those of the model.
    """
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
    heads = ["  cluster", "mode", "allocation", "node-s", "W", "idle E as", "W", "nearest W"]
    heads += ["idle E", "allocation as", "model node-s", "model W"]
    cells = [
        [
            f"  {entry['case']}",
            entry["mode"],
            f"{entry['allocation_pct']:.2f} %",
            f"{entry['by_allocation_node_s']:,.0f}",
            f"{entry['by_allocation_w']:.1f}",
            f"{entry['by_idle_pct']:.2f} %",
            f"{entry['by_idle_w']:.1f}",
            f"{entry['nearest_w']:.1f} ({_nodes(entry['nearest_size'])})",
            f"{entry['idle_kj']:,.0f} kJ",
            f"{entry['by_allocation_idle_kj']:,.0f} kJ",
            f"{entry['model_node_s']:,.0f}",
            f"{entry['model_w']:.1f}",
        ]
        for entry in rows
    ]
    lines = [
        "The power of a busy node that tables 3 and 4 imply: busy energy over busy node-seconds,",
        "which follow from the allocation, and again from the idle energy",
        *columns(heads, cells),
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
    """Return array-share on flexible jobs, as time and energy are weighed and resizes priced."""
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
    """Return the times of the fitted model against the interval of resize points."""
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


# ---------------------------------------------------------------------------------------------
# Figures


def draw(
    data: Data, runs: Mapping[str, Mapping[tuple[str, Mode], Recording]], folder: Path
) -> None:
    """Draw the cluster's power and nodes in four modes, and mean powers of one job by size.

    The paper's figures 9 and 10 are measured power profiles of one job; without its GPUs only the
    means of tables 1 and 2 can be drawn, as a constant over the run time of each size.
    """
    from rms.plots import History, Panel, draw_panels, gantt, power_over_time

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
    """Return, for each size, a constant power (W) over the run time (s), and 0 afterwards.

    Args:
        whole: of all nodes of the job, not of one.
    """
    figures = data[cluster]
    rows = zip(figures["nodes"], figures["time_s"], figures["power_w_per_node"], strict=True)
    return {
        _nodes(n): ([0.0, time_s, time_s], [watts, watts, 0.0])
        for n, time_s, mean_w in rows
        for watts in [mean_w * (n if whole else 1)]
    }
