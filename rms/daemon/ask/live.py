"""Answers for pages that follow the daemon (:mod:`rms.wire.live`): the present, and an event feed.

Each open page sends a request every second. So the time of an answer does not depend on the number
of ended jobs, except in a search, and little on the number of pending ones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import Any

from rms.core.books.spans import MOST, OFF
from rms.core.model.events import (
    Ended,
    Event,
    HeldByUser,
    NodeBooted,
    NodeDown,
    NodePowerFailed,
    NodesLost,
    NodeUp,
    PowerCapSet,
    Requeued,
    ResizeBegun,
    Resized,
    ResizeRolledBack,
    Started,
    Submitted,
    WorkLost,
)
from rms.core.model.jobs import Job, JobId, sort_key
from rms.daemon.ask import views
from rms.daemon.store.context import Context
from rms.daemon.store.journal import Opened, PolicySet, Seen
from rms.formats.values import fold_ids
from rms.plots import TimeWindow, folded, held_shares, lanes_of
from rms.wire.live import (
    MOST_ENTRIES,
    MOST_HISTORY,
    MOST_LANES,
    MOST_ROWS,
    SORTS,
    FeedEntry,
    JobLine,
    JobPage,
    Lanes,
    Live,
    LiveQuery,
    Mark,
    Power,
    PriceCurve,
    StartForecast,
    Usage,
    UsageRow,
    node_seconds,
)
from rms.wire.users import JobRow, NodeSpan, steps_words

OLDEST = 20_000  # older entries of the journal are not in the feed
SEARCHED = 20_000  # number of archived jobs that a search for a text goes through
# A lane with more spans, and with more than its part of those of all lanes, shows the share of time
# held instead of its jobs.
MOST_BARS = 40
MOST_SPANS = 1536
MOST_MARKS = 300
LEAST_S = 60.0  # shortest window, unless the query requests a shorter one
PARTS = 120  # resolution of curves: parts of the window
MOST_TASKS = 100_000
COUNTED = 2_000  # archived jobs that an answer adds to the usage


def live(context: Context, query: LiveQuery) -> Live:
    """Return the present state, and the other parts that the query requests.

    A ValueError states what is invalid: the list of jobs, the order or the window.
    """
    state, now_s = context.state, context.time()
    window = _window(context, query, now_s)
    entries, missed = feed(context, query.after) if query.after >= 0 else ([], 0)
    job = _job(context, query.job) if query.job else None
    return Live(
        seq=context.journal.last,
        now_s=now_s,
        start_s=_start(context),
        policy=context.scheduler.engine.policy.name,
        waiting=len(state.pending) + len(state.too_wide) + len(state.held),
        running=len(state.running),
        over=len(state.ended) + context.journal.archived_number(),
        held=sum(len(job.held) for job in state.running.values()),
        nodes=state.nodes,
        power_w=context.scheduler.energy.power_w,
        jobs=_jobs(context, query, now_s) if query.jobs else None,
        lanes=_lanes(context, min(query.lanes, MOST_LANES), window) if query.lanes else None,
        power=_power(context, window) if query.power else None,
        forecast=_forecast(context, query.forecast) if query.forecast > 0 else [],
        usage=_usage(context, now_s) if query.usage else None,
        tasks=_tasks(context, query.array) if query.array else [],
        news=entries,
        missed=missed,
        job=job,
        history=[] if job is None else views.history(context, JobId(job.id))[-MOST_HISTORY:],
        policy_text=context.scheduler.engine.policy.text,
    )


def _start(context: Context) -> float | None:
    power_w = context.scheduler.timeline.power_w
    return power_w[0][0] if power_w else None


# --- jobs ----------------------------------------------------------------------------------------


def _jobs(context: Context, query: LiveQuery, now_s: float) -> JobPage:
    if query.jobs not in ("active", "over"):
        raise ValueError(f"expected jobs that are active or over, got {query.jobs!r}")
    state, first = context.state, max(0, query.offset)
    last = first + max(1, min(query.limit, MOST_ROWS))
    if query.jobs == "over":
        return _over(context, query.find, first, last)
    running = _matching(context, state.running.values(), query.find)
    queued = chain(state.pending.values(), state.too_wide.values(), state.held.values())
    pending = _matching(context, queued, query.find)
    groups = [*([job] for job in running), *_by_array(pending, query.unfold)]
    if query.sort:
        groups.sort(key=_sort_key(context, query.sort, now_s), reverse=query.sort[0] == "-")
    return JobPage(_lines(context, groups[first:last]), first, len(groups))


def _over(context: Context, text: str, first: int, last: int) -> JobPage:
    """Return a page of the ended jobs: those in memory, then those archived."""
    journal = context.journal
    recent = list(_matching(context, reversed(context.state.ended.values()), text))
    lines = _lines(context, [[job] for job in recent[first:last]])
    skip, wanted = max(0, first - len(recent)), last - first - len(lines)
    if text:
        rows = [entry.row for entry in journal.newest_archived(0, SEARCHED, text)]
        rows = [row for row in rows if text in row.id or text in row.name]
        total, rows = len(recent) + len(rows), rows[skip : skip + wanted]
    else:
        total = len(recent) + journal.archived_number()
        rows = [entry.row for entry in journal.newest_archived(skip, wanted)] if wanted else []
    return JobPage([*lines, *(JobLine(row.id, 1, row) for row in rows)], first, total)


def _job(context: Context, job_id: str) -> JobRow | None:
    job = context.state.job(JobId(job_id))
    if job is not None:
        return views.rows(context, [job])[0]
    archived = context.journal.archived(job_id)
    return next((entry.row for entry in archived if entry.row.id == job_id), None)


def _matching(context: Context, jobs: Iterable[Job], text: str) -> Iterable[Job]:
    if not text:
        return jobs
    return [job for job in jobs if text in job.spec.id or text in _name(context, job)]


def _name(context: Context, job: Job) -> str:
    return context.jobs[job.spec.id].submission.name


def _by_array(jobs: Iterable[Job], unfold: Sequence[str]) -> list[list[Job]]:
    """Return groups of jobs: those of an array together, unless it is to be unfolded."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        array = job.spec.array
        key = array if array and array not in unfold else job.spec.id
        groups.setdefault(key, []).append(job)
    return list(groups.values())


