"""A policy: one function per part, and how a pass calls them.

``order`` sorts the waiting jobs, ``placement`` opens a room of free nodes, ``frequency`` sets the
frequencies of starts there, ``sizing`` makes a plan of sizes, ``admission`` returns the starts and
the plan the resizes; ``node_power`` powers idle nodes off, and on again. ``passes`` names the
events after which all this happens. ``hours`` puts jobs with a deadline off to cheap hours: the
other parts do not see these jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import ClassVar

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
    PowerOff,
    Reason,
    Resize,
    ResizePoint,
    Start,
    Submitted,
    Ticked,
    Withdrawn,
    node_words,
)
from rms.core.model.jobs import Job, JobId, Node
from rms.core.policies.admission import Admission, View, within_limits
from rms.core.policies.cheap_hours import ANY_HOUR, HoursPart
from rms.core.policies.node_power import (
    ALWAYS_ON,
    NOMINAL,
    FrequencyPart,
    NodePowerPart,
    Windows,
    after_ends,
    all_on,
    never_starts,
    overruns,
    switched,
    window_view,
)
from rms.core.policies.order import Order
from rms.core.policies.placement import (
    MOST_TRIES,
    LimitedPlan,
    LimitedRoom,
    ListedRoom,
    Lowest,
    Placement,
    Plan,
    Room,
    Sizing,
    kept,
    lacking,
    listed_room,
    plan_of_sizing,
    within_lists,
    yielding,
)
from rms.core.policies.share import SharePlan
from rms.core.rules.checks import without_jobs
from rms.core.rules.powercap import PowerBudget, never_fits, why_power
from rms.core.state import RunningKey, State

# --- part ``passes`` -----------------------------------------------------------------------------


class Passes:
    """Part ``passes``: the events after which the policy decides.

    Attributes:
        triggers: events after which it decides.
        start_triggers: events of these after which it starts jobs.
    """

    __slots__ = ()

    triggers: ClassVar[frozenset[type]] = TRIGGERS
    start_triggers: ClassVar[frozenset[type]] = TRIGGERS

    @property
    def every_s(self) -> float | None:
        """Time between regular passes, or None."""
        return None


class Events(Passes, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy decides after every event that can change its decisions.

    Attributes:
        every_s: also at multiples of this time, while there are jobs; None for never.
    """

    every_s: float | None = None


