"""A page in one file: tables, and figures inside it, so that it can be sent or kept as it is."""

from __future__ import annotations

import base64
import html
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from rms import drawings
from rms.core.books.spans import BOOT, OFF
from rms.drawings import Window
from rms.plots import History, gantt, power_over_time
from rms.wire.files import csv_text, write_whole
from rms.wire.users import EnergyRow, NodeSpan

STYLE = """:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --soft: #eceef1 }
@media (prefers-color-scheme: dark) { :root { --ink: #eaeaea; --paper: #15181c; --soft: #2a3038 } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 90rem; padding: 1rem;
  color: var(--ink); background: var(--paper) }
h1 { font-size: 1.4rem } h2 { font-size: 1.15rem; margin: 1.8rem 0 .4rem }
h3 { font-size: 1rem; margin: 1rem 0 .3rem }
.wide { overflow-x: auto; max-height: 34rem; margin: .5rem 0 1rem }
table { border-collapse: collapse } th { position: sticky; top: 0; background: var(--paper) }
td, th { padding: .2rem 1rem .2rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--soft) }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
img { max-width: 100%; display: block; background: #fff }
pre { background: var(--soft); padding: .6rem; overflow-x: auto }
.over-time { touch-action: pan-y; cursor: grab; margin: .4rem 0 }
.over-time:focus-visible { outline: 3px solid #0b6bd3; outline-offset: 3px }
.row { display: flex; align-items: center; gap: .5rem }
.row .name { flex: 0 0 7rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
.row svg { flex: 1; min-width: 0 } .row svg.lane { border-bottom: 1px solid var(--soft) }
.tasks svg { max-width: 50rem }
.key { padding: 0 .4rem; margin-right: .3rem; color: #111; border: 1px solid #444 }
.key.jobs { background: #77aadd } .key.idle { background: #eedd88 }
.key.off { background: #bbcc33 } .key.boot { background: #ee8866 }
"""
SCRIPT = Path(__file__).with_name("report.js")
NUMBER = re.compile(r"[-+]?[\d,]+(\.\d+)?([eE][-+]?\d+)?( ?(s|J|kJ|MJ|GJ|W|%|MB|GB/s))?")


def page(title: str, parts: Iterable[str]) -> str:
    """Return the page; ``parts`` are what the other functions return."""
    name, style, script = html.escape(title), STYLE + drawings.STYLE, SCRIPT.read_text()
    rules = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<style>{style}</style></head>\n<body><main><h1>{name}</h1>\n{body}\n"
        f"</main><script>{script}</script></body></html>\n"
    )


def _hash(text: str) -> str:
    """Return the source expression that permits an inline style or script."""
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


def heading(text: str, level: int = 2) -> str:
    """Return a heading."""
    return f"<h{level}>{html.escape(text)}</h{level}>"


def paragraph(text: str) -> str:
    """Return a paragraph of text."""
    return f"<p>{html.escape(text)}</p>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of text; no heads are no line of them."""
    lines = [_line("th", heads)] if heads else []
    lines += [_line("td", row) for row in rows]
    return '<div class="wide" tabindex="0"><table>' + "\n".join(lines) + "\n</table></div>"


def _line(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(_cell(tag, cell, at) for at, cell in enumerate(cells))}</tr>"


def _cell(tag: str, cell: str, at: int) -> str:
    kind = ' class="n"' if at and tag == "td" and NUMBER.fullmatch(cell) else ""
    return f"<{tag}{kind}>{html.escape(cell)}</{tag}>"


def preformatted(lines: Iterable[str]) -> str:
    """Return lines as a terminal shows them."""
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def pictures(files: Iterable[Path]) -> str:
    """Return PNG files as pictures inside the page."""
    return "".join(
        f'<img alt="{html.escape(file.stem)}" src="data:image/png;base64,'
        f'{base64.b64encode(file.read_bytes()).decode()}">'
        for file in files
    )