def _sort_key(context: Context, sort: str, now_s: float) -> Callable[[list[Job]], Any]:
    """Return the sort key of rows; an unknown order is a ValueError."""
    energy = context.scheduler.energy
    keys: dict[str, Callable[[Job], Any]] = {
        "id": lambda job: sort_key(job.spec.id),
        "name": lambda job: _name(context, job),
        "nodes": lambda job: len(job.nodes) or job.spec.nodes_max,
        "time": lambda job: now_s - (job.spec.submit_s if job.start_s is None else job.start_s),
        "energy": lambda job: energy.job_j(job.spec.id, now_s),
    }
    key = keys.get(sort.removeprefix("-"))
    if key is None:
        raise ValueError(f"expected to sort by {', '.join(SORTS)}, got {sort[:60]!r}")
    return lambda group: key(group[0])


def _lines(context: Context, groups: Sequence[list[Job]]) -> list[JobLine]:
    rows = views.rows(context, [group[0] for group in groups])
    return [JobLine(_ids(group), len(group), row) for group, row in zip(groups, rows, strict=True)]


def _ids(group: Sequence[Job]) -> str:
    """Return the id of a job, or the folded ids of tasks of an array."""
    first, last = group[0].spec.id, group[-1].spec.id
    if len(group) == 1:
        return first
    (array, low), (_, high) = sort_key(first), sort_key(last)
    if high - low + 1 == len(group):
        return f"{array}_[{low}-{high}]"
    return ",".join(fold_ids(job.spec.id for job in group))


def _tasks(context: Context, array: str) -> list[tuple[int, str]]:
    """Return the states of the tasks of an array, by their indices."""
    archived = context.journal.archived_states(array)
    states = [(sort_key(job_id)[1], state) for job_id, state in archived]
    begin = f"{array}_"
    for job_id in context.jobs:
        if job_id.startswith(begin):
            job = context.state.job(job_id)
            if job is not None:
                states.append((sort_key(job_id)[1], str(job.state)))
    return sorted(states)[:MOST_TASKS]


