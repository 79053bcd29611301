"""Expected power of jobs and of the cluster, and the rest of a power cap.

The cluster is expected to draw the idle power of all its nodes and the power that jobs, and nodes
on which tasks run, add to it: as stated for a job (``--power``), else by its measured profile, with
its highest power if the profile has one, else by the nodes' power model; on unlike nodes the
largest of their powers. During a resize the larger of both worlds counts, from the request on. A
node that is off counts as idle, so that it can always come back, and a booting one with the power
of a boot where that is more. So expected power is never below the model of the energy books.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import dropwhile, takewhile
from math import inf

import msgspec

from rms.core.model.jobs import Job, JobSpec, Node, NodePower
from rms.core.state import State, task_w, tasks_w

ROUNDING = 1e-9
"""Sums of the same powers in another order may differ by this much of the cap."""


def added_w(models: Sequence[NodePower], spec: JobSpec, size: int, *, slots: int = 1) -> float:
    """Return the most that a job adds to the idle power of its ``size`` nodes together, in W.

    Args:
        models: of the nodes that it may run on.
        slots: number of slots of a node, the smallest where they differ.
    """
    if spec.power_w is not None:
        return spec.power_w
    return size * max(model.slot_peak_w(spec, size, slots) for model in models)


def is_unknown(models: Sequence[NodePower], spec: JobSpec) -> bool:
    """Return whether a job's power is unknown: it counts as 0 W under a power cap."""
    return spec.power_w is None and added_w(models, spec, spec.preferred) <= 0.0


def job_w(state: State, spec: JobSpec, size: int) -> float:
    """Return the power that a job on ``size`` nodes of this cluster adds to their idle power."""
    return added_w(state.power_models, spec, size, slots=state.least_slots)


def mean_w(state: State, spec: JobSpec, size: int) -> float:
    """Return the same for its mean power, by which its energy is estimated."""
    if spec.power_w is not None:
        return spec.power_w
    return size * max(model.slot_w(spec, size, state.least_slots) for model in state.power_models)


def growth_w(state: State, job: Job, size: int, nodes: tuple[Node, ...] = ()) -> float:
    """Return the rise of expected power by the request of a resize, in W.

    Args:
        nodes: the nodes of the new world, where they are placed: both worlds count as long as both
            have nodes of their own.
    """
    now_w, then_w = job_w(state, job.spec, job.size), job_w(state, job.spec, size)
    if job.spec.power_w is None and nodes:
        before, after = set(job.nodes), set(nodes)
        if not (before <= after or after <= before):
            return then_w
    return max(0.0, then_w - now_w)


def held_w(state: State, job: Job) -> float:
    """Return the power of a running job, a resize under way included, in W."""
    watts = job_w(state, job.spec, job.size)
    if job.requested_size is not None:
        watts += growth_w(state, job, job.requested_size, job.requested_nodes or ())
    return watts


def boot_extra_w(state: State, nodes: Iterable[Node]) -> float:
    """Return the power of booting nodes above their idle power, in W."""
    models = [state.model(node) for node in nodes if node == state.together(node)[0]]
    return sum(
        [max(0.0, model.boot_w - model.idle_w, model.off_w - model.idle_w) for model in models]
    )


def expected_w(state: State) -> float:
    """Return the expected power of the cluster, in W."""
    watts = state.idle_w + sum([held_w(state, job) for job in state.running.values()])
    if state.lent:
        watts += tasks_w(state)
    return watts + boot_extra_w(state, state.booting) if state.booting else watts


def share_above(state: State, watts: float) -> None:
    """Share the power above the expected one among the running jobs, by the nodes they hold.

    Without the share of idle nodes, which is measured without running jobs.
    """
    above_w = max(0.0, watts - expected_w(state))
    held = state.running or state.lent
    state.idle_above_w = min(state.idle_above_w, above_w) if held else above_w
    nodes = sum([job.size + job.gain for job in state.running.values()])
    for job in state.running.values():
        job.above_w = (above_w - state.idle_above_w) / nodes


