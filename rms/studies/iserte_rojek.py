"""``rms reproduce iserte-rojek``: tables 3 and 4 and figures 9 and 10 of Iserte & Rojek.

Nine jobs in four modes on two clusters,
under ``array-share-paper`` (what their system did, as far as the tables tell) and ``array-share``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rms.core.model import JobId, JobSpec, Mode, NodePower, Site, Speedup
from rms.core.policies import adjusted, named
from rms.sim.recording import Recording, record

DATA = Path(__file__).parent / "data"
COLUMNS = ("time_s", "busy_kj", "idle_kj", "cluster_kj", "allocation_pct")
CLUSTERS = ("m2090", "k80")


def iserte_rojek(figures: Path | None) -> tuple[dict[str, Any], list[str], bool]:
    """Return the JSON of the experiment, its tables, and whether ours agree with the model."""
    data = msgspec.toml.decode((DATA / "iserte_rojek.toml").read_bytes())
    rows, lines, good = [], [], True
    kept: dict[tuple[str, str, str], Recording] = {}
    for table, cluster in ((3, "m2090"), (4, "k80")):
        lines += [
            "",
            f"Table {table}: {cluster}, nine jobs, {data[cluster]['cluster_nodes']} nodes",
        ]
        lines.append(_HEAD)
        for mode in Mode:
            theirs = _run(data, cluster, mode, "array-share-paper", data["model"])
            ours = _run(data, cluster, mode, "array-share", data["array_share"])
            kept[cluster, mode, "array-share-paper"] = theirs
            kept[cluster, mode, "array-share"] = ours
            row, off_s = _row(data, cluster, mode, theirs, ours)
            good = good and off_s <= 1.0
            rows.append(row)
            lines += _printed(row)
    more, extra = _weighed(data)
    sensitivity, swept = _sensitivity(data)
    lines += ["", *extra, "", *swept]
    result = {
        "experiment": "iserte-rojek",
        "rows": rows,
        "array_share": more,
        "sensitivity": sensitivity,
    }
    if figures is not None:
        _draw(kept, figures)
        lines += ["", f"figures in {figures}"]
    return result, lines, good


def _draw(kept: Mapping[tuple[str, str, str], Recording], folder: Path) -> None:
    """Draw power over time (figures 9 and 10) and who held which node when."""
    from rms.plots import History, gantt, power_over_time

    for number, cluster in ((9, "m2090"), (10, "k80")):
        for policy in ("array-share-paper", "array-share"):
            runs = {str(mode): kept[cluster, mode, policy] for mode in Mode}
            histories = {
                name: History(
                    run.timeline.names, run.timeline.spans, run.timeline.power_w, run.time_s
                )
                for name, run in runs.items()
            }
            path = folder / f"figure-{number}-{policy}.png"
            power_over_time(histories, path, f"{cluster}, {policy}")
            for name, history in histories.items():
                path = folder / f"gantt-{cluster}-{policy}-{name}.png"
                gantt(history, path, f"{cluster}, {name}")


def jobs(
    data: Mapping[str, Any], cluster: str, mode: Mode, every_s: float, price_s: float
) -> tuple[list[JobSpec], Site]:
    """Return the nine jobs and their cluster."""
    figures = data[cluster]
    sizes = tuple(figures["nodes"])
    speedup = Speedup(sizes, tuple(figures["time_s"]), tuple(figures["power_w_per_node"]))
    specs = [
        JobSpec(
            JobId(str(number)),
            0.0,
            1,
            sizes[-1],
            sizes[-1],
            mode,
            speedup,
            resize_every_s=every_s,
            resize_price_s=price_s,
            array="mpdata",
        )
        for number in range(1, 10)
    ]
    nodes = figures["cluster_nodes"]
    return specs, Site(nodes, (NodePower(idle_w=figures["idle_w"]),) * nodes)


def _run(
    data: Mapping[str, Any],
    cluster: str,
    mode: Mode,
    policy: str,
    resize: Mapping[str, float],
    **sizing: Any,
) -> Recording:
    specs, site = jobs(data, cluster, mode, resize["resize_every_s"], resize["resize_price_s"])
    made = adjusted(named(policy), sizing=sizing) if sizing else named(policy)
    return record(specs, site, made)


def _row(
    data: Mapping[str, Any], cluster: str, mode: Mode, theirs: Recording, ours: Recording
) -> tuple[dict[str, Any], float]:
    published = dict(zip(COLUMNS, data[cluster]["published"][mode], strict=True))
    notes = data[cluster]["notes"]
    model, better = _columns(theirs, data), _columns(ours, data)
    one_power = theirs.busy_node_s * data[cluster]["one_power_w"][mode] / 1e3
    model["busy_one_power_kj"] = one_power
    model["cluster_one_power_kj"] = one_power + model["idle_kj"]
    published["busy_one_power_kj"] = published["busy_kj"]
    published["cluster_one_power_kj"] = published["cluster_kj"]
    values = {
        column: {
            "paper": paper,
            "ours": model[column],
            "deviation_pct": 100.0 * (model[column] - paper) / paper,
            "note": notes.get(f"{mode}_{column}", ""),
            "array_share": better.get(column),
        }
        for column, paper in published.items()
    }
    expected = data["model"]["time_s"][cluster][mode]
    off_s = abs(model["time_s"] - expected)
    row = {"case": cluster, "mode": str(mode), "model_time_s": expected, "values": values}
    return row, off_s


def _columns(run: Recording, data: Mapping[str, Any]) -> dict[str, float]:
    return {
        "time_s": run.time_s,
        "busy_kj": run.busy_j / 1e3,
        "idle_kj": run.idle_j / 1e3,
        "cluster_kj": run.cluster_j / 1e3,
        "allocation_pct": 100.0 * run.busy_node_s / (len(run.timeline.names) * run.time_s),
    }


def _weighed(data: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return array-share on flexible jobs, as time and energy are weighed and resizes priced."""
    found, lines = [], ["array-share on flexible jobs: weight on energy, price of a resize"]
    for cluster in CLUSTERS:
        for energy, price_s in ((0.0, 10.0), (0.0, 0.0), (0.5, 10.0), (1.0, 10.0)):
            resize = {**data["array_share"], "resize_price_s": price_s}
            run = _run(data, cluster, Mode.FLEXIBLE, "array-share", resize, energy=energy)
            entry = {
                "case": cluster,
                "energy": energy,
                "price_s": price_s,
                "time_s": run.time_s,
                "cluster_kj": run.cluster_j / 1e3,
                "resizes": run.resizes,
            }
            found.append(entry)
            lines.append(
                f"  {cluster:6s} energy {energy:3.1f}  price {price_s:4.0f} s  "
                f"{run.time_s:8.1f} s  {run.cluster_j / 1e3:8.1f} kJ  {run.resizes:3d} resizes"
            )
    return found, lines