def _forecast(context: Context, most: int) -> list[StartForecast]:
    """Return the expected starts of pending jobs, tasks of an array together, the next ones first.

    They are those of :meth:`rms.core.scheduler.engine.Engine.expected_starts`.
    """
    starts = context.scheduler.engine.expected_starts(views.PLANNED)
    jobs = [job for job_id, job in context.state.pending.items() if job_id in starts]
    rows = []
    for group in _by_array(jobs, ()):
        first = min(group, key=lambda job: starts[job.spec.id])
        at_s, spec = starts[first.spec.id], first.spec
        name = _name(context, first)
        rows.append(StartForecast(_ids(group), spec.id, name, spec.smallest_start, at_s))
    return sorted(rows, key=lambda row: row.at_s)[: min(most, MOST_ROWS)]


# --- usage ---------------------------------------------------------------------------------------


def _usage(context: Context, now_s: float) -> Usage:
    """Return the usage by user and account, the largest first.

    An answer counts at most :data:`COUNTED` more archived jobs, so it never takes long.
    """
    state, energy = context.state, context.scheduler.energy
    uncounted = _count_archived(context)
    rows = {key: UsageRow(*key) for key in context.archived_usage}
    for key, row in context.archived_usage.items():
        rows[key].add(row)

    def enter(job: Job, **numbers: Any) -> None:
        user = context.jobs[job.spec.id].submission.user
        key = user, job.spec.account
        rows.setdefault(key, UsageRow(*key)).add(UsageRow(*key, **numbers))

    for job in chain(state.pending.values(), state.too_wide.values(), state.held.values()):
        enter(job, pending=1)
    for job in chain(state.running.values(), state.ended.values()):
        job_id, numbers = job.spec.id, {"energy_j": energy.job_j(job.spec.id, now_s)}
        if job.start_s is not None:
            end_s, resizes = job.end_s or now_s, context.jobs[job_id].resizes
            numbers["node_s"] = node_seconds(job.start_s, end_s, len(job.nodes), resizes)
        if job.end_s is None:
            enter(job, running=1, nodes=len(job.held), **numbers)
        else:
            enter(job, ended=1, **numbers)
    return Usage(sorted(rows.values(), key=lambda row: -row.node_s), uncounted)


def _count_archived(context: Context) -> int:
    """Add archived jobs to the usage of the context; return the number of those left out."""
    journal, counted = context.journal, context.archived_counted
    number = journal.archived_number()
    most = min(COUNTED, number - counted)
    entries = journal.newest_archived(number - counted - most, most) if most else []
    for entry in entries:
        row = entry.row
        start_s, end_s = row.start_s, row.end_s or 0.0
        node_s = 0.0 if start_s is None else node_seconds(start_s, end_s, row.size, row.resizes)
        key = row.user, row.account
        own = context.archived_usage.setdefault(key, UsageRow(*key))
        own.add(UsageRow(*key, ended=1, node_s=node_s, energy_j=row.energy_j))
    context.archived_counted += most
    return number - context.archived_counted


# --- nodes over time -----------------------------------------------------------------------------


def _window(context: Context, query: LiveQuery, now_s: float) -> TimeWindow:
    end_s = query.end_s or now_s
    if not 0.0 < query.span_s < 1e9 or not 0.0 < end_s < 1e12:
        raise ValueError(f"expected a time and its length, got {query.end_s} and {query.span_s}")
    begin_s, past = end_s - query.span_s, context.scheduler.timeline.past
    if (start_s := _start(context)) is not None:  # nothing happened before
        begin_s = max(begin_s, min(start_s, end_s - min(query.span_s, LEAST_S)))
    if (query.lanes or query.power) and not query.end_s and len(past) >= MOST:  # spans per answer
        begin_s = max(begin_s, past[-MOST].end_s or 0.0)
    return TimeWindow(begin_s, end_s)


def _held(context: Context, window: TimeWindow) -> Iterator[NodeSpan]:
    timeline = context.scheduler.timeline
    first = bisect_left(timeline.past, window.begin_s, key=lambda span: span.end_s or 0.0)
    for span in chain(islice(timeline.past, first, None), timeline.present_spans.values()):
        if span.start_s <= window.end_s:
            yield span


def _unpowered(context: Context, window: TimeWindow) -> Iterator[NodeSpan]:
    for span in context.scheduler.timeline.power_spans:
        is_past = span.end_s is not None and span.end_s <= window.begin_s
        if span.start_s < window.end_s and not is_past:
            yield span


