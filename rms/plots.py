"""Charts: nodes over time, power, arrays and bars, as SVG for pages and as PNG files.

A :class:`History`, or lanes made of its spans, describes what happened on the nodes; both outputs
draw the same description. SVG stands in a page as it is and is not scaled: places along the time
are shares of the width, so that words keep their shape. An element with a time also has it in
``data-a`` and ``data-b`` (s after an origin), by which a script moves it: the live page follows the
time, a report zooms. A page with SVG needs :data:`STYLE`. PNG files, and the figures of single
experiments, are drawn by matplotlib.

Colours are Paul Tol's "light" scheme, which the colour-blind can tell apart and on which black
words are legible; no information depends on colour alone.
"""

from __future__ import annotations

import html
import io
import math
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from rms.core.books.spans import BOOT, OFF
from rms.core.model.jobs import sort_key
from rms.wire.files import write_output
from rms.wire.live import Lane, Mark
from rms.wire.terminal import clock
from rms.wire.users import NodeSpan

# --- description: nodes over time ---------------------------------------------------------------


@dataclass(frozen=True)
class TimeWindow:
    """The time that a chart shows, and the origin of ``data-a``; s since the epoch."""

    begin_s: float
    end_s: float
    origin_s: float = 0.0

    def place(self, at_s: float) -> str:
        """Return the place of a time, as a share of the width."""
        return f"{100.0 * (at_s - self.begin_s) / (self.end_s - self.begin_s):.3f}%"


