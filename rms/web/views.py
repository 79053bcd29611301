"""Nodes: over time, and one by one with what can be done to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rms import drawings
from rms.core.policies import POLICIES
from rms.drawings import Window, clock
from rms.formats.energy import energy_words
from rms.formats.values import fold_slots
from rms.web.content import (
    ROWS,
    Asked,
    Content,
    act_button,
    duration,
    job_buttons,
    size_words,
    state_words,
    words,
)
from rms.wire.live import JobLine, Lane, Lanes, Live, Mark
from rms.wire.users import OVER, JobRow

SPANS_S = (60, 600, 3600, 6 * 3600, 86400, 7 * 86400)
"""Lengths of time that can be looked at."""

# --- nodes over time -----------------------------------------------------------------------------


def window_of(live: Live, begin_s: float, end_s: float) -> Window:
    """Return the window of drawings of a time; their origin is when the first thing happened."""
    return Window(begin_s, end_s, _origin(live))


def _origin(live: Live) -> float:
    return live.start_s or 0.0


def over_time(asked: Asked) -> str:
    """Return the frame of the nodes over time."""
    spans = "".join(
        f'<a href="{asked.link(span=n, back=0)}"'
        f"{' aria-current=true' if n == asked.span_s else ''}>{duration(n)}</a>"
        for n in SPANS_S
    )
    earlier = asked.link(back=f"{asked.back_s + asked.span_s / 2:g}")
    later = asked.link(back=f"{max(0.0, asked.back_s - asked.span_s / 2):g}")
    move = f'<a href="{earlier}">earlier</a>'
    if asked.back_s:
        move += f'<a href="{later}">later</a><a href="{asked.link(back=0)}">now</a>'
    return (
        '<section aria-labelledby="h-nodes"><h2 id="h-nodes">Nodes over time</h2>'
        f'<p class="choices">{spans} {move}</p><p data-part="since"></p>'
        '<div class="lanes" data-list="lanes" data-timed data-bars tabindex="0" role="group" '
        'aria-label="Bars of jobs: arrow keys go from one to the next, Enter opens its job"></div>'
        '<div class="of-time" data-part="axis"></div><p class="told" role="status"></p>'
        "<details><summary>As a table</summary><table><thead><tr><th>Node</th><th>State</th>"
        '<th>Jobs, from and until</th></tr></thead><tbody data-list="held"></tbody></table>'
        "<table><thead><tr><th>Resizes</th></tr></thead>"
        '<tbody data-list="marks"></tbody></table></details></section>'
    )


def show_over_time(found: Content, asked: Asked, live: Live) -> None:
    """Enter the lanes of the nodes."""
    lanes = live.lanes
    if lanes is None:
        return
    window = window_of(live, lanes.begin_s, lanes.end_s)
    drawn = Window(window.origin_s, window.origin_s + 1.0, window.origin_s)
    found.fill("lanes", [(lane.name, _lane(lane, lanes, drawn)) for lane in lanes.lanes])
    found.fill("held", [(lane.name, _held_row(lane)) for lane in lanes.lanes])
    rows = [(f"{m.job}-{m.at_s:.3f}", _mark_words(m)) for m in reversed(lanes.marks[-30:])]
    found.fill("marks", [(key, f"<tr><td>{words(said, 200)}</td></tr>") for key, said in rows])
    found.parts["axis"] = drawings.axis(window)
    begin_s = lanes.end_s - asked.span_s
    late = lanes.begin_s > max(begin_s, _origin(live)) + 60.0
    since = f"Shown since {clock(lanes.begin_s)}: too much has happened for more."
    found.parts["since"] = since if late else ""
    found.window = lanes.begin_s - window.origin_s, lanes.end_s - window.origin_s


def _lane(lane: Lane, lanes: Lanes, window: Window) -> str:
    if lane.held:
        drawing = drawings.held_lane(lane.held, window)
    else:
        marks = [(mark.at_s, _mark_words(mark)) for mark in lanes.marks if _touches(lane, mark)]
        drawing = drawings.lane(lane.spans, marks, window)
    name, state = words(lane.name, 40), words(lane.state, 60)
    return (
        f'<div class="row"><span class="name" title="{name}: {state}">{name}</span>{drawing}</div>'
    )


def _touches(lane: Lane, mark: Mark) -> bool:
    """Return whether a job of a resize was on a node then, before or after."""
    return any(
        span.job == mark.job
        and span.start_s <= mark.at_s + 1.0
        and (span.end_s is None or span.end_s >= mark.at_s - 1.0)
        for span in lane.spans
    )


def _mark_words(mark: Mark) -> str:
    moved = f"{mark.bytes / 1e6:.1f} MB moved"
    return (
        f"job {mark.job}, {clock(mark.at_s)}: {mark.before} to {mark.after} ranks by "
        f"{mark.strategy}, stopped for {mark.stall_s * 1000:.0f} ms, {moved}"
    )


def _held_row(lane: Lane) -> str:
    spans = lane.spans[-8:]
    held = "; ".join(
        f"{span.job} {clock(span.start_s)} to {'now' if span.end_s is None else clock(span.end_s)}"
        for span in reversed(spans)
    )
    if lane.held:
        held = f"{lane.held[-1][1]:.0%} held"
    return (
        f"<tr><th scope=row>{words(lane.name, 40)}</th><td>{words(lane.state, 60)}</td>"
        f"<td>{words(held, 400)}</td></tr>"
    )


def nodes_view(asked: Asked, live: Live) -> Content:
    """Return the policy in force, and the nodes one by one."""
    policy = words(live.policy, 200)
    say = (
        f"Let another policy decide from now on, instead of {live.policy}: {', '.join(POLICIES)}. "
        "Jobs that run go on."
    )
    frame = (
        '<section aria-labelledby="h-policy"><h2 id="h-policy">Policy</h2>'
        f"<p>{policy} decides on jobs. "
        f"{act_button('policy', live.policy, 'Change', say, f'name={live.policy}')}</p>"
        "<table><thead><tr><th>What it decides</th><th>How</th></tr></thead>"
        '<tbody data-list="parts"></tbody></table></section>'
        '<section aria-labelledby="h-list"><h2 id="h-list">Nodes</h2>'
        "<table><thead><tr><th>Node</th><th>State</th><th>Act</th></tr></thead>"
        '<tbody data-list="nodes" data-rows></tbody></table></section>'
    )
    found = Content(frame)
    lanes = [] if live.lanes is None else live.lanes.lanes
    found.fill("parts", _parts(live.policy_text))
    found.fill("nodes", [(lane.name, _node_row(lane)) for lane in lanes])
    return found


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield a row for each part that a policy is composed of, with its parameters."""
    composed = json.loads(text) if text else {}
    for name, part in composed.items():
        if isinstance(part, dict):
            given = dict(part)
            how = str(given.pop("part", ""))
            how += "".join(f", {key} {json.dumps(value)}" for key, value in given.items())
            row = f"<tr><th scope=row>{words(name)}</th><td>{words(how, 400)}</td></tr>"
            yield name, row


