"""The strategies of Posner, Hupfeld, Finnerty 2023, as compositions of parts.

A waiting job that does not fit is promised nodes that running jobs are told to give up, and starts
when it has them. Who was promised which node cannot be seen from the state, where a node that was
given up is free like any other, so these strategies remember it from pass to pass. A policy must
not: a restarted daemon could not repeat its decisions. So they live here, beside their study, each
made for one simulation, and ``rms serve`` does not know them.

The rules are the published ones, with what follows from how they were written:

- Only the first waiting job without a promise starts, and only if it fits: whether another one
  would delay it is tested by comparing an estimate in flop with a time in seconds, so all would.
- A promise is made only if shrinking alone covers it; free nodes are not counted.
- A job that is told to give nodes up may be given free ones in the same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rms.core.model.events import (
    Ended,
    Reason,
    Resize,
    ResizePoint,
    Start,
    Submitted,
    Ticked,
    Withdrawn,
)
from rms.core.model.jobs import Job, JobId, Node
from rms.core.policies import Policy
from rms.core.policies.admission import Admission
from rms.core.policies.order import Fcfs
from rms.core.policies.placement import FirstFit, Plan, Room, Sizing
from rms.core.state import State

Size = Callable[[Job], int]


def _least(job: Job) -> int:
    return job.spec.nodes_min


def _preferred(job: Job) -> int:
    return job.spec.preferred


def _most(job: Job) -> int:
    return job.spec.nodes_max


@dataclass(frozen=True)
class Rule:
    """How nodes are shared.

    Attributes:
        start: at which size the first waiting job starts, if that many nodes are free.
        above: how far a job of a size is above what it should have: who is furthest gives up
            nodes first, who is least gets free ones first; of equals the first submitted.
        promises: tried in turn for a waiting job: how many nodes for it, and how many a running
            job keeps.
        expands: tried in turn: up to which size a running job is given free nodes.
        at_once: how many jobs are given free nodes in one pass, or None.
    """

    start: Size
    above: Callable[[Job, int], float]
    promises: tuple[tuple[Size, Size], ...] = ((_least, _least),)
    expands: tuple[Size, ...] = (_most,)
    at_once: int | None = None


def _share(job: Job, size: int) -> float:
    return (size - job.spec.nodes_min) / (job.spec.nodes_max - job.spec.nodes_min)


RULES: Mapping[str, Rule] = {
    "min": Rule(_least, lambda job, size: size - job.spec.nodes_min),
    "pref": Rule(
        _preferred,
        lambda job, size: size - job.spec.preferred,
        promises=((_preferred, _preferred), (_least, _preferred), (_least, _least)),
        expands=(_preferred, _most),
    ),
    "average": Rule(_least, _share, at_once=1),
}

Keeping = Literal["agreement", "steal_agreement", "common_pool"]


class Promises:
    """Nodes promised to waiting jobs.

    Attributes:
        keeping: which nodes a promised job starts on. ``agreement``: exactly those promised to it;
            ``steal_agreement``: as many, of those promised to anybody; ``common_pool``: as many, of
            all free ones, promised ones first; for each other one the latest promise is dropped.
        counts: how many nodes each job was promised.
        nodes: the promised nodes in the order of the promises, and to whom.
    """

    def __init__(self, keeping: Keeping) -> None:
        self.keeping = keeping
        self.counts: dict[JobId, int] = {}
        self.nodes: dict[Node, JobId] = {}

    def add(self, job: JobId, nodes: Iterable[Node]) -> None:
        """Promise nodes to a job."""
        for node in nodes:
            self.nodes[node] = job
            self.counts[job] = self.counts.get(job, 0) + 1

    def keep(self, waiting: Iterable[Job], free: list[Node]) -> list[tuple[Job, list[Node]]]:
        """Return who starts on which nodes; those are taken from ``free``."""
        found = []
        for job in waiting:
            count = self.counts.get(job.spec.id)
            if count is None:
                continue
            if not free:
                break
            nodes = self._for(job.spec.id, free)
            if len(nodes) < count:
                continue
            del self.counts[job.spec.id]
            nodes = nodes[:count]
            for node in nodes:
                free.remove(node)
                if self.nodes.pop(node, None) is None:
                    self.nodes.popitem()
            found.append((job, nodes))
        return found

    def _for(self, job: JobId, free: list[Node]) -> list[Node]:
        """Return the free nodes that a promised job may start on, the first to be taken first."""
        promised = self.nodes
        if self.keeping == "agreement":
            return [node for node in free if promised.get(node) == job]
        first = [node for node in free if node in promised]
        if self.keeping == "steal_agreement":
            return first
        return first + [node for node in free if node not in promised]


@dataclass
class _Plan:
    """What one pass decides.

    Attributes:
        held: the nodes that jobs to be resized will have.
    """

    starts: list[Start] = field(default_factory=list)
    held: dict[Job, list[Node]] = field(default_factory=dict)

    def start(self, job: Job, free: int) -> int:
        """Return the size at which a job starts."""
        return job.least

    def begin(self, job: Job, nodes: Iterable[Node], why: str) -> None:
        """Start a job."""
        self.starts.append(Start(job.spec.id, tuple(nodes), why, Reason.FITS))

    def nodes(self, job: Job) -> list[Node]:
        """Return the nodes a running job will have, to be changed."""
        return self.held.setdefault(job, list(job.nodes))

    def size(self, job: Job) -> int:
        """Return how many nodes a running job will have."""
        held = self.held.get(job)
        return job.size if held is None else len(held)

    def resizes(self, state: State, room: Room) -> list[Resize]:
        """Return the resizes of this pass."""
        return [
            Resize(job.spec.id, tuple(nodes), "shares nodes", Reason.BALANCES)
            for job, nodes in self.held.items()
        ]


class Sharing(Sizing):
    """Part ``sizing`` of the malleable strategies, for one simulation.

    Attributes:
        changes: shrinks, one for each job that is promised the nodes, and expansions so far.
    """

    def __init__(self, rule: Rule, promises: Promises) -> None:
        self.rule, self.promises, self.changes = rule, promises, 0

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> _Plan:
        """Return the plan of a pass."""
        plan, promised = _Plan(), self.promises
        free, waiting = state.free, list(queue)
        if promised.counts:
            for job, nodes in promised.keep(waiting, free):
                plan.begin(job, nodes, "has its promised nodes")
            begun = {start.job for start in plan.starts}
            free = [node for node in free if node not in promised.nodes]
            waiting = [
                job
                for job in waiting
                if job.spec.id not in promised.counts and job.spec.id not in begun
            ]
        if waiting and _least(waiting[0]) <= len(free):
            size = min(self.rule.start(waiting[0]), len(free))
            plan.begin(waiting.pop(0), free[:size], "is first and fits")
            del free[:size]
        if waiting and state.shrinkable:
            self._promise(state, plan, waiting)
        if free:
            self._expand(state, plan, free)
        return plan

    def _promise(self, state: State, plan: _Plan, waiting: Iterable[Job]) -> None:
        """Promise waiting jobs nodes that running ones give up."""
        donors = [job for _, _, job in state.shrinkable]
        left = sum(job.size - _least(job) for job in donors)
        for job in waiting:
            if _least(job) > left:
                continue
            for wanted, kept in self.rule.promises:
                gifts = self._gifts(plan, donors, wanted(job), kept)
                for donor, count in gifts:
                    held = plan.nodes(donor)
                    self.promises.add(job.spec.id, held[-count:])
                    del held[-count:]
                    left -= count
                self.changes += len(gifts)
                if gifts:
                    break

    def _gifts(
        self, plan: _Plan, donors: Iterable[Job], need: int, kept: Size
    ) -> list[tuple[Job, int]]:
        """Return who gives how many nodes, nothing if all together have too few."""
        above, gifts = self.rule.above, []
        sizes = [(job, plan.size(job)) for job in donors]
        for donor, size in sorted(sizes, key=lambda each: (-above(*each), each[0].number)):
            count = min(need, size - kept(donor))
            if count > 0:
                gifts.append((donor, count))
                need -= count
            if need == 0:
                return gifts
        return []

    def _expand(self, state: State, plan: _Plan, free: list[Node]) -> None:
        """Give free nodes to running jobs; ``free`` is used up."""
        rule = self.rule
        able = {job for _, _, job in state.expandable}.union(plan.held)
        for most in rule.expands:
            order = sorted(able, key=lambda job: (rule.above(job, plan.size(job)), job.number))
            for job in order[: rule.at_once]:
                count = min(len(free), most(job) - plan.size(job))
                if count > 0:
                    plan.nodes(job).extend(free[:count])
                    del free[:count]
                    self.changes += 1


class AsPreferred(Sizing):
    """Part ``sizing`` of the rigid strategies: all at the preferred size.

    Attributes:
        overtake: first fit without a reservation, else only the first waiting job starts. Their
            first fit takes a job that starts off the list it goes through, so the next one is
            passed over.
    """

    def __init__(self, *, overtake: bool) -> None:
        self.overtake = overtake

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> _Plan:
        """Return the plan of a pass."""
        plan, free, passed_over = _Plan(), state.free, False
        for job in queue:
            if not free:
                break
            size = job.spec.preferred
            if not passed_over and size <= len(free):
                plan.begin(job, free[:size], "fits")
                del free[:size]
                passed_over = True
            else:
                passed_over = False
            if not self.overtake:
                break
        return plan


class Passes:
    """Part ``passes``: at submissions, ends and resize points, and every minute.

    Nodes that a resize has freed wait for the next of these.
    """

    every_s: float | None = 60.0

    @property
    def triggers(self) -> frozenset[type]:
        """Events after which it decides."""
        return frozenset((Submitted, Ended, Withdrawn, ResizePoint, Ticked))

    @property
    def start_triggers(self) -> frozenset[type]:
        """Events after which it starts jobs: all."""
        return self.triggers


class AsPlanned(Admission):
    """Part ``admission``: the starts of the plan, which is one of the sizings above."""

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        assert isinstance(plan, _Plan)
        return plan.starts


KEEPING: tuple[Keeping, ...] = ("agreement", "steal_agreement", "common_pool")
RIGID = ("rigid_backfill", "rigid_easy_backfill")
MALLEABLE = tuple(f"{rule}_{keeping}" for rule in RULES for keeping in KEEPING)


def strategy(name: str) -> Policy:
    """Return a strategy by its published name (``RIGID``, ``MALLEABLE``), for one simulation."""
    sizing: Sizing
    if name in RIGID:
        sizing = AsPreferred(overtake=name == "rigid_backfill")
    else:
        rule, _, keeping = name.partition("_")
        known: dict[str, Keeping] = {each: each for each in KEEPING}
        sizing = Sharing(RULES[rule], Promises(known[keeping]))
    return Policy(
        name=name,
        order=Fcfs(),
        sizing=sizing,
        admission=AsPlanned(),
        placement=FirstFit(),
        passes=Passes(),
        text=f'{{"name": "{name}"}}',
    )
