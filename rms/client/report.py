"""A report: one HTML file with tables and charts, and beside it its tables as CSV, charts as PNG.

``report.html`` has the templates of the page and of its parts.
"""

from __future__ import annotations

import base64
import html
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from rms import plots
from rms.client.status import STATES, state_key, state_look
from rms.core.books.spans import BOOT, OFF
from rms.core.model.events import node_words
from rms.formats.energy import energy_words
from rms.formats.prices import Prices
from rms.wire.files import csv_text, write_whole
from rms.wire.terminal import clock, hms
from rms.wire.users import EnergyRow, JobRow, NodeSpan

STYLE = Path(__file__).with_name("report.css")
SCRIPT = Path(__file__).with_name("report.js")
NUMBER = re.compile(
    r"\d+:\d\d:\d\d|[-+]?[\d,]+(\.\d+)?([eE][-+]?\d+)?( ?(s|J|kJ|MJ|GJ|W|%|MB|GB/s))?"
)

MOST_ROWS = 1000
"""Rows of a table on the page; the CSV file has all."""

MOST_LANES = 64
"""With more nodes, several nodes share a lane."""

MOST_BARS = 20_000
"""With more spans, nodes share lanes too."""

PARTS = 300
"""Resolution of the curve of power: parts of the time."""

HINT = (
    "A bar is a job on a node, a triangle a resize: rest the pointer there for more. "
    "+ and - (or Ctrl and the wheel) zoom, arrows and dragging move, 0 shows all."
)


@dataclass(frozen=True)
class Cell:
    """A cell of a table with more than a text.

    Attributes:
        text: on the page; ``mark`` is HTML before it.
        csv: in the CSV file; None for ``text``.
        title: shown where the pointer rests.
        kind: class of the cell; ``n`` for a number.
        key: by which the page sorts; "" for ``text``.
    """

    text: str
    csv: str | None = None
    title: str = ""
    kind: str = ""
    key: str = ""
    mark: str = ""


Rows = Sequence[Sequence[str | Cell]]

_BREAKS = re.compile(r"(?<=[>}])\s*\n\s*|\s*\n\s*(?=[<{])")
"""Line breaks of a template beside markup, which are not part of the HTML."""


def environment(folder: Path) -> Any:
    """Return a Jinja environment with autoescape for the templates of a folder."""
    import jinja2

    loader = jinja2.FunctionLoader(lambda name: _BREAKS.sub("", (folder / name).read_text()))
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)


@cache
def _pieces() -> Any:
    templates = environment(Path(__file__).parent)
    templates.tests["number_text"] = NUMBER.fullmatch
    return templates.get_template("report.html").module


