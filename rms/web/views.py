"""The live page: the query in its address, its views, and the updates that keep a page current.

A view is a frame with places, pieces of HTML for these places, and lists of pieces. A piece has a
key; an update has the pieces that differ from those sent under the same key before, in messages of
limited length. ``templates/views.html`` has the macros of the frames and of the pieces. Times stand
in ``<time>`` elements, in which the page's script keeps the time relative to now.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from rms import plots
from rms.client.commands import actions
from rms.client.report import environment
from rms.client.status import (
    DECISION_HEADS,
    GAIN_HEADS,
    HELD,
    HOURS_HEADS,
    RESIZE_HEADS,
    STATES,
    decision_cells,
    gain_cells,
    gain_words,
    hours_cells,
    hours_words,
    job_facts,
    resize_cells,
    state_key,
    state_look,
)
from rms.core.policies import POLICIES
from rms.formats.energy import energy_words
from rms.formats.values import fold_slots
from rms.plots import TimeWindow
from rms.web import drawings
from rms.wire.files import tail
from rms.wire.live import (
    MOST_LANES,
    JobLine,
    Lane,
    Live,
    LiveQuery,
    Mark,
    PriceCurve,
    StartForecast,
    UsageRow,
)
from rms.wire.terminal import clock, duration, hms, printable
from rms.wire.users import OVER, Gain, HoursGain, JobRow

MOST_BYTES = 10_000
"""Length of a message; the rest is in the next one."""

LONGEST_WORD = 120


def words(text: object, most: int = LONGEST_WORD) -> str:
    """Return a text in one line: cut to a length, with control characters escaped."""
    line = str(text)
    return printable(line if len(line) <= most else f"{line[:most]}...")


# --- times ---------------------------------------------------------------------------------------


def when(at_s: float) -> Markup:
    """Return a time: relative to now by the page's script, and the exact one on hover."""
    exact, iso = clock(at_s, day=True), time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))
    return Markup('<time datetime="{}Z" title="{}" data-at="{:.0f}">{}</time>').format(
        iso, exact, at_s, exact
    )


def since(at_s: float) -> Markup:
    """Return the time since a start, which the page's script counts on."""
    return Markup(
        '<span class="num" title="since {0}" data-since="{1:.0f}">since {0}</span>'
    ).format(clock(at_s, day=True), at_s)


def relative(at_s: float, now_s: float) -> str:
    """Return a time relative to now: ``3 min ago``, ``in 2 h``; page.js does the same."""
    ahead_s = at_s - now_s
    seconds = abs(ahead_s)
    if seconds < 5.0:
        return "now"
    units = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
    unit_s, name = next(unit for unit in units if seconds >= unit[0])
    text = f"{seconds // unit_s:.0f} {name}"
    return f"in {text}" if ahead_s > 0 else f"{text} ago"


_AT = re.compile(r'(<time [^>]*data-at="(\d+)">)[^<]*')
_SINCE = re.compile(r'(<span [^>]*data-since="(\d+)">)[^<]*')


def stood_still(text: str, now_s: float) -> str:
    """Return HTML with the times as they are now, for a page without its script."""
    text = _AT.sub(lambda match: match[1] + relative(float(match[2]), now_s), text)
    return _SINCE.sub(lambda match: match[1] + hms(now_s - float(match[2])), text)


# --- query --------------------------------------------------------------------------------------

ROWS = 25
FORECASTS = 8