def _node_row(lane: Lane) -> str:
    host = lane.name.rpartition("/")[0] or lane.name
    act = ""
    if lane.nodes == 1 and lane.state.startswith("drain"):
        act = act_button(
            "resume", host, "Resume", f"Resume node {host}: it is given to jobs again."
        )
    elif lane.nodes == 1:
        say = f"Drain node {host}: who is on it goes on, and it is given to nobody afterwards."
        act = act_button("drain", host, "Drain", say)
    return (
        f"<tr><th scope=row>{words(lane.name, 40)}</th><td>{words(lane.state, 60)}</td>"
        f"<td>{act}</td></tr>"
    )


# FUSED rms.web.views: Jobs: lists of them, one with all that is known, and arrays as grids of cells.

TAIL_BYTES, TAIL_LINES = 4096, 20


# --- jobs ----------------------------------------------------------------------------------------


def list_frame(asked: Asked) -> str:
    """Return the frame of a list of jobs."""
    lists = "".join(
        f'<a href="{asked.link(jobs=name, offset=0)}"'
        f"{' aria-current=true' if name == asked.jobs else ''}>{label}</a>"
        for name, label in (("active", "wait or run"), ("over", "over"))
    )
    active = asked.jobs == "active"
    where = "Where, or why it waits</th><th>Act" if active else "Ended"
    return (
        '<section aria-labelledby="h-jobs"><h2 id="h-jobs">Jobs</h2>'
        f'<p class="choices">{lists}</p>'
        '<form class="find" data-find><label>Find <input name="find" '
        f'value="{words(asked.find, 200)}" autocomplete="off"></label></form>'
        '<div class="wide"><table class="jobs-table"><thead><tr><th>Job</th><th>Name</th>'
        '<th>State</th><th class="n">Nodes</th><th class="n">Steps</th><th class="n">Energy</th>'
        f"<th>{where}</th></tr></thead>"
        '<tbody data-list="jobs" data-rows></tbody></table></div>'
        '<p class="choices" data-part="pages"></p></section>'
    )


