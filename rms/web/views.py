"""The live page: the query in its address, its views, and the updates that keep a page current.

A view is a frame with places, pieces of HTML for these places, and lists of pieces. A piece has a
key; an update has the pieces that differ from those sent under the same key before, in messages of
limited length. ``templates/views.html`` has the macros of the frames and of the pieces.
"""

from __future__ import annotations

import json
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
    RESIZE_HEADS,
    ClusterStatus,
    decision_cells,
    job_facts,
    resize_cells,
)
from rms.core.policies import POLICIES
from rms.formats.energy import energy_words
from rms.formats.values import fold_slots
from rms.plots import TimeWindow
from rms.wire.files import tail
from rms.wire.live import JobLine, Lane, Live, LiveQuery
from rms.wire.terminal import clock, duration, printable
from rms.wire.users import OVER, JobRow

MOST_BYTES = 10_000
"""Length of a message; the rest is in the next one."""

LONGEST_WORD = 120


def words(text: object, most: int = LONGEST_WORD) -> str:
    """Return a text in one line: cut to a length, with control characters escaped."""
    line = str(text)
    return printable(line if len(line) <= most else f"{line[:most]}...")


# --- query --------------------------------------------------------------------------------------

ROWS = 25


@dataclass(frozen=True)
class PageQuery:
    """The view of a page, and the choices in it.

    Attributes:
        id: of a job or an array.
        jobs, find, offset: as in :class:`rms.wire.live.LiveQuery`.
        span_s: length of the time shown, s.
        back_s: time from its end to the present, s.
    """

    view: str = "overview"
    id: str = ""
    jobs: str = "active"
    find: str = ""
    offset: int = 0
    span_s: float = 600.0
    back_s: float = 0.0

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> PageQuery:
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
        )

    def link(self, **changes: object) -> str:
        """Return the fragment of the address of this query with some changes."""
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
        return "#" + urlencode(
            {key: value for key, value in options.items() if str(value) != str(defaults.get(key))}
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
        lanes=32 if page.view in ("overview", "nodes") else 0,
        end_s=end_s,
        span_s=page.span_s,
        power=page.view == "power",
        array=page.id if page.view == "array" else "",
        job=page.id if page.view == "job" else "",
    )


# --- views --------------------------------------------------------------------------------------

SPANS_S = (60, 600, 3600, 6 * 3600, 86400, 7 * 86400)
"""Lengths of time to choose from."""

MARK_TOLERANCE_S = 1.0
"""A resize is drawn on nodes that its job got or left this long before or after."""

TAIL_BYTES, TAIL_LINES = 4096, 20
ROWS_OF_TASKS = 40


def _size(job: JobRow) -> str:
    """Return the number of nodes of a job and the target of a resize, or the requested range."""
    if job.size and job.resize_to is not None:
        return f"{job.size} -> {job.resize_to}{'' if job.resizing else ' pending'}"
    return str(job.size or job.range_words)


