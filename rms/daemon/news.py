"""What has happened, in words, for those who follow a daemon: of the journal's entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rms.core.model.events import (
    Ended,
    Event,
    HeldByUser,
    NodeBooted,
    NodeDown,
    NodePowerFailed,
    NodeUp,
    PowerCapSet,
    Requeued,
    ResizeBegun,
    Resized,
    ResizeRolledBack,
    Started,
    Submitted,
)
from rms.daemon.context import Context
from rms.daemon.journal import Opened, PolicySet, Seen
from rms.formats.ids import fold_ids
from rms.wire.live import MOST_NEWS, News

OLDEST = 20_000
"""Entries further back than this are not looked at."""


def news(context: Context, after: int) -> tuple[list[News], int]:
    """Return what has happened since an entry, and how many earlier things are left out."""
    journal = context.journal
    first = max(after, journal.last - OLDEST)
    kinds = [kind.__name__ for kind in (*_WORDS, Opened, PolicySet)]
    found, number = journal.since(first, kinds, MOST_NEWS)
    told = [_told(context, seq, entry) for seq, entry in found]
    return [each for each in told if each is not None], number - len(found)


def _told(context: Context, seq: int, entry: object) -> News | None:
    if isinstance(entry, Opened):
        return News(seq, 0.0, "", f"the daemon has started, with policy {entry.policy}")
    if isinstance(entry, PolicySet):
        return News(seq, entry.at_s, "", f"policy {entry.policy} decides from now on")
    if not isinstance(entry, Seen):
        return None
    event = entry.event
    job = getattr(event, "job", "")
    if isinstance(event, Submitted):
        job = event.specs[0].id if len(event.specs) == 1 else ""
    return News(seq, event.at_s, job, _WORDS[type(event)](context, event))


def _node(context: Context, node: int) -> str:
    names = context.cluster.names
    return context.cluster.host_of(node) if 0 <= node < len(names) else f"number {node}"


def _submitted(context: Context, event: Submitted) -> str:
    ids = fold_ids(spec.id for spec in event.specs[:1000])
    return f"job {', '.join(ids)} was submitted"


def _resized(context: Context, event: Resized) -> str:
    known = context.jobs.get(event.job)
    rows = [] if known is None else [row for row in known.resizes if row.at_s <= event.at_s]
    if not rows:
        return f"job {event.job} was resized"
    row = rows[-1]  # it is told first; then processes end, and the resize is over
    sizes = f"from {row.from_ranks} to {row.to_ranks} ranks"
    return f"job {event.job} was resized {sizes}, stopped for {row.stall_s:.3f} s"


def _held(context: Context, event: HeldByUser) -> str:
    ids = ", ".join(fold_ids(event.jobs[:1000]))
    return f"job {ids} is held" if event.held else f"job {ids} is released"


def _cap(context: Context, event: PowerCapSet) -> str:
    return "no power cap" if event.watts is None else f"a power cap of {event.watts:g} W"


_WORDS: Mapping[type[Event], Callable[[Context, Any], str]] = {
    Submitted: _submitted,
    Started: lambda context, event: f"job {event.job} has started",
    ResizeBegun: lambda context, event: f"job {event.job} stops for a resize",
    Resized: _resized,
    ResizeRolledBack: lambda _, event: f"job {event.job} stays as it is: {event.reason}",
    Requeued: lambda context, event: f"job {event.job} waits again",
    HeldByUser: _held,
    Ended: lambda context, event: f"job {event.job} is {event.state}",
    NodeDown: lambda context, event: f"node {_node(context, event.node)} is given to nobody",
    NodeUp: lambda context, event: f"node {_node(context, event.node)} is given to jobs again",
    NodeBooted: lambda context, event: f"node {_node(context, event.node)} has booted",
    NodePowerFailed: lambda c, event: f"node {_node(c, event.node)}: {event.reason}",
    PowerCapSet: _cap,
}