def within_limit(
    spec: JobSpec, models: Sequence[NodePower], limit_w: float, *, slots: int = 1
) -> JobSpec:
    """Return a job without the sizes at which its expected power exceeds its own limit.

    Raises:
        ValueError: none is left.
    """
    one_size = not (spec.mode.any_start or spec.mode.resizable)
    sizes = [spec.preferred] if one_size else list(spec.sizes())
    watts = [added_w(models, spec, size, slots=slots) for size in sizes]
    above = dropwhile(lambda pair: pair[1] > limit_w, zip(sizes, watts, strict=True))
    fitting = [size for size, _ in takewhile(lambda pair: pair[1] <= limit_w, above)]
    if not fitting:
        least_w, size = min(zip(watts, sizes, strict=True))
        raise ValueError(
            f"expected a power limit of at least {least_w:g} W, what the job is expected to add on "
            f"{size} node{'s' * (size > 1)}, got {limit_w:g} W"
        )
    if len(fitting) == len(sizes):
        return spec
    low, high = fitting[0], fitting[-1]
    preferred = max((size for size in fitting if size <= spec.preferred), default=low)
    return msgspec.structs.replace(spec, nodes_min=low, nodes_max=high, preferred=preferred)


def check_cap(cap_w: float | None, idle_w: float) -> None:
    """Raise :class:`ValueError` if idle nodes alone draw the power cap."""
    if cap_w is not None and not idle_w < cap_w < inf:
        expected = f"a power cap above the {idle_w:g} W of idle nodes"
        raise ValueError(f"expected {expected}, got {cap_w:g} W")


MATTERS = 0.02
"""A meter reading matters if it changes the rest of the cap by this share of the cap."""


class PowerBudget:
    """The rest of a power cap during one pass, in W.

    Attributes:
        left_w: the cap without the power of idle nodes and running jobs: the expected power, and
            the measured power above that. Below 0 where the cap is exceeded.
    """

    __slots__ = ("_state", "left_w")

    def __init__(self, state: State, left_w: float | None = None) -> None:
        self._state = state
        if left_w is None:
            drawn_w = sum([self.drawn_w(job) for job in state.running.values()])
            left_w = (state.power_cap_w or 0.0) - state.idle_w - state.idle_above_w - drawn_w
            if state.lent:
                left_w -= tasks_w(state)
            if state.booting:
                left_w -= boot_extra_w(state, state.booting)
        self.left_w = left_w

    @property
    def for_reservation_w(self) -> float:
        """The rest with a tolerance, since sums of returned power differ by rounding."""
        return self.left_w + 0.5 * ROUNDING * (self._state.power_cap_w or 0.0)

    def plus(self, watts: float) -> PowerBudget:
        """Return another budget with more (or less) left, for a plan."""
        return PowerBudget(self._state, self.left_w + watts)

    def take(self, watts: float) -> None:
        """Reduce the rest."""
        self.left_w -= watts

    def covers(self, watts: float) -> bool:
        """Return whether this power is left; 0 W always are."""
        cap_w = self._state.power_cap_w or 0.0
        return watts <= 0.0 or watts <= self.left_w + ROUNDING * cap_w

    def affords(self, watts: float) -> bool:
        """Return whether this power is left, and take it."""
        covers = self.covers(watts)
        if covers:
            self.left_w -= watts
        return covers

    def start_w(self, job: Job, size: int) -> float:
        """Return the power that a job takes when it starts."""
        return job_w(self._state, job.spec, size)

    def starts(self, job: Job, size: int) -> bool:
        """Return whether enough power is left for a job to start on ``size`` nodes."""
        return self.covers(self.start_w(job, size))

    def drawn_w(self, job: Job) -> float:
        """Return the power of a running job, as metered where that is more."""
        watts = held_w(self._state, job)
        return watts + job.above_w * (job.size + job.gain) if job.above_w else watts

    def at_w(self, job: Job, size: int) -> float:
        """Return the power of a job at another size, no resize under way."""
        return job_w(self._state, job.spec, size) + job.above_w * size

    def widening_w(self, job: Job, size: int, wider: int) -> float:
        """Return the power that a job takes to go to a wider size; ``inf`` where it may not."""
        if job.no_wider_before_s > self._state.now_s:
            return inf
        return max(0.0, self.at_w(job, wider) - self.at_w(job, size))

    def widens(self, job: Job, size: int) -> bool:
        """Return whether a running job may be brought to a size; it may always be shrunk."""
        return size <= job.size or self.covers(self.widening_w(job, job.size, size))

    @property
    def releasing_w(self) -> float:
        """The power that shrinks under way are about to free."""
        shrinks = [
            self.drawn_w(job) - self.at_w(job, job.requested_size)
            for job in self._state.running.values()
            if job.requested_size is not None and job.requested_size < job.size
        ]
        return sum([max(0.0, watts) for watts in shrinks])


