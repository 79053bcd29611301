"""Part ``placement``: which nodes.

A placement opens a :class:`Room` for one pass: the free nodes, of which admission and sizing take
some. The state is left as it is.
"""

from __future__ import annotations

import copy
import heapq
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf
from typing import ClassVar, Protocol

import msgspec

from rms.core.model.events import Decision, Event, Later, Reason, Resize, Start, node_words
from rms.core.model.jobs import Job, JobId, Node
from rms.core.rules.checks import allowed, without
from rms.core.rules.powercap import ROUNDING, PowerBudget
from rms.core.state import State


class Room(Protocol):
    """Free nodes during one pass."""

    @property
    def free(self) -> int:
        """How many are left."""

    @property
    def passed(self) -> int:
        """How many of the first of ``state.ends`` are over by expectation: their nodes are free."""

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` nodes now."""

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take nodes for a job that fits; none where they are only counted."""

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a running job at another size, taking what it brings.

        Other than ``size`` nodes where they cannot be had; none where they are only counted.
        """


def expected_slowdown(room: Room, job: Job, size: int) -> float:
    """Return how much longer than stated a job is expected to run that starts now.

    A room may say so by a method ``slowdown(job, size)``.
    """
    found = getattr(room, "slowdown", None)
    return 1.0 if found is None else found(job, size)


def take(room: Room, job: Job, size: int) -> tuple[tuple[Node, ...], tuple[float, ...]]:
    """Take nodes for a job that fits; return the frequency on each too, none for the highest.

    A room that sets frequencies has a method ``take(job, size)``.
    """
    found = getattr(room, "take", None)
    return (room.place(job, size), ()) if found is None else found(job, size)


class Counts:
    """Nodes that are all alike: counted, not placed."""

    __slots__ = ("free", "passed")

    def __init__(self, free: int, passed: int = 0) -> None:
        self.free, self.passed = free, passed

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` nodes now."""
        return size <= self.free

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take nodes for a job that fits."""
        self.free -= size
        return ()

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take what a resize brings."""
        self.free -= max(0, size - job.size)
        return ()


class Lowest:
    """Free nodes, the lowest first."""

    __slots__ = ("_nodes", "free", "passed")

    def __init__(self, state: State) -> None:
        self.free, self.passed = state.free_count, 0
        self._nodes = state.free_nodes()

    @property
    def rest(self) -> list[Node]:
        """The nodes that are left; the room is not used after that."""
        return list(self._nodes)

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` nodes now."""
        return size <= self.free

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take the lowest nodes."""
        self.free -= size
        return tuple(islice(self._nodes, size))

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a job at its new size: its first ones stay its own."""
        have = job.nodes
        if size <= len(have):
            return have[:size]
        return (*have, *self.place(job, size - len(have)))


class FirstFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lowest free nodes."""

    def __call__(self, state: State) -> Lowest:
        """Open the room of a pass."""
        return Lowest(state)


class Count(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes are counted only: for traces, and for clusters whose nodes are all alike.

    ``ahead``: a job whose expected end has come no longer holds nodes: of two events of one
    instant, a start may come before the end that makes it possible. That the end did come is
    checked when the instant is over.
    """

    ahead: bool = False
    counted: ClassVar[bool] = True

    def __call__(self, state: State) -> Counts:
        """Open the room of a pass."""
        free = state.free_count
        if not self.ahead:
            return Counts(free)
        now, passed = state.now_s, 0
        for end, _, job in state.ends:
            if end > now:
                break
            free += job.size
            passed += 1
        return Counts(free, passed)


# FUSED rms.core.policies.placement: Part ``sizing``: how many nodes each job should have.