def show_list(found: Content, asked: Asked, live: Live) -> None:
    """Enter the rows of a list of jobs."""
    page = live.jobs
    if page is None:
        return
    found.fill("jobs", [(line.job.id, _list_row(line, live.now_s)) for line in page.lines])
    if not page.lines:
        what = "None wait or run." if asked.jobs == "active" else "None are over."
        found.fill("jobs", [("none", f'<tr><td colspan="8">{what}</td></tr>')])
    first, last = page.offset + 1, page.offset + len(page.lines)
    parts = [f"<span>{first} to {last} of {page.total}</span>"] if page.total else []
    if page.offset:
        parts.append(f'<a href="{asked.link(offset=max(0, page.offset - ROWS))}">before</a>')
    if last < page.total:
        parts.append(f'<a href="{asked.link(offset=page.offset + ROWS)}">next</a>')
    found.parts["pages"] = "".join(parts)


def _list_row(line: JobLine, now_s: float) -> str:
    job = line.job
    where = _when(job) if job.end_s is not None else fold_slots(job.nodes) or job.reason
    if job.expected_start_s is not None and job.expected_start_s > now_s + 1.0:
        where += f". Expected to start {_about(job.expected_start_s, now_s)}"
    act = "" if job.state in OVER else f'<td class="s">{job_buttons(job, line.ids)}</td>'
    array = job.id.partition("_")[0]
    view, target = ("array", array) if line.tasks > 1 else ("job", job.id)
    steps = f"{job.step}/{job.steps}" if job.steps else ""
    return (
        f'<tr data-job="{words(job.id)}"><th scope=row><a href="#view={view}&amp;id={target}">'
        f"{words(line.ids, 40)}</a></th>"
        f"<td>{words(job.name, 60)}</td>"
        f'<td class="s">{state_words(job.state, job.resizing)}</td>'
        f'<td class="n">{size_words(job)}</td><td class="n">{steps}</td>'
        f'<td class="n">{energy_words(job.energy_j)}</td>'
        f'<td class="long">{words(where, 220)}</td>{act}</tr>'
    )


def _about(at_s: float, now_s: float) -> str:
    """Return a time to come, to the minute, and as a day where it is not soon."""
    if at_s - now_s < 60.0:
        return "within a minute"
    if at_s - now_s < 12 * 3600.0:
        return f"at {clock(at_s)[:5]}"
    return f"on {clock(at_s, day=True)[:16]}"


# --- one job -------------------------------------------------------------------------------------


def _when(job: JobRow) -> str:
    """Return when a job that is over ended, and how long it ran and waited."""
    end_s = job.end_s or 0.0
    if job.start_s is None:
        return f"{clock(end_s)}, never ran. {job.reason}"
    ran, waited = duration(end_s - job.start_s), duration(job.start_s - job.submit_s)
    return f"{clock(end_s)}, ran {ran}, waited {waited}. {job.reason}"


def job_view(asked: Asked, live: Live) -> Content:
    """Return all that is known of a job."""
    frame = (
        '<section aria-labelledby="h-job"><h2 id="h-job">Job '
        f'{words(asked.id)}</h2><div data-part="acts" class="acts"></div>'
        '<div data-part="facts"></div><h3>Steps per second by size</h3>'
        '<div data-part="rates"></div>'
        '<h3>Resizes</h3><div class="wide"><table><thead><tr><th>At</th><th>Ranks</th><th>How</th>'
        '<th class="n">Stopped</th><th class="n">Moved</th></tr></thead>'
        '<tbody data-list="resizes"></tbody></table></div>'
        '<h3>Decisions</h3><div class="wide"><table><thead><tr><th>At</th><th>What</th>'
        '<th>Why</th></tr></thead><tbody data-list="history"></tbody></table></div>'
        '<h3>Output</h3><div data-part="output"></div></section>'
    )
    found = Content(frame)
    job = live.job
    if job is None:
        found.parts["facts"] = f"<p>There is no job {words(asked.id)}.</p>"
        return found
    found.parts |= {
        "acts": job_buttons(job, job.id),
        "facts": _facts(job, live.now_s),
        "rates": _rates(job),
        "output": _output(job),
    }
    found.fill(
        "resizes",
        [
            (
                str(n),
                f"<tr><td class=s>{clock(row.at_s)}</td><td>{row.from_ranks} to {row.to_ranks}</td>"
                f'<td>{words(row.strategy)}</td><td class="n">{row.stall_s * 1000:.0f} ms</td>'
                f'<td class="n">{row.bytes / 1e6:.1f} MB</td></tr>',
            )
            for n, row in enumerate(job.resizes)
        ][-50:],
    )
    found.fill(
        "history",
        [
            (
                f"{n}-{entry.at_s:.3f}",
                f"<tr><td class=s>{clock(entry.at_s)}</td><td class=s>{words(entry.kind)}"
                f"{f' on {entry.size}' if entry.size else ''}</td>"
                f'<td class="long">{words(entry.reason, 200)}</td></tr>',
            )
            for n, entry in enumerate(live.history)
        ],
    )
    return found


