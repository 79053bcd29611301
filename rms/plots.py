"""Figures: who held which node when, power over time, and curves of single experiments."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rms.core.model.jobs import sort_key
from rms.wire.files import write_output
from rms.wire.users import NodeSpan

DPI = 120
MOST_IN_LEGEND = 48
"""With more jobs than this, those that are wide enough are named on their bars, and no others."""

PATTERNS: Mapping[str, dict[str, Any]] = {
    "off": {"hatch": "////", "facecolor": "white", "edgecolor": "0.75"},
    "boot": {"hatch": "xxxx", "facecolor": "0.85", "edgecolor": "0.4"},
}
"""How nodes are drawn that are off, and that boot; idle ones stay blank, busy ones are filled."""

MOST_NAMED_NODES = 48
"""Of more nodes than this, rows have numbers instead of names."""


@dataclass(frozen=True)
class History:
    """What happened on the nodes of a cluster, from ``start_s`` to ``end_s``.

    Attributes:
        nodes: their names, in the order in which they are drawn.
        spans: who held which node when.
        power_w: ``(time, power of the cluster from then on)``.
        start_s: the time that is drawn as 0.
        power_spans: when nodes were off or booted (``job`` is ``off`` or ``boot``).
    """

    nodes: Sequence[str]
    spans: Sequence[NodeSpan]
    power_w: Sequence[tuple[float, float]]
    end_s: float
    start_s: float = 0.0
    power_spans: Sequence[NodeSpan] = ()

    @property
    def jobs(self) -> list[str]:
        """The jobs that held nodes, tasks of an array in their order."""
        return sorted({span.job for span in self.spans}, key=sort_key)

    @property
    def rows(self) -> list[str]:
        """The nodes of the cluster, then those it no longer has."""
        return list(dict.fromkeys([*self.nodes, *(span.node for span in self.spans)]))

    def bars(self, *, of_power: bool = False) -> list[tuple[int, str, float, float]]:
        """Return of each span that took time ``(row, job, start, length)``, times in s.

        Args:
            of_power: those of nodes that are off or boot, from ``start_s`` on, not those of jobs.
        """
        row = {name: at for at, name in enumerate(self.rows)}
        found = []
        for span in self.power_spans if of_power else self.spans:
            end_s = self.end_s if span.end_s is None else span.end_s
            begin_s = max(span.start_s, self.start_s) if of_power else span.start_s
            if end_s > begin_s and span.node in row:
                bar = row[span.node], span.job, begin_s - self.start_s, end_s - begin_s
                found.append(bar)
        return found

    def power(self) -> tuple[list[float], list[float]]:
        """Return times from ``start_s`` to ``end_s`` and the power from each on, W."""
        inside: list[tuple[float, float]] = []
        for at, watts in self.power_w:
            if at <= self.start_s:
                inside = [(self.start_s, watts)]
            elif at <= self.end_s:
                inside.append((at, watts))
        if inside and inside[-1][0] < self.end_s:
            inside.append((self.end_s, inside[-1][1]))
        return [at - self.start_s for at, _ in inside], [watts for _, watts in inside]


def gantt(history: History, path: Path, title: str) -> None:
    """Draw who held which node when."""
    figure = gantt_figure(history, title)
    _save(figure, path)


def gantt_figure(history: History, title: str) -> Any:
    """Return the figure of :func:`gantt`."""
    width, height = 8.0, 0.13 * len(history.rows) + 1.5
    figure, axes = _axes(width, height)
    jobs = history.jobs
    many = len(jobs) > MOST_IN_LEGEND
    _draw_bars(axes, history, _colors(jobs), named=many)
    _draw_power_states(axes, history, named=many)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("node")
    axes.set_title(title)
    if 0 < len(jobs) <= MOST_IN_LEGEND:
        columns = -(-len(jobs) // 24)
        legend = figure.legend(title="job", loc="outside right upper", ncols=columns)
        size = legend.get_window_extent(figure.canvas.get_renderer())
        inches = size.width / figure.dpi, size.height / figure.dpi
        figure.set_size_inches(width + inches[0], max(height, inches[1] + 0.3))
    return figure


def power_over_time(histories: Mapping[str, History], path: Path, title: str) -> None:
    """Draw the cluster's power over time, one line per name."""
    _save(power_figure(histories, title), path)