# FUSED rms.client.report: A report: a page that needs nothing else, and beside it its tables as CSV, its figures as PNG.

MOST_ROWS = 1000
"""Of a table with more rows the page shows the first ones; all are in the CSV file."""

MOST_LANES = 64
"""More nodes than this share lanes."""

MOST_BARS = 20_000
"""Of more spans than this nodes share lanes too."""

PARTS = 300
"""Into how many parts a time is cut for the curve of power."""

HINT = (
    "A bar is a job on a node, a triangle a resize: rest the pointer there for more. "
    "+ and - (or Ctrl and the wheel) zoom, arrows and dragging move, 0 shows all."
)

Rows = Sequence[Sequence[str]]


@dataclass
class Report:
    """What a report shows, in order.

    Attributes:
        parts: of the page.
        files: CSV texts by name.
        figures: what draws a PNG file, by name.
    """

    title: str
    parts: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Callable[[Path], None]] = field(default_factory=dict)

    def head(self, text: str, level: int = 2) -> None:
        """Begin a section."""
        self.parts.append(heading(text, level))

    def say(self, text: str) -> None:
        """Enter a paragraph."""
        self.parts.append(paragraph(text))

    def table(self, name: str, heads: Sequence[str], rows: Rows) -> None:
        """Enter a table; the file is called so."""
        self.files[f"{name}.csv"] = csv_text([heads, *rows] if heads else rows)
        self.parts.append(table(heads, rows[:MOST_ROWS]))
        if len(rows) > MOST_ROWS:
            self.say(f"The first {MOST_ROWS:,} of {len(rows):,} rows; all are in {name}.csv.")

    def drawing(self, name: str, svg: str, draw: Callable[[Path], None]) -> None:
        """Enter a drawing, and what draws it as PNG."""
        self.parts.append(svg)
        self.figures[f"{name}.png"] = draw

    def write(self, folder: Path) -> Path:
        """Write it; return the page's path. The page comes last: where it is, all is.

        Raises:
            OSError: it cannot be written; a folder that did not exist before is deleted.
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

    # --- drawings ----------------------------------------------------------------------------

    def over_time(
        self,
        history: History,
        points: Sequence[tuple[float, Sequence[float]]],
        marks: Mapping[str, Sequence[tuple[float, str]]],
        name: str = "",
        *,
        relative: bool = False,
    ) -> None:
        """Enter who held which node when, and the power below it.

        Args:
            points: of the power, as :func:`rms.drawings.power` takes them.
            marks: of jobs, what happened to them when, in words.
            name: what the files' names begin with.
            relative: times are seconds since the start, and not of day.
        """
        end_s = max(history.end_s, history.start_s + 1e-3)
        window = Window(history.start_s, end_s, history.start_s)
        lanes = "".join(_lanes(history, marks, window))
        key = "".join(f'<span class="key {owner}">{owner}</span>' for owner in drawings.OWNERS)
        curve = drawings.power(points, window).replace("<svg ", '<svg class="curve" ', 1)
        clock = "" if relative else "local"
        if not any(HINT in part for part in self.parts):
            self.say(HINT)
        svg = (
            f'<div class="over-time" tabindex="0" role="img" '
            f'aria-label="nodes and power over time; the tables below say the same" '
            f'data-begin="0" data-end="{end_s - history.start_s:.3f}" '
            f'data-origin="{history.start_s:.3f}" data-clock="{clock}">{lanes}'
            f'<div class="row"><span class="name">power</span>{curve}</div>'
            f'<div class="row"><span class="name"></span>{drawings.axis(window)}</div></div>'
        )
        if any(sum(watts[1:]) for _, watts in points):
            svg += f"<p>Power by owner: {key}</p>"
        self.drawing(f"{name}nodes", svg, lambda path: gantt(history, path, "nodes over time"))
        self.figures[f"{name}power.png"] = lambda path: power_over_time(
            {"cluster": history}, path, "power of the cluster"
        )
        spans = [*history.spans, *history.power_spans]
        rows = [(span.node, span.job, span.start_s, span.end_s) for span in spans]
        self.files[f"{name}nodes.csv"] = csv_text([("node", "job", "start_s", "end_s"), *rows])
        self.files[f"{name}power.csv"] = csv_text([("at_s", "watts"), *history.power_w])

    def tasks(self, array: str, states: Mapping[int, str]) -> None:
        """Enter the tasks of an array as cells."""
        self.head(f"Array {array}, {len(states):,} tasks", 3)
        firsts = sorted({at - at % drawings.CELLS for at in states})
        rows = "".join(
            f'<div class="row tasks"><span class="name">{first}</span>'
            f"{drawings.cells(first, states)}</div>"
            for first in firsts
        )
        self.parts.append(f'<div class="wide" tabindex="0">{rows}</div>')
        seen = dict.fromkeys(states.values())
        self.say(
            ", ".join(
                f"{drawings.TASK_SIGNS.get(state, drawings.OTHER_SIGN)[1] or 'empty'} {state}: "
                f"{sum(each == state for each in states.values()):,}"
                for state in seen
            )
        )

    def bars(self, name: str, rows: Sequence[tuple[str, float]], unit: str) -> None:
        """Enter a bar for each figure."""
        from rms.plots import Panel, draw_panels

        panel = Panel(name, {"": ([each for each, _ in rows], [value for _, value in rows])}, unit)
        self.drawing(
            name, drawings.rates(rows, unit), lambda path: draw_panels([panel], path, name)
        )


def watts_by_owner(
    rows: Iterable[EnergyRow], begin_s: float, end_s: float
) -> list[tuple[float, tuple[float, float, float, float]]]:
    """Return the mean power of jobs (and tasks), idle, off and boot in each part of a time.

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
    history: History,
) -> list[tuple[float, tuple[float, float, float, float]]]:
    """Return the power of the cluster, of which nobody says whose it is, as that of jobs."""
    times, watts = history.power()
    part_s = (history.end_s - history.start_s) / PARTS
    found, at = [], 0
    for part in range(PARTS):
        while at + 1 < len(times) and times[at + 1] <= part * part_s:
            at += 1
        power_w = watts[at] if watts else 0.0
        found.append((history.start_s + (part + 1) * part_s, (power_w, 0.0, 0.0, 0.0)))
    return found


