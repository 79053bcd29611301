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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from math import inf
from typing import Literal

import msgspec

from rms.core.events import Later, Reason, Start
from rms.core.model import Job, Mode
from rms.core.policies.admission import InOrder
from rms.core.policies.placement import Room
from rms.core.policies.share import Entry, EqualShare, SharePlan, longest
from rms.core.policies.sizing import Plan
from rms.core.state import State


class BackfillShare(EqualShare, frozen=True, forbid_unknown_fields=True):
    """EASY backfilling over least sizes; what is left is lent to running jobs.

    Attributes:
        resizes: a job that was resized so often is shrunk only.
    """

    resizes: int = 24

    def __post_init__(self) -> None:
        EqualShare.__post_init__(self)
        if self.resizes < 0:
            raise ValueError(f"expected resizes of at least 0, got {self.resizes}")

    def __call__(self, state: State, queue: Iterable[Job], room: Room) -> SharePlan:
        """Return the plan of a pass."""
        if state.one_array:
            plan = EqualShare.__call__(self, state, queue, room)
            left = room.free + state.releasing - sum(plan.sizes.values())
            if plan.changes or left <= 0 or len(plan.sizes) == len(state.pending):
                return plan
        plan = SharePlan(in_order=False)
        if not _due(state, room):
            return plan
        found = backfilled(state, queue, room, self.energy)
        spare, starting, short = room.free, [], 0
        for job, size in zip(found.jobs, found.sizes, strict=True):
            if size <= spare:
                spare -= size
                plan.sizes[job.spec.id] = size
                starting.append(job)
            else:
                short += size
        if short:
            self._make_room(state, plan, short - spare - state.releasing)
            return plan
        if spare > 0:
            flexible = [job for job in starting if _lends(job, found.first)]
            running = self.expandable(state, self.look)
            self._expand(state, plan, (flexible, running), spare)
            here = set(map(id, state.reached_resize_point))
            plan.changes = [change for change in plan.changes if _can(change[0], here)]
        return plan

    def expandable(self, state: State, look: int) -> list[Entry]:
        """Return the running jobs that may be expanded, without those resized too often."""
        return longest(state, look, self.resizes)[: state.resizes_left]

    def _make_room(self, state: State, plan: SharePlan, short: int) -> None:
        """Shrink jobs that are at a resize point, first those that lose least."""
        here = set(map(id, state.reached_resize_point))
        able = []
        for _, _, job in state.shrinkable:
            left_s = job.remaining_s(job.size, state.now_s)
            if not _can(job, here) or (left_s is not None and left_s <= job.spec.resize_price_s):
                continue
            size = _shrunk(job, short)
            if size < job.size:
                able.append((_loss(job, size, state.now_s), -job.size, job.number, job))
        for _, _, _, job in sorted(able)[: state.resizes_left]:
            if short <= 0:
                break
            size = _shrunk(job, short)
            short -= job.size - size
            plan.changes.append((job, size, "makes room for waiting jobs", Reason.MAKES_ROOM))


@dataclass(slots=True)
class Backfilled:
    """Who may start by EASY over least sizes.

    Attributes:
        jobs, sizes: in order, with the nodes each counts with.
        first: the first that may not, or None.
        free: nodes free, were all running jobs at their least sizes and those of ``jobs`` started.
        at_s: the reservation of ``first``; None as long as nobody could have delayed it.
        extra: how many nodes are free then beside those reserved.
    """

    jobs: list[Job] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    first: Job | None = None
    free: int = 0
    at_s: float | None = None
    extra: int = 0

    def reserve(self, state: State, room: Room) -> float:
        """Return the reservation of ``first``, worked out before anybody behind it may start."""
        if self.at_s is None and self.first is not None:
            self.at_s, self.extra = _reservation(state, room, self, self.first.least)
        return inf if self.at_s is None else self.at_s


def backfilled(state: State, queue: Iterable[Job], room: Room, energy: float = 0.0) -> Backfilled:
    """Return who may start if jobs that can be resized held their least sizes only.

    Args:
        energy: weight of energy against time in the sizes of moldable jobs.
    """
    lent = sum([job.size - _least(job) for _, _, job in state.shrinkable])
    found = Backfilled(free=room.free + state.releasing + lent)
    if not state.pending:
        return found
    narrowest = state.queue_by(_width)[0][0]
    oldest = list(_oldest(state, queue, found.free))
    before = set(map(id, oldest))
    for job in chain(oldest, (job for job in queue if id(job) not in before)):
        if job.least > found.free:
            if found.first is None:
                found.first = job
            if found.free < narrowest:
                break  # as nobody fits: a pass costs no more on a long queue
            continue
        size = _start_size(state, job, found.free, energy)
        if found.first is not None:
            end = state.now_s + _longest_s(job, size)
            # Of jobs without a time limit none is sure to end before another.
            if end > found.reserve(state, room) or end == inf:
                if size > found.extra:
                    continue
                found.extra -= size
        found.jobs.append(job)
        found.sizes.append(size)
        found.free -= size
        if found.free < narrowest and found.first is not None:
            break
    return found


def _width(job: Job) -> float:
    """Return the fewest nodes on which a job may start."""
    return job.least