class Plan(Protocol):
    """The sizes wanted in one pass."""

    def start(self, job: Job, free: int) -> int:
        """Return the size at which a waiting job should start, ``free`` nodes being free."""

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return the resizes wanted of running jobs, after the starts of the pass."""


class AsAskedPlan:
    """Every job at its preferred size; moldable and flexible ones at what fits now."""

    __slots__ = ()

    def start(self, job: Job, free: int) -> int:
        """Return the preferred size, or the largest that fits."""
        preferred = job.spec.preferred
        if job.least == preferred or preferred <= free:
            return preferred
        sizes = job.spec.sizes()
        at = bisect_right(sizes, min(free, preferred))
        return sizes[at - 1] if at else job.least

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return nothing: without an eye on the other jobs there is no reason to."""
        return []


_AS_ASKED = AsAskedPlan()


class AsAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every job at its preferred size; moldable and flexible ones at what fits. No resizes."""

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> Plan:
        """Return the plan of a pass."""
        return _AS_ASKED


# FUSED rms.core.policies.placement: The cluster's power cap in a pass: whatever the policy, rooms and plans keep to it.
#
# A room under the cap refuses starts whose power does not fit, so every admission treats such a job
# as one that lacks nodes. Reservations (:mod:`admission`, :mod:`conservative`,
# :mod:`backfill_share`) ask the room's budget too: an overtaking job takes no power that they need.


class CappedRoom:
    """A room in which power counts as nodes do.

    Attributes:
        budget: what is left of the cap.
    """

    __slots__ = ("_room", "budget")

    def __init__(self, room: Room, state: State) -> None:
        self._room, self.budget = room, PowerBudget(state)

    @property
    def free(self) -> int:
        """How many nodes are left."""
        return self._room.free

    @property
    def passed(self) -> int:
        """How many running jobs are over by expectation; their power is not yet free."""
        return self._room.passed

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` nodes now, by nodes and power."""
        return self.budget.starts(job, size) and self._room.fits(job, size)

    def place(self, job: Job, size: int) -> tuple[Node, ...]:
        """Take nodes and power for a job that fits."""
        self.budget.take(self.budget.start_w(job, size))
        return self._room.place(job, size)

    def take(self, job: Job, size: int) -> tuple[tuple[Node, ...], tuple[float, ...]]:
        """Take nodes and power for a job that fits; return the frequency on each node too."""
        self.budget.take(self.budget.start_w(job, size))
        return take(self._room, job, size)

    def slowdown(self, job: Job, size: int) -> float:
        """Return how much longer than stated a job is expected to run that starts now."""
        return expected_slowdown(self._room, job, size)

    def resize(self, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a running job at another size; those it has if power is lacking."""
        if not self.budget.widens(job, size):
            return job.nodes
        if size > job.size:
            self.budget.take(self.budget.widening_w(job, job.size, size))
        return self._room.resize(job, size)


class CappedPlan:
    """A plan whose starts are made smaller, where a job allows it, until their power fits.

    Attributes:
        plan: what the sizing wants.
    """

    __slots__ = ("_budget", "plan")

    def __init__(self, plan: Plan, budget: PowerBudget) -> None:
        self.plan, self._budget = plan, budget

    def start(self, job: Job, free: int) -> int:
        """Return the size at which a waiting job should start: the wanted one, if power is left."""
        size, budget = self.plan.start(job, free), self._budget
        if not job.spec.mode.any_start or budget.starts(job, size):
            return size
        sizes = job.spec.sizes()
        smaller = sizes[: bisect_left(sizes, size)]
        fitting = bisect_right(smaller, False, key=lambda n: not budget.starts(job, n))
        return smaller[fitting - 1] if fitting else job.least

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return the resizes wanted; widening takes power from the room."""
        return self.plan.resizes(state, room)


def budget_of(room: Room) -> PowerBudget | None:
    """Return what is left of the power cap, None where there is none."""
    return getattr(room, "budget", None)


def yielding(state: State, room: CappedRoom) -> list[Resize]:
    """Return shrinks of running jobs if the cap is passed, by its being lowered or by the meters.

    One size at a time, the job that draws most first, until enough is or will be free.
    """
    budget = room.budget
    # A start that takes all that is left may leave less than nothing, by rounding.
    over_w = -(budget.left_w + budget.releasing_w) - 2.0 * ROUNDING * (state.power_cap_w or 0.0)
    if over_w <= 0.0:
        return []
    jobs = [job for _, _, job in state.shrinkable]
    able = [(-budget.at_w(job, job.size), job.number, job, job.size) for job in jobs]
    heapq.heapify(able)
    found: dict[Job, int] = {}
    while able and over_w > 0.0:
        drawn_w, number, job, size = heapq.heappop(able)
        sizes = job.spec.sizes()
        smaller = sizes[: bisect_left(sizes, size)]
        less = next((n for n in reversed(smaller) if n not in job.refused_sizes), None)
        if less is None:
            continue
        then_w = budget.at_w(job, less)
        if -drawn_w > then_w:
            found[job] = less
            over_w -= -drawn_w - then_w
        heapq.heappush(able, (-then_w, number, job, less))
    return [_yield(state, room, job, size) for job, size in found.items()]


def _yield(state: State, room: CappedRoom, job: Job, size: int) -> Resize:
    nodes = room.resize(job, size)
    cap_w = state.power_cap_w or 0.0
    metered = any(other.above_w for other in state.running.values())
    drawn = f"{cap_w - room.budget.left_w:.0f} W are {'drawn' if metered else 'expected'}"
    by = ", by the meters" if metered else ""
    text = f"PowerCap: yields, {drawn}{by}; the cap is {cap_w:g} W"
    return Resize(job.spec.id, nodes, text, Reason.POWER, 0 if nodes else size)


# FUSED rms.core.policies.placement: Jobs that may have some nodes only (``--nodelist``, ``--exclude``), under any policy. Pure.
#
# Policies count nodes; these jobs are made right around them, as those on nodes held for a time are
# (:mod:`rms.core.rules.checks`). No policy sees such a job while too few of its nodes are free, so nobody
# waits behind it in vain; but if it is the first in the policy's order, those of its nodes that are
# free, or fall free, are kept for it, as many as it lacks: it starts as soon as what runs there ends.
# A job that is seen starts where the policy would start any other of its size, so it delays no
# reservation; its nodes are its own, and others get those first that fewest of such jobs may have.
#
# Under a placement that does not take nodes in order (``first-fit``) such jobs wait.

MOST_TRIES = 8
"""So often a pass is decided again without jobs whose nodes it gave to others."""

MOST_LISTS = 64
"""Of so many lists it is looked at which nodes are in them, when others are given nodes."""


class ListedRoom(Lowest):
    """Free nodes, those first that fewest jobs with lists may have.

    Attributes:
        refused: jobs for which enough nodes were left, but too few of their own.
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
        """The nodes that are left; the room is not used after that."""
        return list(self._left)

    def of(self, job: Job, most: float = inf) -> list[Node]:
        """Return the nodes left that a job may have, up to so many."""
        found: list[Node] = []
        own = allowed(self._state, job.spec) if job.spec.id in self._state.listed else None
        for node in self._left if most > 0 else ():
            if own is None or node in own:
                found.append(node)
                if len(found) >= most:
                    break
        return found

    def fits(self, job: Job, size: int) -> bool:
        """Return whether the job may start on ``size`` nodes now."""
        if size > self.free or job.spec.id not in self._state.listed:
            return size <= self.free
        fits = len(self.of(job, size)) >= size
        if not fits:
            self.refused.add(job.spec.id)
        return fits

    def left_out(self, decisions: Sequence[Decision]) -> set[JobId]:
        """Return who waits for too few nodes of a list after a pass, if anybody was refused."""
        if not self.refused:
            return set()
        left = {nodes: len(nodes.intersection(self._left)) for nodes in self._lists}
        begun = {each.job for each in decisions if isinstance(each, Start)}
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
        """Return the nodes of a job at its new size, those it has where its list has too few."""
        have = job.nodes
        if size <= len(have):
            return have[:size]
        if len(self.of(job, size - len(have))) < size - len(have):
            return have
        return (*have, *self.place(job, size - len(have)))


class ListedPlan:
    """A plan whose starts are made smaller, where a job allows it, until its own nodes suffice.

    Attributes:
        plan: what the sizing wants.
    """

    __slots__ = ("_room", "plan")

    def __init__(self, plan: Plan, room: ListedRoom) -> None:
        self.plan, self._room = plan, room

    def start(self, job: Job, free: int) -> int:
        """Return the size at which a job should start: the wanted one, if it can have it."""
        size, spec = self.plan.start(job, free), job.spec
        if not (spec.nodelist or spec.exclude) or not spec.mode.any_start:
            return size
        have = len(self._room.of(job, size))
        if have >= size:
            return size
        at = bisect_right(spec.sizes(), have)
        return spec.sizes()[at - 1] if at else job.least

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return the resizes wanted."""
        return self.plan.resizes(state, room)


def listed_room(state: State, room: Room) -> ListedRoom | None:
    """Return the room of a pass in which jobs with lists have places, None where it has none."""
    return ListedRoom(state) if type(room) is Lowest else None


def _waiting(state: State) -> list[Job]:
    """Return the jobs with lists that a policy sees, in the order of submission."""
    listed, pending = state.listed, state.pending
    if len(listed) < len(pending):
        found = [pending[job_id] for job_id in listed if job_id in pending]
        return sorted(found, key=lambda job: job.number)
    return [job for job_id, job in pending.items() if job_id in listed]


def lacking(state: State, placing: bool) -> dict[JobId, Later]:
    """Return why jobs with lists are not started on the nodes that are free, those that are not.

    Args:
        placing: whether the policy's placement can give them nodes.
    """
    found: dict[JobId, Later] = {}
    free: dict[frozenset[Node], int] = {}
    for job in _waiting(state):
        job_id, own = job.spec.id, allowed(state, job.spec)
        if not placing:
            text = "NodeList: this policy places no job by a list of nodes"
            found[job_id] = Later(job_id, text, Reason.RESOURCES)
            continue
        if own not in free:
            free[own] = sum(state.vacant[node] for node in own)
        if job.least > free[own]:
            up = len(own - state.down)
            there = f"of its list {_are(free[own])} free"
            if job.least > up:
                there = f"ReqNodeNotAvail: of its list {_are(up)} there and up"
            text = f"Resources: waits for {node_words(job.least)}, {there}"
            found[job_id] = Later(job_id, text, Reason.RESOURCES)
    return found


def _are(number: int) -> str:
    return "1 is" if number == 1 else f"{number} are"


def kept(state: State, first: Job, hidden: Iterable[JobId]) -> list[Node]:
    """Return the free nodes that are kept for the first job of an order, if its list has too few.

    None where not even all of its nodes that are up would be enough.
    """
    if first.spec.id not in hidden:
        return []
    own = allowed(state, first.spec)
    if len(own - state.down) < first.least:
        return []
    return sorted(node for node in own if state.vacant[node])[: first.least]


def seen(
    state: State, events: Sequence[Event], hidden: set[JobId], nodes: Sequence[Node]
) -> tuple[State, Sequence[Event]]:
    """Return a state as a policy is to see it, without some jobs and free nodes, and events."""
    view = copy.copy(state)
    view.needs_pass = True
    if hidden:
        view.only({name: job for name, job in state.pending.items() if name not in hidden})
        events = [without(event, hidden) for event in events]
    if nodes:
        view.vacant = bytearray(state.vacant)
        for node in nodes:
            view.vacant[node] = 0
        view.free_count -= len(nodes)
        gone = set(nodes)
        view.asleep = tuple(node for node in state.asleep if node not in gone)
    return view, events


def within_lists(state: State, decisions: Sequence[Decision]) -> list[Decision]:
    """Return decisions without resizes that take a job to nodes it may not have."""
    return [
        each
        for each in decisions
        if not (isinstance(each, Resize) and each.job in state.listed)
        or allowed(state, state.running[each.job].spec).issuperset(each.nodes)
    ]
