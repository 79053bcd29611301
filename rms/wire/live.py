"""What a page that follows a daemon asks again and again, and is answered: :class:`Live`.

All of it is cut to size by the daemon, so that it is small however many jobs and nodes there are.
"""

from __future__ import annotations

import msgspec

from rms.wire.users import Books, HistoryEntry, JobRow, NodeSpan

LIVE_PATH = "/live"

MOST_ROWS = 200
SORTS = ("id", "name", "nodes", "time", "energy")
"""By what jobs that wait or run can be sorted."""

MOST_LANES = 48
MOST_NEWS = 50
MOST_HISTORY = 40
LONGEST_HOLD_S = 20.0
"""How long an answer is waited for at most."""


class LiveQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What of the present and the past is wanted; nothing of what is not asked for.

    Attributes:
        after: number of a journal's entry: the answer has what was entered since, -1 for nothing.
        hold_s: how long to wait for a newer entry than ``after``, s.
        jobs: ``active`` for those that wait or run, ``over`` for the others, the newest first.
        find: a text that the ids or names of these jobs hold.
        offset, limit: which rows of them.
        lanes: into how many lanes at most the nodes are drawn, 0 for none.
        end_s: the end of the time that lanes and curves show, 0 for the present.
        span_s: how long that is, s.
        power: whether the curve of power is wanted.
        array: whose tasks' states are wanted.
        job: of which all is wanted that is known, with its history.
        sort: by which of :data:`SORTS` jobs that wait or run are sorted, ``-`` before it for the
            largest first; "" for those that run, then the others as they are queued.
        unfold: arrays whose waiting tasks are a row each.
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
    array: str = ""
    job: str = ""
    sort: str = ""
    unfold: tuple[str, ...] = ()


class JobLine(msgspec.Struct, frozen=True):
    """A row of a list of jobs: one job, or all waiting tasks of an array by the first of them.

    Attributes:
        ids: ``7`` or ``8_[3-10]``.
        tasks: how many.
    """

    ids: str
    tasks: int
    job: JobRow


class JobPage(msgspec.Struct, frozen=True):
    """Some rows of a list of jobs, and how many rows it has."""

    lines: list[JobLine]
    offset: int
    total: int


class Mark(msgspec.Struct, frozen=True):
    """A resize of a job: when it ended, and what it took; sizes are in ranks."""

    job: str
    at_s: float
    before: int
    after: int
    strategy: str
    stall_s: float
    bytes: int


class Lane(msgspec.Struct, frozen=True):
    """A node, or several in a row of the cluster, in the time that is shown.

    Attributes:
        name: the node's, or the first one's and the last one's (``n1 - n40``).
        nodes: how many.
        state: by sinfo's words; of several, how many are in which.
        spans: who held it when, off and boot included, by rising begin; of several nodes none.
        held: ``(time, share of the nodes that jobs hold from then on)``; of one node none.
    """

    name: str
    nodes: int
    state: str
    spans: list[NodeSpan]
    held: list[tuple[float, float]]


class Lanes(msgspec.Struct, frozen=True):
    """The nodes over a time, and the resizes of the jobs there."""

    begin_s: float
    end_s: float
    lanes: list[Lane]
    marks: list[Mark]


class Power(msgspec.Struct, frozen=True):
    """The power of the cluster over a time, and its energy so far.

    Attributes:
        points: ``(time, power from then on, of it by idle nodes, by nodes that are off, that
            boot)``, all W; these three by the model, the rest is that of jobs and tasks.
        sources: what says so: ``model``, or which meters.
        cap_w: what the cluster is to draw at most, or None.
    """

    begin_s: float
    end_s: float
    points: list[tuple[float, float, float, float, float]]
    sources: str
    energy: Books
    cap_w: float | None


class News(msgspec.Struct, frozen=True):
    """Something that has happened: the number of its entry, when, to which job (or ""), words."""

    seq: int
    at_s: float
    job: str
    words: str


class Live(msgspec.Struct, frozen=True):
    """The present of a daemon, and what else was asked for.

    Attributes:
        seq: number of its journal's newest entry.
        start_s: when the first thing happened, None before.
        waiting, running, over: how many jobs.
        held, nodes: how many nodes jobs hold, and how many there are.
        news: what has happened since ``after``, by rising number; ``missed`` is how many earlier
            entries of it were left out.
        job: the one that was asked for, None where there is none of that id.
        history: what was decided about it, the newest last.
        tasks: of the array that was asked for, ``(index, state)`` by rising index.
        policy_text: what the policy is composed of, as JSON.
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
    tasks: list[tuple[int, str]] = []
    news: list[News] = []
    missed: int = 0
    job: JobRow | None = None
    history: list[HistoryEntry] = []
    policy_text: str = ""
