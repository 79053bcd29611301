"""Drawings as SVG: nodes over time, power, an array's tasks. For the live page and for reports.

Every function returns text that can stand in a page as it is. Nothing in it is scaled: places along
the time are shares of the width, so that words keep their shape. What has a time also says it in
``data-a`` and ``data-b`` (s after an origin), by which a script may place it anew: the live page
moves on with that, a report zooms. A page that shows them needs :data:`STYLE`.

Colours are Paul Tol's "light" scheme, whose colours are told apart by the colour-blind and bear
black words; no colour is the only sign of anything.
"""

from __future__ import annotations

import html
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rms.core.books.spans import BOOT, OFF
from rms.wire.users import NodeSpan

LANE_PX = 22
"""Height of a lane."""

COLOURS = (
    *("#77aadd", "#ee8866", "#eedd88", "#ffaabb"),
    *("#99ddff", "#44bb99", "#bbcc33", "#aaaa00"),
)

STYLE = (
    """svg { display: block; width: 100%; overflow: hidden }
svg.mark { overflow: visible; width: 1px }
svg text { font: 12px system-ui, sans-serif; fill: #111; pointer-events: none }
svg.axis text, .scale text { fill: currentColor }
.scale text { paint-order: stroke; stroke: Canvas; stroke-width: 4px }
svg.axis line, .scale line { stroke: currentColor; stroke-opacity: 0.35 }
.bar rect { stroke: #444; stroke-width: 1 }
.cursor rect, rect.cursor { stroke: #000; stroke-width: 4 }
rect.cursor { fill: none }
.bar.off rect, .bar.boot rect { fill: none; stroke: currentColor; stroke-dasharray: 3 3 }
.bar.off text, .bar.boot text { fill: currentColor }
.mark path { fill: #000; stroke: #fff; stroke-width: 1 }
.held { fill: #77aadd; stroke: #444 }
.cell { stroke: #444; stroke-width: 1 }
.jobs { fill: #77aadd } .idle { fill: #eedd88 } .off { fill: #bbcc33 } .boot { fill: #ee8866 }
.cap { stroke: #c00; stroke-width: 2; stroke-dasharray: 6 3 }
"""
    + "\n".join(f".c{n} {{ fill: {colour} }}" for n, colour in enumerate(COLOURS))
    + "\n"
)

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
"""Colour and sign of a task in each state."""

OTHER_SIGN = "#bbcc33", "?"

STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
"""What may lie between two ticks of a time axis, s; then days."""


@dataclass(frozen=True)
class Window:
    """The time that is shown, and the origin of ``data-a``; s since the epoch."""

    begin_s: float
    end_s: float
    origin_s: float = 0.0

    def place(self, at_s: float) -> str:
        """Return where a time is, as a share of the width."""
        return f"{100.0 * (at_s - self.begin_s) / (self.end_s - self.begin_s):.3f}%"


def clock(at_s: float, *, day: bool = False) -> str:
    """Return a time of day, here."""
    return time.strftime("%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S", time.localtime(at_s))


def colour(job: str) -> str:
    """Return the class of a job's colour: the same everywhere, and for all tasks of an array."""
    return f"c{zlib.crc32(job.partition('_')[0].encode()) % len(COLOURS)}"


def lane(spans: Iterable[NodeSpan], marks: Iterable[tuple[float, str]], window: Window) -> str:
    """Return a node's lane: a bar for each span, a mark for each ``(time, words)``.

    Bars that last reach beyond the window's end, where the drawing ends.
    """
    parts = [_bar(span, window) for span in spans]
    parts += [_mark(at_s, words, window) for at_s, words in marks]
    return _lane_svg("".join(parts))


def held_lane(held: Sequence[tuple[float, float]], window: Window) -> str:
    """Return the lane of several nodes: which share of them is held from each time on."""
    return _lane_svg("".join(_steps(held, window)))


def held_shares(
    spans: Iterable[NodeSpan], nodes: int, window: Window, parts: int = 120
) -> list[tuple[float, float]]:
    """Return which share of so many nodes spans hold, for each part of a time where it changes."""
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
    found: list[tuple[float, float]] = []
    for at, seconds in enumerate(node_s):
        share = round(min(1.0, seconds / (nodes * part_s)), 3)
        if not found or found[-1][1] != share:
            found.append((begin_s + at * part_s, share))
    return found