def _facts(job: JobRow, now_s: float) -> str:
    began = job.start_s
    ran = 0.0 if began is None else (job.end_s or now_s) - began
    rows = [
        ("Name", words(job.name)),
        ("State", state_words(job.state, job.resizing)),
        ("Mode", words(job.mode)),
        ("Submitted", clock(job.submit_s, day=True)),
        ("Started", "" if began is None else clock(began, day=True)),
        ("Expected start", "" if (at_s := job.expected_start_s) is None else clock(at_s, day=True)),
        ("Ended" if job.end_s else "Has run", clock(job.end_s) if job.end_s else duration(ran)),
        ("Nodes", f"{size_words(job)} {words(fold_slots(job.nodes), 400)}"),
        ("Steps", f"{job.step} of {job.steps}" if job.steps else ""),
        ("Energy", f"{energy_words(job.energy_j)} ({words(job.energy_source)})"),
        ("Why", words(job.reason, 400)),
        ("Answer", words(job.answer)),
    ]
    each = "".join(f"<div><dt>{name}</dt><dd>{said}</dd></div>" for name, said in rows if said)
    return f"<dl>{each}</dl>"


def _rates(job: JobRow) -> str:
    rows = [
        (f"{seen.nodes} node{'s' if seen.nodes != 1 else ''}", seen.steps / seen.seconds)
        for seen in job.seen
        if seen.seconds > 0
    ]
    if not rows:
        return "<p>Not seen long enough at any size yet.</p>"
    table = "".join(f"<tr><td>{name}</td><td>{rate:.3g}</td></tr>" for name, rate in rows)
    return (
        f"{drawings.rates(rows, 'steps/s')}<details><summary>As a table</summary><table><thead>"
        f"<tr><th>Size</th><th>Steps per second</th></tr></thead>{table}</table></details>"
    )


