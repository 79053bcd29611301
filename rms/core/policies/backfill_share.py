"""Sizing ``backfill-share`` and admission ``planned``: the default policy, for a stream of jobs.

1. Jobs that can be resized count with their least size; the nodes above that are lent to them.
   On what is not held then, jobs start by EASY backfilling in the queue's order, each at its least
   size: the first that does not fit has a reservation that no later one may delay.
2. A job that may start by that, but for nodes that are lent, gets them from running jobs, as these
   come to resize points; of those that can give at once from the one that loses least.
3. Nodes that no such job needs go, as in ``equal-share``, to whoever has longest to go, as long as
   that saves more than the resize costs; a job that was often resized is widened no more.
4. While all jobs are of one array, ``equal-share`` decides, except over nodes that it leaves idle
   because too few are left for the next task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from itertools import chain, islice
from math import inf
from typing import Literal

import msgspec

from rms.core.events import Later, Reason, Start, node_words
from rms.core.model import Job, JobId, Mode
from rms.core.policies.admission import InOrder, start
from rms.core.policies.capped import CappedPlan, budget_of
from rms.core.policies.listed import ListedPlan
from rms.core.policies.placement import Room
from rms.core.policies.share import Entry, EqualShare, SharePlan, balanced, freeing, longest
from rms.core.policies.sizing import Plan
from rms.core.powercap import PowerBudget, why_power
from rms.core.state import State


class BackfillShare(EqualShare, frozen=True, forbid_unknown_fields=True):
    """EASY backfilling over least sizes; what is left is lent to running jobs.

    Its ``resizes`` bound those of all jobs, whatever they cost.
    """

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> SharePlan:
        """Return the plan of a pass."""
        if state.one_array:
            plan = EqualShare.__call__(self, state, queue, room)
            left = room.free + state.releasing - sum(plan.sizes.values())
            if plan.changes or left <= 0 or len(plan.sizes) == len(state.pending):
                return plan
        plan = BackfillPlan(in_order=False, energy=self.energy)
        if not _due(state, room):
            return plan
        found, budget = backfilled(state, queue, room, self.energy), budget_of(room)
        plan.found = found
        if budget is not None:
            budget = budget.plus(0.0)
        spare, starting, short, short_w = room.free, [], 0, 0.0
        for job, size in zip(found.jobs, found.sizes, strict=True):
            if size <= spare and (budget is None or budget.starts(job, size)):
                spare -= size
                if budget is not None:
                    budget.take(budget.start_w(job, size))
                plan.sizes[job.spec.id] = size
                starting.append(job)
            else:
                short += size
                short_w += 0.0 if budget is None else budget.start_w(job, size)
        if short:
            if budget is not None:
                short_w -= budget.left_w + budget.releasing_w
            self._make_room(state, plan, (short - spare - state.releasing, short_w), budget)
            return plan
        if spare > 0:
            flexible = [job for job in starting if _lends(job, found.first)]
            here = set(map(id, state.reached_resize_point))
            if not flexible and not _any_can(state, here):
                return plan  # most frequent: whoever would be widened cannot be now
            running = self.expandable(state, self.look)
            able = {number for _, _, number, job in running if _can(job, here)}
            if flexible or able:
                self._expand(state, plan, (flexible, running), spare, budget, matter=able)
                plan.changes = [change for change in plan.changes if change[0].number in able]
        return plan

    def expandable(self, state: State, look: int) -> list[Entry]:
        """Return the running jobs that may be expanded, without those resized too often."""
        return longest(state, look, self.resizes)[: state.resizes_left]

    def _make_room(
        self, state: State, plan: SharePlan, lacking: tuple[int, float], budget: PowerBudget | None
    ) -> None:
        """Shrink jobs that are at a resize point, first those that lose least."""
        short, short_w = lacking
        here = set(map(id, state.reached_resize_point))
        able = []
        for _, _, job in state.shrinkable:
            left_s = job.remaining_s(job.size, state.now_s)
            if not _can(job, here) or (left_s is not None and left_s <= job.spec.resize_price_s):
                continue
            size = _shrunk(job, short, short_w, budget)
            if size < job.size:
                able.append((_loss(job, size, state.now_s), -job.size, job.number, job))
        for _, _, _, job in sorted(able)[: state.resizes_left]:
            if short <= 0 and short_w <= 0.0:
                break
            size = _shrunk(job, short, short_w, budget)
            short -= job.size - size
            if budget is not None:
                short_w -= budget.at_w(job, job.size) - budget.at_w(job, size)
            plan.changes.append((job, size, "makes room for waiting jobs", Reason.MAKES_ROOM))


@dataclass(slots=True)
class BackfillPlan(SharePlan):
    """A plan that remembers who may start, for those to be told who may not.

    Attributes:
        found: None until that is worked out.
    """

    found: Backfilled | None = None


@dataclass(slots=True)
class Backfilled:
    """Who may start by EASY over least sizes.

    Attributes:
        jobs, sizes: in order, with the nodes each counts with.
        first: the first that may not, or None.
        free: nodes free, were all running jobs at their least sizes and those of ``jobs`` started.
        at_s: the reservation of ``first``; None as long as nobody could have delayed it.
        extra: how many nodes are free then beside those reserved.
        budget: what would be left of the power cap, where there is one; ``extra_w`` then.
    """

    jobs: list[Job] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    first: Job | None = None
    free: int = 0
    at_s: float | None = None
    extra: int = 0
    budget: PowerBudget | None = None
    extra_w: float = inf

    def fits(self, job: Job, size: int) -> bool:
        """Return whether nodes and power suffice for a job."""
        return size <= self.free and (self.budget is None or self.budget.starts(job, size))

    def overtakes(self, job: Job, size: int) -> bool:
        """Return whether a job leaves the reservation what it needs; enter that, if it does."""
        own_w = 0.0 if self.budget is None else self.budget.start_w(job, size)
        if size > self.extra or own_w > self.extra_w:
            return False
        self.extra -= size
        self.extra_w -= own_w
        return True

    def reserve(self, state: State, room: Room) -> float:
        """Return the reservation of ``first``, worked out before anybody behind it may start."""
        if self.at_s is None and self.first is not None:
            self.at_s = _reserve(state, room, self, self.first)
        return inf if self.at_s is None else self.at_s


def backfilled(state: State, queue: Iterable[Job], room: Room, energy: float = 0.0) -> Backfilled:
    """Return who may start if jobs that can be resized held their least sizes only.

    Args:
        energy: weight of energy against time in the sizes of moldable jobs.
    """
    if not state.pending:
        return Backfilled()  # nobody asks what there would be for one
    lent = sum([job.size - _least(job) for _, _, job in state.shrinkable])
    found = Backfilled(free=room.free + state.releasing + lent)
    budget = budget_of(room)
    if budget is not None:
        lent_w = [budget.drawn_w(j) - budget.at_w(j, _least(j)) for *_, j in state.shrinkable]
        found.budget = budget.plus(budget.releasing_w + sum(lent_w))
    narrowest = state.queue_by(_width)[0][0]
    oldest = list(_oldest(state, queue, found.free))
    before = set(map(id, oldest))
    for job in chain(oldest, (job for job in queue if id(job) not in before)):
        if not found.fits(job, job.least):
            if found.first is None:
                found.first = job
            if found.free < narrowest:
                break  # as nobody fits: a pass costs no more on a long queue
            continue
        size = _start_size(state, job, found, energy)
        if found.first is not None:
            end = state.now_s + _longest_s(job, size)
            # Of jobs without a time limit none is sure to end before another.
            late = end > found.reserve(state, room) or end == inf
            if late and not found.overtakes(job, size):
                continue
        found.jobs.append(job)
        found.sizes.append(size)
        found.free -= size
        if found.budget is not None:
            found.budget.take(found.budget.start_w(job, size))
        if found.free < narrowest and found.first is not None:
            break
    return found


def _width(job: Job) -> float:
    """Return the fewest nodes on which a job may start."""
    return job.least


def _oldest(state: State, queue: Iterable[Job], free: int) -> Iterator[Job]:
    """Yield waiting jobs by priority, then age, up to the first that cannot start.

    As in the order ``smallest``, none is flexible. A list holds some
    of those waiting only: others were refused in this pass or are held back by the limits of their
    arrays.
    """
    if state.usage is not None:
        return  # by priority, not by age
    there = set(map(id, queue)) if isinstance(queue, list) else None
    for job in state.by_priority(state.pending.values()):
        if there is not None and id(job) not in there:
            continue
        if job.spec.mode is Mode.FLEXIBLE:
            return
        yield job
        free -= job.least
        if free < 0:
            return


def _reserve(state: State, room: Room, found: Backfilled, first: Job) -> float:
    """Return when a job can start, all others at their least sizes; enter what is left then."""
    now, budget, size = state.now_s, found.budget, first.least
    ends: list[tuple[float, int, float]] = []
    for end, _, job in islice(state.ends, room.passed, None):
        least = held = job.size if job.requested_size is None else job.size + job.gain - job.loss
        if job.at_resize_point and job.spec.mode.resizable:
            least = min(held, _least(job))
            if job.requested_size is not None:
                ends.append((now, held - least, 0.0))  # it gives them once this resize is over
            whole_s = job.spec.expected_s(job.size)
            if 0 < whole_s < inf and end < inf:
                end = now + max(0.0, end - now) * job.spec.expected_s(least) / whole_s
        ends.append((max(end, now), least, 0.0 if budget is None else budget.at_w(job, least)))
    for job, nodes in zip(found.jobs, found.sizes, strict=True):
        own_w = 0.0 if budget is None else budget.start_w(job, nodes)
        ends.append((now + job.spec.expected_s(nodes), nodes, own_w))
    ends.sort()
    free, left_w, own_w = found.free, inf, 0.0
    if budget is not None:
        left_w, own_w = budget.for_reservation_w, budget.start_w(first, size)
    for end, nodes, watts in ends:
        free += nodes
        left_w += watts
        if free >= size and left_w >= own_w:
            found.extra, found.extra_w = free - size, left_w - own_w
            return end
    found.extra, found.extra_w = 0, 0.0
    return inf


def _start_size(state: State, job: Job, found: Backfilled, energy: float) -> int:
    """Return the nodes with which a job that fits counts at its start.

    A moldable one keeps for ever what it starts with: what it prefers, or as much as can be had;
    where energy counts, what is best for both.
    """
    if job.spec.mode is not Mode.MOLDABLE:
        return job.least
    most = min(found.free, job.spec.preferred)
    sizes = [n for n in job.spec.sizes() if n <= most]
    if found.budget is not None:
        sizes = [n for n in sizes if found.fits(job, n)] or [job.least]
    return balanced(state, job, sizes, energy)


def _longest_s(job: Job, size: int) -> float:
    """Return how long a job that starts on ``size`` nodes may hold nodes of them.

    One that can be resized counts with its least size from then on: it may have to lend the rest.
    """
    whole_s = job.spec.expected_s(size)
    if not job.spec.mode.resizable:
        return whole_s
    return max(whole_s, job.spec.expected_s(job.spec.sizes()[0]))


def _due(state: State, room: Room) -> bool:
    """Return whether anything can be decided: something changed, or a job can be resized."""
    if state.needs_pass or state.new_jobs:
        return True
    for job in state.reached_resize_point:
        if job.resizable_now:
            sizes = job.spec.sizes()
            if (room.free > 0 and job.size < sizes[-1]) or (state.pending and job.size > sizes[0]):
                return True
    return False


def _can(job: Job, here: Set[int]) -> bool:
    """Return whether a job can be resized at once, as far as is known.

    What is decided at the resize point itself holds no nodes back until then.
    """
    return not job.spec.resize_points_known or id(job) in here


def _any_can(state: State, here: Set[int]) -> bool:
    """Return whether any job can be resized at once that expanding pays for (see :func:`_can`)."""
    now = state.now_s
    for until, _, job in reversed(state.expandable):
        if until <= now:
            break
        if id(job) in here or not job.spec.resize_points_known:
            return True
    return False


def _least(job: Job) -> int:
    """Return the least size of a running job, without those to which it could not be brought."""
    if not job.refused_sizes:
        return job.spec.smallest
    sizes = job.spec.sizes()
    return min(job.size, next((n for n in sizes if n not in job.refused_sizes), job.size))


def _lends(job: Job, first: Job | None) -> bool:
    """Return whether a job that starts may have more than its least size.

    A flexible job gives it back at a resize point. Where it is not known whether it comes to any,
    none of the nodes that are reserved for a job of another mode are given to it.
    """
    if job.spec.mode is not Mode.FLEXIBLE:
        return False
    return job.spec.resize_points_known or first is None or first.spec.mode is Mode.FLEXIBLE


def _shrunk(job: Job, short: int, short_w: float, budget: PowerBudget | None) -> int:
    """Return the size of a job that gives up to ``short`` nodes or, if it can't, a few more.

    Under a power cap it gives up to ``short_w`` watts too.
    """
    sizes = [n for n in job.spec.sizes() if n < job.size and n not in job.refused_sizes]
    below = [n for n in sizes if n <= job.size - short]
    if budget is not None:
        size = freeing(budget, job, below or sizes[:1], short_w)
        if size is not None or short <= 0:
            return job.size if size is None else size
    return below[-1] if below else min(sizes, default=job.size)


def _loss(job: Job, size: int, now: float) -> float:
    """Return by how much a job ends later at a smaller size, for each node."""
    slow, fast = job.remaining_s(size, now), job.remaining_s(job.size, now)
    if slow is None or fast is None:
        return 0.0
    return (slow - fast) / (job.size - size)


class Planned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whoever the sizing wants to start, starts.

    Attributes:
        estimates: run times are those ``requested``.
    """

    estimates: Literal["requested"] = "requested"

    def __call__(self, state: State, queue: Iterable[Job], plan: Plan, room: Room) -> list[Start]:
        """Return the starts of this pass."""
        share = _share(plan)
        if share is None:
            return _IN_ORDER(state, queue, plan, room)
        starts = []
        for job_id in share.sizes:
            job = state.pending[job_id]
            size = plan.start(job, room.free)
            if room.fits(job, size):
                starts.append(start(job, size, room, "fits", Reason.FITS))
        return starts

    def reservation(
        self, state: State, queue: Iterable[Job], plan: Plan, room: Room
    ) -> tuple[JobId, float] | None:
        """Return the job that has a reservation and its time, or None."""
        share = _share(plan)
        backfill = None if share is None else _backfilled(share, state, queue, room)
        if backfill is None or backfill.first is None:
            return None
        return backfill.first.spec.id, backfill.reserve(state, room)

    def explain(
        self, state: State, job: Job, queue: Iterable[Job], plan: Plan, room: Room
    ) -> Later:
        """Return why a job waits."""
        share = _share(plan)
        if share is None:
            return _IN_ORDER.explain(state, job, queue, plan, room)
        backfill = _backfilled(share, state, queue, room)
        at_s = backfill.reserve(state, room)
        when = "" if at_s == inf else f", reserved in {at_s - state.now_s:.0f} s"
        if job.least <= room.free and not room.fits(job, job.least):
            text = (
                f"PowerCap: {node_words(room.free, verb=True)} free, but its power fits on too few"
            )
            return Later(job.spec.id, text, Reason.POWER)
        nodes = node_words(job.least)
        if backfill.budget is not None and job.least <= backfill.free:
            why = why_power(state, job, backfill.budget)
            if why is not None and job not in backfill.jobs:
                return Later(job.spec.id, f"{why}, by resizes", Reason.POWER)
        if job in backfill.jobs:
            text = f"Resources: waits for running jobs to give {nodes}"
            return Later(job.spec.id, text, Reason.RESOURCES)
        first = job if backfill.first is None else backfill.first
        if job is not first and job.least <= backfill.free:
            text = f"Priority: {nodes} can be had, but it would delay {first.spec.id}{when}"
            return Later(job.spec.id, text, Reason.PRIORITY)
        before = "" if job is first else f"; {first.spec.id} is first"
        text = f"waits for {nodes}, {max(0, backfill.free)} can be had{before}{when}"
        return Later(job.spec.id, f"Resources: {text}", Reason.RESOURCES)


def _backfilled(plan: BackfillPlan, state: State, queue: Iterable[Job], room: Room) -> Backfilled:
    """Return the jobs that a plan may start, computed once per plan."""
    if plan.found is None:
        plan.found = backfilled(state, queue, room, plan.energy)
    return plan.found


def _share(plan: Plan) -> BackfillPlan | None:
    """Return a plan that says who starts, None where jobs start in order."""
    while isinstance(plan, CappedPlan | ListedPlan):
        plan = plan.plan
    return plan if isinstance(plan, BackfillPlan) and not plan.in_order else None


_IN_ORDER = InOrder()
