"""A report: one HTML file with tables and charts, and beside it its tables as CSV, charts as PNG.

``report.html`` has the templates of the page and of its parts.
"""

from __future__ import annotations

import base64
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
from rms.core.books.spans import BOOT, OFF
from rms.wire.files import csv_text, write_whole
from rms.wire.users import EnergyRow

STYLE = Path(__file__).with_name("report.css")
SCRIPT = Path(__file__).with_name("report.js")
NUMBER = re.compile(r"[-+]?[\d,]+(\.\d+)?([eE][-+]?\d+)?( ?(s|J|kJ|MJ|GJ|W|%|MB|GB/s))?")

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

Rows = Sequence[Sequence[str]]

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


def page(title: str, parts: Iterable[str]) -> str:
    """Return the page; its security policy permits no other script or style."""
    style, script = STYLE.read_text() + plots.STYLE, SCRIPT.read_text()
    rules = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return str(_pieces().page(title, style, script, rules, parts)) + "\n"


def _hash(text: str) -> str:
    """Return the source expression that permits an inline style or script."""
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


@dataclass
class Report:
    """The parts of a report, in order.

    Attributes:
        parts: HTML of the page.
        files: CSV texts by name.
        figures: functions that write a PNG file, by name.
    """

    title: str
    parts: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Callable[[Path], None]] = field(default_factory=dict)

    def head(self, text: str, level: int = 2) -> None:
        """Begin a section."""
        self.parts.append(_pieces().heading(text, level))

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self.parts.append(_pieces().paragraph(text))

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

    def table(self, name: str, heads: Sequence[str], rows: Rows) -> None:
        """Add a table, and its CSV file of this name."""
        self.files[f"{name}.csv"] = csv_text([heads, *rows] if heads else rows)
        self.parts.append(_pieces().table(heads, rows[:MOST_ROWS]))
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
            write_whole(folder / "report.html", page(self.title, self.parts))
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
    ) -> None:
        """Add the jobs on the nodes over time, and the power below.

        Args:
            points: of the power, as :func:`rms.plots.power` takes them.
            marks: ``(time, words)`` by job.
            name: begin of the files' names.
            relative: times are seconds since the start instead of times of day.
        """
        end_s = max(history.end_s, history.start_s + 1e-3)
        window = plots.TimeWindow(history.start_s, end_s, history.start_s)
        curve = plots.power(points, window).replace("<svg ", '<svg class="curve" ', 1)
        if not any(HINT in part for part in self.parts):
            self.say(HINT)
        self.parts.append(
            _pieces().over_time(
                history,
                length=f"{end_s - history.start_s:.3f}",
                clock="" if relative else "local",
                lanes=_lanes(history, marks, window),
                curve=curve,
                axis=plots.axis(window),
            )
        )
        if any(sum(watts[1:]) for _, watts in points):
            self.parts.append(_pieces().owners(plots.OWNERS))
        self.figures[f"{name}nodes.png"] = lambda path: plots.gantt(
            history, path, "nodes over time"
        )
        self.figures[f"{name}power.png"] = lambda path: plots.power_over_time(
            {"cluster": history}, path, "power of the cluster"
        )
        spans = [*history.spans, *history.power_spans]
        rows = [(span.node, span.job, span.start_s, span.end_s) for span in spans]
        self.files[f"{name}nodes.csv"] = csv_text([("node", "job", "start_s", "end_s"), *rows])
        self.files[f"{name}power.csv"] = csv_text([("at_s", "watts"), *history.power_w])

    def tasks(self, array: str, states: Mapping[int, str]) -> None:
        """Add the tasks of an array as cells."""
        self.head(f"Array {array}, {len(states):,} tasks", 3)
        firsts = sorted({at - at % plots.CELLS for at in states})
        self.parts.append(
            _pieces().tasks([(first, plots.cells(first, states)) for first in firsts])
        )
        self.say(
            ", ".join(
                f"{plots.state_sign(state) or 'empty'} {state}: {number:,}"
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
