"""Part ``passes``: after which events the policy decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Protocol

import msgspec

from rms.core.model.events import (
    TRIGGERS,
    Decision,
    Ended,
    Event,
    Later,
    Never,
    PowerCapSet,
    PowerMeasured,
    Reason,
    Resize,
    ResizePoint,
    Start,
    Submitted,
    Ticked,
    Withdrawn,
)
from rms.core.model.jobs import Job, JobId, JobSpec, Node, Site
from rms.core.policies.admission import within_limits
from rms.core.policies.node_power import (
    ALWAYS_ON,
    NOMINAL,
    AlwaysOn,
    FrequencyPart,
    PowerPart,
    after_ends,
    all_on,
    switched,
)
from rms.core.policies.placement import (
    MOST_TRIES,
    AsAsked,
    CappedPlan,
    CappedRoom,
    ListedPlan,
    Lowest,
    Plan,
    Room,
    kept,
    lacking,
    listed_room,
    seen,
    within_lists,
    yielding,
)
from rms.core.rules.powercap import PowerBudget, never_fits, why_power
from rms.core.state import RunningKey, State


class Events(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy decides after every event that can change what it decides.

    Attributes:
        every_s: also at multiples of this time, while there are jobs; None for never.
    """

    every_s: float | None = None

    @property
    def triggers(self) -> frozenset[type]:
        """Events after which it decides."""
        return TRIGGERS

    @property
    def start_triggers(self) -> frozenset[type]:
        """Events after which it starts jobs."""
        return TRIGGERS


class Ticks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy decides at regular times and at each end; for running jobs at resize points.

    Attributes:
        every_s: time between regular passes.
    """

    every_s: float = 10.0

    @property
    def triggers(self) -> frozenset[type]:
        """Events after which it decides."""
        kinds = Ended, Withdrawn, Ticked, ResizePoint, PowerCapSet, PowerMeasured
        return frozenset(kinds)

    @property
    def start_triggers(self) -> frozenset[type]:
        """Events after which it starts jobs."""
        return frozenset((Ended, Withdrawn, Ticked))


# FUSED rms.core.policies.policy: A policy: one function per part, and how they are asked.

Order = Callable[[State], Iterable[Job]]
"""What may be gone through more than once: a view or a list, not a generator."""
Sizing = Callable[[State, Iterable[Job], Room], Plan]
Placement = Callable[[State], Room]
Migrations = Callable[[State, Sequence[Node], Sequence[Decision], PowerBudget | None], list[Resize]]
"""Given the nodes that a pass has left and what it has decided: who moves where."""


class Admission(Protocol):
    """Part ``admission``: who starts now, and why the others do not."""

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""


class Passes(Protocol):
    """Part ``passes``: after which events the policy decides."""

    @property
    def every_s(self) -> float | None:
        """Time between regular passes, or None."""

    @property
    def triggers(self) -> frozenset[type]:
        """Events after which it decides."""

    @property
    def start_triggers(self) -> frozenset[type]:
        """Those of them after which it starts jobs."""


class PolicyError(ValueError):
    """No such policy, or one that cannot be."""


class MissingPartError(PolicyError):
    """A policy that names a user's function which cannot be had (any more)."""


@dataclass(frozen=True)
class View:
    """What a policy sees the waiting jobs in.

    Attributes:
        state: all nodes on.
        running: how many jobs of each array run.
        capped: the room, where there is a power cap.
    """

    state: State
    running: Counter[str | None]
    room: Room
    capped: CappedRoom | None
    queue: Iterable[Job]
    plan: Plan