def power_figure(histories: Mapping[str, History], title: str) -> Any:
    """Return the figure of :func:`power_over_time`."""
    figure, axes = _axes()
    scale, unit = _power_unit(histories.values())
    for name, history in histories.items():
        _draw_power(axes, history, scale, label=name)
    axes.set_xlabel("time (s)")
    axes.set_ylabel(f"power of the cluster ({unit})")
    axes.set_title(title)
    axes.legend()
    return figure


def side_by_side(runs: Sequence[tuple[str, History, float]], path: Path, power_source: str) -> None:
    """Draw who held which node when, and the power of the cluster beside it, a row for each run.

    Args:
        runs: of each its title, its history, and the cluster's energy in J.
        power_source: where the power comes from: ``model``, or meters by name.
    """
    figure, all_axes = _axes(12.0, 1.2 + 1.5 * len(runs), columns=2, rows=len(runs))
    histories = [history for _, history, _ in runs]
    longest = max(history.end_s - history.start_s for history in histories)
    jobs = sorted({job for history in histories for job in history.jobs}, key=sort_key)
    colors = _colors(jobs)
    scale, unit = _power_unit(histories)
    for (name, history, joules), (chart, curve) in zip(runs, all_axes, strict=True):
        _draw_bars(chart, history, colors, named=True, longest_s=longest)
        _draw_power_states(chart, history, named=True)
        chart.set_title(name, fontsize=9, loc="left")
        _draw_power(curve, history, scale, color="tab:red", linewidth=1)
        curve.set_title(f"{joules:.0f} J", fontsize=9, loc="left")
        curve.set_ylabel(f"{unit} ({power_source})", fontsize=8)
        curve.set_xlim(0, longest)
    for axes in all_axes[-1]:
        axes.set_xlabel("seconds since the first submit", fontsize=8)
    _save(figure, path)


def lines(
    series: Mapping[str, tuple[list[float], list[float]]],
    path: Path,
    labels: tuple[str, str, str],
    *,
    marker: str = "o",
    linear_to: float | None = None,
) -> None:
    """Draw named series ``(x, y)``.

    Args:
        labels: those of x, of y, and the title.
        linear_to: y is drawn on a logarithmic scale above this; None for a linear one throughout.
    """
    figure, axes = _axes()
    for name, (xs, ys) in series.items():
        axes.plot(xs, ys, marker=marker, label=name)
    if linear_to is not None:
        axes.set_yscale("symlog", linthresh=linear_to)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_title(labels[2])
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


@dataclass(frozen=True)
class Panel:
    """One small chart: named series ``(x, y)``, as lines over numbers, as bars over names."""

    title: str
    series: Mapping[str, tuple[Sequence[Any], Sequence[float]]]
    x_label: str

    def draw(self, axes: Any) -> None:
        """Draw it."""
        for at, (name, (xs, ys)) in enumerate(self.series.items()):
            if xs and isinstance(xs[0], str):
                width = 0.8 / len(self.series)
                places = [
                    place + width * (at - (len(self.series) - 1) / 2) for place in range(len(xs))
                ]
                axes.bar(places, ys, width, label=name)
                axes.set_xticks(range(len(xs)), xs, fontsize=7, rotation=30)
            else:
                axes.plot(xs, ys, marker="o" if len(xs) <= 100 else None, label=name)
        if len(self.series) > 1:
            axes.legend(fontsize=8)
        axes.set_xlabel(self.x_label)
        axes.set_title(self.title, fontsize=10)
        axes.set_ylim(bottom=0, top=1.1 * max(self._values(), default=0.0) or 1.0)
        axes.grid(alpha=0.3)

    def _values(self) -> list[float]:
        return [y for _, ys in self.series.values() for y in ys]


