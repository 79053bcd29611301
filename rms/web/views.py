"""Views of the live page: functions that make frame and pieces of the daemon's answer.

``templates/views.html`` has the macros of the frames and of the pieces.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from rms.web.content import ROWS, Content, PageQuery, words
from rms.wire.files import tail
from rms.wire.live import JobLine, Lane, Live
from rms.wire.terminal import clock, duration
from rms.wire.users import OVER, JobRow

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


# --- nodes --------------------------------------------------------------------------------------


def overview(page: PageQuery, live: Live) -> Content:
    """Return the nodes over time and the list of jobs."""
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


def nodes(page: PageQuery, live: Live) -> Content:
    """Return the policy, and the nodes with their actions."""
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
    """Yield the rows of a policy's parts and their parameters."""
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


# --- jobs ---------------------------------------------------------------------------------------


def jobs(page: PageQuery, live: Live) -> Content:
    """Return the list of jobs."""
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
    """Return the end of a job, its run time and its wait."""
    end_s = job.end_s or 0.0
    if job.start_s is None:
        return f"{clock(end_s)}, never started. {job.reason}"
    ran, waited = duration(end_s - job.start_s, 1), duration(job.start_s - job.submit_s, 1)
    return f"{clock(end_s)}, ran {ran}, waited {waited}. {job.reason}"


# --- one job ------------------------------------------------------------------------------------


def job(page: PageQuery, live: Live) -> Content:
    """Return the facts, resizes, decisions and output of a job."""
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


# --- arrays -------------------------------------------------------------------------------------


def array(page: PageQuery, live: Live) -> Content:
    """Return the tasks of an array as a grid of cells."""
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


# --- power --------------------------------------------------------------------------------------


def power(page: PageQuery, live: Live) -> Content:
    """Return the curve of power, and the energy so far."""
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
    "overview": overview,
    "jobs": jobs,
    "job": job,
    "array": array,
    "power": power,
    "nodes": nodes,
}
