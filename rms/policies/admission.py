"""Part ``admission``: who starts now."""

from __future__ import annotations

from rms.events import Decision, Later, Reason, Start
from rms.model import Job, Node, State
from rms.policies import placement
from rms.policies.sizing import Sizes, smallest_start


def in_order(state: State, queue: list[Job], sizes: Sizes) -> list[Decision]:
    """Start jobs in order; the first that does not fit holds up those behind it."""
    free = list(state.free)
    decisions: list[Decision] = []
    blocked: Job | None = None
    for job in queue:
        size = sizes.pending.get(job.spec.id, smallest_start(job))
        if blocked is None and size <= len(free):
            decisions.append(_start(job, size, free, "fits", Reason.FITS))
            continue
        if blocked is None:
            blocked = job
            why = f"Resources: waits for {size} nodes, {len(free)} are free"
            decisions.append(Later(job.spec.id, why, Reason.RESOURCES))
        else:
            why = f"Priority: {blocked.spec.id} is first"
            decisions.append(Later(job.spec.id, why, Reason.PRIORITY))
    return decisions


def easy(state: State, queue: list[Job], sizes: Sizes) -> list[Decision]:
    """EASY backfilling: a job may overtake if it does not delay the first waiting one.

    The first job that does not fit gets a reservation at the earliest time at which, by the
    running jobs' limits, enough nodes are free. A later job starts now if it fits and either
    ends before that time or leaves the reservation enough nodes.
    """
    free = list(state.free)
    decisions: list[Decision] = []
    shadow: tuple[float, int] | None = None
    for job in queue:
        size = sizes.pending.get(job.spec.id, smallest_start(job))
        if size <= len(free):
            if shadow is None:
                decisions.append(_start(job, size, free, "fits", Reason.FITS))
                continue
            ends = state.now_s + expected_s(job, size)
            if ends <= shadow[0] or size <= shadow[1]:
                if ends > shadow[0]:
                    shadow = shadow[0], shadow[1] - size
                decisions.append(_start(job, size, free, "backfills", Reason.BACKFILLS))
                continue
        if shadow is None:
            shadow = _reservation(state, job, size, decisions, len(free))
        decisions.append(Later(job.spec.id, f"Resources: waits for {size} nodes"))
    return decisions


def expected_s(job: Job, size: int) -> float:
    """Return how long a job may run: its limit, else what its speedup says, else for ever."""
    if job.spec.limit_s is not None:
        return job.spec.limit_s
    return job.spec.speedup.time(size) if job.spec.speedup is not None else float("inf")


def _reservation(
    state: State, head: Job, size: int, decisions: list[Decision], free: int
) -> tuple[float, int]:
    """Return when ``size`` nodes will be free, and how many more than that will be then."""
    ends = [(_expected_end(state, job), len(job.held)) for job in state.running.values()] + [
        (state.now_s + expected_s(state.pending[d.job], len(d.nodes)), len(d.nodes))
        for d in decisions
        if isinstance(d, Start)
    ]
    for end, nodes in sorted(ends):
        free += nodes
        if free >= size:
            return end, free - size
    return float("inf"), 0


def _expected_end(state: State, job: Job) -> float:
    if job.spec.limit_s is not None and job.start_s is not None:
        return max(state.now_s, job.start_s + job.spec.limit_s)
    left = job.remaining_s(len(job.nodes), state.now_s)
    return float("inf") if left is None else state.now_s + left


def _start(job: Job, size: int, free: list[Node], why: str, code: Reason) -> Start:
    nodes = placement.first_fit(free, size)
    del free[:size]
    return Start(job.spec.id, nodes, why, code)
