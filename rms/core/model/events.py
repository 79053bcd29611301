"""What happens and what is decided: small typed values that a journal can hold.

An event is observed; a decision is wanted. A start or resize is planned by a policy, requested
when the engine takes the decision, and true only once an event says so.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from rms.core.model.contention import SharedNode
from rms.core.model.jobs import JobId, JobSpec, Node, NodePower


class Submitted(msgspec.Struct, frozen=True, tag=True):
    """Jobs have been handed in: one, or a whole array, which a policy sees as a whole."""

    at_s: float
    specs: tuple[JobSpec, ...]


class Started(msgspec.Struct, frozen=True, tag=True):
    """The first world of a job runs."""

    at_s: float
    job: JobId


class ResizePoint(msgspec.Struct, frozen=True, tag=True):
    """A job stands where it could be resized; a job of a daemon says so once for each world.

    ``done`` is the share of its work that it has done, where that does not follow from its rate.
    """

    at_s: float
    job: JobId
    done: float | None = None


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """A job has made ``steps`` steps in ``span_s`` at its present size, none of it in a resize.

    It is at ``step`` of ``total``. A daemon says so after a while at a size, then ever more seldom.
    """

    at_s: float
    job: JobId
    step: int
    total: int
    steps: int
    span_s: float


class ResizeAsked(msgspec.Struct, frozen=True, tag=True):
    """A user wants a job at another size, or on these ``nodes``; the rules decide, no policy.

    One that ``holds`` waits for the job's first :class:`ResizePoint`; no policy changes its size
    afterwards but for a job that waits.

    One that is ``auto`` gives the choice back to the policy, which decides at once.
    """

    at_s: float
    job: JobId
    size: int
    nodes: tuple[Node, ...] = ()
    holds: bool = False
    auto: bool = False


class ResizeBegun(msgspec.Struct, frozen=True, tag=True):
    """A job has stopped stepping for the resize that was requested."""

    at_s: float
    job: JobId


class Resized(msgspec.Struct, frozen=True, tag=True):
    """The new world of a job steps; the nodes it gave up are free.

    One that ``rests`` (a cooldown) is not asked again before its next :class:`ResizePoint`.
    """

    at_s: float
    job: JobId
    rests: bool = False


class ResizeRolledBack(msgspec.Struct, frozen=True, tag=True):
    """The old world goes on; nodes held for the new one are free again.

    Its size is not asked for again, unless it may go through ``later``.
    """

    at_s: float
    job: JobId
    reason: str = ""
    rests: bool = False
    later: bool = False


class Requeued(msgspec.Struct, frozen=True, tag=True):
    """A job whose processes are gone waits again, from the beginning or its checkpoint."""

    at_s: float
    job: JobId
    reason: str = ""


class HeldByUser(msgspec.Struct, frozen=True, tag=True):
    """A user holds jobs that wait (``held``): they do not start; or lets them go again."""

    at_s: float
    jobs: tuple[JobId, ...]
    held: bool


class Freed(msgspec.Struct, frozen=True, tag=True):
    """What these jobs waited for before they may start has come (:mod:`rms.core.rules.transition`)."""

    at_s: float
    jobs: tuple[JobId, ...]


class Withdrawn(msgspec.Struct, frozen=True, tag=True):
    """Jobs that wait are cancelled, all at once."""

    at_s: float
    jobs: tuple[JobId, ...]


class Ticked(msgspec.Struct, frozen=True, tag=True):
    """Time has come for a policy that looks at regular times, whatever happens."""

    at_s: float


class NodeDown(msgspec.Struct, frozen=True, tag=True):
    """A node has failed or is drained: it is given to nobody; who runs on it is told apart.

    This and the next three name one slot of a shared host, and are about all of it.
    """

    at_s: float
    node: Node


class NodeUp(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A node is back.

    Attributes:
        more: whether other nodes come back in the same instant: the policy decides after the last.
    """

    at_s: float
    node: Node
    more: bool = False


class NodeBooted(msgspec.Struct, frozen=True, tag=True):
    """A node that was powered on has booted: it may be given to jobs."""

    at_s: float
    node: Node


