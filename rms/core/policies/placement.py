"""Parts ``placement`` and ``sizing``: the nodes of jobs, and their number.

A placement opens a :class:`Room` for one pass: the free nodes, of which admission and sizing take
some. A sizing makes a :class:`Plan` for it. The state does not change.

Two limits apply to all parts. Under a power cap, power counts as nodes do (:class:`LimitedRoom`).
Jobs with lists of nodes get no other nodes (:class:`ListedRoom`). Both may make a start smaller
than planned (:class:`LimitedPlan`).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import ClassVar, Protocol

import msgspec

from rms.core.model.events import Decision, Later, Reason, Resize, Start, free_words, node_words
from rms.core.model.jobs import Job, JobId, JobSpec, Node, Site
from rms.core.rules.checks import allowed
from rms.core.rules.powercap import ROUNDING, PowerBudget
from rms.core.state import RunningKey, State

# --- rooms and plans -----------------------------------------------------------------------------


class Room(ABC):
    """Free nodes during one pass.

    Attributes:
        contended: a job that does not fit though enough nodes are free lacks memory bandwidth;
            elsewhere it lacks power.
        varies: starts there have slowdowns or frequencies.
        budget: the rest of the power cap, None where there is none.
    """

    __slots__ = ()

    contended: ClassVar[bool] = False
    varies: bool = False
    budget: PowerBudget | None = None

    @property
    @abstractmethod
    def free(self) -> int:
        """The number of nodes left."""

    @property
    @abstractmethod
    def passed(self) -> int:
        """The number of first entries of ``state.ends`` whose nodes count as free already."""

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` nodes now."""
        return size <= self.free

    @abstractmethod
    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take nodes for a job that fits; none where nodes are counted."""

    @abstractmethod
    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a running job at another size, taking the new ones.

        Other than ``size`` nodes if too few are free; none where nodes are counted.
        """

    def take(self, job: Job, size: int) -> tuple[tuple[Node, ...], tuple[float, ...]]:
        """Take nodes for a job that fits; return frequencies too, none for the highest."""
        return self.place(job, size), ()

    def slowdown(self, job: Job, size: int) -> float:
        """Return the expected run time of a job that starts now over the stated one."""
        return 1.0