def draw_panels(panels: Sequence[Panel], path: Path, title: str, columns: int = 5) -> None:
    """Draw several small charts side by side, so many in a row."""
    rows = -(-len(panels) // columns)
    columns = min(columns, len(panels))
    figure, axes = _axes(3.2 * columns, 3.2 * rows, columns, rows)
    places = [place for row in axes for place in row]
    for place, panel in zip(places, panels, strict=False):
        panel.draw(place)
    for place in places[len(panels) :]:
        place.set_visible(False)
    figure.suptitle(title)
    _save(figure, path)


def _axes(width: float = 8.0, height: float = 4.5, columns: int = 1, rows: int = 0) -> Any:
    """Return a figure in inches, and its axes: one, a row of them, or rows if ``rows`` is set."""
    import matplotlib

    matplotlib.rcdefaults()  # a matplotlibrc in the working folder may name programs to run
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(
        rows or 1, columns, figsize=(width, height), layout="constrained", squeeze=not rows
    )


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    picture = io.BytesIO()
    figure.savefig(picture, dpi=DPI, format=path.suffix[1:] or None)
    pyplot.close(figure)
    write_output(path, picture.getvalue())


def _draw_bars(
    axes: Any,
    history: History,
    colors: Mapping[str, Any],
    *,
    named: bool,
    longest_s: float | None = None,
) -> None:
    """Draw a bar for each time a job held a node.

    Args:
        colors: of each job.
        named: write the job's id on bars that are long enough.
        longest_s: the time that the axis shows, as long as the history if None.
    """
    shown_s = history.end_s - history.start_s if longest_s is None else longest_s
    bars = history.bars()
    for job in history.jobs:
        own = [bar for bar in bars if bar[1] == job]
        axes.barh(
            [row for row, *_ in own],
            [length for *_, length in own],
            left=[start for _, _, start, _ in own],
            height=0.9,
            color=colors[job],
            label=job,
        )
        for row, _, start, length in own:
            if named and length > 0.04 * shown_s:
                at = start + length / 2, row
                axes.text(*at, job, ha="center", va="center", fontsize=7)
    axes.set_xlim(0, shown_s)
    if len(history.rows) <= MOST_NAMED_NODES:
        axes.set_yticks(range(len(history.rows)), history.rows, fontsize=7)


def _draw_power_states(axes: Any, history: History, *, named: bool) -> None:
    """Draw when nodes were off and booted: with a pattern, so that no colour has to tell.

    Args:
        named: write ``off`` and ``boot`` on bars that are long enough.
    """
    bars = history.bars(of_power=True)
    shown_s = axes.get_xlim()[1]
    for kind, style in PATTERNS.items():
        own = [(row, start, length) for row, what, start, length in bars if what == kind]
        if not own:
            continue
        rows, starts, lengths = zip(*own, strict=True)
        axes.barh(rows, lengths, left=starts, height=0.9, linewidth=0.0, label=kind, **style)
        for row, start, length in own:
            if named and length > 0.08 * shown_s:
                axes.text(start + length / 2, row, kind, ha="center", va="center", fontsize=6)
    if bars:  # of no length, for the legend
        axes.barh([0], [0.0], linewidth=0.8, label="idle", facecolor="white", edgecolor="0.75")


def _draw_power(axes: Any, history: History, scale: float, **style: Any) -> None:
    times, watts = history.power()
    axes.step(times, [each / scale for each in watts], where="post", **style)
    axes.set_ylim(bottom=0)


def _colors(jobs: Sequence[str]) -> dict[str, Any]:
    import matplotlib

    shades = matplotlib.colormaps["tab20"]
    return {job: shades(at % shades.N) for at, job in enumerate(jobs)}


def _power_unit(histories: Iterable[History]) -> tuple[float, str]:
    """Return the watts of a unit that suits the powers, and its name."""
    most = max((watts for history in histories for watts in history.power()[1]), default=0.0)
    return (1e3, "kW") if most >= 1e3 else (1.0, "W")
