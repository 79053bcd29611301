"""The cluster's power cap in a pass: whatever the policy, rooms and plans keep to it.

A room under the cap refuses starts whose power does not fit, so every admission treats such a job
as one that lacks nodes. Reservations (:mod:`admission`, :mod:`conservative`,
:mod:`backfill_share`) ask the room's budget too: an overtaking job takes no power that they need.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right

from rms.core.events import Reason, Resize
from rms.core.model import Job, Node
from rms.core.policies.placement import Room, expected_slowdown, take
from rms.core.policies.sizing import Plan
from rms.core.powercap import ROUNDING, PowerBudget
from rms.core.state import State


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