class LimitedRoom(Room):
    """A room under a power cap, where power counts as nodes do, or whose starts have frequencies.

    Args:
        budget: the rest of the power cap, or None.
        clock: returns the frequency of a job, over the highest one, and the slowdown by it.
    """

    __slots__ = ("_clock", "_room", "budget", "varies")

    def __init__(
        self,
        room: Room,
        *,
        budget: PowerBudget | None = None,
        clock: Callable[[Job], tuple[float, float]] | None = None,
    ) -> None:
        self._room, self._clock, self.budget = room, clock, budget
        self.varies = clock is not None or room.varies

    @property
    def free(self) -> int:
        """The number of nodes left."""
        return self._room.free

    @property
    def passed(self) -> int:
        """The number of entries of ``state.ends`` whose nodes count as free."""
        return self._room.passed

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` nodes now, by nodes and power."""
        powered = self.budget is None or self.budget.starts(job, size)
        return powered and self._room.fits(job, size)

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take nodes for a job that fits."""
        return self.take(job, size)[0]

    def take(self, job: Job, size: int) -> tuple[tuple[Node, ...], tuple[float, ...]]:
        """Take nodes and power for a job that fits; return frequencies too."""
        if self.budget is not None:
            self.budget.take(self.budget.start_w(job, size))
        nodes, frequencies = self._room.take(job, size)
        if self._clock is not None:
            share, _ = self._clock(job)
            frequencies = () if share == 1.0 else (share,) * len(nodes)
        return nodes, frequencies

    def slowdown(self, job: Job, size: int) -> float:
        """Return the expected run time of a job that starts now over the stated one."""
        slowdown = self._room.slowdown(job, size)
        return slowdown if self._clock is None else self._clock(job)[1] * slowdown

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a running job at another size; its present ones without power."""
        budget = self.budget
        if budget is not None:
            if not budget.widens(job, size):
                return job.nodes
            if size > job.size:
                budget.take(budget.widening_w(job, job.size, size))
        return self._room.resize(job, size)


class Plan(Protocol):
    """The sizes wanted in one pass."""

    def start(self, job: Job, free: int) -> int:
        """Return the size at which a waiting job should start, ``free`` nodes being free."""

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return the resizes wanted of running jobs, after the starts of the pass."""


# --- the parts, and the simplest of them ---------------------------------------------------------


class Placement:
    """Part ``placement``: the nodes of jobs.

    Attributes:
        counted: nodes are counted, not placed.
        least_bandwidth: it goes by the memory bandwidth of nodes, which they have to state.
        caps_nodes: it holds power caps of nodes or racks.
        migrates: it resizes running jobs to other nodes (:meth:`migrations`).
    """

    __slots__ = ()

    counted: ClassVar[bool] = False
    least_bandwidth: ClassVar[bool] = False
    caps_nodes: ClassVar[bool] = False
    migrates: ClassVar[bool] = False

    @property
    def ahead(self) -> bool:
        """Whether a start may come before an end of the same instant that frees its nodes."""
        return False

    @property
    def shared(self) -> bool:
        """Whether jobs share nodes: the nodes of the state are slots."""
        return False

    @property
    def pooled(self) -> bool:
        """Whether it places processes on nodes that share bandwidth, and nowhere else."""
        return self.shared

    @property
    def power_aware(self) -> bool:
        """Whether it sets frequencies."""
        return False

    def __call__(self, state: State) -> Room:
        """Open the room of a pass."""
        raise NotImplementedError

    def refusal(self, site: Site, spec: JobSpec) -> str | None:
        """Return why a job can never be placed, or None."""
        return None

    def migrations(
        self,
        state: State,
        free: Sequence[Node],
        decided: Sequence[Decision],
        budget: PowerBudget | None,
    ) -> list[Resize]:
        """Return the migrations of a pass.

        Args:
            free: nodes that the starts and resizes of the pass have left.
            decided: the starts and resizes.
            budget: the rest of the power cap, or None.
        """
        return []


class Sizing:
    """Part ``sizing``: the sizes of waiting jobs, and of jobs that may be resized.

    Attributes:
        twin: it goes by the schedule of EASY (:mod:`rms.core.scheduler.twin`).
        widens: it may widen running jobs.
    """

    __slots__ = ()

    twin: ClassVar[bool] = False
    widens: ClassVar[bool] = True

    @property
    def keys(self) -> Mapping[str, RunningKey]:
        """Keys by which the running jobs are sorted for it, where it has a twin."""
        return {}

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> Plan:
        """Return the plan of a pass."""
        raise NotImplementedError


class Lowest(Room):
    """Free nodes, the lowest first; where nodes are counted, their number only."""

    __slots__ = ("_nodes", "free", "passed")

    free: int
    passed: int

    def __init__(self, state: State) -> None:
        self.free, self.passed = state.free_count, 0
        self._nodes = state.free_nodes()

    @property
    def rest(self) -> list[Node]:
        """The nodes left; the room cannot be used after that."""
        return list(self._nodes)

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take the lowest nodes."""
        self.free -= size
        return tuple(islice(self._nodes, size))

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a job at its new size: it keeps its first ones."""
        more = size - job.size
        return job.nodes[:size] if more <= 0 else (*job.nodes, *self.place(job, more))


class Count(Placement, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes are counted only: for traces, and for clusters whose nodes are all alike.

    Attributes:
        ahead: a job whose expected end has come no longer holds nodes: of two events of one
            instant, a start may come before the end that frees its nodes. The engine checks
            after the instant that the end came.
    """

    ahead: bool = False
    counted: ClassVar[bool] = True

    def __call__(self, state: State) -> Lowest:
        """Open the room of a pass."""
        room = Lowest(state)
        for end, _, job in state.ends if self.ahead else ():
            if end > state.now_s:
                break
            room.free += job.size
            room.passed += 1
        return room


class FirstFit(Placement, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lowest free nodes."""

    def __call__(self, state: State) -> Lowest:
        """Open the room of a pass."""
        return Lowest(state)


class AsAsked(Sizing, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every job at its preferred size, or the largest that fits if it allows it. No resizes."""

    widens: ClassVar[bool] = False

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> Plan:
        """Return the sizing itself, as it has one plan."""
        return self

    def start(self, job: Job, free: int) -> int:
        """Return the preferred size, or the largest that fits."""
        preferred = job.spec.preferred
        if job.least == preferred or preferred <= free:
            return preferred
        sizes = job.spec.sizes()
        at = bisect_right(sizes, min(free, preferred))
        return sizes[at - 1] if at else job.least

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return no resizes."""
        return []


# --- under a power cap ---------------------------------------------------------------------------
#
# A room under the cap refuses starts whose power does not fit, so every admission treats such a job
# as one that lacks nodes. Reservations (:mod:`admission`, :mod:`backfill_share`) include the room's
# budget: an overtaking job takes no power that they need.


def yielding(state: State, room: Room, budget: PowerBudget) -> list[Resize]:
    """Return shrinks of running jobs if the cap is exceeded.

    One size at a time, the job that draws most first, until enough power is or will be free.
    """
    # A start that takes the whole rest may leave less than 0 W, by rounding.
    over_w = -(budget.left_w + budget.releasing_w) - 2.0 * ROUNDING * (state.power_cap_w or 0.0)
    if over_w <= 0.0:
        return []
    jobs = [job for _, _, job in state.shrinkable]
    able = [(-budget.at_w(job, job.size), job.number, job, job.size) for job in jobs]
    heapq.heapify(able)
    new_sizes: dict[Job, int] = {}
    while able and over_w > 0.0:
        drawn_w, number, job, size = heapq.heappop(able)
        sizes = job.spec.sizes()
        smaller = sizes[: bisect_left(sizes, size)]
        less = next((n for n in reversed(smaller) if n not in job.refused_sizes), None)
        if less is None:
            continue
        then_w = budget.at_w(job, less)
        if -drawn_w > then_w:
            new_sizes[job] = less
            over_w -= -drawn_w - then_w
        heapq.heappush(able, (-then_w, number, job, less))
    cap_w = state.power_cap_w or 0.0
    metered = any(job.above_w for job in state.running.values())
    drawn = f"{cap_w - budget.left_w:.0f} W are {'drawn' if metered else 'expected'}"
    by = ", by the meters" if metered else ""
    text = f"PowerCap: yields, {drawn}{by}; the cap is {cap_w:g} W"
    resizes = []
    for job, size in new_sizes.items():
        nodes = room.resize(job, size)
        resizes.append(Resize(job.spec.id, nodes, text, Reason.POWER, 0 if nodes else size))
    return resizes


# --- jobs that may have some nodes only (``--nodelist``, ``--exclude``) --------------------------
#
# Policies count nodes and do not know lists. No policy sees a job with a list while too few of its
# nodes are free, so no job waits behind it in vain; but if it is the first in the policy's order,
# free nodes of its list are kept for it, as many as it lacks: it starts as soon as the jobs there
# end. A job that policies see starts when any other job of its size would, so it delays no
# reservation; it gets nodes of its list, and other jobs get first the nodes that are in the fewest
# lists.
#
# Under a placement that does not take nodes in order (``first-fit``) jobs with lists wait.

MOST_TRIES = 8
"""A pass is repeated at most this often without jobs whose nodes it gave to others."""

MOST_LISTS = 64
"""At most this many node lists count when free nodes are ordered for other jobs."""


class ListedRoom(Lowest):
    """Free nodes, in the order of the number of lists that they are in.

    Attributes:
        refused: jobs for which enough nodes were left, but too few of their lists.
    """

    __slots__ = ("_left", "_lists", "_state", "refused")

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._state, self.refused = state, set[JobId]()
        self._lists = dict.fromkeys(allowed(state, job.spec) for job in _waiting(state))
        some = sorted(self._lists, key=len)[:MOST_LISTS]
        wanted = Counter(node for nodes in some for node in nodes)
        asleep = set(state.asleep)
        order = sorted(self._nodes, key=lambda node: (node in asleep, wanted[node]))
        self._left = dict.fromkeys(order)

    @property
    def rest(self) -> list[Node]:
        """The nodes left; the room cannot be used after that."""
        return list(self._left)

    def of(self, job: Job, most: float = inf) -> list[Node]:
        """Return nodes left that a job may have, at most ``most``."""
        nodes: list[Node] = []
        own = allowed(self._state, job.spec) if job.spec.id in self._state.listed else None
        for node in self._left if most > 0 else ():
            if own is None or node in own:
                nodes.append(node)
                if len(nodes) >= most:
                    break
        return nodes

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` nodes now."""
        if size > self.free or job.spec.id not in self._state.listed:
            return size <= self.free
        fits = len(self.of(job, size)) >= size
        if not fits:
            self.refused.add(job.spec.id)
        return fits

    def left_out(self, decisions: Sequence[Decision]) -> set[JobId]:
        """Return the jobs that lack nodes of their list, if one was refused."""
        if not self.refused:
            return set()
        left = {nodes: len(nodes.intersection(self._left)) for nodes in self._lists}
        begun = {decision.job for decision in decisions if isinstance(decision, Start)}
        waiting = [job for job in _waiting(self._state) if job.spec.id not in begun]
        lacks = [job for job in waiting if job.least > left[allowed(self._state, job.spec)]]
        return self.refused.union(job.spec.id for job in lacks)

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take nodes for a job that fits."""
        nodes = self.of(job, size)
        for node in nodes:
            del self._left[node]
        self.free -= len(nodes)
        return tuple(nodes)

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a job at its new size; its present ones if its list has too few."""
        have = job.nodes
        if size > len(have) and len(self.of(job, size - len(have))) < size - len(have):
            return have
        return super().resize(job, size)


def listed_room(state: State, room: Room) -> ListedRoom | None:
    """Return the room of a pass for jobs with lists, None if the placement has none."""
    return ListedRoom(state) if type(room) is Lowest and not state.counted else None


def _waiting(state: State) -> list[Job]:
    """Return the jobs with lists that a policy sees, in the order of submission."""
    listed, pending = state.listed, state.pending
    if len(listed) < len(pending):
        jobs = [pending[job_id] for job_id in listed if job_id in pending]
        return sorted(jobs, key=lambda job: job.number)
    return [job for job_id, job in pending.items() if job_id in listed]


def lacking(state: State, placing: bool) -> dict[JobId, Later]:
    """Return the jobs with lists that are not started on the free nodes, with reasons.

    Args:
        placing: whether the policy's placement can give them nodes.
    """
    waits: dict[JobId, Later] = {}
    free: dict[frozenset[Node], int] = {}
    for job in _waiting(state):
        job_id, own = job.spec.id, allowed(state, job.spec)
        if not placing:
            text = "NodeList: this policy places no job by a list of nodes"
            waits[job_id] = Later(job_id, text, Reason.RESOURCES)
            continue
        if own not in free:
            free[own] = sum(state.vacant[node] for node in own)
        if job.least > free[own]:
            up = len(own - state.down)
            there = f"of its list {free_words(free[own])}"
            if job.least > up:
                there = f"ReqNodeNotAvail: of its list {free_words(up, 'there and up')}"
            text = f"Resources: waits for {node_words(job.least)}, {there}"
            waits[job_id] = Later(job_id, text, Reason.RESOURCES)
    return waits


def kept(state: State, first: Job, hidden: Iterable[JobId]) -> list[Node]:
    """Return the free nodes that are kept for the first job of an order, if its list has too few.

    Empty if not even all of its nodes that are up would be enough.
    """
    if first.spec.id not in hidden:
        return []
    own = allowed(state, first.spec)
    if len(own - state.down) < first.least:
        return []
    return sorted(node for node in own if state.vacant[node])[: first.least]


def within_lists(state: State, decisions: Sequence[Decision]) -> list[Decision]:
    """Return decisions without resizes to nodes that a job may not have."""
    return [
        decision
        for decision in decisions
        if not (isinstance(decision, Resize) and decision.job in state.listed)
        or allowed(state, state.running[decision.job].spec).issuperset(decision.nodes)
    ]


# --- both limits ---------------------------------------------------------------------------------


class LimitedPlan:
    """A plan whose starts are made smaller, where jobs allow it, until nodes and power fit.

    Attributes:
        plan: the plan of the sizing.
    """

    __slots__ = ("_budget", "_listed", "plan")

    def __init__(self, plan: Plan, listed: ListedRoom | None, budget: PowerBudget | None) -> None:
        self.plan, self._listed, self._budget = plan, listed, budget

    def start(self, job: Job, free: int) -> int:
        """Return the size at which a waiting job should start: the planned one, if it fits."""
        size, spec, budget = self.plan.start(job, free), job.spec, self._budget
        if not spec.mode.any_start:
            return size
        sizes = spec.sizes()
        if self._listed is not None and (spec.nodelist or spec.exclude):
            have = len(self._listed.of(job, size))
            if have < size:
                at = bisect_right(sizes, have)
                size = sizes[at - 1] if at else job.least
        if budget is None or budget.starts(job, size):
            return size
        smaller = sizes[: bisect_left(sizes, size)]
        fitting = bisect_right(smaller, False, key=lambda n: not budget.starts(job, n))
        return smaller[fitting - 1] if fitting else job.least

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return the resizes of the plan."""
        return self.plan.resizes(state, room)


def plan_of_sizing(plan: Plan) -> Plan:
    """Return the plan of the sizing, without limits."""
    return plan.plan if isinstance(plan, LimitedPlan) else plan
