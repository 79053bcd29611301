"""Jobs that may have some nodes only (``--nodelist``, ``--exclude``), under any policy. Pure.

Policies count nodes; these jobs are made right around them, as those on nodes held for a time are
(:mod:`rms.core.lease`). No policy sees such a job while too few of its nodes are free, so nobody
waits behind it in vain; but if it is the first in the policy's order, those of its nodes that are
free, or fall free, are kept for it, as many as it lacks: it starts as soon as what runs there ends.
A job that is seen starts where the policy would start any other of its size, so it delays no
reservation; its nodes are its own, and others get those first that fewest of such jobs may have.

Under a placement that does not take nodes in order (``first-fit``) such jobs wait.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf

from rms.core.events import Decision, Event, Later, Reason, Resize, Start, node_words
from rms.core.lease import without
from rms.core.model import Job, JobId, Node
from rms.core.node_lists import allowed
from rms.core.policies.placement import Lowest, Room
from rms.core.policies.sizing import Plan
from rms.core.state import State

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