@dataclass(frozen=True)
class PageQuery:
    """The view of a page, and the choices in it.

    Attributes:
        id: of a job or an array.
        jobs, find, offset: as in :class:`rms.wire.live.LiveQuery`.
        span_s: length of the time shown, s.
        back_s: time from its end to the present, s.
        still: whether the page has no script: nothing moves, and no actions.
    """

    view: str = "overview"
    id: str = ""
    jobs: str = "active"
    find: str = ""
    offset: int = 0
    span_s: float = 600.0
    back_s: float = 0.0
    still: bool = False

    @classmethod
    def parse(cls, parameters: Mapping[str, str], *, still: bool = False) -> PageQuery:
        """Return the query of an address."""
        view, jobs = parameters.get("view", "overview"), parameters.get("jobs", "active")
        if view not in VIEWS:
            raise ValueError(f"expected a view of {', '.join(VIEWS)}, got {view[:60]!r}")
        if jobs not in ("active", "over"):
            raise ValueError(f"expected jobs active or over, got {jobs[:60]!r}")
        return cls(
            view=view,
            id=parameters.get("id", "")[:100],
            jobs=jobs,
            find=parameters.get("find", "")[:200],
            offset=int(_number(parameters, "offset", 0, 10**9)),
            span_s=max(1.0, _number(parameters, "span", 600, 10**9)),
            back_s=_number(parameters, "back", 0, 10**11),
            still=still,
        )

    def link(self, **changes: object) -> str:
        """Return the address of this query with some changes."""
        options: dict[str, object] = {
            "view": self.view,
            "id": self.id,
            "jobs": self.jobs,
            "find": self.find,
            "offset": self.offset,
            "span": f"{self.span_s:g}",
            "back": f"{self.back_s:g}",
        }
        defaults = {"id": "", "jobs": "active", "find": "", "offset": 0, "span": "600", "back": "0"}
        options |= changes
        return ("read?" if self.still else "#") + urlencode(
            {key: value for key, value in options.items() if str(value) != str(defaults.get(key))}
        )

    def to(self, view: str, of: str = "") -> str:
        """Return the address of another view, perhaps of a job or an array."""
        return ("read?" if self.still else "#") + urlencode(
            {"view": view, **({"id": of} if of else {})}
        )

    def moved(self, spans: float) -> str:
        """Return the link to an earlier time, by a number of spans, or to a later one."""
        return self.link(back=f"{max(0.0, self.back_s + spans * self.span_s):g}")


def _number(parameters: Mapping[str, str], name: str, default: float, most: float) -> float:
    text = parameters.get(name, "")
    try:
        number = float(text or default)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= most:
        raise ValueError(f"expected a number of at most {most:g} for {name}, got {text[:60]!r}")
    return number


def query(page: PageQuery, after: int, hold_s: float, now_s: float) -> LiveQuery:
    """Return the query to the daemon for a view.

    Args:
        now_s: the daemon's time in its last answer.
    """
    end_s = now_s - page.back_s if page.back_s and now_s else 0.0
    return LiveQuery(
        after=after,
        hold_s=hold_s,
        jobs=page.jobs if page.view in ("overview", "jobs") else "",
        find=page.find,
        offset=page.offset,
        limit=ROWS,
        lanes=MOST_LANES if page.view in ("overview", "nodes") else 0,
        end_s=end_s,
        span_s=page.span_s,
        power=page.view in ("overview", "power"),
        forecast=FORECASTS if page.view == "overview" else 0,
        usage=page.view in ("overview", "users"),
        array=page.id if page.view == "array" else "",
        job=page.id if page.view == "job" else "",
    )


# --- views --------------------------------------------------------------------------------------

SPANS_S = (60, 600, 3600, 6 * 3600, 86400, 7 * 86400)
"""Lengths of time to choose from."""

TAIL_BYTES, TAIL_LINES = 4096, 20
ROWS_OF_TASKS = 40
GAIN_ROWS = 15

SLUGS: Mapping[str, str] = {
    "CONFIGURING": "configuring",
    "RUNNING": "running",
    "SUSPENDED": "suspended",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "TIMEOUT": "timeout",
    "OUT_OF_MEMORY": "memory",
}
"""Classes and signs of states; others are as pending."""

NODE_SLUGS: Mapping[str, str] = {
    "idle": "vacant",
    "allocated": "running",
    "mixed": "running",
    "draining": "suspended",
    "drained": "cancelled",
    "down": "failed",
    "powered_down": "held",
    "powering_up": "configuring",
}
"""The same for states of nodes."""