@dataclass(frozen=True)
class History:
    """The spans of a cluster's nodes and its power, from ``start_s`` to ``end_s``.

    Attributes:
        nodes: their names, in the order in which they are drawn.
        spans: the times in which jobs held nodes.
        power_w: ``(time, power of the cluster from then on)``.
        start_s: the time that PNG files draw as 0.
        power_spans: times in which nodes were off or booted (``job`` is ``off`` or ``boot``).
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
        """Return ``(row, job, start, length)`` of the spans that took time, in s.

        Args:
            of_power: the spans of nodes that were off or booted, from ``start_s`` on.
        """
        row = {name: at for at, name in enumerate(self.rows)}
        bars = []
        for span in self.power_spans if of_power else self.spans:
            end_s = self.end_s if span.end_s is None else span.end_s
            begin_s = max(span.start_s, self.start_s) if of_power else span.start_s
            if end_s > begin_s and span.node in row:
                bars.append((row[span.node], span.job, begin_s - self.start_s, end_s - begin_s))
        return bars

    def power(self) -> tuple[list[float], list[float]]:
        """Return times from ``start_s`` to ``end_s`` and the power from these times on, W."""
        inside: list[tuple[float, float]] = []
        for at, watts in self.power_w:
            if at <= self.start_s:
                inside = [(self.start_s, watts)]
            elif at <= self.end_s:
                inside.append((at, watts))
        if inside and inside[-1][0] < self.end_s:
            inside.append((self.end_s, inside[-1][1]))
        return [at - self.start_s for at, _ in inside], [watts for _, watts in inside]


def folded(names: Sequence[str], most: int) -> list[range]:
    """Return groups of nodes, ``most`` at most: single nodes, else hosts, racks, or ranges.

    A rack is the common part of neighbouring names before their number: ``r1n`` of ``r1n[1-40]``.
    """
    if len(names) <= most:
        return [range(at, at + 1) for at in range(len(names))]
    hosts = [name.rpartition("/")[0] or name for name in names]
    for keys in (hosts, [host.rstrip("0123456789") for host in hosts]):
        lengths = [len(list(own)) for _, own in groupby(keys)]
        if 1 < len(lengths) <= most:
            ends = list(accumulate(lengths))
            return [range(end - n, end) for end, n in zip(ends, lengths, strict=True)]
    size = -(-len(names) // most)
    return [range(at, min(at + size, len(names))) for at in range(0, len(names), size)]


def lanes_of(
    names: Sequence[str],
    groups: Sequence[range],
    spans: Iterable[NodeSpan],
    window: TimeWindow,
    *,
    states: Sequence[str] = (),
    most_bars: int | None = None,
    parts: int = 120,
) -> Iterator[Lane]:
    """Yield the lanes of groups of nodes: spans of a single node, shares held of several.

    Args:
        names: the nodes.
        groups: of their numbers, as :func:`folded` returns them.
        states: of the groups, in words.
        most_bars: a node with more spans gets shares held, too.
        parts: resolution of the shares: parts of the window.
    """
    lane_of = {names[node]: at for at, group in enumerate(groups) for node in group}
    spans_of: list[list[NodeSpan]] = [[] for _ in groups]
    for span in spans:
        if span.node in lane_of:
            spans_of[lane_of[span.node]].append(span)
    for at, (group, within) in enumerate(zip(groups, spans_of, strict=True)):
        first, last = names[group[0]], names[group[-1]]
        bars = sorted(within, key=lambda span: span.start_s) if len(group) == 1 else []
        held: list[tuple[float, float]] = []
        if len(group) > 1 or (most_bars is not None and len(bars) > most_bars):
            by_jobs = (span for span in within if span.job not in (OFF, BOOT))
            bars, held = [], held_shares(by_jobs, len(group), window, parts)
        yield Lane(
            name=first if len(group) == 1 else f"{first} - {last}",
            nodes=len(group),
            state=states[at] if states else "",
            spans=bars,
            held=held,
        )


def held_shares(
    spans: Iterable[NodeSpan], nodes: int, window: TimeWindow, parts: int = 120
) -> list[tuple[float, float]]:
    """Return the share of nodes that spans hold, at the parts of a time where it changes."""
    begin_s, end_s = window.begin_s, window.end_s
    part_s = (end_s - begin_s) / parts
    node_s = [0.0] * parts
    for span in spans:
        first_s = max(span.start_s, begin_s)
        last_s = end_s if span.end_s is None else min(span.end_s, end_s)
        first = min(parts - 1, int((first_s - begin_s) / part_s))
        last = min(parts - 1, int((last_s - begin_s) / part_s))
        for at in range(first, last + 1):
            low = max(first_s, begin_s + at * part_s)
            node_s[at] += max(0.0, min(last_s, begin_s + (at + 1) * part_s) - low)
    shares: list[tuple[float, float]] = []
    for at, seconds in enumerate(node_s):
        share = round(min(1.0, seconds / (nodes * part_s)), 3)
        if not shares or shares[-1][1] != share:
            shares.append((begin_s + at * part_s, share))
    return shares


def mark_words(mark: Mark) -> str:
    """Return a resize in words."""
    moved = f"{mark.bytes / 1e6:.1f} MB moved"
    return (
        f"job {mark.job}, {clock(mark.at_s)}: {mark.before} to {mark.after} ranks by "
        f"{mark.strategy}, stopped for {mark.stall_s * 1000:.0f} ms, {moved}"
    )


def marks_on(
    spans: Sequence[NodeSpan],
    marks: Mapping[str, Sequence[tuple[float, str]]],
    within_s: float = 0.0,
) -> list[tuple[float, str]]:
    """Return the marks of the jobs that held a node at the time of the mark.

    Args:
        marks: ``(time, words)`` by job.
        within_s: tolerance before and after a span.
    """
    return [
        (at_s, words)
        for job in dict.fromkeys(span.job for span in spans if span.job in marks)
        for at_s, words in marks[job]
        if any(
            span.job == job
            and span.start_s <= at_s + within_s
            and (span.end_s is None or span.end_s >= at_s - within_s)
            for span in spans
        )
    ]


# --- SVG: nodes over time ------------------------------------------------------------------------

LANE_PX = 22
"""Height of a lane."""

COLOURS = 8
"""Number of colours of jobs: classes ``c0`` to ``c7`` in the style."""

STYLE = Path(__file__).with_name("plots.css").read_text()

TASK_SIGNS: Mapping[str, tuple[str, str]] = {
    "PENDING": ("#ffffff", ""),
    "CONFIGURING": ("#eedd88", "·"),
    "RUNNING": ("#99ddff", "▸"),
    "COMPLETED": ("#44bb99", "✓"),
    "FAILED": ("#ee8866", "×"),
    "CANCELLED": ("#dddddd", "–"),
    "TIMEOUT": ("#ffaabb", "!"),
    "OUT_OF_MEMORY": ("#ffaabb", "m"),
}
"""Colour and sign of an array task, by state."""

OTHER_SIGN = "#bbcc33", "?"


def state_sign(state: str) -> str:
    """Return the sign of a state."""
    return TASK_SIGNS.get(state, OTHER_SIGN)[1]


STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
"""Distances of ticks on a time axis, s; then days."""


def colour(job: str) -> str:
    """Return the class of a job's colour, which all tasks of an array share."""
    return f"c{zlib.crc32(job.partition('_')[0].encode()) % COLOURS}"


