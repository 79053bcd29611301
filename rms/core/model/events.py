"""Events and decisions: small typed values that a journal holds.

An event is observed; a decision is wanted. A policy plans a start or a resize, the engine requests
it when it takes the decision, and an event makes it true.

The consequences of an event are class variables of its type: whether policies decide after it,
whether it changes the queue or the nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import StrEnum
from typing import ClassVar, Literal, get_args

import msgspec

from rms.core.model.contention import SharedNode
from rms.core.model.jobs import JobId, JobSpec, Node, NodePower

# --- events --------------------------------------------------------------------------------------


class BaseEvent(msgspec.Struct, frozen=True, tag=True):
    """The time of an event, and the facts of its type.

    Attributes:
        at_s: time on the engine's clock.
        decides: a policy that decides after events decides after it.
        needs_pass: waiting jobs that could not start before may start after it. Else only the
            jobs that it submits may.
        enqueues: jobs enter the queue by it; a policy sees it as a submission of these jobs.
        renews_queue: jobs enter or leave the queue by it without a submission, start or end.
        changes_holds: another held job may be the next one whose time comes.
        changes_nodes: it changes the number of nodes that jobs can have.
        lowers_power: jobs and tasks may draw less after it than meters have read before.
        rank: its place among the events of one instant in a simulation, except submissions: ends,
            freed nodes, ticks, resize points.
        needs_jobs: it matters only while there are jobs.
    """

    at_s: float

    decides: ClassVar[bool] = False
    needs_pass: ClassVar[bool] = True
    enqueues: ClassVar[bool] = False
    renews_queue: ClassVar[bool] = False
    changes_holds: ClassVar[bool] = False
    changes_nodes: ClassVar[bool] = False
    lowers_power: ClassVar[bool] = False
    rank: ClassVar[int] = 2
    needs_jobs: ClassVar[bool] = False


class JobEvent(BaseEvent, frozen=True):
    """An event of one job."""

    job: JobId


class ResizeEvent(JobEvent, frozen=True):
    """A step of a requested resize of a job."""


class Submitted(BaseEvent, frozen=True):
    """Users submit jobs: one, or an array, which a policy sees as a whole."""

    specs: tuple[JobSpec, ...]

    decides: ClassVar[bool] = True
    needs_pass: ClassVar[bool] = False
    changes_holds: ClassVar[bool] = True


class Started(JobEvent, frozen=True):
    """The first world of a job runs."""

    needs_pass: ClassVar[bool] = False


class ResizePoint(JobEvent, frozen=True):
    """A job reaches a point at which it can be resized; under a daemon, once per world.

    ``done`` is the share of its work that it has done, where that does not follow from its rate.
    """

    done: float | None = None

    decides: ClassVar[bool] = True
    needs_pass: ClassVar[bool] = False
    rank: ClassVar[int] = 4


class Stepped(JobEvent, frozen=True):
    """A job has made ``steps`` steps in ``span_s`` at its present size, none of it in a resize.

    It is at ``step`` of ``total``. A daemon enters it some time after a resize, then ever more
    rarely.
    """

    step: int
    total: int
    steps: int
    span_s: float

    decides: ClassVar[bool] = True


class ResizeAsked(JobEvent, frozen=True):
    """A user requests another size of a job, or these ``nodes``; the rules decide, no policy.

    A request that ``holds`` waits for the job's first :class:`ResizePoint`; afterwards policies
    change the size only for a waiting job.

    A request that is ``auto`` returns the choice to the policy, which decides at once.
    """

    size: int
    nodes: tuple[Node, ...] = ()
    holds: bool = False
    auto: bool = False

    needs_pass: ClassVar[bool] = False


class ResizeBegun(ResizeEvent, frozen=True):
    """A job stops stepping for the requested resize."""


class Resized(ResizeEvent, frozen=True):
    """The new world of a job steps; the nodes it gave up are free.

    A job that ``rests`` (a cooldown) is not resized again before its next :class:`ResizePoint`.
    """

    rests: bool = False

    decides: ClassVar[bool] = True
    lowers_power: ClassVar[bool] = True


class ResizeRolledBack(ResizeEvent, frozen=True):
    """The old world goes on; the nodes held for the new one are free again.

    The size is not requested again, unless the resize may succeed ``later``.
    """

    reason: str = ""
    rests: bool = False
    later: bool = False

    decides: ClassVar[bool] = True
    lowers_power: ClassVar[bool] = True


class Requeued(JobEvent, frozen=True, omit_defaults=True):
    """A job whose processes are gone waits again, from the beginning or its checkpoint.

    Attributes:
        done: the share of its work that its checkpoint has, where that is known.
    """

    reason: str = ""
    done: float = 0.0

    decides: ClassVar[bool] = True
    renews_queue: ClassVar[bool] = True
    lowers_power: ClassVar[bool] = True


class NodesLost(JobEvent, frozen=True):
    """Nodes of a running job are gone; it goes on with the others, from copies in their memory.

    A resize under way is dropped.

    Attributes:
        nodes: the nodes that it keeps: a size that it may have.
        done: the share of its work that the copies have, where that is known.
    """

    nodes: tuple[Node, ...]
    done: float | None = None

    decides: ClassVar[bool] = True
    lowers_power: ClassVar[bool] = True


class WorkLost(JobEvent, frozen=True):
    """A running job computes again, from an earlier step, after a failure of ranks or nodes.

    The energy books count what it has spent since that step as lost work.

    Attributes:
        since_s: time at which it had passed the step that it goes on from; the newest one, where it
            has computed that step before.
        until_s: time at which the failure was noticed; from then until ``at_s`` it did not compute.
        steps: number of steps that it computes again, 0 where it is not known.
        reason: a sentence.
    """

    since_s: float
    until_s: float
    steps: int
    reason: str = ""

    needs_pass: ClassVar[bool] = False


class Suspended(JobEvent, frozen=True):
    """A user stops a running job (``suspended``), which keeps its nodes, or lets it run again."""

    suspended: bool

    decides: ClassVar[bool] = True
    lowers_power: ClassVar[bool] = True


class HeldByUser(BaseEvent, frozen=True):
    """A user holds waiting jobs (``held``), which then do not start, or releases them."""

    jobs: tuple[JobId, ...]
    held: bool

    enqueues: ClassVar[bool] = True
    renews_queue: ClassVar[bool] = True
    changes_holds: ClassVar[bool] = True


class Freed(BaseEvent, frozen=True):
    """The time or the dependency that these held jobs wait for has come."""

    jobs: tuple[JobId, ...]

    enqueues: ClassVar[bool] = True
    renews_queue: ClassVar[bool] = True
    changes_holds: ClassVar[bool] = True


class Withdrawn(BaseEvent, frozen=True):
    """Waiting jobs are cancelled, all at once."""

    jobs: tuple[JobId, ...]

    decides: ClassVar[bool] = True
    renews_queue: ClassVar[bool] = True
    changes_holds: ClassVar[bool] = True


class Ticked(BaseEvent, frozen=True):
    """The time has come for a policy that decides at regular times."""

    decides: ClassVar[bool] = True
    needs_pass: ClassVar[bool] = False
    rank: ClassVar[int] = 3
    needs_jobs: ClassVar[bool] = True


class NodeDown(BaseEvent, frozen=True):
    """A node fails or is drained: no job gets it; jobs that run on it have their own events.

    This and the next three name one slot of a shared host, and concern all of it.
    """

    node: Node

    changes_nodes: ClassVar[bool] = True
    needs_jobs: ClassVar[bool] = True


class NodeUp(BaseEvent, frozen=True, omit_defaults=True):
    """A node is back.

    Attributes:
        more: whether other nodes come back in the same instant: the policy decides after the last.
    """

    node: Node
    more: bool = False

    decides: ClassVar[bool] = True
    changes_nodes: ClassVar[bool] = True
    needs_jobs: ClassVar[bool] = True


class NodeBooted(BaseEvent, frozen=True):
    """A node that was powered on has booted: jobs can get it.

    Attributes:
        more: another one of the same time follows, after which a policy decides.
    """

    node: Node
    more: bool = False

    decides: ClassVar[bool] = True
    needs_jobs: ClassVar[bool] = True


class NodePowerFailed(BaseEvent, frozen=True):
    """A node could not be powered off, or was not up in time: it is down and counts as on."""

    node: Node
    reason: str = ""

    decides: ClassVar[bool] = True


class Ended(JobEvent, frozen=True):
    """A job is over."""

    state: Literal["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"]

    decides: ClassVar[bool] = True
    changes_holds: ClassVar[bool] = True
    lowers_power: ClassVar[bool] = True
    rank: ClassVar[int] = 1


class Reopened(BaseEvent, frozen=True):
    """The scheduler continues on another cluster; nothing runs that ran on the one before.

    Its jobs wait again, in the order of the queue, except those that ``failed`` with it. Jobs too
    wide for the new cluster are kept for a wider one.

    Attributes:
        where: an identifier that distinguishes clusters with the same nodes (an allocation's id).
        nodes, power, widths: names, power models, and numbers of slots of its nodes.
        down: nodes that are drained.
        shared: hosts that jobs share slot by slot, as ``nodes``; ``power`` is theirs then.
        levels: frequencies that nodes can be set to, with voltages.
    """

    where: str
    nodes: tuple[str, ...]
    power: tuple[NodePower, ...] = ()
    widths: tuple[int, ...] = ()
    down: tuple[Node, ...] = ()
    failed: tuple[JobId, ...] = ()
    shared: tuple[SharedNode, ...] = ()
    levels: tuple[tuple[float, float], ...] = ()

    decides: ClassVar[bool] = True
    changes_holds: ClassVar[bool] = True
    lowers_power: ClassVar[bool] = True


class PowerCapSet(BaseEvent, frozen=True):
    """The cluster may draw at most ``watts`` from here on; None for any power."""

    watts: float | None

    decides: ClassVar[bool] = True


class HourlyPrices(msgspec.Struct, frozen=True):
    """What electricity costs, or what it emits, over time.

    Attributes:
        unit: of a kWh: a currency, or ``g CO2``.
        times_s: begins of the values on the engine's clock, rising, and the end of the last one.
        values: per kWh.
    """

    unit: str
    times_s: tuple[float, ...]
    values: tuple[float, ...]

    def __hash__(self) -> int:
        """Return a hash of the times: there may be thousands of values."""
        return hash((self.unit, len(self.times_s), *self.times_s[:1], *self.times_s[-1:]))

    def begin_of(self, at_s: float) -> float:
        """Return the begin of the value at a time; outside the known ones the nearest."""
        at = bisect_right(self.times_s, at_s) - 1
        return self.times_s[min(max(at, 0), len(self.times_s) - 1)]


class PricesSet(BaseEvent, frozen=True):
    """The prices or carbon intensities that are known from here on; None for none."""

    prices: HourlyPrices | None

    decides: ClassVar[bool] = True


class PowerMeasured(BaseEvent, frozen=True):
    """Power of the cluster by its meters (by the model where there are none), under a cap.

    A driver enters it only when it has changed by enough to matter: decisions that follow from it
    are made again when the events are fed to another engine.
    """

    watts: float

    decides: ClassVar[bool] = True


class FrequenciesSettable(BaseEvent, frozen=True):
    """Frequencies can be set from here on or, for a ``reason``, cannot: all are the highest."""

    settable: bool
    reason: str = ""


class TasksHold(BaseEvent, frozen=True):
    """Tasks (:mod:`rms.kernels`) hold these nodes and no others from here on; jobs get none.

    Attributes:
        owners: by node, the program whose tasks run there, "" where none does; empty where no
            owner is stated.
    """

    nodes: tuple[Node, ...]
    owners: tuple[str, ...] = ()

    decides: ClassVar[bool] = True
    renews_queue: ClassVar[bool] = True
    changes_nodes: ClassVar[bool] = True
    lowers_power: ClassVar[bool] = True


class NodesLeased(BaseEvent, frozen=True):
    """From here on these nodes are held until a time, the others for good.

    See :mod:`rms.core.rules.checks`.

    Attributes:
        nodes, until_s: the nodes, and the times at which jobs on them are requested to end.
        most: the largest number of nodes at once.
        longest_s: the longest run time of a job on nodes that have just come.
    """

    nodes: tuple[Node, ...]
    until_s: tuple[float, ...]
    most: int
    longest_s: float

    decides: ClassVar[bool] = True
    renews_queue: ClassVar[bool] = True


Event = (
    Submitted
    | Started
    | ResizePoint
    | Stepped
    | ResizeAsked
    | ResizeBegun
    | Resized
    | ResizeRolledBack
    | Requeued
    | NodesLost
    | WorkLost
    | Suspended
    | HeldByUser
    | Freed
    | Withdrawn
    | Ended
    | Ticked
    | NodeDown
    | NodeUp
    | NodeBooted
    | NodePowerFailed
    | Reopened
    | PowerCapSet
    | PricesSet
    | PowerMeasured
    | FrequenciesSettable
    | TasksHold
    | NodesLeased
)

EVENTS: tuple[type[BaseEvent], ...] = get_args(Event)

TRIGGERS: frozenset[type] = frozenset(kind for kind in EVENTS if kind.decides)
"""Events after which there may be something to decide."""

# --- decisions -----------------------------------------------------------------------------------


class Reason(StrEnum):
    """The reason for a decision; the text ``reason`` beside it has the same with numbers."""

    FITS = "Fits"
    BACKFILLS = "Backfills"
    RESOURCES = "Resources"
    PRIORITY = "Priority"
    ARRAY_LIMIT = "JobArrayTaskLimit"
    TOO_WIDE = "TooWide"
    ALLOCATION_ENDS = "AllocationEnds"
    HELD_BY_USER = "JobHeldUser"
    BEGIN = "BeginTime"
    DEPENDENCY = "Dependency"
    NEVER_SATISFIED = "DependencyNeverSatisfied"
    MAKES_ROOM = "MakesRoom"
    IDLE_NODES = "IdleNodes"
    BALANCES = "Balances"
    POWER = "PowerCap"
    NODE_POWER = "NodePower"
    CONSOLIDATES = "Consolidates"
    USER = "User"
    RESIZE_POINT = "ResizePoint"
    REFUSED = "Refused"
    IMPOSSIBLE = "Impossible"
    BY_POLICY = "ByPolicy"
    CHEAP_HOURS = "CheapHours"


class Start(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Launch a job on these nodes; where nodes are only counted, on ``count`` of them.

    Attributes:
        slowdown: expected run time there over the stated one.
        frequencies: by node, over the highest one; empty for the highest.
    """

    job: JobId
    nodes: tuple[Node, ...]
    reason: str
    code: Reason = Reason.FITS
    count: int = 0
    slowdown: float = 1.0
    frequencies: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """The number of nodes."""
        return self.count or len(self.nodes)


class Resize(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Move a running job to these nodes; where only counted, to ``count`` of them."""

    job: JobId
    nodes: tuple[Node, ...]
    reason: str
    code: Reason = Reason.USER
    count: int = 0

    @property
    def size(self) -> int:
        """The number of nodes."""
        return self.count or len(self.nodes)


NO_RESIZE = (Reason.REFUSED, Reason.IMPOSSIBLE)
"""Codes of a refused resize request: refused now, and impossible for the job."""


def node_words(number: int, verb: bool = False) -> str:
    """Return ``1 node``, ``2 nodes``; with a verb ``1 node is``, ``2 nodes are``."""
    return f"1 node{' is' * verb}" if number == 1 else f"{number} nodes{' are' * verb}"


def free_words(number: int, free: str = "free") -> str:
    """Return ``1 is free``, ``2 are free``."""
    return f"{number} {'is' if number == 1 else 'are'} {free}"


class Later(msgspec.Struct, frozen=True, tag=True):
    """A job or a resize that a user requested has to wait; ``rms queue`` shows the ``reason``.

    Policies do not decide it: the reason is computed on request.
    """

    job: JobId
    reason: str
    code: Reason = Reason.RESOURCES


class Never(msgspec.Struct, frozen=True, tag=True):
    """A job can never run here."""

    job: JobId
    reason: str
    code: Reason = Reason.TOO_WIDE


class PowerOff(msgspec.Struct, frozen=True, tag=True):
    """Power idle nodes off; no job gets them before they have booted again.

    All slots of a shared host are named, also when it is powered on.
    """

    nodes: tuple[Node, ...]
    reason: str
    code: Reason = Reason.NODE_POWER


class PowerOn(msgspec.Struct, frozen=True, tag=True):
    """Power nodes on that are off; :class:`NodeBooted` reports that one is up."""

    nodes: tuple[Node, ...]
    reason: str
    code: Reason = Reason.NODE_POWER


JobDecision = Start | Resize | Later | Never

Decision = JobDecision | PowerOff | PowerOn