def page(title: str, parts: Iterable[str], contents: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page; its security policy permits no other script or style.

    Args:
        contents: names and texts of its sections.
    """
    style, script = STYLE.read_text() + plots.STYLE, SCRIPT.read_text()
    rules = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return str(_pieces().page(title, style, script, rules, parts, contents)) + "\n"


def _hash(text: str) -> str:
    """Return the source expression that permits an inline style or script."""
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


@dataclass(frozen=True)
class SizedJob:
    """The numbers of nodes of a job over time.

    Attributes:
        submit_s: its submission.
        sizes: ``(time, nodes from then on)``, rising; 0 from its end on.
    """

    id: str
    name: str
    submit_s: float
    sizes: Sequence[tuple[float, int]]

    def svg(self, window: plots.TimeWindow, most: int) -> str:
        """Return its lane; a bar of ``most`` nodes fills the height."""
        wait = (self.submit_s, self.sizes[0][0] if self.sizes else window.end_s, 0)
        ends = [at_s for at_s, _ in self.sizes[1:]] + [window.end_s]
        bars = [(at_s, end_s, n) for (at_s, n), end_s in zip(self.sizes, ends, strict=True) if n]
        return (
            f'<svg class="lane" height="{plots.LANE_PX}" aria-hidden="true">'
            f"{''.join(self._bar(window, most, *bar) for bar in (wait, *bars))}</svg>"
        )

    def _bar(
        self, window: plots.TimeWindow, most: int, begin_s: float, end_s: float, nodes: int
    ) -> str:
        height = max(2.0, (plots.LANE_PX - 2) * nodes / most) if nodes else 2.0
        kind, what = f"step {plots.colour(self.id)}", node_words(nodes)
        if not nodes:
            kind, what = "step wait", "pending"
        begin_s = max(begin_s, window.begin_s)
        words = f"job {self.id}, {what}, {clock(begin_s)} to {clock(end_s)}, {hms(end_s - begin_s)}"
        width = 100.0 * max(0.0, end_s - begin_s) / (window.end_s - window.begin_s)
        return (
            f'<g class="{kind}" data-a="{begin_s - window.origin_s:.1f}" '
            f'data-b="{end_s - window.origin_s:.1f}"><title>{html.escape(words)}</title>'
            f'<rect x="{window.place(begin_s)}" width="{width:.3f}%" '
            f'y="{plots.LANE_PX - 1 - height:.1f}" height="{height:.1f}"/></g>'
        )

    def spark(self) -> str:
        """Return the sizes as a small picture."""
        begin_s, end_s = self.sizes[0][0], max(self.sizes[-1][0], self.sizes[0][0] + 1e-3)
        most = max(n for _, n in self.sizes)
        path = "M0 18"
        for at_s, n in self.sizes:
            path += f"H{88 * (at_s - begin_s) / (end_s - begin_s):.1f}V{18 - 17 * n / most:.1f}"
        return (
            f'<svg class="spark" viewBox="0 0 90 18" aria-hidden="true">'
            f'<path class="area" d="{path}H88V18Z"/></svg>'
        )


def sizes_of(spans: Iterable[NodeSpan], end_s: float) -> dict[str, list[tuple[float, int]]]:
    """Return ``(time, nodes from then on)`` by job; a job that still runs ends at ``end_s``."""
    changes: dict[str, Counter[float]] = {}
    for span in spans:
        own = changes.setdefault(span.job, Counter())
        own[span.start_s] += 1
        own[end_s if span.end_s is None else span.end_s] -= 1
    sizes: dict[str, list[tuple[float, int]]] = {}
    for job, own in changes.items():
        steps, nodes = sizes.setdefault(job, []), 0
        for at_s in sorted(own):
            nodes += own[at_s]
            if own[at_s]:
                steps.append((at_s, nodes))
    return sizes


def _csv(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return cell
    return cell.text if cell.csv is None else cell.csv


def _is_number(column: Sequence[str | Cell]) -> bool:
    """Return whether all cells of a column are numbers or empty, and some are numbers."""
    kinds = {_kind(cell) for cell in column}
    return "n" in kinds and kinds <= {"n", ""}


def _kind(cell: str | Cell) -> str:
    """Return ``n`` for a number, "" for an empty cell, another word for a text."""
    if isinstance(cell, str):
        return "n" if NUMBER.fullmatch(cell) else "text" if cell else ""
    return cell.kind or ("text" if cell.text or cell.mark else "")


@dataclass
class Report:
    """The parts of a report, in order.

    Attributes:
        parts: HTML of the page.
        files: CSV texts by name.
        figures: functions that write a PNG file, by name.
        contents: names and texts of the sections.
    """

    title: str
    parts: list[str] = field(default_factory=list)
    contents: list[tuple[str, str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Callable[[Path], None]] = field(default_factory=dict)

    def head(self, text: str, level: int = 2) -> None:
        """Begin a section; one of level 2 is in the list of contents."""
        name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-") if level == 2 else ""
        if name:
            self.contents.append((name, text))
        self.parts.append(_pieces().heading(text, level, name))

    def say(self, text: str, kind: str = "") -> None:
        """Add a paragraph."""
        self.parts.append(_pieces().paragraph(text, kind))

    def tiles(self, tiles: Sequence[tuple[str, str, str]]) -> None:
        """Add tiles with a label, a figure, and a note."""
        self.parts.append(_pieces().tiles(tiles))

    def state(self, job: JobRow, csv: str | None = None) -> Cell:
        """Return the cell of a job's state: sign, word and colour."""
        look = state_look(job)
        mark = str(_pieces().state(state_key(job), look.word, look.sign))
        return Cell("", job.state if csv is None else csv, key=look.word, mark=mark)

    def preformatted(self, lines: Iterable[str]) -> None:
        """Add lines as a terminal shows them."""
        self.parts.append(_pieces().preformatted("\n".join(lines)))

    def picture(self, name: str, draw: Callable[[Path], None]) -> None:
        """Add a picture, of which the page has the PNG file."""
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / f"{name}.png"
            draw(path)
            png = path.read_bytes()
        self.parts.append(_pieces().picture(name, base64.b64encode(png).decode()))
        self.figures[f"{name}.png"] = lambda path: write_whole(path, png)

    def table(
        self, name: str, heads: Sequence[str], rows: Rows, csv_heads: Sequence[str] = ()
    ) -> None:
        """Add a table, and its CSV file of this name."""
        texts = [[_csv(cell) for cell in row] for row in rows]
        self.files[f"{name}.csv"] = csv_text([csv_heads or heads, *texts] if heads else texts)
        shown = rows[:MOST_ROWS]
        columns = zip(*(row[1:] for row in shown), strict=True)
        numeric = [False, *map(_is_number, columns)] if shown else [False] * len(heads)
        self.parts.append(_pieces().table(heads, shown, numeric))
        if len(rows) > MOST_ROWS:
            self.say(f"The first {MOST_ROWS:,} of {len(rows):,} rows; all are in {name}.csv.")

    def write(self, folder: Path) -> Path:
        """Write the files, the page last; return its path.

        Raises:
            OSError: a file cannot be written; a new folder is deleted again.
        """
        files: dict[str, str | bytes] = dict(self.files)
        with tempfile.TemporaryDirectory() as scratch:
            for name, draw in self.figures.items():
                draw(Path(scratch) / name)
                files[name] = (Path(scratch) / name).read_bytes()
        new = not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                write_whole(folder / name, content)
            text = page(self.title, self.parts, self.contents)
            write_whole(folder / "report.html", text)
        except OSError:
            if new:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder / "report.html"

    # --- charts ------------------------------------------------------------------------------

    def over_time(
        self,
        history: plots.History,
        points: Sequence[tuple[float, Sequence[float]]],
        marks: Mapping[str, Sequence[tuple[float, str]]],
        name: str = "",
        *,
        relative: bool = False,
        prices: Prices | None = None,
    ) -> None:
        """Add the jobs on the nodes over time, and the power below.

        Args:
            points: of the power, as :func:`rms.plots.power` takes them.
            marks: ``(time, words)`` by job.
            name: begin of the files' names.
            relative: times are seconds since the start instead of times of day.
            prices: of electricity, to be drawn below.
        """
        window = _window(history)
        power = plots.power(points, window).replace("<svg ", '<svg class="curve" ', 1)
        rows = [
            *_lanes(history, marks, window),
            ("Nodes allocated", _allocated(history, window)),
            ("Power", power),
            ("Energy", _energy(points, window)),
            *([] if prices is None else _prices(prices, window)),
        ]
        if not any(HINT in part for part in self.parts):
            self.say(HINT, "hint")
        self._timed("nodes, power and energy over time", window, rows, relative=relative)
        if any(sum(watts[1:]) for _, watts in points):
            self.parts.append(_pieces().owners(plots.OWNERS))
        self.figures[f"{name}nodes.png"] = lambda path: plots.gantt(
            history, path, "nodes over time"
        )
        self.figures[f"{name}power.png"] = lambda path: plots.power_over_time(
            {"cluster": history}, path, "power of the cluster"
        )
        spans = [*history.spans, *history.power_spans]
        held = [(span.node, span.job, span.start_s, span.end_s) for span in spans]
        self.files[f"{name}nodes.csv"] = csv_text([("node", "job", "start_s", "end_s"), *held])
        self.files[f"{name}power.csv"] = csv_text([("at_s", "watts"), *history.power_w])

    def sizes(self, history: plots.History, jobs: Sequence[SizedJob]) -> None:
        """Add jobs as bars as wide as their numbers of nodes, with their waits before them."""
        window, most = _window(history), max((n for job in jobs for _, n in job.sizes), default=1)
        rows = [(f"{job.id} {job.name}", job.svg(window, most)) for job in jobs]
        self._timed("sizes of jobs over time", window, rows)

    def _timed(
        self,
        label: str,
        window: plots.TimeWindow,
        rows: Sequence[tuple[str, str]],
        *,
        relative: bool = False,
    ) -> None:
        length, origin = f"{window.end_s - window.begin_s:.3f}", f"{window.begin_s:.3f}"
        rows = [*rows, ("", plots.axis(window))]
        kind = "" if relative else "local"
        self.parts.append(_pieces().over_time(label, length, origin, kind, rows))

    def tasks(self, array: str, states: Mapping[int, str]) -> None:
        """Add the tasks of an array as cells."""
        self.head(f"Array {array}, {len(states):,} tasks", 3)
        firsts = sorted({at - at % plots.CELLS for at in states})
        self.parts.append(
            _pieces().tasks([(first, plots.cells(first, states)) for first in firsts])
        )
        self.say(
            ", ".join(
                f"{plots.state_sign(state) or 'blank'} {STATES[state].word}: {number:,}"
                for state, number in Counter(states.values()).items()
            )
        )

    def bars(self, name: str, rows: Sequence[tuple[str, float]], unit: str) -> None:
        """Add a bar chart of figures."""
        panel = plots.Panel(name, {"": ([label for label, _ in rows], [v for _, v in rows])}, unit)
        self.parts.append(plots.rates(rows, unit))
        self.figures[f"{name}.png"] = lambda path: plots.draw_panels([panel], path, name)


def watts_by_owner(
    rows: Iterable[EnergyRow], begin_s: float, end_s: float
) -> list[tuple[float, tuple[float, float, float, float]]]:
    """Return the mean power of jobs (and tasks), idle, off and boot in all parts of a time.

    The joules of all parts are those of the rows that lie in the time.
    """
    part_s = (end_s - begin_s) / PARTS
    joules = [[0.0] * 4 for _ in range(PARTS)]
    owners = {"idle": 1, OFF: 2, BOOT: 3}
    for row in rows:
        owner, span_s = owners.get(row.owner, 0), row.end_s - row.begin_s
        if span_s <= 0.0:
            continue
        first = max(0, int((row.begin_s - begin_s) / part_s))
        last = min(PARTS - 1, int((row.end_s - begin_s) / part_s))
        for at in range(first, last + 1):
            low, high = begin_s + at * part_s, begin_s + (at + 1) * part_s
            inside_s = min(high, row.end_s) - max(low, row.begin_s)
            joules[at][owner] += row.joules * max(0.0, inside_s) / span_s
    return [
        (begin_s + (at + 1) * part_s, (j / part_s, i / part_s, o / part_s, b / part_s))
        for at, (j, i, o, b) in enumerate(joules)
    ]


def watts_of(
    history: plots.History,
) -> list[tuple[float, tuple[float, float, float, float]]]:
    """Return the power of the cluster as that of jobs, where its owners are unknown."""
    times, watts = history.power()
    part_s = (history.end_s - history.start_s) / PARTS
    points, at = [], 0
    for part in range(PARTS):
        while at + 1 < len(times) and times[at + 1] <= part * part_s:
            at += 1
        power_w = watts[at] if watts else 0.0
        points.append((history.start_s + (part + 1) * part_s, (power_w, 0.0, 0.0, 0.0)))
    return points


def _window(history: plots.History) -> plots.TimeWindow:
    end_s = max(history.end_s, history.start_s + 1e-3)
    return plots.TimeWindow(history.start_s, end_s, history.start_s)


CURVE_PX = 70


def _curve(points: Sequence[tuple[float, float]], top: float, scale: str, end_s: float) -> str:
    """Return a curve as an area.

    Args:
        points: ``(share of the width, value from then on)``, rising.
        top: the value at the top; ``scale`` is its name.
        end_s: where it ends, as a share of the width.
    """
    path, height = f"M{1000 * points[0][0]:.1f} {CURVE_PX}" if points else "", CURVE_PX - 16
    for x, value in points:
        path += f"H{1000 * x:.1f}V{CURVE_PX - height * value / (top or 1.0):.1f}"
    area = f'<path class="area" d="{path}H{1000 * end_s:.1f}V{CURVE_PX}Z"/>' if points else ""
    y = CURVE_PX - height
    return (
        f'<svg class="curve" height="{CURVE_PX}" aria-hidden="true">'
        f'<svg viewBox="0 0 1000 {CURVE_PX}" preserveAspectRatio="none" height="{CURVE_PX}">{area}'
        f'</svg><g class="scale"><line x1="0" x2="100%" y1="{y}" y2="{y}"/>'
        f'<text x="2" y="{y - 3}">{scale}</text></g></svg>'
    )


def _allocated(history: plots.History, window: plots.TimeWindow) -> str:
    """Return the share of the nodes that jobs hold, over time."""
    nodes, span_s = max(1, len(history.rows)), window.end_s - window.begin_s
    shares = plots.held_shares(history.spans, nodes, window, PARTS)
    points = [((at_s - window.begin_s) / span_s, share) for at_s, share in shares]
    return _curve(points, 1.0, "100 %", 1.0)


def _energy(points: Sequence[tuple[float, Sequence[float]]], window: plots.TimeWindow) -> str:
    """Return the energy since the begin, over time."""
    span_s, so_far_j, before_s = window.end_s - window.begin_s, 0.0, window.begin_s
    curve = []
    for at_s, watts in points:
        curve.append(((before_s - window.begin_s) / span_s, so_far_j))
        so_far_j += sum(watts) * (at_s - before_s)
        before_s = at_s
    curve.append(((before_s - window.begin_s) / span_s, so_far_j))
    return _curve(curve, so_far_j, energy_words(so_far_j), 1.0)


def _prices(prices: Prices, window: plots.TimeWindow) -> Iterator[tuple[str, str]]:
    """Yield the curves of the price and of the emissions."""
    span_s = window.end_s - window.begin_s
    for kind, name, unit in prices.units:
        steps = prices.steps(kind, window.begin_s, window.end_s, PARTS)
        points = [((at_s - window.begin_s) / span_s, value) for at_s, value in steps]
        if points:
            top = max(value for _, value in points)
            yield name, _curve(points, top, html.escape(f"{top:.4g} {unit}"), 1.0)


def _lanes(
    history: plots.History,
    marks: Mapping[str, Sequence[tuple[float, str]]],
    window: plots.TimeWindow,
) -> Iterator[tuple[str, str]]:
    """Yield names and SVG of the lanes."""
    nodes, spans = history.rows, [*history.spans, *history.power_spans]
    most = MOST_LANES if len(spans) <= MOST_BARS else -(-len(nodes) // 2)
    groups = plots.folded(nodes, min(MOST_LANES, most))
    for lane in plots.lanes_of(nodes, groups, spans, window):
        yield lane.name, plots.lane_svg(lane, plots.marks_on(lane.spans, marks), window)