def state_of(job: JobRow) -> tuple[str, str]:
    """Return the class and the word of a job's state; a job that a user holds is ``Held``."""
    key = state_key(job)
    return "held" if key == HELD else SLUGS.get(key, "pending"), state_look(job).word


def word(state: str) -> str:
    """Return the word for a state without its job."""
    return STATES[state].word if state in STATES else state.replace("_", " ").capitalize()


def node_time(node_s: float) -> tuple[str, str]:
    """Return an amount of node seconds as a number and a unit that fits."""
    if node_s >= 360.0:
        return f"{node_s / 3600.0:,.3g}", "node hours"
    return f"{node_s:.0f}", "node seconds"


def _size(job: JobRow) -> str:
    """Return the number of nodes of a job and the target of a resize, or the requested range."""
    if job.size and job.resize_to is not None:
        return f"{job.size} → {job.resize_to}{'' if job.resizing else ' pending'}"
    return str(job.size or job.range_words)


def _templates() -> Any:
    templates = environment(Path(__file__).parent / "templates")
    templates.globals |= {
        "actions": actions,
        "spans_s": SPANS_S,
        "owners": plots.OWNERS,
        "resize_heads": [head.capitalize() for head in RESIZE_HEADS],
        "decision_heads": [head.capitalize() for head in DECISION_HEADS],
        "gain_heads": [head.capitalize() for head in GAIN_HEADS],
        "gain_cells": gain_cells,
        "gain_words": gain_words,
        "hours_heads": [head.capitalize() for head in HOURS_HEADS],
        "hours_cells": hours_cells,
        "hours_words": hours_words,
        "share_bar": drawings.share_bar,
    }
    templates.filters |= {
        "words": words,
        "clock": clock,
        "duration": duration,
        "hms": hms,
        "when": when,
        "since": since,
        "energy": energy_words,
        "node_time": node_time,
        "slug": lambda state: SLUGS.get(state, "pending"),
        "word": word,
        "state_of": state_of,
        "size": _size,
    }
    return templates.get_template("views.html").module


PIECES: Any = _templates()
"""The macros of ``views.html``."""


@dataclass
class Content:
    """A view.

    Attributes:
        frame: HTML with places for pieces, ``data-part="KEY"``, and for lists,
            ``data-list="NAME"``.
        parts: pieces by key.
        lists: keys of the pieces by list, ``NAME/...``, in order.
        window: begin and end of charts over time, s after their origin.
    """

    frame: str
    parts: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    window: tuple[float, float] | None = None

    def fill(self, name: str, pieces: Iterable[tuple[str, str]]) -> None:
        """Set a list of pieces ``(key, HTML)``."""
        self.lists[name] = []
        for key, piece in pieces:
            self.lists[name].append(f"{name}/{key}")
            self.parts[f"{name}/{key}"] = piece


_PLACE = re.compile(r'(<(\w+)[^<>]*\sdata-(part|list)="([^"]*)"[^<>]*>)(?=</\2>)')


def filled(html: str, content: Content) -> str:
    """Return HTML with the pieces of a view in their places."""

    def place(match: re.Match[str]) -> str:
        kind, name = match[3], match[4]
        keys = [name] if kind == "part" else content.lists.get(name, [])
        return match[1] + "".join(content.parts.get(key, "") for key in keys)

    return _PLACE.sub(place, html)


def content(
    page: PageQuery, live: Live, gain: Gain | str = "", saved: HoursGain | str = ""
) -> Content:
    """Return the content of a view.

    Args:
        gain: what resizes have brought, or why that is unknown.
        saved: what cheap hours have saved, as ``gain``.
    """
    view = (
        _malleability(page, gain, saved)
        if page.view == "malleability"
        else VIEWS[page.view](page, live)
    )
    view.parts["summary"] = PIECES.tiles(page, live)
    parts = {key: str(part) for key, part in view.parts.items()}  # text instead of markup objects
    return replace(view, frame=str(view.frame), parts=parts)


