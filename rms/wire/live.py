"""Queries of pages that follow a daemon, and their answer: :class:`Live`.

The daemon limits every part of it, so that it is small with any number of jobs and nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rms.wire.messages import Strict
from rms.wire.users import Books, HistoryEntry, JobRow, NodeSpan, ResizeRow

LIVE_PATH = "/live"

MOST_ROWS = 200
SORTS = ("id", "name", "nodes", "time", "energy")
"""Orders of pending and running jobs."""

MOST_LANES = 128
MOST_ENTRIES = 50
MOST_HISTORY = 40
LONGEST_HOLD_S = 20.0
"""Longest time to hold a query."""


class LiveQuery(Strict, frozen=True, omit_defaults=True):
    """The parts of the present and the past that a page shows; the answer has no others.

    Attributes:
        after: number of a journal's entry; the answer has the events since, none for -1.
        hold_s: time to wait for an entry newer than ``after``, s.
        jobs: ``active`` for pending and running jobs, ``over`` for ended ones, the newest first.
        find: a text that the ids or names of these jobs contain.
        offset, limit: the rows of the list.
        lanes: most lanes for the nodes, 0 for none.
        end_s: end of the window of lanes and curves, 0 for the present.
        span_s: length of the window, s.
        power: whether the answer has the curves of power and of allocated nodes.
        forecast: most expected starts of pending jobs, 0 for none.
        usage: whether the answer has the usage by user and account.
        array: array whose tasks the answer has, with their states.
        job: job whose row and history the answer has.
        sort: order of pending and running jobs, one of :data:`SORTS`, with ``-`` before it for the
            largest first; "" for running jobs, then pending ones in the order of the queue.
        unfold: arrays whose pending tasks have rows of their own.
    """

    after: int = -1
    hold_s: float = 0.0
    jobs: str = ""
    find: str = ""
    offset: int = 0
    limit: int = 25
    lanes: int = 0
    end_s: float = 0.0
    span_s: float = 600.0
    power: bool = False
    forecast: int = 0
    usage: bool = False
    array: str = ""
    job: str = ""
    sort: str = ""
    unfold: tuple[str, ...] = ()


class JobLine(msgspec.Struct, frozen=True):
    """A row of a list of jobs: one job, or the pending tasks of an array by the first of them.

    Attributes:
        ids: ``7`` or ``8_[3-10]``.
    """

    ids: str
    tasks: int
    job: JobRow


class JobPage(msgspec.Struct, frozen=True):
    """Some rows of a list of jobs, and the number of all rows."""

    lines: list[JobLine]
    offset: int
    total: int


class Mark(msgspec.Struct, frozen=True):
    """A resize of a job: when it ended, its sizes in ranks, and its cost."""

    job: str
    at_s: float
    before: int
    after: int
    strategy: str
    stall_s: float
    bytes: int

    @classmethod
    def of(cls, job: str, row: ResizeRow) -> Mark:
        """Return the mark of a row."""
        ranks = row.from_ranks, row.to_ranks
        return cls(job, row.at_s, *ranks, row.strategy, row.stall_s, row.bytes)


class Lane(msgspec.Struct, frozen=True):
    """A node, or several neighbouring ones, in the window.

    Attributes:
        name: the node's, or the first one's and the last one's (``n1 - n40``).
        state: in the words of sinfo; of several nodes, the numbers by state.
        spans: of jobs, off and boot, by rising begin; empty for several nodes.
        held: ``(time, share of the nodes that jobs hold from then on)``; empty for one node.
    """

    name: str
    nodes: int
    state: str
    spans: list[NodeSpan]
    held: list[tuple[float, float]]


class Lanes(msgspec.Struct, frozen=True):
    """The nodes in the window, and the resizes of their jobs."""

    begin_s: float
    end_s: float
    lanes: list[Lane]
    marks: list[Mark]


class PriceCurve(msgspec.Struct, frozen=True):
    """The price of electricity in the window, or its emissions.

    Attributes:
        unit: of a value, as ``EUR/kWh``.
        steps: ``(time, value from then on)``, without gaps.
    """

    name: str
    unit: str
    steps: list[tuple[float, float]]


class Power(msgspec.Struct, frozen=True):
    """The power of the cluster in the window, and its energy so far.

    Attributes:
        points: ``(time, power from then on, of it by idle nodes, by nodes that are off, that
            boot)``, all W; these three by the model, the rest is the power of jobs and tasks.
        allocated: ``(time, share of all nodes that jobs hold from then on)``.
        prices: the price and the emissions, where the daemon has them.
    """

    begin_s: float
    end_s: float
    points: list[tuple[float, float, float, float, float]]
    sources: str
    energy: Books
    cap_w: float | None
    allocated: list[tuple[float, float]] = []
    prices: list[PriceCurve] = []


class StartForecast(msgspec.Struct, frozen=True):
    """The expected start of a pending job, or of the next pending task of an array.

    Attributes:
        ids: ``7`` or ``8_[3-10]``: all jobs of the row that have an expected start.
        job: the first of them to start.
        nodes: nodes that it needs, at least.
        at_s: its expected start.
    """

    ids: str
    job: str
    name: str
    nodes: int
    at_s: float


class UsageRow(msgspec.Struct):
    """The usage of a user with an account, since the journal began.

    Attributes:
        pending, running, ended: number of jobs.
        nodes: nodes that the running jobs hold now.
        node_s: node seconds of jobs since their last start.
        energy_j: energy of all jobs.
    """

    user: str
    account: str
    pending: int = 0
    running: int = 0
    ended: int = 0
    nodes: int = 0
    node_s: float = 0.0
    energy_j: float = 0.0

    def add(self, other: UsageRow) -> None:
        """Add the numbers of another row."""
        self.pending += other.pending
        self.running += other.running
        self.ended += other.ended
        self.nodes += other.nodes
        self.node_s += other.node_s
        self.energy_j += other.energy_j


class Usage(msgspec.Struct, frozen=True):
    """Usage by user and account; ``uncounted`` archived jobs are counted in the next answers."""

    rows: list[UsageRow]
    uncounted: int = 0


def size_steps(
    start_s: float, size: int, resizes: Sequence[ResizeRow]
) -> list[tuple[float, float]]:
    """Return ``(time, number of nodes from then on)`` of a job since its last start.

    Args:
        size: its last number of nodes. Nodes have equal numbers of ranks.
        resizes: in the order of time, with numbers of ranks.
    """
    own = [row for row in resizes if row.at_s >= start_s]
    if not own:
        return [(start_s, float(size))]
    scale = size / own[-1].to_ranks
    return [
        (start_s, own[0].from_ranks * scale),
        *((row.at_s, row.to_ranks * scale) for row in own),
    ]


def node_seconds(start_s: float, end_s: float, size: int, resizes: Sequence[ResizeRow]) -> float:
    """Return the node seconds of a job from its last start to a time (see :func:`size_steps`)."""
    steps = size_steps(start_s, size, resizes)
    ends = [at_s for at_s, _ in steps[1:]] + [end_s]
    return sum(
        nodes * max(0.0, until_s - at_s) for (at_s, nodes), until_s in zip(steps, ends, strict=True)
    )


class FeedEntry(msgspec.Struct, frozen=True):
    """An event: the number of its entry, its time, its job (or ""), and words."""

    seq: int
    at_s: float
    job: str
    words: str


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of a daemon, and the other parts of a query.

    Attributes:
        seq: number of its journal's newest entry.
        waiting, running, over: number of jobs: pending, running, ended.
        held, nodes: number of nodes that jobs hold, and of all nodes.
        news: events since ``after``, by rising number; ``missed`` is the number of earlier ones
            left out.
        forecast: by rising time.
        job: row of the job in the query, None if the id is unknown.
        history: decisions about it, the newest last.
        tasks: ``(index, state)`` of the array in the query, by rising index.
        policy_text: composition of the policy, as JSON.
    """

    seq: int
    now_s: float
    start_s: float | None
    policy: str
    waiting: int
    running: int
    over: int
    held: int
    nodes: int
    power_w: float
    jobs: JobPage | None = None
    lanes: Lanes | None = None
    power: Power | None = None
    forecast: list[StartForecast] = []
    usage: Usage | None = None
    tasks: list[tuple[int, str]] = []
    news: list[FeedEntry] = []
    missed: int = 0
    job: JobRow | None = None
    history: list[HistoryEntry] = []
    policy_text: str = ""
