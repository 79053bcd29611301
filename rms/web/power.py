"""Power over time, and energy, by owner and by source."""

from __future__ import annotations

from rms import drawings
from rms.drawings import clock
from rms.formats.energy import energy_words
from rms.web.asked import Asked
from rms.web.content import Content, words
from rms.web.fragments import duration
from rms.web.nodes import SPANS_S, window_of
from rms.wire.live import Live


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