def window_of(begin_s: float, end_s: float) -> TimeWindow:
    """Return the window of charts."""
    origin_s = begin_s // drawings.ORIGIN_S * drawings.ORIGIN_S
    return TimeWindow(begin_s, end_s, origin_s)


# --- overview --------------------------------------------------------------------------------


def _overview(page: PageQuery, live: Live) -> Content:
    lanes = 0 if live.lanes is None else len(live.lanes.lanes)
    view = Content(
        PIECES.over_time(page, drawings.row_px(lanes))
        + PIECES.forecast()
        + PIECES.usage_now(page)
        + PIECES.jobs(page)
    )
    _show_lanes(view, page, live)
    _show_strips(view, live)
    _show_forecast(view, page, live)
    usage = [] if live.usage is None else live.usage.rows
    busy = sorted(usage, key=lambda row: (-row.nodes, -row.node_s))[:FORECASTS]
    rows = [(f"{row.user}/{row.account}", PIECES.who_row(row, live.nodes)) for row in busy]
    view.fill("who", rows or [("none", PIECES.nothing("No jobs yet.", 5))])
    _show_jobs(view, page, live)
    return view


def _show_lanes(view: Content, page: PageQuery, live: Live) -> None:
    lanes = live.lanes
    if lanes is None:
        return
    window = window_of(lanes.begin_s, lanes.end_s)
    marks: dict[str, list[Mark]] = {}
    for mark in lanes.marks:
        marks.setdefault(mark.job, []).append(mark)
    named = lanes.lanes[:: drawings.rows_of_name(len(lanes.lanes))]
    view.fill("names", [(lane.name, PIECES.lane_name(lane, _slug(lane))) for lane in named])
    view.fill("lanes", drawings.blocks(lanes.lanes, marks, window, still=page.still))
    view.fill(
        "held",
        [(lane.name, PIECES.node_row(lane, _slug(lane), _held(lane))) for lane in lanes.lanes],
    )
    view.fill(
        "marks",
        [
            (f"{mark.job}-{mark.at_s:.3f}", PIECES.mark_row(plots.mark_words(mark)))
            for mark in reversed(lanes.marks[-30:])
        ],
    )
    view.parts["axis"] = plots.axis(window)
    is_cut = lanes.begin_s > max(lanes.end_s - page.span_s, live.start_s or 0.0) + 60.0
    text = f"Shown since {clock(lanes.begin_s)}; earlier spans are left out."
    view.parts["since"] = text if is_cut else ""
    view.window = lanes.begin_s - window.origin_s, lanes.end_s - window.origin_s


def _slug(lane: Lane) -> str:
    return NODE_SLUGS.get(lane.state.rstrip("*"), "") if lane.nodes == 1 else ""


def _held(lane: Lane) -> str:
    """Return the newest jobs of a node, or the share of several nodes that jobs hold."""
    if lane.held:
        return f"{lane.held[-1][1]:.0%} allocated"
    spans = "; ".join(
        f"{span.job} {clock(span.start_s)} to {'now' if span.end_s is None else clock(span.end_s)}"
        for span in reversed(lane.spans[-8:])
    )
    return words(spans, 400)


def _show_strips(view: Content, live: Live) -> None:
    """Set the curves of allocated nodes and of power under the nodes."""
    power = live.power
    if power is None:
        return
    window = window_of(power.begin_s, power.end_s)
    view.parts["use-curve"] = drawings.strip(power.allocated, window, 1.0, "use")
    share = drawings.mean(power.allocated, power.end_s)
    view.parts["use-words"] = f"mean {share:.0%} of {live.nodes:,} nodes"
    part_s = (power.end_s - power.begin_s) / 120
    watts = [(at_s - part_s, point_w) for at_s, point_w, *_ in power.points]
    top = plots.round_up(max([power.cap_w or 0.0, *(value for _, value in watts)]) or 1.0)
    view.parts["power-curve"] = drawings.strip(watts, window, top, "jobs")
    mean_w = drawings.mean(watts, power.end_s)
    text = f"mean {mean_w:.0f} W, scale {top:g} W" if watts else "no readings yet"
    view.parts["power-words"] = text
    view.parts["price-curves"] = "".join(_price_curve(one, window) for one in power.prices)