def _templates() -> Any:
    templates = environment(Path(__file__).parent / "templates")
    templates.globals |= {
        "actions": actions,
        "spans_s": SPANS_S,
        "owners": plots.OWNERS,
        "resize_heads": [head.capitalize() for head in RESIZE_HEADS],
        "decision_heads": [head.capitalize() for head in DECISION_HEADS],
    }
    templates.filters |= {
        "words": words,
        "clock": clock,
        "duration": duration,
        "energy": energy_words,
        "sign": plots.state_sign,
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


def content(page: PageQuery, live: Live) -> Content:
    """Return the content of a view."""
    view = VIEWS[page.view](page, live)
    status = ClusterStatus.of_live(live)
    view.parts["summary"] = PIECES.terms([(name, words(value, 40)) for name, value in status.rows])
    parts = {key: str(part) for key, part in view.parts.items()}  # text instead of markup objects
    return replace(view, frame=str(view.frame), parts=parts)


def window_of(live: Live, begin_s: float, end_s: float) -> TimeWindow:
    """Return the window of charts; their origin is the time of the first event."""
    return TimeWindow(begin_s, end_s, live.start_s or 0.0)


def _overview(page: PageQuery, live: Live) -> Content:
    view = Content(PIECES.over_time(page) + PIECES.jobs(page))
    _show_lanes(view, page, live)
    _show_jobs(view, page, live)
    return view


def _show_lanes(view: Content, page: PageQuery, live: Live) -> None:
    lanes = live.lanes
    if lanes is None:
        return
    window = window_of(live, lanes.begin_s, lanes.end_s)
    # Lanes are placed by the page's script, so they do not change while the time goes on.
    drawn = TimeWindow(window.origin_s, window.origin_s + 1.0, window.origin_s)
    marks: dict[str, list[tuple[float, str]]] = {}
    for mark in lanes.marks:
        marks.setdefault(mark.job, []).append((mark.at_s, plots.mark_words(mark)))

    def svg(lane: Lane) -> str:
        return plots.lane_svg(lane, plots.marks_on(lane.spans, marks, MARK_TOLERANCE_S), drawn)

    view.fill("lanes", [(lane.name, PIECES.lane(lane, svg(lane))) for lane in lanes.lanes])
    view.fill("held", [(lane.name, PIECES.node_row(lane, _held(lane))) for lane in lanes.lanes])
    view.fill(
        "marks",
        [
            (f"{mark.job}-{mark.at_s:.3f}", PIECES.mark_row(plots.mark_words(mark)))
            for mark in reversed(lanes.marks[-30:])
        ],
    )
    view.parts["axis"] = plots.axis(window)
    is_cut = lanes.begin_s > max(lanes.end_s - page.span_s, window.origin_s) + 60.0
    since = f"Shown since {clock(lanes.begin_s)}; earlier spans are left out."
    view.parts["since"] = since if is_cut else ""
    view.window = lanes.begin_s - window.origin_s, lanes.end_s - window.origin_s


def _held(lane: Lane) -> str:
    """Return the newest jobs of a node, or the share of several nodes that jobs hold."""
    if lane.held:
        return f"{lane.held[-1][1]:.0%} allocated"
    spans = "; ".join(
        f"{span.job} {clock(span.start_s)} to {'now' if span.end_s is None else clock(span.end_s)}"
        for span in reversed(lane.spans[-8:])
    )
    return words(spans, 400)


def _nodes(page: PageQuery, live: Live) -> Content:
    effect = (
        f"Change the policy from {live.policy} to another one: {', '.join(POLICIES)}. "
        "Running jobs continue."
    )
    view = Content(PIECES.nodes(live.policy, effect))
    lanes = [] if live.lanes is None else live.lanes.lanes
    view.fill("parts", _policy_parts(live.policy_text))
    view.fill("nodes", [(lane.name, PIECES.node_row(lane, _node_button(lane))) for lane in lanes])
    return view


def _policy_parts(text: str) -> Iterator[tuple[str, str]]:
    composition = json.loads(text) if text else {}
    for name, part in composition.items():
        if isinstance(part, dict):
            setting = str(part.get("part", ""))
            parameters = {key: value for key, value in part.items() if key != "part"}
            setting += "".join(f", {key} {json.dumps(v)}" for key, v in parameters.items())
            yield name, PIECES.part(name, setting)


def _node_button(lane: Lane) -> Markup:
    host = lane.name.rpartition("/")[0] or lane.name
    if lane.nodes != 1:
        return Markup()
    if lane.state.startswith("drain"):
        effect = f"Resume node {host}: jobs can start on it again."
        return Markup(PIECES.button("resume", host, "Resume", effect))
    effect = f"Drain node {host}: its jobs continue, no other job starts on it."
    return Markup(PIECES.button("drain", host, "Drain", effect))


def _jobs(page: PageQuery, live: Live) -> Content:
    view = Content(PIECES.jobs(page))
    _show_jobs(view, page, live)
    return view


def _show_jobs(view: Content, page: PageQuery, live: Live) -> None:
    jobs = live.jobs
    if jobs is None:
        return
    rows = [(line.job.id, _job_row(line, live.now_s)) for line in jobs.lines]
    view.fill("jobs", rows or [("none", PIECES.no_jobs(page))])
    last = jobs.offset + len(jobs.lines)
    text = f"{jobs.offset + 1} to {last} of {jobs.total}" if jobs.total else ""
    view.parts["pages"] = PIECES.pages(page, text, ROWS, jobs.offset, last < jobs.total)


def _job_row(line: JobLine, now_s: float) -> str:
    job = line.job
    where = _ended(job) if job.end_s is not None else fold_slots(job.nodes) or job.reason
    if job.expected_start_s is not None and job.expected_start_s > now_s + 1.0:
        where += f". Expected to start {_about(job.expected_start_s, now_s)}"
    return str(PIECES.job_row(line, where, job.state not in OVER))


def _about(at_s: float, now_s: float) -> str:
    """Return a future time to the minute, with the date unless it is soon."""
    if at_s - now_s < 60.0:
        return "within a minute"
    if at_s - now_s < 12 * 3600.0:
        return f"at {clock(at_s)[:5]}"
    return f"on {clock(at_s, day=True)[:16]}"


def _ended(job: JobRow) -> str:
    end_s = job.end_s or 0.0
    if job.start_s is None:
        return f"{clock(end_s)}, never started. {job.reason}"
    ran, waited = duration(end_s - job.start_s, 1), duration(job.start_s - job.submit_s, 1)
    return f"{clock(end_s)}, ran {ran}, waited {waited}. {job.reason}"


def _job(page: PageQuery, live: Live) -> Content:
    view, row = Content(PIECES.job(page.id)), live.job
    if row is None:
        view.parts["facts"] = PIECES.text(f"There is no job {words(page.id)}.")
        return view
    view.parts |= {
        "acts": PIECES.job_buttons(row, row.id),
        "facts": PIECES.terms(_facts(row, live.now_s)),
        "rates": _rates(row),
        "output": _output(row),
    }
    resizes = [(str(n), PIECES.cells(resize_cells(at))) for n, at in enumerate(row.resizes)]
    view.fill("resizes", resizes[-50:])
    view.fill(
        "history",
        [
            (f"{n}-{entry.at_s:.3f}", PIECES.cells([words(c, 200) for c in decision_cells(entry)]))
            for n, entry in enumerate(live.history)
        ],
    )
    return view


def _facts(job: JobRow, now_s: float) -> Iterator[tuple[str, str]]:
    yield "Name", words(job.name)
    for name, value in job_facts(job):
        text = words(value, 400)
        yield name.capitalize(), PIECES.signed(job.state, text) if name == "state" else text
    if job.start_s is not None and job.end_s is None:
        yield "Run time", duration(now_s - job.start_s, 1)


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
    view, tasks = Content(PIECES.array(page.id)), dict(live.tasks)
    view.parts["states"] = PIECES.states(Counter(tasks.values()))
    left = sum(state not in OVER for state in tasks.values())
    if not tasks:
        view.parts["states"] = PIECES.plain(f"There is no array {words(page.id)}.")
    elif left:
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


def _power(page: PageQuery, live: Live) -> Content:
    view, power = Content(PIECES.power(page)), live.power
    if power is None:
        return view
    window = window_of(live, power.begin_s, power.end_s)
    points = [
        (at_s, (max(0.0, watts - idle_w - off_w - boot_w), idle_w, off_w, boot_w))
        for at_s, watts, idle_w, off_w, boot_w in power.points
    ]
    cap = "no power cap" if power.cap_w is None else f"power cap {power.cap_w:g} W"
    view.parts |= {
        "curve": plots.power(points, window, power.cap_w),
        "axis": plots.axis(window),
        "source": PIECES.plain(f"power by {words(power.sources)}; {cap}"),
    }
    energy = power.energy
    rows = [("jobs", energy.busy_j), ("tasks", energy.tasks_j), ("idle", energy.idle_j)]
    rows += [("off", energy.off_j), ("boot", energy.boot_j), ("cluster", energy.cluster_j)]
    rows += [(f"by {part.source}", part.joules) for part in energy.sources]
    view.fill("energy", [(name, PIECES.row(name, energy_words(j), "n")) for name, j in rows])
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


VIEWS: Mapping[str, Callable[[PageQuery, Live], Content]] = {
    "overview": _overview,
    "jobs": _jobs,
    "job": _job,
    "array": _array,
    "power": _power,
    "nodes": _nodes,
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
