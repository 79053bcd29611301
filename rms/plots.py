"""Charts of simulations: power over time, Gantt, and those of single experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rms.core.timeline import Timeline


def _axes(width: float = 8.0, height: float = 4.5, columns: int = 1) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def power_over_time(runs: Mapping[str, Timeline], path: Path, title: str) -> None:
    """Draw the cluster's power over time, one line per mode."""
    figure, axes = _axes()
    for name, run in runs.items():
        times = [at for at, _ in run.power_w]
        axes.step(times, [w / 1e3 for _, w in run.power_w], where="post", label=name)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("power of the cluster (kW)")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.legend()
    _save(figure, path)


def gantt(run: Timeline, time_s: float, path: Path, title: str) -> None:
    """Draw who held which node when, from 0 to ``time_s``."""
    # Nodes of an earlier cluster of the same daemon come after those it has now.
    nodes = dict.fromkeys([*run.names, *(span.node for span in run.spans)])
    row = {name: at for at, name in enumerate(nodes, 1)}
    figure, axes = _axes(height=0.13 * len(row) + 1.5)
    bars = [
        (row[s.node], s.job, s.start_s, time_s if s.end_s is None else s.end_s) for s in run.spans
    ]
    bars = [bar for bar in bars if bar[3] > bar[2]]
    names = sorted({job for _, job, _, _ in bars}, key=lambda job: (len(job), job))
    for at, name in enumerate(names):
        own = [(node, since, until) for node, job, since, until in bars if job == name]
        axes.barh(
            [node for node, _, _ in own],
            [until - since for _, since, until in own],
            left=[since for _, since, _ in own],
            height=0.9,
            color=f"C{at % 10}",
            label=name,
        )
    axes.set_xlabel("time (s)")
    axes.set_ylabel("node")
    axes.set_xlim(0, time_s)
    axes.set_title(title)
    axes.legend(title="job", loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(figure, path)


def lines(
    series: Mapping[str, tuple[list[float], list[float]]],
    path: Path,
    labels: tuple[str, str, str],
) -> None:
    """Draw named series ``(x, y)``; ``labels`` are those of x, of y, and the title."""
    figure, axes = _axes()
    for name, (xs, ys) in series.items():
        axes.plot(xs, ys, marker="o", label=name)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_title(labels[2])
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def panels(
    shares: list[float], columns: Mapping[str, list[float]], path: Path, x_label: str, title: str
) -> None:
    """Draw several figures against one axis, a panel each."""
    figure, all_axes = _axes(width=3.2 * len(columns), height=3.2, columns=len(columns))
    for axes, (name, values) in zip(all_axes, columns.items(), strict=True):
        axes.plot(shares, values, marker="o")
        axes.set_xlabel(x_label)
        axes.set_title(name, fontsize=10)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    _save(figure, path)
