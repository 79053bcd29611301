"""Policies: compositions of one pure function per part (DESIGN, "The engine of rms").

A policy is called with the state after every event and returns decisions; it keeps no memory and
changes nothing. Each job is treated by its own mode, under every policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rms.events import Decision, Later, Never, Reason, Resize, Start
from rms.model import Job, JobId, State
from rms.policies import admission, order, placement, sizing

Order = Callable[[State], list[Job]]
Sizing = Callable[[State, list[Job]], sizing.Sizes]
Admission = Callable[[State, list[Job], sizing.Sizes], list[Decision]]


class PolicyError(ValueError):
    """No such policy."""


@dataclass(frozen=True)
class Policy:
    """One function per part.

    Attributes:
        order: pending jobs, the first to be served first.
        sizing: the size each pending job should start at and each resizable one should have.
        admission: who starts now, given order and sizes.
    """

    name: str
    order: Order
    sizing: Sizing
    admission: Admission

    def decide(self, state: State) -> list[Decision]:
        """Return what to do now, in the order in which it is to be taken."""
        queue = self.order(state)
        never: list[Decision] = [
            Never(job.spec.id, f"needs {least} nodes, the cluster has {state.nodes}")
            for job in queue
            if (least := sizing.smallest_start(job)) > state.nodes
        ]
        refused = {decision.job for decision in never}
        queue, held = _within_limits(state, [j for j in queue if j.spec.id not in refused])
        sizes = self.sizing(state, queue)
        decisions = never + self.admission(state, queue, sizes) + held
        return decisions + _resizes(state, sizes, decisions)


def _within_limits(state: State, queue: list[Job]) -> tuple[list[Job], list[Decision]]:
    """Hold back tasks of arrays that may run only so many at once."""
    running = Counter(job.spec.array for job in state.running.values())
    kept: list[Job] = []
    held: list[Decision] = []
    for job in queue:
        limit = job.spec.array_limit
        if limit is not None and running[job.spec.array] >= limit:
            held.append(
                Later(job.spec.id, f"JobArrayTaskLimit: {limit} at once", Reason.ARRAY_LIMIT)
            )
            continue
        running[job.spec.array] += 1
        kept.append(job)
    return kept, held


def _resizes(state: State, sizes: sizing.Sizes, taken: list[Decision]) -> list[Decision]:
    """Return the resizes that make running jobs what sizing wants, as far as nodes are free."""
    used = {node for d in taken if isinstance(d, Start) for node in d.nodes}
    free = [node for node in state.free if node not in used]
    # Nodes kept for jobs that were let in and wait for shrinks to be over.
    started = {d.job for d in taken if isinstance(d, Start)}
    kept = sum(size for job_id, size in sizes.pending.items() if job_id not in started)
    found: list[Decision] = []
    for job_id, size in sizes.running.items():
        job = state.running[job_id]
        have = len(job.nodes)
        if (
            size == have
            or size in job.refused
            or not job.resizable_now
            or (size > have and size - have > len(free) - kept)
        ):
            continue
        nodes = placement.resize(job.nodes, size, free)
        free = [node for node in free if node not in nodes]
        reason, code = (
            ("makes room for waiting jobs", Reason.MAKES_ROOM)
            if size < have
            else ("takes idle nodes", Reason.IDLE_NODES)
        )
        found.append(Resize(JobId(job_id), nodes, reason, code))
    return found


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("fifo", order.submitted, sizing.as_asked, admission.in_order),
        Policy("easy", order.submitted, sizing.as_asked, admission.easy),
        Policy("array-share", order.submitted, sizing.equal_share, admission.in_order),
    )
}


def named(name: str) -> Policy:
    """Return a policy by its name.

    Raises:
        PolicyError: there is none of that name.
    """
    if name not in POLICIES:
        raise PolicyError(f"expected a policy of {', '.join(POLICIES)}, got {name!r}")
    return POLICIES[name]