@dataclass(frozen=True)
class Policy:
    """One function per part.

    Attributes:
        order: the waiting jobs, the first to be served first.
        sizing: the size each waiting job should start at and each resizable one should have.
        admission: who starts now, given order and sizes.
        placement: on which nodes.
        passes: after which events it decides.
        node_power: which nodes are powered off and on.
        frequency: at which frequency jobs start.
        text: the composition as JSON, from which :func:`rms.core.policies.named` makes it again.
        shipped: it comes with the program, so that its name alone says what it is.
        exact: expected ends follow what is known of run times, not limits.
        ahead: a start may come before the end, of the same instant, that makes it possible.
        counted: nodes are counted, not placed.
        shared: jobs share nodes: a daemon gives it slots, one by one.
        pooled: it places processes on nodes that share bandwidth, and nowhere else.
        caps_nodes: it holds a power cap of each node or rack.
        clocked: it sets frequencies, where nodes state some.
        ranks: its order includes the priorities of jobs.
        refusal: why the placement can never take a job, or None where it can; None if it takes any.
        migrations: resizes of running jobs to other nodes that the placement wants, or None.
        twin: EASY in the same order, if the sizing goes by what it would do
            (:mod:`rms.core.scheduler.twin`).
        triggers, start_triggers: events after which it decides, and after which it starts jobs.
    """

    name: str
    order: Order
    sizing: Sizing
    admission: Admission
    placement: Placement
    passes: Passes
    text: str
    shipped: bool = field(default=False, compare=False)
    twin: Policy | None = field(default=None, compare=False)
    node_power: PowerPart = ALWAYS_ON
    frequency: FrequencyPart = NOMINAL
    always_on: bool = field(init=False)
    exact: bool = field(init=False)
    ahead: bool = field(init=False)
    refusal: Callable[[Site, JobSpec], str | None] | None = field(init=False, compare=False)
    migrations: Migrations | None = field(init=False, compare=False)
    counted: bool = field(init=False)
    shared: bool = field(init=False)
    pooled: bool = field(init=False)
    caps_nodes: bool = field(init=False)
    clocked: bool = field(init=False)
    ranks: bool = field(init=False)
    triggers: frozenset[type] = field(init=False)
    start_triggers: frozenset[type] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "always_on", isinstance(self.node_power, AlwaysOn))
        exact = getattr(self.admission, "estimates", "exact") == "exact"
        object.__setattr__(self, "exact", exact)
        object.__setattr__(self, "ahead", bool(getattr(self.placement, "ahead", False)))
        object.__setattr__(self, "refusal", getattr(self.placement, "refusal", None))
        object.__setattr__(self, "migrations", getattr(self.placement, "migrations", None))
        object.__setattr__(self, "triggers", self.passes.triggers)
        object.__setattr__(self, "start_triggers", self.passes.start_triggers)
        object.__setattr__(self, "shared", bool(getattr(self.placement, "shared", False)))
        pooled = self.shared and bool(getattr(self.placement, "pooled", True))
        object.__setattr__(self, "pooled", pooled)
        object.__setattr__(self, "caps_nodes", hasattr(self.placement, "cap_w"))
        aware = getattr(self.placement, "power_aware", False)
        object.__setattr__(self, "clocked", aware or getattr(self.frequency, "sets", True))
        object.__setattr__(self, "ranks", hasattr(self.order, "priority"))
        object.__setattr__(self, "counted", bool(getattr(self.placement, "counted", False)))

    @property
    def running_keys(self) -> Mapping[str, RunningKey]:
        """What the running jobs are sorted by for its sizing."""
        keys: Mapping[str, RunningKey] = getattr(self.sizing, "keys", {})
        return keys if self.twin is not None else {}

    @property
    def key(self) -> str:
        """What a journal holds of it: the name of a shipped policy, else the composition."""
        return self.name if self.shipped else self.text

    def decide(self, state: State, events: Sequence[Event]) -> list[Decision]:
        """Return what to do after what has just happened, in the order in which it is taken.

        The engine asks only after events of a kind in ``triggers``.
        """
        if self.always_on and not (state.off or state.booting):
            return self._decide(state, events) if state.listed else self._pass(state, events)
        # Where nothing has changed but the time, a migration pays less than it did.
        moves = self.migrations if state.needs_pass or state.new_jobs else None
        wanted = self._decide(all_on(state), events, moves)
        every = self.start_triggers is self.triggers
        starts = not state.pending or every
        widens = not isinstance(self.sizing, AsAsked)
        soon = self._soon(state, wanted) if getattr(self.node_power, "ahead", False) else ()
        return switched(self.node_power, state, wanted, soon=soon, starts=starts, widens=widens)

    def look_s(self, state: State) -> float:
        """Return when it is to look again even if nothing happens before, inf for never."""
        look = getattr(self.node_power, "look_s", None)
        return inf if look is None else float(look(state))

    def _soon(self, state: State, wanted: Sequence[Decision]) -> set[Node]:
        """Return nodes that are off and will be given to who waits within the time of a boot."""
        then = after_ends(state, wanted)
        if then is None:
            return set()
        starts = [each for each in self._decide(then, ()) if isinstance(each, Start)]
        return {node for each in starts for node in each.nodes}

    def _decide(
        self, state: State, events: Sequence[Event], moves: Migrations | None = None
    ) -> list[Decision]:
        if not state.listed:
            return self._pass(state, events, moves)
        hidden, starting = set[JobId](), list[Decision]()
        for _ in range(MOST_TRIES):
            view, told = self._usable(state, events, hidden)
            refused = set[JobId]()
            decisions = self._pass(view, told, moves, refused)
            begun = {each.job for each in decisions if isinstance(each, Start)}
            if starting and not begun:
                decisions = starting  # else nothing might happen any more
                break
            if refused <= begun:
                break
            starting = decisions if begun else []
            hidden |= refused - begun  # others have its nodes now: nobody is to wait behind it
        return within_lists(state, decisions)

    def _usable(
        self, state: State, events: Sequence[Event], hidden: Set[JobId] = frozenset()
    ) -> tuple[State, Sequence[Event]]:
        """Return what the policy sees: without jobs for whom too few nodes of their list are free.

        Args:
            hidden: others that it is not to see.
        """
        lacks = set(lacking(state, self._places_lists(state)))
        first = next(iter(self._queue(state, [])), None) if lacks else None
        nodes = [] if first is None else kept(state, first, lacks)
        if nodes:
            lacks |= lacking(seen(state, (), set(), nodes)[0], True).keys()
        return seen(state, events, lacks | hidden, nodes)

    def _places_lists(self, state: State) -> bool:
        return listed_room(state, self.placement(state)) is not None

    def _pass(
        self,
        state: State,
        events: Sequence[Event],
        moves: Migrations | None = None,
        refused: set[JobId] | None = None,
    ) -> list[Decision]:
        """Return the decisions of a pass.

        Args:
            refused: takes jobs for whom too few nodes of their list are left, if any was refused.
        """
        decisions: list[Decision] = []
        for event in events:
            if type(event) is Submitted:
                decisions += _too_wide(state, event)
                if self.refusal is not None:
                    decisions += _unplaceable(state, event, self.refusal)
        resizable = state.shrinkable or state.expandable
        if not state.pending and not resizable and (moves is None or not state.running):
            return decisions
        placed = self.placement(state)
        listed = None
        if state.listed and (listed := listed_room(state, placed)) is not None:
            placed = listed
        room = self.frequency(state, placed) if self.clocked else placed
        capped = None if state.power_cap_w is None else CappedRoom(room, state)
        if capped is not None:
            room = capped
            if resizable and (changes := yielding(state, capped)):
                return decisions + changes
        queue = self._queue(state, decisions)
        plan = self.sizing(state, queue, room)
        if listed is not None:
            plan = ListedPlan(plan, listed)
        if capped is not None:
            plan = CappedPlan(plan, capped.budget)
        if state.pending and (
            self.start_triggers is self.triggers
            or any(type(event) in self.start_triggers for event in events)
        ):
            decisions += self.admission(state, queue, plan, room)
        if resizable:
            decisions += plan.resizes(state, room)
            if self.twin is not None:
                state.awaited.update(_awaited(plan))
        if moves is not None and isinstance(placed, Lowest):
            budget = None if capped is None else capped.budget
            decisions += moves(state, placed.rest, decisions, budget)
        if listed is not None and refused is not None:
            refused |= listed.left_out(decisions)
        return decisions

    def view(self, state: State) -> View | None:
        """Return what the waiting jobs are seen in, to say of one after the other why it waits."""
        return self._view(state)

    def _view(self, state: State) -> View:
        running = Counter(job.spec.array for job in state.running.values())
        if state.off or state.booting:
            state = all_on(state)
        if state.listed:
            state, _ = self._usable(state, ())
        room = self.frequency(state, self.placement(state))
        capped = None if state.power_cap_w is None else CappedRoom(room, state)
        room = room if capped is None else capped
        queue = self._queue(state, [])
        plan = self.sizing(state, queue, room)
        queue = getattr(plan, "queue", None) or queue
        if capped is not None:
            plan = CappedPlan(plan, capped.budget)
        return View(state, running, room, capped, queue, plan)

    def explain(self, state: State, job: Job, view: View | None = None) -> Later:
        """Return why a job waits.

        Args:
            view: of this state, where it is at hand.
        """
        seen = view or self._view(state)
        state, room, limit = seen.state, seen.room, job.spec.array_limit
        if limit is not None and seen.running[job.spec.array] >= limit:
            return Later(job.spec.id, f"JobArrayTaskLimit: {limit} at once", Reason.ARRAY_LIMIT)
        if seen.capped is not None:
            why = why_power(state, job, seen.capped.budget)
            if why is not None and (job.least <= room.free or never_fits(state, job)):
                return Later(job.spec.id, why, Reason.POWER)
        explain = getattr(self.admission, "explain", None)
        if explain is None:
            return Later(job.spec.id, "Resources: its turn has not come", Reason.RESOURCES)
        found: Later = explain(state, job, seen.queue, seen.plan, room)
        return found

    def reservation(self, view: View) -> tuple[JobId, float] | None:
        """Return the job that has a reservation and its time, or None."""
        find = getattr(self.admission, "reservation", None)
        if find is None:
            return None
        reserved: tuple[JobId, float] | None = find(view.state, view.queue, view.plan, view.room)
        return reserved

    def place(self, state: State, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a running job at another size, which a user wants it to have."""
        placed = self.placement(state)
        return ((state.listed and listed_room(state, placed)) or placed).resize(job, size)

    def explained(self, state: State) -> dict[JobId, Later]:
        """Return why jobs wait, of those for which that is worked out for all at once."""
        lists = lacking(all_on(state), self._places_lists(state)) if state.listed else {}
        return lists | (self.boots(state) if state.off or state.booting else {})

    def boots(self, state: State) -> dict[JobId, Later]:
        """Return which waiting jobs could start but for nodes that are off or booting, and why."""
        view, found = all_on(state), {}
        for each in self._decide(view, ()):
            if isinstance(each, Start) and (asleep := set(view.asleep).intersection(each.nodes)):
                text = f"Resources: waits for {len(asleep)} of {each.size} nodes to boot"
                found[each.job] = Later(each.job, text, Reason.RESOURCES)
        return found

    def _queue(self, state: State, refused: list[Decision]) -> Iterable[Job]:
        queue = self.order(state)
        if state.prioritised and not self.ranks:
            queue = _prioritised(state, queue)
        if state.power_cap_w is not None:  # nobody waits behind a job that never fits under it
            queue = [job for job in queue if not never_fits(state, job)]
        if refused:
            gone = {decision.job for decision in refused if isinstance(decision, Never)}
            queue = [job for job in queue if job.spec.id not in gone]
        return list(within_limits(state, queue)) if state.array_limited else queue


def _awaited(plan: Plan) -> Iterator[tuple[JobId, Job]]:
    """Yield the jobs that a plan would resize, were they at a resize point known beforehand."""
    while isinstance(plan, CappedPlan | ListedPlan):
        plan = plan.plan
    for job in getattr(plan, "awaits", ()):
        if job.spec.resize_points_known and job.start_s is not None:
            yield job.spec.id, job


def _prioritised(state: State, queue: Iterable[Job]) -> tuple[Job, ...]:
    """Return a queue by priority, in which jobs that the order omits replace lower ones."""
    jobs = list(queue)
    most = len(jobs)
    if most < len(state.pending):
        queued, ranked = set(map(id, jobs)), (job for _, _, job in state.queue_by(_rank))
        highest = islice(within_limits(state, ranked), most)
        jobs += [job for job in highest if id(job) not in queued]
    return tuple(state.by_priority(jobs))[:most]


def _rank(job: Job) -> float:
    return -job.spec.priority


def _too_wide(state: State, event: Submitted) -> list[Decision]:
    """Refuse new jobs that need more nodes than there are."""
    nodes, pending = state.site.nodes, state.pending
    if len(event.specs) == 1 and pending[event.specs[0].id].least <= nodes:
        return []  # the most frequent case
    return [
        Never(spec.id, f"needs {state.pending[spec.id].least} nodes, the cluster has {nodes}")
        for spec in event.specs
        if state.pending[spec.id].least > nodes
    ]


def _unplaceable(
    state: State, event: Submitted, refusal: Callable[[Site, JobSpec], str | None]
) -> list[Decision]:
    """Refuse new jobs that the placement can never take, so that nobody waits behind them."""
    return [
        Never(spec.id, reason, Reason.POWER)
        for spec in event.specs
        if state.pending[spec.id].least <= state.site.nodes
        and (reason := refusal(state.site, spec)) is not None
    ]
