"""Drawings of the live page: jobs on nodes as bars whose width is their size, curves, small bars.

A job on neighbouring nodes is one bar; a resize changes its width. The shapes of a bar stand in an
inner ``svg.shape`` whose ``viewBox`` is the time shown (s after the window's origin) and the rows:
the page's script moves it by this attribute alone. Words have their times in ``data-a`` and
``data-b``, as in :mod:`rms.plots`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rms import plots
from rms.core.books.spans import BOOT, OFF
from rms.plots import TimeWindow
from rms.wire.live import Lane, Mark, size_steps
from rms.wire.terminal import clock, printable
from rms.wire.users import JobRow

ORIGIN_S = 100_000.0
"""Origins of windows are multiples of this, so that times are exact in single precision."""

BEFORE_S, AFTER_S = -1_000.0, 2_000_000.0
"""Times of shapes are limited to these, s after the origin."""

MOST_RUNS = 16
"""Rectangles in a piece of HTML, unless one time of constant size has more; other pieces follow."""

TITLE_SEGMENTS = 6


def row_px(lanes: int) -> int:
    """Return the height of a node's row; page.css has a class for each."""
    return next(
        px for px, most in ((24, 12), (18, 20), (14, 32), (8, 64), (4, 1000)) if lanes <= most
    )


def rows_of_name(lanes: int) -> int:
    """Return the number of rows beside which there is room for one name."""
    return {8: 2, 4: 4}.get(row_px(lanes), 1)


@dataclass(frozen=True)
class Segment:
    """A time in which a job holds the same nodes: their rows, as ``(first, behind the last)``."""

    begin_s: float
    end_s: float | None
    runs: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Number of nodes."""
        return sum(last - first for first, last in self.runs)


def segments(spans: Iterable[tuple[int, float, float | None]]) -> list[Segment]:
    """Return the times of constant nodes of one job, from ``(row, begin, end or None)``."""
    spans = list(spans)
    far = float("inf")
    edges = sorted({at for _, begin_s, end_s in spans for at in (begin_s, end_s or far)})
    made: list[Segment] = []
    for begin_s, end_s in pairwise(edges):
        rows = sorted({row for row, low, high in spans if low <= begin_s < (high or far)})
        if not rows:
            continue
        runs: list[tuple[int, int]] = []
        for row in rows:
            if runs and runs[-1][1] == row:
                runs[-1] = runs[-1][0], row + 1
            else:
                runs.append((row, row + 1))
        made.append(Segment(begin_s, None if end_s == far else end_s, tuple(runs)))
    return made


def blocks(
    lanes: Sequence[Lane], marks: Mapping[str, Sequence[Mark]], window: TimeWindow, *, still: bool
) -> Iterator[tuple[str, str]]:
    """Yield the bars of jobs on nodes: a key and SVG.

    Args:
        marks: completed resizes by job.
        still: the drawing shows the window; otherwise a script moves it there.
    """
    of_job: dict[str, list[tuple[int, float, float | None]]] = {}
    for row, lane in enumerate(lanes):
        for span in lane.spans:
            name = f"{span.job} {lane.name}" if span.job in (OFF, BOOT) else span.job
            of_job.setdefault(name, []).append((row, span.start_s, span.end_s))
        if lane.held:
            yield f"lane {lane.name}", _shares(row, lane, len(lanes), window, still=still)
    for job, spans in of_job.items():
        for number, part in enumerate(_divided(segments(spans))):
            first_s, last_s = part[0].begin_s, part[-1].end_s
            own = [
                mark
                for mark in marks.get(job, ())
                if (number == 0 or mark.at_s >= first_s) and (last_s is None or mark.at_s < last_s)
            ]
            key = f"{job}/{number}" if number else job
            yield key, _block(job, part, own, lanes, window, still=still)


def _divided(made: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Yield parts of segments, of :data:`MOST_RUNS` runs at most, but of one segment at least."""
    part: list[Segment] = []
    for segment in made:
        if part and sum(len(own.runs) for own in (*part, segment)) > MOST_RUNS:
            yield part
            part = []
        part.append(segment)
    if part:
        yield part


def _frame(
    kind: str, job: str, title: str, shapes: str, rows: int, window: TimeWindow, *, still: bool
) -> str:
    begin_s, length_s = window.begin_s - window.origin_s, window.end_s - window.begin_s
    box = f"{begin_s:.1f} 0 {length_s:.1f} {rows}" if still else f"0 0 1 {rows}"
    own = f' data-job="{html.escape(job)}"' if job else ""
    return (
        f'<svg class="block {kind}" height="{rows * row_px(rows)}"{own}>'
        f'<title>{html.escape(title)}</title><svg class="shape" viewBox="{box}" '
        f'preserveAspectRatio="none" height="{rows * row_px(rows)}">{shapes}</svg>'
    )


