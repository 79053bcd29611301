"""Nodes: over time, and one by one with what can be done to them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rms import drawings
from rms.core.policies import POLICIES
from rms.drawings import Window, clock
from rms.web.asked import Asked
from rms.web.content import Content, words
from rms.web.fragments import act_button, duration
from rms.wire.live import Lane, Lanes, Live, Mark

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