def _oldest(state: State, queue: Iterable[Job], free: int) -> Iterator[Job]:
    """Yield who is the oldest in turn, as those before it start, up to the first that cannot.

    As in the order ``smallest``, none is flexible. A list holds some of those waiting only: others
    were refused in this pass or are held back by the limits of their arrays.
    """
    there = set(map(id, queue)) if isinstance(queue, list) else None
    for job in state.pending.values():
        if there is not None and id(job) not in there:
            continue
        if job.spec.mode is Mode.FLEXIBLE:
            return
        yield job
        free -= job.least
        if free < 0:
            return


def _reservation(state: State, room: Room, found: Backfilled, size: int) -> tuple[float, int]:
    """Return when ``size`` nodes are free if all jobs go on at their least sizes; how many more."""
    now = state.now_s
    ends = []
    for end, _, job in islice(state.ends, room.passed, None):
        held = job.size + job.gain - job.loss
        least = held
        if job.at_resize_point and job.spec.mode.resizable:
            least = min(held, _least(job))
            if job.requested_size is not None:
                ends.append((now, held - least))  # it gives them once this resize is over
            whole_s = job.spec.expected_s(job.size)
            if 0 < whole_s < inf and end < inf:
                end = now + max(0.0, end - now) * job.spec.expected_s(least) / whole_s
        ends.append((max(end, now), least))
    starting = zip(found.jobs, found.sizes, strict=True)
    ends += [(now + job.spec.expected_s(nodes), nodes) for job, nodes in starting]
    ends.sort()
    free = found.free
    for end, nodes in ends:
        free += nodes
        if free >= size:
            return end, free - size
    return inf, 0


def _start_size(state: State, job: Job, free: int, energy: float) -> int:
    """Return the nodes with which a job that fits counts at its start.

    A moldable one keeps for ever what it starts with: what it prefers, or as much as can be had;
    where energy counts and its run times are known, the size with the least weighted sum of time
    and energy, each in units of what it is at that size.
    """
    if job.spec.mode is not Mode.MOLDABLE:
        return job.least
    most = min(free, job.spec.preferred)
    sizes = [n for n in job.spec.sizes() if n <= most]
    speedup, model = job.speedup, state.site.power[0] if state.site.power else None
    if not energy or speedup is None or model is None:
        return sizes[-1]

    def joules(n: int) -> float:
        return n * speedup.time(n) * model.busy_w(job.spec, n)

    whole_s, whole_j = speedup.time(sizes[-1]), joules(sizes[-1]) or 1.0
    return min(
        reversed(sizes),
        key=lambda n: (1 - energy) * speedup.time(n) / whole_s + energy * joules(n) / whole_j,
    )


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


def _can(job: Job, here: set[int]) -> bool:
    """Return whether a job can be resized at once, as far as is known.

    What is decided at the resize point itself holds no nodes back until then.
    """
    return not job.spec.resize_points_known or id(job) in here


def _least(job: Job) -> int:
    """Return the least size of a running job, without those to which it could not be brought."""
    sizes = job.spec.sizes()
    if not job.refused_sizes:
        return sizes[0]
    return min(job.size, next((n for n in sizes if n not in job.refused_sizes), job.size))


def _lends(job: Job, first: Job | None) -> bool:
    """Return whether a job that starts may have more than its least size.

    A flexible job gives it back at a resize point. Where it is not known whether it comes to any,
    none of the nodes that are reserved for a job of another mode are given to it.
    """
    if job.spec.mode is not Mode.FLEXIBLE:
        return False
    return job.spec.resize_points_known or first is None or first.spec.mode is Mode.FLEXIBLE


def _shrunk(job: Job, short: int) -> int:
    """Return the size of a job that gives up to ``short`` nodes or, if it can't, a few more."""
    sizes = [n for n in job.spec.sizes() if n < job.size and n not in job.refused_sizes]
    below = [n for n in sizes if n <= job.size - short]
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
        if not isinstance(plan, SharePlan) or plan.in_order:
            return _IN_ORDER(state, queue, plan, room)
        starts = []
        for job_id, size in plan.sizes.items():
            job = state.pending[job_id]
            if room.fits(job, size):
                nodes = room.place(job, size)
                starts.append(Start(job_id, nodes, "fits", Reason.FITS, 0 if nodes else size))
        return starts

    def explain(
        self, state: State, job: Job, queue: Iterable[Job], plan: Plan, room: Room
    ) -> Later:
        """Return why a job waits."""
        if not isinstance(plan, SharePlan) or plan.in_order:
            return _IN_ORDER.explain(state, job, queue, plan, room)
        found = backfilled(state, queue, room)
        at_s = found.reserve(state, room)
        when = "" if at_s == inf else f", reserved in {at_s - state.now_s:.0f} s"
        if job.least <= room.free and not room.fits(job, job.least):
            text = f"PowerCap: {room.free} nodes are free, but its power fits on too few"
            return Later(job.spec.id, text, Reason.POWER)
        nodes = f"{job.least} node{'s' * (job.least > 1)}"
        if job in found.jobs:
            text = f"Resources: waits for running jobs to give {nodes}"
            return Later(job.spec.id, text, Reason.RESOURCES)
        first = job if found.first is None else found.first
        if job is not first and job.least <= found.free:
            text = f"Priority: {nodes} can be had, but it would delay {first.spec.id}{when}"
            return Later(job.spec.id, text, Reason.PRIORITY)
        before = "" if job is first else f"; {first.spec.id} is first"
        text = f"waits for {nodes}, {max(0, found.free)} can be had{before}{when}"
        return Later(job.spec.id, f"Resources: {text}", Reason.RESOURCES)


_IN_ORDER = InOrder()
