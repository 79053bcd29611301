"""What has happened, in words, for those who follow a daemon: of the journal's entries."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby, islice
from typing import Any

from rms.core.books.spans import BOOT, MOST, OFF
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
from rms.core.model.jobs import Job, JobId, sort_key
from rms.core.state import State
from rms.daemon.ask import views
from rms.daemon.store.context import Context
from rms.daemon.store.journal import Opened, PolicySet, Seen
from rms.drawings import Window, held_shares
from rms.formats.values import fold_ids
from rms.wire.live import (
    MOST_HISTORY,
    MOST_LANES,
    MOST_NEWS,
    MOST_ROWS,
    SORTS,
    JobLine,
    JobPage,
    Lane,
    Lanes,
    Live,
    LiveQuery,
    Mark,
    News,
    Power,
)
from rms.wire.users import JobRow, NodeSpan

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


# FUSED rms.daemon.ask.live: What a page that follows the daemon is answered (:mod:`rms.wire.live`); looking changes nothing.
#
# Every open page requests it every second. So nothing here takes the longer the more jobs are
# over, but a search among them, and little takes the longer the more there are that wait.

MOST_SPANS = MOST
"""More spans than this are in no answer: the time that it shows begins later then."""

SEARCHED = 20_000
"""Among how many of the jobs that have been over for long a text is looked for."""

MOST_BARS = 40
"""Of more spans than this a lane shows when its node was held, not by whom."""

MOST_MARKS = 300

LEAST_S = 60.0
"""No time shorter than this is shown, unless the query requests it."""

PARTS = 120
"""Into how many parts a time is cut for curves."""

MOST_TASKS = 100_000


def live(context: Context, query: LiveQuery) -> Live:
    """Return the present state, and the other parts that the query requests.

    Raises:
        ValueError: a list or a time that there is not.
    """
    state, now_s = context.state, context.time()
    window = _window(context, query, now_s)
    told, missed = news(context, query.after) if query.after >= 0 else ([], 0)
    job = _job(context, query.job) if query.job else None
    return Live(
        context.journal.last,
        now_s,
        _start(context),
        context.scheduler.engine.policy.name,
        len(state.pending) + len(state.too_wide) + len(state.held),
        len(state.running),
        len(state.ended) + context.journal.archived_number(),
        sum(len(job.held) for job in state.running.values()),
        state.nodes,
        context.scheduler.energy.power_w,
        _jobs(context, query, now_s) if query.jobs else None,
        _lanes(context, min(query.lanes, MOST_LANES), *window) if query.lanes else None,
        _power(context, *window) if query.power else None,
        _tasks(context, query.array) if query.array else [],
        told,
        missed,
        job,
        [] if job is None else views.history(context, JobId(job.id))[-MOST_HISTORY:],
        context.scheduler.engine.policy.text,
    )


def _start(context: Context) -> float | None:
    power_w = context.scheduler.timeline.power_w
    return power_w[0][0] if power_w else None


# --- jobs ----------------------------------------------------------------------------------------


def _jobs(context: Context, query: LiveQuery, now_s: float) -> JobPage:
    """Return some rows of the jobs that wait or run, or of those that are over."""
    if query.jobs not in ("active", "over"):
        raise ValueError(f"expected jobs that are active or over, got {query.jobs!r}")
    state, first = context.state, max(0, query.offset)
    last = first + max(1, min(query.limit, MOST_ROWS))
    if query.jobs == "over":
        return _over(context, query.find, first, last)
    runs = _found(context, state.running.values(), query.find)
    waits = _found(context, _waiting(state), query.find)
    groups = [*([job] for job in runs), *_by_array(waits, query.unfold)]
    if query.sort:
        groups.sort(key=_sort_key(context, query.sort, now_s), reverse=query.sort[0] == "-")
    return JobPage(_lines(context, groups[first:last]), first, len(groups))


def _over(context: Context, text: str, first: int, last: int) -> JobPage:
    """Return some rows of the jobs that are over: those in memory, then those archived."""
    journal = context.journal
    recent = list(_found(context, reversed(context.state.ended.values()), text))
    lines = _lines(context, [[job] for job in recent[first:last]])
    skip, wanted = max(0, first - len(recent)), last - first - len(lines)
    if text:
        found = journal.newest_archived(0, SEARCHED, text)
        archived = [each.row for each in found if text in each.row.id or text in each.row.name]
        total, archived = len(recent) + len(archived), archived[skip : skip + wanted]
    else:
        total = len(recent) + journal.archived_number()
        archived = [each.row for each in journal.newest_archived(skip, wanted)] if wanted else []
    return JobPage([*lines, *(JobLine(row.id, 1, row) for row in archived)], first, total)


def _job(context: Context, job_id: str) -> JobRow | None:
    """Return all that is known of a job, None where there is none of that id."""
    job = context.state.job(JobId(job_id))
    if job is not None:
        return views.rows(context, [job])[0]
    archived = context.journal.archived(job_id)
    return next((each.row for each in archived if each.row.id == job_id), None)


def _waiting(state: State) -> Iterator[Job]:
    return chain(state.pending.values(), state.too_wide.values(), state.held.values())


def _found(context: Context, jobs: Iterable[Job], text: str) -> Iterable[Job]:
    """Return the jobs whose id or name holds a text."""
    if not text:
        return jobs
    known = context.jobs
    return [
        job
        for job in jobs
        if text in job.spec.id or text in known[job.spec.id].submission.name
    ]


def _by_array(jobs: Iterable[Job], unfold: Sequence[str]) -> list[list[Job]]:
    """Return jobs, those of one array together, in the order of the first of each."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        array = job.spec.array
        folded = array if array and array not in unfold else job.spec.id
        found.setdefault(folded, []).append(job)
    return list(found.values())