def _block(
    name: str,
    made: Sequence[Segment],
    marks: Sequence[Mark],
    lanes: Sequence[Lane],
    window: TimeWindow,
    *,
    still: bool,
) -> str:
    job, rows = name.partition(" ")[0], len(lanes)
    asleep = job in (OFF, BOOT)
    title = "; ".join(_segment_words(segment, lanes) for segment in made[-TITLE_SEGMENTS:])
    title = printable(f"{'node ' if asleep else 'job '}{job}: {title}")
    fill, edge = _paths(made, window)
    kind = job if asleep else plots.colour(job)
    shapes = f'<path class="fill" d="{fill}"/><path class="edge" d="{edge}"/>'
    link = "" if asleep else job
    parts = [_frame(kind, link, title, shapes, rows, window, still=still)]
    height = row_px(rows)
    for segment in made:
        end = "" if segment.end_s is None else f' data-b="{segment.end_s - window.origin_s:.1f}"'
        x = window.place(max(segment.begin_s, window.begin_s)) if still else "0"
        widest = max(segment.runs, key=lambda run: run[1] - run[0])
        for low, high in segment.runs:
            words = f"{job} ×{segment.size}" if (low, high) == widest and not asleep else job
            parts.append(
                f'<text data-a="{segment.begin_s - window.origin_s:.1f}"{end} x="{x}" dx="5" '
                f'y="{(low + high) / 2 * height + 4:.1f}">{html.escape(printable(words))}</text>'
            )
    for mark in marks:
        at = min(made, key=lambda segment: abs(segment.begin_s - mark.at_s))
        y = at.runs[0][0] * height
        x = window.place(mark.at_s) if still else "0"
        parts.append(
            f'<svg class="mark" data-a="{mark.at_s - window.origin_s:.1f}" x="{x}" y="{y}" '
            f'width="1" height="{height}" overflow="visible">'
            f"<title>{html.escape(printable(plots.mark_words(mark)))}</title>"
            '<path d="M-5 1H5L0 9Z"/></svg>'
        )
    return "".join(parts) + "</svg>"


def _segment_words(segment: Segment, lanes: Sequence[Lane]) -> str:
    names = [
        lanes[low].name if high - low == 1 else f"{lanes[low].name} to {lanes[high - 1].name}"
        for low, high in segment.runs[:4]
    ]
    more = ", ..." if len(segment.runs) > 4 else ""
    size = f"{segment.size} node{'s' if segment.size != 1 else ''}"
    until = "now" if segment.end_s is None else clock(segment.end_s)
    return f"{size} ({', '.join(names)}{more}) from {clock(segment.begin_s)} to {until}"


def _at(at_s: float | None, window: TimeWindow) -> str:
    if at_s is None:
        return f"{AFTER_S:.0f}"
    return f"{min(AFTER_S, max(BEFORE_S, at_s - window.origin_s)):.1f}"


def _paths(made: Sequence[Segment], window: TimeWindow) -> tuple[str, str]:
    """Return the areas of segments, and the outline of their union."""
    fill, edge = [], []
    before: frozenset[int] = frozenset()
    end_s: float | None = -1.0
    for segment in made:
        a, b = _at(segment.begin_s, window), _at(segment.end_s, window)
        held = frozenset(row for low, high in segment.runs for row in range(low, high))
        if end_s != segment.begin_s:
            edge += _uprights(_at(end_s, window), before)
            before = frozenset()
        edge += _uprights(a, before ^ held)
        for low, high in segment.runs:
            fill.append(f"M{a} {low}V{high}H{b}V{low}Z")
            edge.append(f"M{a} {low}H{b}M{a} {high}H{b}")
        before, end_s = held, segment.end_s
    edge += _uprights(_at(end_s, window), before)
    return "".join(fill), "".join(edge)


def _uprights(x: str, rows: Iterable[int]) -> list[str]:
    return [f"M{x} {row}V{row + 1}" for row in sorted(rows)]


def _shares(row: int, lane: Lane, rows: int, window: TimeWindow, *, still: bool) -> str:
    """Return the share of a lane's nodes that jobs hold, over time."""
    ends = [at_s for at_s, _ in lane.held[1:]] + [None]
    path = "".join(
        f"M{_at(at_s, window)} {row + 1}V{row + 1 - share:.3f}H{_at(end_s, window)}V{row + 1}Z"
        for (at_s, share), end_s in zip(lane.held, ends, strict=True)
        if share
    )
    title = f"{lane.name}: {lane.held[-1][1]:.0%} of {lane.nodes} nodes allocated"
    shapes = f'<path class="fill" d="{path}"/>'
    return _frame("part", "", printable(title), shapes, rows, window, still=still) + "</svg>"


