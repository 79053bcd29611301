"""The views of the live page: what each makes of the daemon's answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rms.web import jobs, nodes, power
from rms.web.asked import Asked
from rms.web.content import Content, words
from rms.wire.live import Live


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
    found = Content(nodes.over_time(asked) + jobs.list_frame(asked))
    nodes.show_over_time(found, asked, live)
    jobs.show_list(found, asked, live)
    return found


def _jobs(asked: Asked, live: Live) -> Content:
    found = Content(jobs.list_frame(asked))
    jobs.show_list(found, asked, live)
    return found


MADE_BY: Mapping[str, Callable[[Asked, Live], Content]] = {
    "overview": _overview,
    "jobs": _jobs,
    "job": jobs.job_view,
    "array": jobs.array_view,
    "power": power.power_view,
    "nodes": nodes.nodes_view,
}