def under_cap(state: State, nodes: Iterable[int]) -> set[int]:
    """Return the nodes, taken in order, on which tasks could run within the cap.

    The power of nodes on which tasks run already is counted before.
    """
    if state.power_cap_w is None:
        return set(nodes)
    budget, own_w, under = PowerBudget(state), task_w(state), set[int]()
    for node in sorted(nodes):
        if state.lent.get(Node(node)) or budget.affords(own_w):
            under.add(node)
    return under


def tasks_in_the_way(state: State, jobs: Iterable[Job]) -> bool:
    """Return whether a waiting job could start if tasks held no nodes and drew no power."""
    if not state.lent:
        return False
    capped = state.power_cap_w is not None
    now = PowerBudget(state)
    then = now.plus(tasks_w(state))

    def starts(job: Job, nodes: int, budget: PowerBudget) -> bool:
        return job.least <= nodes and not (capped and not budget.starts(job, job.least))

    free, lent = state.free_count, len(state.lent)
    return any(not starts(job, free, now) and starts(job, free + lent, then) for job in jobs)


def matters(state: State, watts: float) -> bool:
    """Return whether a reading of the cluster's power changes the rest of the cap by enough.

    Measured power below the expected power changes nothing.
    """
    cap_w = state.power_cap_w
    if cap_w is None:
        return False
    counted_w, then_w = cap_w - PowerBudget(state).left_w, max(watts, expected_w(state))
    crosses = (then_w > cap_w) != (counted_w > cap_w * (1.0 + ROUNDING))
    return crosses or abs(then_w - counted_w) >= MATTERS * cap_w


def never_fits(state: State, job: Job) -> bool:
    """Return whether a waiting job exceeds the cap even if it runs alone."""
    cap_w = state.power_cap_w
    if cap_w is None:
        return False
    idle_w = state.idle_w + state.idle_above_w
    return idle_w + job_w(state, job.spec, job.least) > cap_w * (1.0 + ROUNDING)


def why_power(state: State, job: Job, budget: PowerBudget) -> str | None:
    """Return the reason if a waiting job cannot start for its power, else None."""
    own_w = budget.start_w(job, job.least)
    nodes = f"{job.least} node{'s' * (job.least > 1)}"
    if never_fits(state, job):
        idle_w = state.idle_w + state.idle_above_w
        alone = f"{own_w:g} W on {nodes} beside {idle_w:g} W of idle nodes"
        return f"PowerCap: it never fits under the cap of {state.power_cap_w:g} W: {alone}"
    if budget.covers(own_w):
        return None
    left_w, cap_w = budget.left_w, state.power_cap_w or 0.0
    metered = state.idle_above_w or any(other.above_w for other in state.running.values())
    drawn = f"; {cap_w - left_w:.0f} W are drawn, by the meters" if metered else ""
    needs = f"needs {own_w:g} W on {nodes}"
    return f"PowerCap: {needs}, {max(0.0, left_w):.4g} W are left of {cap_w:g} W{drawn}"