def _sensitivity(data: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the times of the fitted model against the interval of resize points."""
    found = []
    lines = ["array-share-paper against the interval of resize points (fitted: 90 s)"]
    for cluster in CLUSTERS:
        for mode in (Mode.MALLEABLE, Mode.FLEXIBLE):
            times = {}
            for every_s in data["model"]["sensitivity_s"]:
                resize = {"resize_every_s": every_s, "resize_price_s": 0.0}
                times[f"{every_s:g}"] = _run(
                    data, cluster, mode, "array-share-paper", resize
                ).time_s
            found.append({"case": cluster, "mode": str(mode), "time_s": times})
            text = "  ".join(f"{every} s: {time_s:.0f}" for every, time_s in times.items())
            lines.append(f"  {cluster:6s} {mode:10s} {text}")
    return found, lines


_HEAD = "  mode       {:22s} {:>9s} {:>10s} {:>10s} {:>9s}  note".format(
    "", "paper", "as theirs", "deviation", "ours"
)


def _printed(row: Mapping[str, Any]) -> list[str]:
    lines = []
    for column, value in row["values"].items():
        ours = "" if value["array_share"] is None else f"{value['array_share']:9.2f}"
        lines.append(
            f"  {row['mode']:10s} {column:22s} {value['paper']:9.2f} {value['ours']:10.2f} "
            f"{value['deviation_pct']:9.2f}% {ours:9s}  {value['note']}".rstrip()
        )
    return lines
