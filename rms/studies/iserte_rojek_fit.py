"""The model of the system of Iserte & Rojek: its settings, fitted on one cluster or on both.

``array-share-paper`` was chosen so that it comes close to the times of both clusters, so its times
prove nothing. Here every setting of a grid is fitted to the four times of one cluster; the times
and energies of the other cluster, and the energies of the first one, are then predictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from math import sqrt
from typing import Any

from rms.core.model.jobs import JobId, JobSpec, Mode, NodePower, Site, Speedup
from rms.core.policies import Policy, adjusted, named
from rms.sim.run import Recording, record
from rms.sim.simulator import Hooks, Simulation
from rms.wire.terminal import columns

COLUMNS = ("time_s", "busy_kj", "idle_kj", "cluster_kj", "allocation_pct")
CLUSTERS = ("m2090", "k80")
MODEL = "array-share-paper"

Data = Mapping[str, Any]
"""The content of ``data/iserte_rojek.toml``."""


@dataclass(frozen=True)
class Setting:
    """Free parameters of the model.

    Attributes:
        resize_every_s: interval of resize points, s.
        resize_price_s: how long a resize stops a job, s.
        starts: the most starts in one scheduling pass, 0 for any number.
        flexible, malleable, expand: as in :class:`rms.core.policies.paper.PaperShare`.
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


def jobs(
    data: Data, cluster: str, mode: Mode, every_s: float, price_s: float
) -> tuple[list[JobSpec], Site]:
    """Return the nine jobs and their cluster.

    Args:
        every_s: interval of their resize points, s.
        price_s: how long a resize stops a job, s.
    """
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
        for number in range(1, data["jobs"] + 1)
    ]
    nodes = figures["cluster_nodes"]
    return specs, Site(nodes, (NodePower(idle_w=figures["idle_w"]),) * nodes)


def row(run: Recording) -> dict[str, float]:
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


def settings(data: Data) -> list[Setting]:
    """Return all settings of the grid."""
    grid = data["grid"]
    names = [field.name for field in fields(Setting)]
    return [Setting(*values) for values in product(*(grid[name] for name in names))]


def shipped(data: Data) -> Setting:
    """Return the setting of ``array-share-paper``, with the interval that was fitted to it."""
    model = data["model"]
    return Setting(model["resize_every_s"], model["resize_price_s"], 1, "share", "another", False)


class Times:
    """Time from the first submission to the last end of the nine jobs, s, under each setting.

    A mode knows nothing of the rule for another one, so most simulations serve several settings.
    """

    def __init__(self, data: Data) -> None:
        self._data = data
        self._known: dict[tuple[Any, ...], float] = {}

    def __call__(self, setting: Setting, cluster: str, mode: Mode) -> float:
        """Return the time, s."""
        key: tuple[Any, ...] = (cluster, mode, setting.starts)
        if mode.resizable:
            rule = setting.flexible if mode.any_start else setting.malleable
            key = (*key, setting.resize_every_s, setting.resize_price_s, rule, setting.expand)
        if key not in self._known:
            resize = setting.resize_every_s, setting.resize_price_s
            specs, site = jobs(self._data, cluster, mode, *resize)
            run = Simulation(specs, site, setting.policy(), hooks=Hooks(record=False))
            run.run()
            self._known[key] = max(job.end_s or 0.0 for job in run.engine.state.ended.values())
        return self._known[key]

    def error_pct(self, setting: Setting, clusters: Sequence[str]) -> float:
        """Return the root mean square of the deviations from the published times, per cent."""
        off = [
            self(setting, cluster, mode) / published(self._data, cluster, mode)["time_s"] - 1.0
            for cluster in clusters
            for mode in Mode
        ]
        return 100.0 * sqrt(sum(entry**2 for entry in off) / len(off))


def cross(data: Data) -> dict[str, Any]:
    """Fit the model on each cluster and on both; predict what the fit did not use.

    Twice: with the interval of resize points as the only free parameter, and with all.

    Returns:
        Of each fit the chosen setting, how many others are as good, its error on the times that
        were used, and the deviation of each column in each mode and cluster, per cent.
    """
    times, whole = Times(data), settings(data)
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
        ours = row(record(specs, site, setting.policy()))
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


def printed(result: Mapping[str, Any]) -> list[str]:
    """Return the lines of :func:`cross`."""
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