def _price_curve(curve: PriceCurve, window: TimeWindow) -> Markup:
    """Return the curve of a price, or of emissions, with its name and present value."""
    top = max(value for _, value in curve.steps) or 1.0
    mean, last = drawings.mean(curve.steps, window.end_s), curve.steps[-1][1]
    strip = Markup(drawings.strip(curve.steps, window, top, "price"))
    text = f"now {last:.4g} {curve.unit}, mean {mean:.4g}, scale {top:.4g}"
    return Markup(
        '<div class="names"><b>{}</b><span class="soft">{}</span></div><div class="curve">{}</div>'
    ).format(curve.name, words(text), strip)


def _show_forecast(view: Content, page: PageQuery, live: Live) -> None:
    rows = live.forecast
    last_s = max([row.at_s for row in rows], default=live.now_s)
    pieces = [(row.job, _forecast_row(page, row, live.now_s, last_s)) for row in rows]
    view.fill(
        "forecast", pieces or [("none", PIECES.nothing("No pending job has an expected start.", 4))]
    )


def _forecast_row(page: PageQuery, row: StartForecast, now_s: float, last_s: float) -> str:
    share = (row.at_s - now_s) / max(1.0, last_s - now_s)
    return str(PIECES.forecast_row(page, row, drawings.share_bar(round(share, 2), "wait")))


# --- nodes -----------------------------------------------------------------------------------


def _nodes(page: PageQuery, live: Live) -> Content:
    effect = (
        f"Change the policy from {live.policy} to another one: {', '.join(POLICIES)}. "
        "Running jobs continue."
    )
    view = Content(PIECES.nodes(page, live.policy, effect))
    lanes = [] if live.lanes is None else live.lanes.lanes
    view.fill("parts", _policy_parts(live.policy_text))
    view.fill(
        "nodes",
        [
            (
                lane.name,
                PIECES.node_row(
                    lane, _slug(lane), _node_jobs(page, lane), _node_button(page, lane)
                ),
            )
            for lane in lanes
        ],
    )
    return view


def _node_jobs(page: PageQuery, lane: Lane) -> Markup | str:
    """Return the jobs on a node now, or the share of several nodes that jobs hold."""
    if lane.nodes != 1 or lane.held:
        return _held(lane)
    jobs = [
        span.job
        for span in lane.spans
        if span.end_s is None and span.job.partition("_")[0].isdigit()
    ]
    return Markup(PIECES.job_links(page, jobs))


def _policy_parts(text: str) -> Iterator[tuple[str, str]]:
    composition = json.loads(text) if text else {}
    for name, part in composition.items():
        if isinstance(part, dict):
            setting = str(part.get("part", ""))
            parameters = {key: value for key, value in part.items() if key != "part"}
            setting += "".join(f", {key} {json.dumps(v)}" for key, v in parameters.items())
            yield name, PIECES.part(name, setting)


def _node_button(page: PageQuery, lane: Lane) -> Markup:
    host = lane.name.rpartition("/")[0] or lane.name
    if lane.nodes != 1 or page.still:
        return Markup()
    if lane.state.startswith("drain"):
        effect = f"Resume node {host}: jobs can start on it again."
        return Markup(PIECES.button("resume", host, "Resume", effect))
    effect = f"Drain node {host}: its jobs continue, no other job starts on it."
    return Markup(PIECES.button("drain", host, "Drain", effect))


# --- jobs ------------------------------------------------------------------------------------


def _jobs(page: PageQuery, live: Live) -> Content:
    view = Content(PIECES.jobs(page))
    _show_jobs(view, page, live)
    return view