class NodePowerFailed(msgspec.Struct, frozen=True, tag=True):
    """A node could not be powered off, or was not up in time: it is down and counts as on."""

    at_s: float
    node: Node
    reason: str = ""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A job is over."""

    at_s: float
    job: JobId
    state: Literal["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"]


class Reopened(msgspec.Struct, frozen=True, tag=True):
    """The cluster is another one from here on; nothing runs that ran on the one before.

    Its jobs wait again, in the order of the queue, but those that ``failed`` with it. Jobs too wide
    for the new one are kept for a wider one.

    Attributes:
        where: what tells it from others with the same nodes (an allocation's id).
        nodes, power, widths: names, power models, and numbers of slots of its nodes.
        down: nodes that are drained.
        shared: hosts whose slots are given one by one, as ``nodes``; ``power`` is theirs then.
        levels: frequencies that nodes can be set to, with voltages.
    """

    at_s: float
    where: str
    nodes: tuple[str, ...]
    power: tuple[NodePower, ...] = ()
    widths: tuple[int, ...] = ()
    down: tuple[Node, ...] = ()
    failed: tuple[JobId, ...] = ()
    shared: tuple[SharedNode, ...] = ()
    levels: tuple[tuple[float, float], ...] = ()


class PowerCapSet(msgspec.Struct, frozen=True, tag=True):
    """From here on the cluster is to draw no more than ``watts``, None for any power."""

    at_s: float
    watts: float | None


class PowerMeasured(msgspec.Struct, frozen=True, tag=True):
    """What the cluster draws by its meters (by the model where there are none), under a cap.

    Entered only when it has changed by enough to matter: what follows from it is decided again
    when the events are fed to another engine.
    """

    at_s: float
    watts: float


class FrequenciesSettable(msgspec.Struct, frozen=True, tag=True):
    """From here on frequencies can be set, or, for a ``reason``, cannot: all run at the highest."""

    at_s: float
    settable: bool
    reason: str = ""


class TasksHold(msgspec.Struct, frozen=True, tag=True):
    """From here on tasks (:mod:`rms.kernels`) hold these nodes and no others; jobs get none.

    Attributes:
        owners: of each node, the program whose tasks run there, "" where none does just now; empty
            where no program is known.
    """

    at_s: float
    nodes: tuple[Node, ...]
    owners: tuple[str, ...] = ()


class NodesLeased(msgspec.Struct, frozen=True, tag=True):
    """From here on these nodes are held for a time (:mod:`rms.core.rules.checks`); the others for good.

    Attributes:
        nodes, until_s: which, and when jobs on each are told to end.
        most: how many nodes there are to be at once at most.
        longest_s: how long a job may run on nodes that have just come.
    """

    at_s: float
    nodes: tuple[Node, ...]
    until_s: tuple[float, ...]
    most: int
    longest_s: float


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
    | PowerMeasured
    | FrequenciesSettable
    | TasksHold
    | NodesLeased
)


class Reason(StrEnum):
    """Why a decision was taken; ``reason`` beside it says the same for people, with numbers."""

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


class Start(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Launch a job on these nodes; where nodes are only counted, on ``count`` of them.

    Attributes:
        slowdown: how much longer than stated the job is expected to run there.
        frequencies: over the highest one, of the process on each node; empty for the highest.
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
        """How many nodes."""
        return self.count or len(self.nodes)


class Resize(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Ask a running job to go over to these nodes; where only counted, to ``count`` of them."""

    job: JobId
    nodes: tuple[Node, ...]
    reason: str
    code: Reason = Reason.USER
    count: int = 0

    @property
    def size(self) -> int:
        """How many nodes."""
        return self.count or len(self.nodes)


NO_RESIZE = (Reason.REFUSED, Reason.IMPOSSIBLE)
"""Codes of a refused resize request: refused now, and impossible for the job."""


def node_words(number: int, verb: bool = False) -> str:
    """Return ``1 node``, ``2 nodes``; with a verb ``1 node is``, ``2 nodes are``."""
    return f"1 node{' is' * verb}" if number == 1 else f"{number} nodes{' are' * verb}"


def free_words(number: int) -> str:
    """Return ``1 is free``, ``2 are free``."""
    return f"{number} {'is' if number == 1 else 'are'} free"


class Later(msgspec.Struct, frozen=True, tag=True):
    """A job or a resize that a user requested has to wait; ``reason`` is what ``rms queue`` shows.

    Policies do not decide it: why a job waits is worked out when somebody asks.
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
    """Power idle nodes off; nobody is given them before they have booted again.

    Of a shared host all slots are named, as where it is powered on.
    """

    nodes: tuple[Node, ...]
    reason: str
    code: Reason = Reason.NODE_POWER


class PowerOn(msgspec.Struct, frozen=True, tag=True):
    """Power nodes on that are off; each is up once a :class:`NodeBooted` says so."""

    nodes: tuple[Node, ...]
    reason: str
    code: Reason = Reason.NODE_POWER


JobDecision = Start | Resize | Later | Never

Decision = JobDecision | PowerOff | PowerOn