def lane_svg(lane: Lane, marks: Iterable[tuple[float, str]], window: TimeWindow) -> str:
    """Return a lane: bars of its spans and marks ``(time, words)``, or the shares held.

    Bars that last reach beyond the window's end, where the drawing ends.
    """
    if lane.held:
        parts = list(_steps(lane.held, window))
    else:
        parts = [_bar(span, window) for span in lane.spans]
        parts += [_mark(at_s, words, window) for at_s, words in marks]
    return f'<svg class="lane" height="{LANE_PX}" aria-hidden="true">{"".join(parts)}</svg>'


def _timed(begin_s: float, end_s: float | None, window: TimeWindow) -> tuple[str, str]:
    """Return the place of a rectangle, and its times for scripts."""
    begin = f'data-a="{begin_s - window.origin_s:.1f}"'
    if end_s is None:
        return f'x="{window.place(begin_s)}" width="1000%"', begin
    width = 100.0 * (end_s - begin_s) / (window.end_s - window.begin_s)
    end = f'data-b="{end_s - window.origin_s:.1f}"'
    return f'x="{window.place(begin_s)}" width="{max(width, 0.0):.3f}%"', f"{begin} {end}"


def _bar(span: NodeSpan, window: TimeWindow) -> str:
    where, times = _timed(span.start_s, span.end_s, window)
    job = html.escape(span.job)
    until = "now" if span.end_s is None else clock(span.end_s)
    kind = span.job if span.job in (OFF, BOOT) else colour(span.job)
    what = job if span.job in (OFF, BOOT) else f"job {job}"
    words = f"{what} on {html.escape(span.node)}, {clock(span.start_s)} to {until}"
    return (
        f'<g class="bar {kind}" {times} data-job="{job}"><title>{words}</title>'
        f'<rect {where} y="1" height="{LANE_PX - 2}"/>'
        f'<text x="{window.place(span.start_s)}" dx="4" y="15">{job}</text></g>'
    )


def _mark(at_s: float, words: str, window: TimeWindow) -> str:
    _, times = _timed(at_s, at_s, window)
    place = window.place(at_s)
    return (
        f'<svg class="mark" {times} x="{place}" overflow="visible" width="1" height="{LANE_PX}">'
        f"<title>{html.escape(words)}</title>"
        f'<path d="M-5 1 L5 1 L0 {LANE_PX // 2} Z"/></svg>'
    )


def _steps(held: Sequence[tuple[float, float]], window: TimeWindow) -> Iterable[str]:
    ends = [at_s for at_s, _ in held[1:]] + [None]
    for (at_s, share), end_s in zip(held, ends, strict=True):
        if share:
            where, times = _timed(at_s, end_s, window)
            height = share * (LANE_PX - 2)
            title = f"{share:.0%} allocated from {clock(at_s)}"
            yield (
                f'<g class="bar part" {times}><title>{title}</title>'
                f'<rect class="held" {where} y="{LANE_PX - 1 - height:.1f}" '
                f'height="{height:.1f}"/></g>'
            )