def _output(job: JobRow) -> str:
    """Return the last lines of a job's output, where this machine has its file."""
    try:
        with Path(job.output).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).decode(errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return f"<p>{words(job.output, 300)} is not there, or not to be read here.</p>"
    shown = "\n".join(words(line, 200) for line in lines)
    return f'<p>{words(job.output, 300)}</p><pre tabindex="0">{shown}</pre>'


# --- arrays --------------------------------------------------------------------------------------

ROWS_OF_TASKS = 40


def array_view(asked: Asked, live: Live) -> Content:
    """Return an array as a grid of small cells, by the state of its tasks."""
    number = words(asked.id)
    frame = (
        f'<section aria-labelledby="h-array"><h2 id="h-array">Array {number}</h2>'
        '<div data-part="acts" class="acts"></div><p data-part="states"></p>'
        f'<form class="find" data-task="{number}"><label>Open task <input name="task" '
        'inputmode="numeric" autocomplete="off"></label></form>'
        f'<div data-list="tasks" class="tasks" data-array="{number}" tabindex="0" '
        'role="group" aria-label="Tasks: arrow keys go from one to the next, Enter opens it"></div>'
        '<p class="told" role="status"></p>'
        '<p class="choices" data-part="pages"></p></section>'
    )
    content, tasks = Content(frame), dict(live.tasks)
    counts: dict[str, int] = {}
    for state in tasks.values():
        counts[state] = counts.get(state, 0) + 1
    content.parts["states"] = ", ".join(f"{n} {state_words(state)}" for state, n in counts.items())
    if not tasks:
        content.parts["states"] = f"There is no array {number}."
    elif any(state not in OVER for state in tasks.values()):
        left = sum(state not in OVER for state in tasks.values())
        say = f"Cancel array {asked.id}: {left} tasks wait or run; they end, the others stay."
        content.parts["acts"] = act_button("cancel", asked.id, "Cancel array", say)
    firsts = sorted({index // drawings.CELLS * drawings.CELLS for index in tasks})
    at = asked.offset // ROWS_OF_TASKS * ROWS_OF_TASKS
    shown = firsts[at : at + ROWS_OF_TASKS]
    content.fill("tasks", [(str(first), _task_row(first, tasks)) for first in shown])
    pages = []
    if at:
        pages.append(f'<a href="{asked.link(offset=at - ROWS_OF_TASKS)}">before</a>')
    if at + ROWS_OF_TASKS < len(firsts):
        pages.append(f'<a href="{asked.link(offset=at + ROWS_OF_TASKS)}">next</a>')
    content.parts["pages"] = "".join(pages)
    return content


def _task_row(first: int, tasks: Mapping[int, str]) -> str:
    own = range(first, first + drawings.CELLS)
    drawing = drawings.cells(first, {index: tasks[index] for index in own if index in tasks})
    return f'<div class="row"><span class="name">{first}</span>{drawing}</div>'


# FUSED rms.web.views: Power over time, and energy, by owner and by source.


def power_view(asked: Asked, live: Live) -> Content:
    """Return the curve of power, and the energy so far."""
    spans = "".join(
        f'<a href="{asked.link(span=n, back=0)}"'
        f"{' aria-current=true' if n == asked.span_s else ''}>{duration(n)}</a>"
        for n in SPANS_S
    )
    key = "".join(f'<span class="key {name}">{name}</span>' for name in drawings.OWNERS)
    frame = (
        '<section aria-labelledby="h-power"><h2 id="h-power">Power</h2>'
        f'<p class="choices">{spans}</p><p>By owner: {key} from the bottom up, '
        '<span data-part="source"></span></p><div class="of-time" data-part="curve"></div>'
        '<div class="of-time" data-part="axis"></div><h3>Energy so far</h3>'
        '<table><thead><tr><th>Owner or source</th><th class="n">Energy</th></tr></thead>'
        '<tbody data-list="energy"></tbody></table><details><summary>The curve as a table</summary>'
        "<table><thead><tr><th>At</th><th>W, by owner</th></tr></thead>"
        '<tbody data-list="points"></tbody></table></details></section>'
    )
    found, power = Content(frame), live.power
    if power is None:
        return found
    window = window_of(live, power.begin_s, power.end_s)
    points = [
        (at_s, (max(0.0, watts - idle_w - off_w - boot_w), idle_w, off_w, boot_w))
        for at_s, watts, idle_w, off_w, boot_w in power.points
    ]
    found.parts["curve"] = drawings.power(points, window, power.cap_w)
    found.parts["axis"] = drawings.axis(window)
    cap = "no power cap" if power.cap_w is None else f"the power cap is {power.cap_w:g} W"
    found.parts["source"] = f"power by {words(power.sources)}; {cap}"
    energy = power.energy
    rows = [("jobs", energy.busy_j), ("tasks", energy.tasks_j), ("idle", energy.idle_j)]
    rows += [("off", energy.off_j), ("boot", energy.boot_j), ("cluster", energy.cluster_j)]
    rows += [(f"by {part.source}", part.joules) for part in energy.sources]
    found.fill(
        "energy",
        [
            (name, f'<tr><td>{words(name)}</td><td class="n">{energy_words(joules)}</td></tr>')
            for name, joules in rows
        ],
    )
    found.fill(
        "points",
        [
            (
                f"{n}",
                f"<tr><td>{clock(at_s)}</td><td>"
                + ", ".join(f"{o} {w:.1f}" for o, w in zip(drawings.OWNERS, watts, strict=True))
                + "</td></tr>",
            )
            for n, (at_s, watts) in enumerate(points[-1 : -len(points) - 1 : -10])
        ],
    )
    return found


# FUSED rms.web.views: The views of the live page: what each makes of the daemon's answer.


def content(asked: Asked, live: Live) -> Content:
    """Return what a view shows."""
    found = MADE_BY[asked.view](asked, live)
    found.parts["summary"] = _summary(live)
    return found


def _summary(live: Live) -> str:
    tiles = (
        (f"{live.held} of {live.nodes}", "nodes held"),
        (f"{live.running}", "run"),
        (f"{live.waiting}", "wait"),
        (f"{live.over}", "over"),
        (f"{live.power_w:.0f} W", "drawn now"),
        (words(live.policy, 40), "decides"),
    )
    each = "".join(f"<div><dt>{what}</dt><dd>{figure}</dd></div>" for figure, what in tiles)
    return f"<dl>{each}</dl>"


def _overview(asked: Asked, live: Live) -> Content:
    found = Content(over_time(asked) + list_frame(asked))
    show_over_time(found, asked, live)
    show_list(found, asked, live)
    return found


def _jobs(asked: Asked, live: Live) -> Content:
    found = Content(list_frame(asked))
    show_list(found, asked, live)
    return found


MADE_BY: Mapping[str, Callable[[Asked, Live], Content]] = {
    "overview": _overview,
    "jobs": _jobs,
    "job": job_view,
    "array": array_view,
    "power": power_view,
    "nodes": nodes_view,
}