def _sort_key(context: Context, sort: str, now_s: float) -> Callable[[list[Job]], Any]:
    """Return by what rows are sorted.

    Raises:
        ValueError: by nothing that is known.
    """
    known, energy = context.jobs, context.scheduler.energy
    keys: dict[str, Callable[[Job], Any]] = {
        "id": lambda job: sort_key(job.spec.id),
        "name": lambda job: known[job.spec.id].submission.name,
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
    """Return the ids of a job, or of tasks of one array, folded."""
    first, last = group[0].spec.id, group[-1].spec.id
    if len(group) == 1:
        return first
    (array, low), (_, high) = sort_key(first), sort_key(last)
    if high - low + 1 == len(group):
        return f"{array}_[{low}-{high}]"
    return ",".join(fold_ids(job.spec.id for job in group))


def _tasks(context: Context, array: str) -> list[tuple[int, str]]:
    """Return the state of each task of an array, by its index."""
    state = context.state
    found = [(sort_key(name)[1], was) for name, was in context.journal.archived_states(array)]
    begin = f"{array}_"
    for job_id in context.jobs:
        if job_id.startswith(begin):
            job = state.job(job_id)
            if job is not None:
                found.append((sort_key(job_id)[1], str(job.state)))
    return sorted(found)[:MOST_TASKS]


# --- nodes over time -----------------------------------------------------------------------------


def _window(context: Context, query: LiveQuery, now_s: float) -> tuple[float, float]:
    """Return from when until when is to be shown."""
    end_s = query.end_s or now_s
    if not 0.0 < query.span_s < 1e9 or not 0.0 < end_s < 1e12:
        raise ValueError(f"expected a time and its length, got {query.end_s} and {query.span_s}")
    begin_s, past = end_s - query.span_s, context.scheduler.timeline.past
    if (start_s := _start(context)) is not None:  # before that there is nothing to be seen
        begin_s = max(begin_s, min(start_s, end_s - min(query.span_s, LEAST_S)))
    if (query.lanes or query.power) and not query.end_s and len(past) >= MOST_SPANS:
        begin_s = max(begin_s, past[-MOST_SPANS].end_s or 0.0)
    return begin_s, end_s


def _overlapping(context: Context, begin_s: float, end_s: float) -> Iterator[NodeSpan]:
    """Yield who held which node in a time."""
    timeline = context.scheduler.timeline
    first = bisect_left(timeline.past, begin_s, key=lambda span: span.end_s or 0.0)
    for span in islice(timeline.past, first, None):
        if span.start_s <= end_s:
            yield span
    for span in timeline.present():
        if span.start_s <= end_s:
            yield span


def _asleep(context: Context, begin_s: float, end_s: float) -> Iterator[NodeSpan]:
    """Yield the spans of nodes that were off or booted in a time."""
    for span in context.scheduler.timeline.power_spans:
        if span.start_s < end_s and (span.end_s is None or span.end_s > begin_s):
            yield span


def _lanes(context: Context, most: int, begin_s: float, end_s: float) -> Lanes:
    names = context.cluster.names
    parts = folded(names, most)
    alone = len(parts) == len(names)
    spans = list(_overlapping(context, begin_s, end_s))
    bars = spans + list(_asleep(context, begin_s, end_s)) if alone else spans
    lane_of = {names[node]: at for at, part in enumerate(parts) for node in part}
    parted: list[list[NodeSpan]] = [[] for _ in parts]
    for span in bars:
        if span.node in lane_of:
            parted[lane_of[span.node]].append(span)
    states = _states(context, parts)
    found = []
    for at, within in enumerate(parted):
        own = [names[node] for node in parts[at]]
        name = own[0] if len(own) == 1 else f"{own[0]} - {own[-1]}"
        rows = sorted(within, key=lambda span: span.start_s) if len(own) == 1 else []
        held: list[tuple[float, float]] = []
        if len(own) > 1 or len(rows) > MOST_BARS:
            rows, by_jobs = [], (span for span in within if span.job not in (OFF, BOOT))
            held = held_shares(by_jobs, len(own), Window(begin_s, end_s), PARTS)
        found.append(Lane(name, len(own), states[at], rows, held))
    jobs = dict.fromkeys(span.job for lane in found for span in lane.spans)
    return Lanes(begin_s, end_s, found, _marks(context, jobs, begin_s, end_s))


def folded(names: Sequence[str], most: int) -> list[range]:
    """Return the nodes in at most so many parts: one by one, else by host, by rack, or in ranges.

    A rack is what nodes beside each other have in common before their number: ``r1n`` of
    ``r1n[1-40]``.
    """
    if len(names) <= most:
        return [range(at, at + 1) for at in range(len(names))]
    hosts = [name.rpartition("/")[0] or name for name in names]
    for keys in (hosts, [host.rstrip("0123456789") for host in hosts]):
        lengths = [len(list(own)) for _, own in groupby(keys)]
        if 1 < len(lengths) <= most:
            ends = list(accumulate(lengths))
            return [range(end - n, end) for end, n in zip(ends, lengths, strict=True)]
    each = -(-len(names) // most)
    return [range(at, min(at + each, len(names))) for at in range(0, len(names), each)]


def _states(context: Context, parts: Sequence[range]) -> list[str]:
    """Return the state of each node, or how many of the nodes of a part are in which."""
    state, cluster = context.state, context.cluster
    if len(parts) == len(cluster.names):
        by_host = {row.name: row.state for row in views.nodes(context)}
        return [by_host[cluster.host_of(node)] for node in range(len(cluster.names))]
    kinds = (("down", state.down), ("off", state.off), ("booting", state.booting))
    found = []
    for own in parts:
        numbers = {"idle": state.vacant.count(1, own.start, own.stop)}
        for word, nodes in kinds:
            numbers[word] = sum(node in own for node in nodes)
        rest = len(own) - sum(numbers.values())
        words = [f"{n} {word}" for word, n in {"held": max(0, rest), **numbers}.items() if n]
        found.append(", ".join(words))
    return found


def _marks(context: Context, jobs: Iterable[str], begin_s: float, end_s: float) -> list[Mark]:
    """Return the newest resizes of jobs in a time."""
    found = []
    for job in jobs:
        known = context.jobs.get(JobId(job))
        for each in [] if known is None else known.resizes:
            if begin_s <= each.at_s <= end_s:
                sizes = each.from_ranks, each.to_ranks
                found.append(Mark(job, each.at_s, *sizes, each.strategy, each.stall_s, each.bytes))
    return sorted(found, key=lambda mark: mark.at_s)[-MOST_MARKS:]


# --- power ---------------------------------------------------------------------------------------


def _power(context: Context, begin_s: float, end_s: float) -> Power:
    """Return the cluster's power over a time: at each of its parts that of its end."""
    curve, state = context.scheduler.timeline.power_w, context.state
    part_s = (end_s - begin_s) / PARTS
    idle_w, off_w, boot_w = _unused_w(context, begin_s, end_s)
    points = []
    for at in range(PARTS):
        at_s = begin_s + (at + 1) * part_s
        before = bisect_right(curve, at_s, key=lambda point: point[0])
        if before:
            watts = curve[before - 1][1]
            points.append((at_s, watts, min(watts, idle_w[at]), off_w[at], boot_w[at]))
    books, source = context.scheduler.books(context.time()), context.scheduler.energy.power_source
    return Power(begin_s, end_s, points, source, books, state.power_cap_w)


def _unused_w(context: Context, begin_s: float, end_s: float) -> tuple[list[float], ...]:
    """Return what idle nodes, those that are off and those that boot draw at the parts' ends.

    By the model: all nodes idle, less those that are held, off or booting then.
    """
    cluster, state = context.cluster, context.state
    part_s = (end_s - begin_s) / PARTS
    idle_w, off_w, boot_w = ([0.0] * (PARTS + 1) for _ in range(3))
    idle_w[0] = state.idle_w

    def enter(span: NodeSpan, watts: float, into: list[float]) -> None:
        first = max(0, -int(-(span.start_s - begin_s) // part_s) - 1)
        last = PARTS if span.end_s is None else int((span.end_s - begin_s) // part_s)
        if first < min(last, PARTS):
            into[first] += watts
            into[min(last, PARTS)] -= watts

    for span in _asleep(context, begin_s, end_s):
        if span.node in cluster.nodes_of:
            model = state.model(cluster.nodes_of[span.node][0])
            enter(span, -model.idle_w, idle_w)
            off = span.job == OFF
            enter(span, model.off_w if off else model.boot_w, off_w if off else boot_w)
    if not cluster.shared:  # what jobs draw there comes on top of their hosts' idle power
        for span in _overlapping(context, begin_s, end_s):
            if span.node in cluster.nodes_of:
                enter(span, -state.model(cluster.nodes_of[span.node][0]).idle_w, idle_w)
    return tuple(_sums(steps) for steps in (idle_w, off_w, boot_w))


def _sums(steps: Sequence[float]) -> list[float]:
    total, found = 0.0, []
    for step in steps[:-1]:
        total += step
        found.append(max(0.0, total))
    return found