def axis(window: TimeWindow) -> str:
    """Return the axis of time: ticks at round times of day."""
    span_s = window.end_s - window.begin_s
    step_s = next((step for step in STEPS_S if span_s / step <= 6), 86400)
    while span_s / step_s > 6:
        step_s *= 2
    shift_s = time.localtime(window.begin_s).tm_gmtoff
    first = -int(-(window.begin_s + shift_s) // step_s) * step_s - shift_s
    parts = []
    for n in range(10):
        at_s = first + n * step_s
        if at_s > window.end_s:
            break
        words = clock(at_s, day=step_s >= 86400)
        words = words[:10] if step_s >= 86400 else words[:5] if step_s >= 60 else words
        place = window.place(at_s)
        late = at_s > window.begin_s + 0.92 * span_s
        side = ' text-anchor="end" dx="-3"' if late else ' dx="3"'
        if at_s > window.begin_s + 0.75 * span_s:
            side += ' class="late"'  # where the drawing is narrow, it has no room
        parts.append(
            f'<line x1="{place}" x2="{place}" y1="0" y2="5"/>'
            f'<text x="{place}" y="17"{side}>{words}</text>'
        )
    return f'<svg class="axis" height="20" aria-hidden="true">{"".join(parts)}</svg>'


# --- SVG: power ----------------------------------------------------------------------------------

POWER_PX = 180
OWNERS = ("jobs", "idle", "off", "boot")
"""Parts of a curve of power, from the bottom up."""


def power(
    points: Sequence[tuple[float, Sequence[float]]], window: TimeWindow, cap_w: float | None = None
) -> str:
    """Return the power over time, stacked by owner.

    Args:
        points: ``(time, watts by OWNERS until then)``, rising.
        cap_w: the power cap, drawn as a line, or None.
    """
    highest = max([sum(watts) for _, watts in points] + [cap_w or 0.0]) or 1.0
    top = round_up(highest)
    scale = (POWER_PX - 10) / top
    part_s = points[1][0] - points[0][0] if len(points) > 1 else 0.0
    span_s = window.end_s - window.begin_s
    edges = [(points[0][0] - part_s, ())] if points else []
    xs = [
        round(min(1.0, max(0.0, (at_s - window.begin_s) / span_s)) * 1000)
        for at_s, _ in [*edges, *points]
    ]
    below = [float(POWER_PX)] * len(points)
    areas = []
    for at, owner in enumerate(OWNERS):
        above = [y - watts[at] * scale for y, (_, watts) in zip(below, points, strict=True)]
        if above != below:
            areas.append(f'<path class="{owner}" d="{_area(xs, below, above)}"/>')
        below = above
    parts = [
        f'<svg viewBox="0 0 1000 {POWER_PX}" preserveAspectRatio="none" '
        f'height="{POWER_PX}">{"".join(areas)}</svg>'
    ]
    if cap_w is not None:
        y = POWER_PX - cap_w * scale
        parts.append(f'<line class="cap" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
    for share in (0.5, 1.0):
        y = POWER_PX - share * top * scale
        parts.append(
            f'<g class="scale"><line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="2" y="{y + 13:.1f}">{share * top:g} W</text></g>'
        )
    return f'<svg height="{POWER_PX}" aria-hidden="true">{"".join(parts)}</svg>'


def _area(xs: Sequence[int], below: Sequence[float], above: Sequence[float]) -> str:
    """Return the path around the steps between two curves, with corners at ``xs``."""
    there = _stairs([(xs[n], xs[n + 1], y) for n, y in enumerate(above)])
    back = _stairs([(xs[n + 1], xs[n], below[n]) for n in reversed(range(len(below)))])
    return f"M{xs[0]} {below[0]:.1f}{there}{back}Z"


def _stairs(steps: Sequence[tuple[int, int, float]]) -> str:
    """Return the part of a path along steps ``(from, to, y)``; steps of equal height are joined."""
    parts: list[str] = []
    last = None
    for begin, end, y in steps:
        height = f"{y:.1f}"
        if height == last:
            parts[-1] = f"H{end}"
        else:
            parts += [f"H{begin}V{height}", f"H{end}"]
        last = height
    return "".join(parts)


def round_up(value: float) -> float:
    """Return the next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10, ..."""
    decade = 10.0 ** math.floor(math.log10(value))
    factors = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0)
    return next(factor * decade for factor in factors if factor * decade >= value)


# --- SVG: arrays and bars -----------------------------------------------------------------------

CELL_PX = 16
CELLS = 25
"""Tasks of an array in a row."""


def cells(first: int, states: Mapping[int, str]) -> str:
    """Return the tasks ``first`` to ``first + 24`` of an array as cells with signs."""
    runs: list[tuple[str, int, int]] = []
    signs: list[tuple[int, str]] = []
    for at in range(CELLS):
        state = states.get(first + at)
        if state is None:
            continue
        fill, sign = TASK_SIGNS.get(state, OTHER_SIGN)
        if runs and runs[-1][0] == fill and runs[-1][2] == at:
            runs[-1] = fill, runs[-1][1], at + 1
        else:
            runs.append((fill, at, at + 1))
        if sign:
            signs.append((at * CELL_PX + 3, sign))
    parts = [
        f'<rect class="cell" x="{low * CELL_PX}" y="0" width="{(high - low) * CELL_PX}" '
        f'height="{CELL_PX}" fill="{fill}"/>'
        for fill, low, high in runs
    ]
    lines = "".join(
        f"M{at * CELL_PX} 0V{CELL_PX}" for _, low, high in runs for at in range(low, high + 1)
    )
    places = " ".join(str(x) for x, _ in signs)
    words = "".join(sign for _, sign in signs)
    return (
        f'<svg class="cells" viewBox="0 0 {CELLS * CELL_PX} {CELL_PX}" data-first="{first}" '
        f'aria-hidden="true">{"".join(parts)}<path class="cell" d="{lines}"/>'
        f'<text x="{places}" y="12">{words}</text></svg>'
    )


ROW_PX = 26


def rates(rows: Sequence[tuple[str, float]], unit: str) -> str:
    """Return bars for rows ``(words, figure)``, with lengths in proportion."""
    most = max([figure for _, figure in rows] + [1e-12])
    parts = []
    for at, (words, figure) in enumerate(rows):
        y = at * ROW_PX
        parts.append(
            f'<g class="scale"><text x="0" y="{y + 17}">{html.escape(words)}</text></g>'
            f'<rect class="jobs" x="20%" y="{y + 3}" width="{52.0 * figure / most:.2f}%" '
            f'height="{ROW_PX - 6}"/><g class="scale">'
            f'<text x="{20.5 + 52.0 * figure / most:.2f}%" y="{y + 17}">'
            f"{_rounded(figure)} {html.escape(unit)}</text></g>"
        )
    return f'<svg height="{ROW_PX * len(rows)}" aria-hidden="true">{"".join(parts)}</svg>'


def _rounded(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 100.0 else f"{figure:.3g}"


# --- PNG: nodes over time and power --------------------------------------------------------------

DPI = 120
MOST_IN_LEGEND = 48
"""With more jobs, wide bars have the names of their jobs, and there is no legend."""

PATTERNS: Mapping[str, dict[str, Any]] = {
    "off": {"hatch": "////", "facecolor": "white", "edgecolor": "0.75"},
    "boot": {"hatch": "xxxx", "facecolor": "0.85", "edgecolor": "0.4"},
}
"""Style of nodes that are off or boot; idle ones are blank, busy ones filled."""

MOST_NAMED_NODES = 48
"""With more nodes, rows have numbers instead of names."""


def gantt(history: History, path: Path, title: str) -> None:
    """Draw the jobs on the nodes over time."""
    _save(gantt_figure(history, title), path)


def gantt_figure(history: History, title: str) -> Any:
    """Return the figure of :func:`gantt`."""
    width, height = 8.0, 0.13 * len(history.rows) + 1.5
    figure, axes = _axes(width, height)
    jobs = history.jobs
    many = len(jobs) > MOST_IN_LEGEND
    _draw_bars(axes, history, _colors(jobs), named=many)
    _draw_power_states(axes, history, named=many)
    axes.set(xlabel="time (s)", ylabel="node", title=title)
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
    axes.set(xlabel="time (s)", ylabel=f"power of the cluster ({unit})", title=title)
    axes.legend()
    return figure


def side_by_side(runs: Sequence[tuple[str, History, float]], path: Path, power_source: str) -> None:
    """Draw the nodes over time and the power of the cluster beside them, one row a run.

    Args:
        runs: title, history and the cluster's energy (J) of the runs.
        power_source: ``model``, or the names of meters.
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
    axes.set(xlabel=labels[0], ylabel=labels[1], title=labels[2])
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
        """Draw the chart."""
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
        highest = max((y for _, ys in self.series.values() for y in ys), default=0.0)
        axes.set_ylim(bottom=0, top=1.1 * highest or 1.0)
        axes.grid(alpha=0.3)


def draw_panels(panels: Sequence[Panel], path: Path, title: str, columns: int = 5) -> None:
    """Draw small charts side by side, ``columns`` in a row."""
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
    """Draw bars for the times in which jobs held nodes; if ``named``, long ones have their ids."""
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
    """Draw the times in which nodes were off or booted, with patterns."""
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
    axes.step(times, [value / scale for value in watts], where="post", **style)
    axes.set_ylim(bottom=0)


def _colors(jobs: Sequence[str]) -> dict[str, Any]:
    import matplotlib

    shades = matplotlib.colormaps["tab20"]
    return {job: shades(at % shades.N) for at, job in enumerate(jobs)}


def _power_unit(histories: Iterable[History]) -> tuple[float, str]:
    """Return the watts of a unit that suits the powers, and its name."""
    most = max((watts for history in histories for watts in history.power()[1]), default=0.0)
    return (1e3, "kW") if most >= 1e3 else (1.0, "W")