def _show_jobs(view: Content, page: PageQuery, live: Live) -> None:
    jobs = live.jobs
    if jobs is None:
        return
    rows = [(line.job.id, _job_row(page, line, live.now_s)) for line in jobs.lines]
    view.fill("jobs", rows or [("none", PIECES.no_jobs(page))])
    last = jobs.offset + len(jobs.lines)
    text = f"{jobs.offset + 1:,} to {last:,} of {jobs.total:,}" if jobs.total else ""
    view.parts["pages"] = PIECES.pages(page, text, ROWS, jobs.offset, last < jobs.total)


def _job_row(page: PageQuery, line: JobLine, now_s: float) -> str:
    job, bar = line.job, ""
    if job.resizes:
        steady_s = job.resizes[-1].at_s - (job.start_s or 0.0)
        end_s = now_s if job.end_s is None else job.end_s
        part_s = max(1.0, steady_s / 40)  # the bar changes only now and then
        end_s = end_s // part_s * part_s if job.end_s is None else end_s
        bar = drawings.width_bar(job, end_s, 18)
    where = job.reason if job.state in OVER else fold_slots(job.nodes) or job.reason
    return str(PIECES.job_row(page, line, where, bar, job.expected_start_s, job.state in OVER))


def _job(page: PageQuery, live: Live) -> Content:
    view, row = Content(PIECES.job(page.id)), live.job
    if row is None:
        view.parts["facts"] = PIECES.text(f"There is no job {words(page.id)}.")
        return view
    view.parts |= {
        "head": PIECES.job_head(row),
        "acts": "" if page.still else PIECES.job_buttons(row, row.id),
        "facts": PIECES.terms(_facts(row)),
        "width": _width(row, live.now_s),
        "rates": _rates(row),
        "output": _output(row),
    }
    resizes = [
        (str(n), PIECES.cells([when(at.at_s), *resize_cells(at)[1:]]))
        for n, at in enumerate(row.resizes)
    ]
    view.fill("resizes", resizes[-50:] or [("none", PIECES.nothing("Not resized.", 8))])
    view.fill(
        "history",
        [
            (
                f"{n}-{entry.at_s:.3f}",
                PIECES.cells(
                    [when(entry.at_s), *(words(c, 200) for c in decision_cells(entry)[1:])]
                ),
            )
            for n, entry in enumerate(live.history)
        ],
    )
    return view


def _facts(job: JobRow) -> Iterator[tuple[str, object]]:
    times: dict[str, object] = {"submitted": when(job.submit_s)}
    if job.limit_s is not None:
        times["time limit"] = hms(job.limit_s)
    if job.expected_start_s is not None:
        times["expected start"] = when(job.expected_start_s)
    if job.start_s is not None:
        waited = hms(job.start_s - job.submit_s)
        times["started"] = Markup("{}, after {}").format(when(job.start_s), waited)
    if job.end_s is not None:
        times["ended"] = when(job.end_s)
    yield "Name", words(job.name)
    for name, value in job_facts(job):
        if name != "state" or job.exit_code is not None or job.resize_to is not None:
            yield name.capitalize(), times.get(name, words(value, 400))
    if job.user:
        yield "User", words(job.user)
    if job.start_s is not None:
        ran = since(job.start_s) if job.end_s is None else hms(job.end_s - job.start_s)
        yield "Run time", ran


def _width(job: JobRow, now_s: float) -> str:
    bar = drawings.width_bar(job, now_s, 72, labels=True)
    if not bar:
        return str(PIECES.text("Not started."))
    return str(PIECES.width(job, Markup(bar)))


def _rates(job: JobRow) -> str:
    rows = [
        (f"{run.nodes} node{'s' if run.nodes != 1 else ''}", run.steps / run.seconds)
        for run in job.seen
        if run.seconds > 0
    ]
    if not rows:
        return str(PIECES.text("Not measured for long enough at any size."))
    return str(PIECES.rates(rows, plots.rates(rows, "steps/s")))