def _lanes(context: Context, most: int, window: TimeWindow) -> Lanes:
    names = context.cluster.names
    groups = folded(names, most)
    spans = list(_held(context, window))
    if len(groups) == len(names):
        spans += _unpowered(context, window)
    states = _states(context, groups)
    bars = min(MOST_BARS, MOST_SPANS // max(1, len(groups)))
    lanes = lanes_of(names, groups, spans, window, states=states, most_bars=bars, parts=PARTS)
    shown = list(lanes)
    jobs = dict.fromkeys(span.job for lane in shown for span in lane.spans)
    return Lanes(window.begin_s, window.end_s, shown, _marks(context, jobs, window))


def _states(context: Context, groups: Sequence[range]) -> list[str]:
    """Return the states of single nodes, or the numbers of a group's nodes by state."""
    state, cluster = context.state, context.cluster
    if len(groups) == len(cluster.names):
        by_host = {row.name: row.state for row in views.nodes(context)}
        return [by_host[cluster.host_of(node)] for node in range(len(cluster.names))]
    kinds = (("down", state.down), ("off", state.off), ("booting", state.booting))
    states = []
    for own in groups:
        numbers = {"idle": state.vacant.count(1, own.start, own.stop)}
        for word, nodes in kinds:
            numbers[word] = sum(node in own for node in nodes)
        rest = len(own) - sum(numbers.values())
        words = [f"{n} {word}" for word, n in {"held": max(0, rest), **numbers}.items() if n]
        states.append(", ".join(words))
    return states


def _marks(context: Context, jobs: Iterable[str], window: TimeWindow) -> list[Mark]:
    runtimes = filter(None, (context.jobs.get(JobId(job)) for job in jobs))
    marks = [
        Mark.of(runtime.id, row)
        for runtime in runtimes
        for row in runtime.resizes
        if window.begin_s <= row.at_s <= window.end_s
    ]
    return sorted(marks, key=lambda mark: mark.at_s)[-MOST_MARKS:]


# --- power ---------------------------------------------------------------------------------------


def _power(context: Context, window: TimeWindow) -> Power:
    """Return the cluster's power over a window: the values at the ends of its parts."""
    curve, state = context.scheduler.timeline.power_w, context.state
    begin_s, end_s = window.begin_s, window.end_s
    part_s = (end_s - begin_s) / PARTS
    idle_w, off_w, boot_w = _unused_w(context, window)
    points = []
    for at in range(PARTS):
        at_s = begin_s + (at + 1) * part_s
        before = bisect_right(curve, at_s, key=lambda point: point[0])
        if before:
            watts = curve[before - 1][1]
            points.append((at_s, watts, min(watts, idle_w[at]), off_w[at], boot_w[at]))
    books, source = context.scheduler.books(context.time()), context.scheduler.energy.power_source
    return Power(
        begin_s=begin_s,
        end_s=end_s,
        points=points,
        sources=source,
        energy=books,
        cap_w=state.power_cap_w,
        allocated=held_shares(_held(context, window), state.nodes, window, PARTS),
        prices=list(_prices(context, window)),
    )


def _prices(context: Context, window: TimeWindow) -> Iterator[PriceCurve]:
    """Yield the price and the emissions in a window, as far as the daemon knows them."""
    prices = context.settings.prices
    if prices is None:
        return
    for kind, name, unit in prices.units:
        if steps := prices.steps(kind, window.begin_s, window.end_s, PARTS):
            yield PriceCurve(name, unit, steps)


def _unused_w(context: Context, window: TimeWindow) -> tuple[list[float], ...]:
    """Return the power of nodes that are idle, off and booting at the parts' ends.

    By the model: all nodes idle, less those that are held, off or booting then.
    """
    cluster, state = context.cluster, context.state
    begin_s = window.begin_s
    part_s = (window.end_s - begin_s) / PARTS
    idle_w, off_w, boot_w = ([0.0] * (PARTS + 1) for _ in range(3))
    idle_w[0] = state.idle_w

    def enter(span: NodeSpan, watts: float, into: list[float]) -> None:
        first = max(0, -int(-(span.start_s - begin_s) // part_s) - 1)
        last = PARTS if span.end_s is None else int((span.end_s - begin_s) // part_s)
        if first < min(last, PARTS):
            into[first] += watts
            into[min(last, PARTS)] -= watts

    for span in _unpowered(context, window):
        if span.node in cluster.nodes_of:
            model = state.model(cluster.nodes_of[span.node][0])
            enter(span, -model.idle_w, idle_w)
            off = span.job == OFF
            enter(span, model.off_w if off else model.boot_w, off_w if off else boot_w)
    if not cluster.shared:  # on shared nodes jobs draw power in addition to idle hosts
        for span in _held(context, window):
            if span.node in cluster.nodes_of:
                enter(span, -state.model(cluster.nodes_of[span.node][0]).idle_w, idle_w)
    kinds = idle_w, off_w, boot_w
    return tuple([max(0.0, watts) for watts in accumulate(steps[:-1])] for steps in kinds)


# --- feed ---------------------------------------------------------------------------------------


def feed(context: Context, after: int) -> tuple[list[FeedEntry], int]:
    """Return the events since an entry, and the number of those left out."""
    journal = context.journal
    first = max(after, journal.last - OLDEST)
    kinds = [kind.__name__ for kind in (*_WORDS, Opened, PolicySet)]
    rows, number = journal.since(first, kinds, MOST_ENTRIES)
    entries = (_entry(context, seq, row) for seq, row in rows)
    return [entry for entry in entries if entry is not None], number - len(rows)


def _entry(context: Context, seq: int, entry: object) -> FeedEntry | None:
    if isinstance(entry, Opened):
        return FeedEntry(seq, 0.0, "", f"daemon started, policy {entry.policy}")
    if isinstance(entry, PolicySet):
        return FeedEntry(seq, entry.at_s, "", f"policy set to {entry.policy}")
    if not isinstance(entry, Seen):
        return None
    event = entry.event
    job = getattr(event, "job", "")
    if isinstance(event, Submitted):
        job = event.specs[0].id if len(event.specs) == 1 else ""
    return FeedEntry(seq, event.at_s, job, _WORDS[type(event)](context, event))


def _node(context: Context, node: int) -> str:
    names = context.cluster.names
    return context.cluster.host_of(node) if 0 <= node < len(names) else f"number {node}"


def _folded(ids: Iterable[str]) -> str:
    return ", ".join(fold_ids(islice(ids, 1000)))


def _resized(context: Context, event: Resized) -> str:
    runtime = context.jobs.get(event.job)
    rows = [] if runtime is None else [row for row in runtime.resizes if row.at_s <= event.at_s]
    if not rows:
        return f"job {event.job} resized"
    row = rows[-1]  # its report precedes the end of its processes and the event
    sizes = f"from {row.from_ranks} to {row.to_ranks} ranks"
    return f"job {event.job} resized {sizes}, stopped for {row.stall_s:.3f} s"


def _state_words(state: str) -> str:
    return state.replace("_", " ").lower()


_WORDS: Mapping[type[Event], Callable[[Context, Any], str]] = {
    Submitted: lambda _, event: f"job {_folded(spec.id for spec in event.specs)} submitted",
    Started: lambda context, event: f"job {event.job} started",
    ResizeBegun: lambda context, event: f"job {event.job} stops for a resize",
    Resized: _resized,
    ResizeRolledBack: lambda _, event: f"job {event.job} resize rolled back: {event.reason}",
    Requeued: lambda context, event: f"job {event.job} requeued",
    NodesLost: lambda _, event: f"job {event.job} goes on with {len(event.nodes)} nodes",
    WorkLost: lambda _, event: (
        f"job {event.job} computes {steps_words(event.steps)} again: {event.reason}"
    ),
    HeldByUser: lambda _, event: (
        f"job {_folded(event.jobs)} {'held' if event.held else 'released'}"
    ),
    Ended: lambda context, event: f"job {event.job} {_state_words(event.state)}",
    NodeDown: lambda context, event: f"node {_node(context, event.node)} unavailable",
    NodeUp: lambda context, event: f"node {_node(context, event.node)} available",
    NodeBooted: lambda context, event: f"node {_node(context, event.node)} booted",
    NodePowerFailed: lambda c, event: f"node {_node(c, event.node)}: {event.reason}",
    PowerCapSet: lambda _, event: (
        "power cap removed" if event.watts is None else f"power cap set to {event.watts:g} W"
    ),
}