class Ticks(Passes, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy decides at regular times and at ends of jobs; for running jobs at resize points.

    Attributes:
        every_s: time between regular passes.
    """

    every_s: float = 10.0

    start_triggers: ClassVar[frozenset[type]] = frozenset((Ended, Withdrawn, Ticked))
    triggers: ClassVar[frozenset[type]] = start_triggers | {ResizePoint, PowerCapSet, PowerMeasured}


# --- the policy ----------------------------------------------------------------------------------


class PolicyError(ValueError):
    """A policy that does not exist, or is not valid."""


class MissingPartError(PolicyError):
    """A policy that names a user's function which cannot be imported."""


@dataclass(frozen=True)
class Policy:
    """One function per part.

    Attributes:
        text: the composition as JSON, for :func:`rms.core.policies.named`.
        shipped: it comes with the program, so that its name identifies it.
        twin: EASY in the same order, if the sizing goes by its schedule
            (:mod:`rms.core.scheduler.twin`).
        triggers, start_triggers: events after which it decides, and after which it starts jobs.
        always_on: it powers no node off.
        exact: expected ends follow stated run times, not limits.
        clocked: it sets frequencies, which nodes have to state.
        looks: it decides at times without an event.
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
    node_power: NodePowerPart = ALWAYS_ON
    frequency: FrequencyPart = NOMINAL
    hours: HoursPart = ANY_HOUR
    triggers: frozenset[type] = field(init=False)
    start_triggers: frozenset[type] = field(init=False)
    always_on: bool = field(init=False)
    exact: bool = field(init=False)
    clocked: bool = field(init=False)
    looks: bool = field(init=False)

    def __post_init__(self) -> None:
        vars(self).update(
            triggers=self.passes.triggers,
            start_triggers=self.passes.start_triggers,
            always_on=self.node_power.always_on,
            exact=self.admission.estimates != "requested",
            clocked=self.placement.power_aware or self.frequency.sets,
            looks=not self.node_power.always_on or self.hours.waits_for_prices,
        )

    @property
    def running_keys(self) -> Mapping[str, RunningKey]:
        """The keys by which running jobs are sorted for its sizing."""
        return self.sizing.keys if self.twin is not None else {}

    @property
    def key(self) -> str:
        """Its name in a journal: the name of a shipped policy, else the composition."""
        return self.name if self.shipped else self.text

    # --- a pass ----------------------------------------------------------------------------------

    def decide(self, state: State, events: Sequence[Event]) -> list[Decision]:
        """Return the decisions after these events, in the order in which they are taken.

        The engine calls it only after events of a type in ``triggers``.
        """
        if self.hours.applies(state):
            view = self.hours.view(state, events)
            decisions = self._on_nodes(view.state, view.events)
            decisions = self.hours.resized(view, decisions, self.place)
            if isinstance(self.node_power, Windows):
                refused = _oversized(self.node_power, state, events)
                _, narrow = overruns(self.node_power, state, decisions)
                decisions = [one for one in decisions if not _resizes(one, narrow)]
                return [*[never for never in refused if never not in decisions], *decisions]
            return decisions
        return self._on_nodes(state, events)

    def _on_nodes(self, state: State, events: Sequence[Event]) -> list[Decision]:
        """Return the decisions of a pass at any price."""
        if self.always_on and not (state.off or state.booting):
            return self._decide(state, events) if state.listed else self._pass(state, events)
        if isinstance(self.node_power, Windows):
            return self._within_windows(self.node_power, state, events)
        return self._switched(state, events)

    def _within_windows(
        self, part: Windows, state: State, events: Sequence[Event]
    ) -> list[Decision]:
        """Return the decisions of a pass beside recurring windows in which nodes are off."""
        refused, narrow = _oversized(part, state, events), set[JobId]()
        late, over, awaited = {never.job for never in refused}, set[JobId](), dict(state.awaited)
        for _ in range(MOST_TRIES + 1):
            late |= over
            _await_again(state, awaited)
            view = window_view(part, state, events, late)
            decisions = self._switched(view.state, view.events)
            over, narrow = overruns(part, state, decisions)
            if not over:
                break
        decisions = [
            decision
            for decision in (*refused, *decisions)
            if not (isinstance(decision, Start) and decision.job in over)
            and not (isinstance(decision, Resize) and view.shrinks)
            and not _resizes(decision, narrow)
        ]
        if view.off:
            decisions.append(PowerOff(view.off, "window: the nodes are off until it ends"))
        for job, size in view.shrinks:
            if job.spec.resize_points_known:
                state.awaited[job.spec.id] = job
            if not job.at_resize_point:
                continue
            nodes, why = self.place(state, job, size), "window: makes room for nodes that go off"
            count = 0 if nodes else size
            decisions.append(Resize(job.spec.id, nodes, why, Reason.NODE_POWER, count))
        return decisions

    def _switched(self, state: State, events: Sequence[Event]) -> list[Decision]:
        """Return the decisions of a pass where nodes may be off."""
        # If only the time has changed, a migration pays less than before.
        moves = self.placement.migrates and bool(state.needs_pass or state.new_jobs)
        wanted = self._decide(all_on(state), events, moves=moves)
        every = self.start_triggers is self.triggers
        return switched(
            self.node_power,
            state,
            wanted,
            soon=self._soon(state, wanted) if self.node_power.ahead else (),
            starts=not state.pending or every,
            widens=self.sizing.widens,
        )

    def _soon(self, state: State, wanted: Sequence[Decision]) -> set[Node]:
        """Return nodes that are off and that waiting jobs will get within the time of a boot."""
        then = after_ends(state, wanted)
        if then is None:
            return set()
        awaited = dict(state.awaited)
        starts = [decision for decision in self._decide(then, ()) if isinstance(decision, Start)]
        _await_again(state, awaited)
        return {node for start in starts for node in start.nodes}

    def _decide(
        self, state: State, events: Sequence[Event], *, moves: bool = False
    ) -> list[Decision]:
        """Return the decisions of a pass, made again where others took nodes of a list."""
        if not state.listed:
            return self._pass(state, events, moves)
        hidden, starting, awaited = set[JobId](), list[Decision](), dict(state.awaited)
        for _ in range(MOST_TRIES):
            _await_again(state, awaited)
            view, left_events = self._usable(state, events, hidden)
            refused = set[JobId]()
            decisions = self._pass(view, left_events, moves, refused)
            begun = {start.job for start in decisions if isinstance(start, Start)}
            if starting and not begun:
                decisions = starting  # else no event might follow
                break
            if refused <= begun:
                break
            starting = decisions if begun else []
            hidden |= refused - begun  # others have its nodes now: no job waits behind it
        return within_lists(state, decisions)

    def _usable(
        self, state: State, events: Sequence[Event], hidden: Set[JobId] = frozenset()
    ) -> tuple[State, Sequence[Event]]:
        """Return the state and events without hidden jobs and jobs that lack listed nodes."""
        lacks = set(lacking(state, self._places_lists(state)))
        first = next(iter(self._queue(state, self.order(state))), None) if lacks else None
        nodes = [] if first is None else kept(state, first, lacks)
        if nodes:
            lacks |= lacking(without_jobs(state, (), set(), nodes)[0], True).keys()
        return without_jobs(state, events, lacks | hidden, nodes)

    def _places_lists(self, state: State) -> bool:
        return listed_room(state, self.placement(state)) is not None

    def _pass(
        self,
        state: State,
        events: Sequence[Event],
        moves: bool = False,
        refused: set[JobId] | None = None,
    ) -> list[Decision]:
        """Return the decisions of a pass.

        Args:
            moves: the placement may move running jobs.
            refused: receives the jobs that lack nodes of their list, if one was refused.
        """
        decisions: list[Decision] = []
        for event in events:
            if type(event) is Submitted:
                decisions += _refused(state, event, self.placement)
        resizable = state.shrinkable or state.expandable
        if not state.pending and not resizable and not (moves and state.running):
            return decisions
        placed, view = self._open(state, decisions)
        room, plan = view.room, view.plan
        if room.budget is not None and resizable:
            changes = yielding(state, room, room.budget)
            if changes:
                return decisions + changes
        if state.pending and (
            self.start_triggers is self.triggers
            or any(type(event) in self.start_triggers for event in events)
        ):
            decisions += self.admission(state, view.queue, plan, room)
        if resizable:
            decisions += plan.resizes(state, room)
            if self.twin is not None:
                state.awaited.update(_awaited(plan))
        if moves and isinstance(placed, Lowest):
            decisions += self.placement.migrations(state, placed.rest, decisions, room.budget)
        if isinstance(placed, ListedRoom) and refused is not None:
            refused |= placed.left_out(decisions)
        return decisions

    def _open(self, state: State, refused: Sequence[Decision] = ()) -> tuple[Room, View]:
        """Return the room of the placement, and the results of all parts without refused jobs."""
        placed = self.placement(state)
        listed = listed_room(state, placed) if state.listed else None
        placed, capped = listed or placed, state.power_cap_w is not None
        room = self.frequency(state, placed) if self.clocked else placed
        if capped:
            room = LimitedRoom(room, budget=PowerBudget(state))
        queue = self.order(state)
        if refused or state.prioritised or state.array_limited or capped:
            queue = self._queue(state, queue, refused)
        plan = self.sizing(state, queue, room)
        if listed is not None or capped:
            plan = LimitedPlan(plan, listed, room.budget)
        return placed, View(state, room, queue, plan)

    def _queue(
        self, state: State, queue: Iterable[Job], refused: Sequence[Decision] = ()
    ) -> Iterable[Job]:
        """Return the queue of an order with priorities, without jobs that may not start."""
        if state.prioritised and not self.order.ranks:
            queue = _prioritised(state, queue)
        if state.power_cap_w is not None:  # no job waits behind a job that exceeds the cap
            queue = [job for job in queue if not never_fits(state, job)]
        if refused:
            gone = {decision.job for decision in refused if isinstance(decision, Never)}
            queue = [job for job in queue if job.spec.id not in gone]
        return list(within_limits(state, queue)) if state.array_limited else queue

    # --- answers ---------------------------------------------------------------------------------

    def look_s(self, state: State) -> float:
        """Return the time of the next decision without an event, inf for never."""
        look_s = inf if self.always_on else self.node_power.look_s(state)
        return min(look_s, self.hours.look_s(state))

    def place(self, state: State, job: Job, size: int) -> tuple[Node, ...]:
        """Return the nodes of a running job at another size, for a user's request."""
        placed = self.placement(state)
        return ((state.listed and listed_room(state, placed)) or placed).resize(job, size)

    def view(self, state: State) -> View | None:
        """Return the view for :meth:`explain`."""
        if self.hours.applies(state):
            state = self.hours.view(state, ()).state
        if isinstance(self.node_power, Windows):
            state = window_view(self.node_power, state, ()).state
        if state.off or state.booting:
            state = all_on(state)
        if state.listed:
            state, _ = self._usable(state, ())
        _, view = self._open(state)
        wanted = plan_of_sizing(view.plan)
        if isinstance(wanted, SharePlan) and wanted.queue:
            view.queue = wanted.queue
        return view

    def explain(self, state: State, job: Job, view: View | None = None) -> Later:
        """Return why a job waits, by the view of this state if there is one."""
        view = view or self.view(state)
        assert view is not None
        job = view.state.pending.get(job.spec.id, job)
        state, room, limit = view.state, view.room, job.spec.array_limit
        if limit is not None and view.running[job.spec.array] >= limit:
            return Later(job.spec.id, f"JobArrayTaskLimit: {limit} at once", Reason.ARRAY_LIMIT)
        if room.budget is not None:
            why = why_power(state, job, room.budget)
            if why is not None and (job.least <= room.free or never_fits(state, job)):
                return Later(job.spec.id, why, Reason.POWER)
        return self.admission.explain(job, view)

    def explained(self, state: State) -> dict[JobId, Later]:
        """Return the reasons for waiting that are computed for all jobs at once."""
        waits = dict[JobId, Later]()
        if self.hours.applies(state):
            waits |= self.hours.waiting(state)
            state = self.hours.view(state, ()).state
        if isinstance(self.node_power, Windows):
            view = window_view(self.node_power, state, ())
            for name in view.hidden:
                text = f"PowerWindow: would not end before {view.words}"
                waits[name] = Later(name, text, Reason.NODE_POWER)
            state = view.state
        lists = lacking(all_on(state), self._places_lists(state)) if state.listed else {}
        return waits | lists | (self._boots(state) if state.off or state.booting else {})

    def _boots(self, state: State) -> dict[JobId, Later]:
        """Return the waiting jobs that could start but for nodes that are off or booting."""
        view, waits, awaited = all_on(state), dict[JobId, Later](), dict(state.awaited)
        decisions = self._decide(view, ())
        _await_again(state, awaited)
        for start in decisions:
            if isinstance(start, Start) and (asleep := set(view.asleep).intersection(start.nodes)):
                text = f"Resources: waits for {len(asleep)} of {start.size} nodes to boot"
                waits[start.job] = Later(start.job, text, Reason.RESOURCES)
        return waits

    def reservation(self, view: View) -> tuple[JobId, float] | None:
        """Return the job that has a reservation and its time, or None."""
        return self.admission.reservation(view)


def _refused(state: State, event: Submitted, placement: Placement) -> list[Decision]:
    """Refuse new jobs that are too wide, or that the placement can never take."""
    nodes, refusals = state.site.nodes, list[Decision]()
    for spec in event.specs:
        least = state.pending[spec.id].least
        if least > nodes:
            words = f"needs {least} nodes, the cluster has {nodes}"
            refusals.append(Never(spec.id, words))
        elif (reason := placement.refusal(state.site, spec)) is not None:
            refusals.append(Never(spec.id, reason, Reason.POWER))
    return refusals


def _resizes(decision: Decision, jobs: Set[JobId]) -> bool:
    return isinstance(decision, Resize) and decision.job in jobs


def _oversized(part: Windows, state: State, events: Sequence[Event]) -> list[Never]:
    """Refuse new jobs that would keep nodes of some window at any start, if the part says so."""
    if part.oversized == "start":
        return []
    stay = node_words(state.nodes - part.nodes(state.nodes))
    words = f"too wide for the {stay} that stay on, and too long between two windows"
    new = [spec.id for event in events if type(event) is Submitted for spec in event.specs]
    return [
        Never(name, words, Reason.NODE_POWER)
        for name in new
        if never_starts(part, state.pending[name], state)
    ]


def _awaited(plan: Plan) -> Iterator[tuple[JobId, Job]]:
    """Yield the jobs that a plan would resize at their stated resize points."""
    plan = plan_of_sizing(plan)
    for job in plan.awaits if isinstance(plan, SharePlan) else ():
        if job.spec.resize_points_known and job.start_s is not None:
            yield job.spec.id, job


def _await_again(state: State, awaited: Mapping[JobId, Job]) -> None:
    """Let the policy wait for the resize points of these jobs only: a try is discarded."""
    state.awaited.clear()
    state.awaited.update(awaited)


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