def _output(job: JobRow) -> str:
    """Return the last lines of a job's output, if this machine has the file."""
    try:
        lines = tail(Path(job.output), TAIL_BYTES)[-TAIL_LINES:]
    except OSError:
        return str(PIECES.text(f"{words(job.output, 300)} cannot be read here."))
    return str(PIECES.output(job.output, lines))


def _array(page: PageQuery, live: Live) -> Content:
    view, tasks = Content(PIECES.array(page.id, page.still)), dict(live.tasks)
    view.parts["states"] = PIECES.states(Counter(tasks.values()), len(tasks))
    left = sum(state not in OVER for state in tasks.values())
    if not tasks:
        view.parts["states"] = PIECES.plain(f"There is no array {words(page.id)}.")
    elif left and not page.still:
        effect = f"Cancel array {page.id}: its {left} pending and running tasks end."
        view.parts["acts"] = PIECES.button("cancel", page.id, "Cancel array", effect)
    firsts = sorted({index // plots.CELLS * plots.CELLS for index in tasks})
    at = page.offset // ROWS_OF_TASKS * ROWS_OF_TASKS
    shown = firsts[at : at + ROWS_OF_TASKS]
    view.fill(
        "tasks", [(str(first), PIECES.tasks(first, plots.cells(first, tasks))) for first in shown]
    )
    more = at + ROWS_OF_TASKS < len(firsts)
    view.parts["pages"] = PIECES.pages(page, "", ROWS_OF_TASKS, at, more)
    return view


# --- energy ----------------------------------------------------------------------------------


def _power(page: PageQuery, live: Live) -> Content:
    view, power = Content(PIECES.power(page)), live.power
    if power is None:
        return view
    window = window_of(power.begin_s, power.end_s)
    points = [
        (at_s, (max(0.0, watts - idle_w - off_w - boot_w), idle_w, off_w, boot_w))
        for at_s, watts, idle_w, off_w, boot_w in power.points
    ]
    cap = "no power cap" if power.cap_w is None else f"power cap {power.cap_w:g} W"
    share = drawings.mean(power.allocated, power.end_s)
    view.parts |= {
        "curve": plots.power(points, window, power.cap_w),
        "axis": plots.axis(window),
        "source": PIECES.plain(f"power by {words(power.sources)}; {cap}"),
        "use-curve": drawings.strip(power.allocated, window, 1.0, "use"),
        "use-words": f"mean {share:.0%} of {live.nodes:,} nodes in this time",
    }
    energy = power.energy
    whole_j = energy.cluster_j
    rows = [("jobs", energy.busy_j), ("tasks", energy.tasks_j), ("idle", energy.idle_j)]
    rows += [("off", energy.off_j), ("boot", energy.boot_j)]
    pieces = [
        (name, PIECES.energy_row(name.capitalize(), j, j / whole_j if whole_j else 0.0))
        for name, j in rows
        if j or name in ("jobs", "idle")
    ]
    if energy.lost.times:
        lost_j = energy.lost.energy_j
        row = PIECES.energy_row("Lost work of jobs", lost_j, lost_j / whole_j if whole_j else 0.0)
        pieces.append(("lost", row))
    pieces.append(("cluster", PIECES.energy_row("Cluster", whole_j, None)))
    view.fill("energy", pieces)
    view.fill(
        "sources",
        [
            (
                part.source,
                PIECES.energy_row(
                    part.source, part.joules, part.joules / whole_j if whole_j else 0.0
                ),
            )
            for part in energy.sources
        ],
    )
    view.fill(
        "points",
        [
            (
                f"{n}",
                PIECES.row(
                    clock(at_s),
                    ", ".join(f"{o} {w:.1f}" for o, w in zip(plots.OWNERS, watts, strict=True)),
                ),
            )
            for n, (at_s, watts) in enumerate(points[-1 : -len(points) - 1 : -10])
        ],
    )
    return view


# --- users -----------------------------------------------------------------------------------


def _users(page: PageQuery, live: Live) -> Content:
    view, usage = Content(PIECES.users()), live.usage
    if usage is None:
        return view
    left = usage.uncounted
    view.parts["uncounted"] = f"{left:,} earlier jobs are still being counted." if left else ""
    for name, key in (("users", "user"), ("accounts", "account")):
        sums: dict[str, UsageRow] = {}
        for row in usage.rows:
            sums.setdefault(getattr(row, key), UsageRow("", "")).add(row)
        whole_s = sum(row.node_s for row in sums.values())
        view.fill(
            name,
            [
                (
                    who,
                    PIECES.usage_row(
                        who or ("(none)" if name == "accounts" else "(unknown)"),
                        row,
                        row.node_s / whole_s if whole_s else 0.0,
                    ),
                )
                for who, row in sorted(sums.items(), key=lambda item: -item[1].node_s)
            ]
            or [("none", PIECES.nothing("No jobs yet.", 7))],
        )
    return view


# --- what malleability has brought ---------------------------------------------------------------


def _malleability(page: PageQuery, gain: Gain | str, saved: HoursGain | str) -> Content:
    view = Content(PIECES.malleability())
    view.parts["saved"] = (
        PIECES.text(saved or "The replay is being computed.")
        if isinstance(saved, str)
        else PIECES.saved(saved)
    )
    if isinstance(gain, str):
        view.parts["gain"] = PIECES.text(gain or "The replay is being computed.")
        view.fill("gains", [("none", PIECES.nothing("Nothing yet.", 7))])
        return view
    view.parts["gain"] = PIECES.gain(gain)
    rows = sorted(gain.rows, key=lambda row: (-(row.lent_node_s), row.with_s - row.without_s))
    rows = [row for row in rows if row.lent_node_s or abs(row.without_s - row.with_s) >= 1.0]
    view.fill(
        "gains",
        [(row.id, PIECES.gain_row(page, row)) for row in rows[:GAIN_ROWS]]
        or [("none", PIECES.nothing("No job has lent nodes or starts at another time.", 7))],
    )
    return view


VIEWS: Mapping[str, Callable[[PageQuery, Live], Content]] = {
    "overview": _overview,
    "jobs": _jobs,
    "job": _job,
    "array": _array,
    "nodes": _nodes,
    "power": _power,
    "users": _users,
    "malleability": lambda page, _: _malleability(page, "", ""),
}


# --- updates ------------------------------------------------------------------------------------


class PageState:
    """The pieces that one page has."""

    def __init__(self) -> None:
        self._frame: str | None = None
        self._parts: dict[str, str] = {}
        self._lists: dict[str, list[str]] = {}

    def update(self, content: Content, news: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the messages (JSON) that make a page show a view.

        Args:
            news: other fields; the list ``news`` may be divided, the rest is in the last message.
        """
        message: dict[str, Any] = {}
        length = 0
        for section, key, value in [*self._changes(content), *_news(news)]:
            more = len(_encoded([section, key, value]))
            if message and length + more > MOST_BYTES - 20:
                yield _encoded(message)
                message, length = {}, 0
            if section in ("parts", "lists"):
                message.setdefault(section, {})[key] = value
            elif section == "news":
                message.setdefault(section, []).append(value)
            else:
                message[section] = value
            length += more
        yield _encoded(message)

    def _changes(self, content: Content) -> list[tuple[str, str, Any]]:
        changes: list[tuple[str, str, Any]] = []
        if content.frame != self._frame:
            changes.append(("frame", "", content.frame))
            self._parts, self._lists = {}, {}
        parts, lists = self._parts, self._lists
        changes += [("parts", k, v) for k, v in content.parts.items() if parts.get(k) != v]
        changes += [("lists", k, v) for k, v in content.lists.items() if lists.get(k) != v]
        self._frame, self._parts, self._lists = content.frame, content.parts, content.lists
        if content.window is not None:
            changes.append(("window", "", content.window))
        return changes


def _news(news: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    return [("news", "", entry) for entry in news.get("news", ())] + [
        (key, "", value) for key, value in news.items() if key != "news"
    ]


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