# --- curves --------------------------------------------------------------------------------------

STRIP_PX = 56


def strip(steps: Sequence[tuple[float, float]], window: TimeWindow, top: float, kind: str) -> str:
    """Return an area under ``(time, value from then on)``, from 0 to ``top``."""
    span_s = window.end_s - window.begin_s
    corners = []
    for at_s, value in steps:
        x = min(1.0, max(0.0, (at_s - window.begin_s) / span_s)) * 1000
        y = STRIP_PX - min(1.0, value / top if top else 0.0) * (STRIP_PX - 2)
        corners.append(f"H{x:.0f}V{y:.1f}")
    first = 0.0
    if steps:
        first = min(1.0, max(0.0, (steps[0][0] - window.begin_s) / span_s)) * 1000
    area = f"M{first:.0f} {STRIP_PX}{''.join(corners)}H1000V{STRIP_PX}Z" if steps else ""
    return (
        f'<svg class="strip" height="{STRIP_PX}" aria-hidden="true">'
        f'<svg viewBox="0 0 1000 {STRIP_PX}" preserveAspectRatio="none" height="{STRIP_PX}">'
        f'<path class="{kind}" d="{area}"/></svg>'
        f'<line class="grid" x1="0" x2="100%" y1="1" y2="1"/>'
        f'<line class="grid" x1="0" x2="100%" y1="{STRIP_PX / 2:.0f}" y2="{STRIP_PX / 2:.0f}"/>'
        f'<line class="grid" x1="0" x2="100%" y1="{STRIP_PX - 0.5}" y2="{STRIP_PX - 0.5}"/></svg>'
    )


def mean(steps: Sequence[tuple[float, float]], end_s: float) -> float:
    """Return the mean over time of ``(time, value from then on)``."""
    if not steps or end_s <= steps[0][0]:
        return 0.0
    ends = [at_s for at_s, _ in steps[1:]] + [end_s]
    total = sum(
        value * (until_s - at_s) for (at_s, value), until_s in zip(steps, ends, strict=True)
    )
    return total / (end_s - steps[0][0])


# --- one job: its size over time ------------------------------------------------------------------


def width_bar(job: JobRow, now_s: float, height: int, *, labels: bool = False) -> str:
    """Return a bar from a job's start until now or its end; its width is the number of nodes."""
    if job.start_s is None or not job.size:
        return ""
    end_s = now_s if job.end_s is None else job.end_s
    steps = size_steps(job.start_s, job.size, job.resizes)
    length_s = max(end_s - job.start_s, 1e-3)
    most = max([nodes for _, nodes in steps] + [float(job.nodes_max if labels else 1)])
    ends = [at_s for at_s, _ in steps[1:]] + [end_s]
    parts = []
    for (at_s, nodes), until_s in zip(steps, ends, strict=True):
        x = 100.0 * (at_s - job.start_s) / length_s
        wide = max(0.0, 100.0 * (until_s - at_s) / length_s)
        tall = max(2.0, (height - 2) * nodes / most)
        parts.append(
            f'<rect x="{x:.1f}%" width="{wide:.1f}%" y="{(height - tall) / 2:.1f}" '
            f'height="{tall:.1f}"/>'
        )
        if labels and wide > 4.0:
            unit = f" node{'s' if nodes != 1 else ''}" if wide > 15.0 else ""
            place = f'x="{x + wide / 2:.1f}%" y="{height / 2 + 4:.0f}"'
            parts.append(f"<text {place}>{nodes:g}{unit}</text>")
    sizes = [f"{nodes:g}" for _, nodes in steps][-8:]
    sizes_words = f"{'nodes over time: ' if len(sizes) > 1 else 'nodes: '}{', '.join(sizes)}"
    kind = f"width {plots.colour(job.id)}{' labelled' if labels else ''}"
    head = f'<svg class="{kind}" height="{height}" role="img" aria-label="{sizes_words}">'
    return f"{head}{''.join(parts)}</svg>"


def share_bar(share: float, kind: str = "") -> str:
    """Return a bar that fills a share of its width; the words beside it say the same."""
    return (
        f'<svg class="share {kind}" height="6" aria-hidden="true"><rect width="100%" height="6" '
        f'rx="3"/><rect class="on" width="{100.0 * min(1.0, max(0.0, share)):.1f}%" height="6" '
        'rx="3"/></svg>'
    )