def _lane_svg(inner: str) -> str:
    return f'<svg class="lane" height="{LANE_PX}" aria-hidden="true">{inner}</svg>'


def _timed(begin_s: float, end_s: float | None, window: Window) -> tuple[str, str]:
    """Return a rectangle's place, and what a script places it by."""
    begin = f'data-a="{begin_s - window.origin_s:.1f}"'
    if end_s is None:
        return f'x="{window.place(begin_s)}" width="1000%"', begin
    width = 100.0 * (end_s - begin_s) / (window.end_s - window.begin_s)
    end = f'data-b="{end_s - window.origin_s:.1f}"'
    return f'x="{window.place(begin_s)}" width="{max(width, 0.0):.3f}%"', f"{begin} {end}"


def _bar(span: NodeSpan, window: Window) -> str:
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


def _mark(at_s: float, words: str, window: Window) -> str:
    where, times = _timed(at_s, at_s, window)
    place = where.partition('" ')[0].removeprefix('x="')
    return (
        f'<svg class="mark" {times} x="{place}" overflow="visible" width="1" height="{LANE_PX}">'
        f"<title>{html.escape(words)}</title>"
        f'<path d="M-5 1 L5 1 L0 {LANE_PX // 2} Z"/></svg>'
    )


def _steps(held: Sequence[tuple[float, float]], window: Window) -> Iterable[str]:
    ends = [at_s for at_s, _ in held[1:]] + [None]
    for (at_s, share), end_s in zip(held, ends, strict=True):
        if share:
            where, times = _timed(at_s, end_s, window)
            height = share * (LANE_PX - 2)
            yield (
                f'<g class="bar part" {times}><title>{share:.0%} held from {clock(at_s)}</title>'
                f'<rect class="held" {where} y="{LANE_PX - 1 - height:.1f}" '
                f'height="{height:.1f}"/></g>'
            )


def axis(window: Window) -> str:
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
        late = at_s > window.begin_s + 0.95 * span_s
        side = ' text-anchor="end" dx="-3"' if late else ' dx="3"'
        parts.append(
            f'<line x1="{place}" x2="{place}" y1="0" y2="5"/>'
            f'<text x="{place}" y="17"{side}>{words}</text>'
        )
    return f'<svg class="axis" height="20" aria-hidden="true">{"".join(parts)}</svg>'


# --- power ---------------------------------------------------------------------------------------

POWER_PX = 180
OWNERS = ("jobs", "idle", "off", "boot")
"""Of a curve of power, from the bottom up."""


def power(
    points: Sequence[tuple[float, Sequence[float]]], window: Window, cap_w: float | None = None
) -> str:
    """Return the power over time, by owner, one on top of the other.

    Args:
        points: ``(time, watts of each of OWNERS until then)``, rising.
        cap_w: a line that it is not to pass, or None.
    """
    highest = max([sum(watts) for _, watts in points] + [cap_w or 0.0, 1e-9])
    top = _round_up(highest)
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
    """Return the path around steps between two curves, each from one of ``xs`` to the next."""
    there = _stairs([(xs[n], xs[n + 1], y) for n, y in enumerate(above)])
    back = _stairs([(xs[n + 1], xs[n], below[n]) for n in reversed(range(len(below)))])
    return f"M{xs[0]} {below[0]:.1f}{there}{back}Z"


def _stairs(steps: Sequence[tuple[int, int, float]]) -> str:
    """Return the part of a path along steps of equal height, each once: ``(from, to, y)``."""
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


def _round_up(value: float) -> float:
    """Return the next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10, ..."""
    power_of_ten = 1.0
    while power_of_ten * 10.0 <= value:
        power_of_ten *= 10.0
    while power_of_ten > value:
        power_of_ten /= 10.0
    factors = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
    return next(f * power_of_ten for f in factors if f * power_of_ten >= value)


# --- arrays and rates ----------------------------------------------------------------------------

CELL_PX = 16
CELLS = 25
"""Of an array's tasks so many stand in a row."""


def cells(first: int, states: Mapping[int, str]) -> str:
    """Return the tasks ``first`` to ``first + 24`` of an array, a cell with a sign for each."""
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
    """Return a bar for each ``(words, figure)``, as long as that is."""
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
    """Return a figure with three digits at least."""
    return f"{figure:,.0f}" if abs(figure) >= 100.0 else f"{figure:.3g}"