def _lanes(
    history: History, marks: Mapping[str, Sequence[tuple[float, str]]], window: Window
) -> Iterable[str]:
    nodes, of_node = history.rows, dict[str, list[NodeSpan]]()
    for span in [*history.spans, *history.power_spans]:
        of_node.setdefault(span.node, []).append(span)
    each = 1
    if len(nodes) > MOST_LANES or sum(len(spans) for spans in of_node.values()) > MOST_BARS:
        each = max(2, -(-len(nodes) // MOST_LANES)) if len(nodes) > 1 else 1
    for first in range(0, len(nodes), each):
        own = nodes[first : first + each]
        spans = [span for node in own for span in of_node.get(node, [])]
        if each == 1:
            name = own[0]
            lane = drawings.lane(spans, _on_node(spans, marks), window)
        else:
            name = own[0] if len(own) == 1 else f"{own[0]} - {own[-1]}"
            held = [span for span in spans if span.job not in (OFF, BOOT)]
            lane = drawings.held_lane(drawings.held_shares(held, len(own), window), window)
        yield f'<div class="row"><span class="name">{html.escape(name)}</span>{lane}</div>'


def _on_node(
    spans: Iterable[NodeSpan], marks: Mapping[str, Sequence[tuple[float, str]]]
) -> list[tuple[float, str]]:
    """Return the marks of the jobs that held a node then."""
    return [
        (at_s, words)
        for span in spans
        for at_s, words in marks.get(span.job, ())
        if span.start_s <= at_s <= (at_s if span.end_s is None else span.end_s)
    ]
