"""The engine: event in, decisions out. The daemon and the simulator drive the same one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import inf

from rms.core.model.events import (
    Decision,
    Event,
    JobDecision,
    Later,
    NodeBooted,
    NodeUp,
    Reason,
    Resize,
    ResizeAsked,
    ResizePoint,
    Submitted,
    free_words,
    node_words,
)
from rms.core.model.jobs import JobId, Site
from rms.core.policies import Policy, PolicyError, View
from rms.core.policies.admission import expected_starts
from rms.core.rules import checks, transition
from rms.core.rules.powercap import PowerBudget, growth_w
from rms.core.scheduler.twin import Twin
from rms.core.state import Idle, State, Usage


class Engine:
    """Holds the state and calls the policy after every event.

    Args:
        site: the cluster, or its number of nodes.
        policy: decides on all jobs. It may be replaced at any time.
    """

    def __init__(self, site: Site | int, policy: Policy) -> None:
        self.state = State(Site(site) if isinstance(site, int) else site, policy.placement.counted)
        if policy.placement.pooled and self.state.pools is None:
            raise PolicyError(
                f"expected nodes that share bandwidth for policy {policy.name}, got a cluster "
                "that states none"
            )
        if policy.clocked and not self.state.site.levels:
            raise PolicyError(
                f"expected nodes that state frequencies for policy {policy.name}, got none"
            )
        self.twin: Twin | None = None
        self._explained: dict[JobId, Later] | None = None
        self._view: View | None = None
        self._starts: tuple[View, int, dict[JobId, float]] | None = None
        self.policy = policy

    @property
    def policy(self) -> Policy:
        """The present policy."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        if policy.placement.counted != self.state.counted:
            raise checks.RuleError("expected a policy that places jobs as the one before did")
        self._policy = policy
        self._forget()
        self._count_usage()
        self.state.due = None
        self.twin = None if policy.twin is None else Twin.of(self.state, policy.twin)
        if policy.always_on:
            self.state.idle = None
        elif self.state.idle is None:
            self.state.idle = Idle()
        self.state.use_estimates(exact=policy.exact)
        self._rank()

    def replace(self, policy: Policy) -> None:
        """Let another policy decide in place of one that has failed.

        No state is kept of a pass that was under way, so that a journal, which has its decisions
        only, leads to the same state.
        """
        self.policy = policy
        self._end_pass()
        self.state.needs_pass = True

    def _count_usage(self) -> None:
        """Count the usage of accounts from now on, where the policy goes by it."""
        state, half_life_s = self.state, self._policy.order.half_life_s
        if half_life_s is None:
            state.usage = None
        elif state.usage is None:
            state.usage = Usage(half_life_s, state.now_s)
            state.usage.add_accounts((*state.waiting.values(), *state.running.values()))
        else:
            state.usage.half_life_s = half_life_s

    def _rank(self) -> None:
        """Sort the running jobs by the keys of the policy, unless EASY decides in its place."""
        state = self.state
        state.rank(self._policy.running_keys if state.due is not None else {})

    def handle(self, event: Event) -> list[Decision]:
        """Apply an event; return the decisions on it, already entered as requested."""
        self.apply(event)
        if isinstance(event, ResizeAsked) or event.enqueues or self.state.held or self.state.wanted:
            return self.decide((event,))
        return self._pass((event,)) if self._triggers(event) else []

    def apply(self, event: Event) -> None:
        """Apply an event without a decision: others follow in the same instant."""
        state = self.state
        if state.free_count < 0 and event.at_s > state.now_s:
            checks.check_instant(state)
        if state.idle is not None and not state.idle.since_s:
            state.idle.begin(state.nodes, event.at_s)
        transition.apply(state, event)
        if self.twin is not None:
            self.twin.follow(state, event)
            if state.ranks is (state.due is None):
                self._rank()
        self._forget()

    def _forget(self) -> None:
        """Forget what was computed for the state before a change."""
        self._explained = self._view = self.state.hour_plans = None

    def decide(self, events: Sequence[Event]) -> list[Decision]:
        """Return the decisions after applied events, already entered as requested.

        Raises:
            RuleError: a decision breaks a rule; ``taken`` are the entered decisions before it.
        """
        policy, request = self._policy, self._request(events[-1])
        if request is not None:
            decision = answer(self.state, request, policy)
            self._enter((decision,))
            return [decision, *self._pass(events)] if request.auto else [decision]
        triggers, events = policy.triggers, transition.for_policy(self.state, events)
        if type(events[-1]) in triggers or any(type(event) in triggers for event in events):
            return self._pass(events)
        return []

    def follow(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Apply an event and the recorded decisions on it, without the policy.

        Raises:
            RuleError: a decision breaks a rule; ``taken`` are the entered decisions before it.
        """
        self.apply(event)
        request = self._request(event)
        self._enter(decisions)
        decides = self._triggers(event) if request is None else request.auto
        if decides:
            self._end_pass()

    def asks(self, event: Event) -> bool:
        """Return whether there is a decision to make after an event."""
        return self._triggers(event) or self._request(event) is not None

    def _request(self, event: Event) -> ResizeAsked | None:
        """Return the user's request of a resize that has to be decided now."""
        if isinstance(event, ResizeAsked):
            return event
        wanted = self.state.wanted
        return wanted.get(event.job) if wanted and isinstance(event, ResizePoint) else None

    def _triggers(self, event: Event) -> bool:
        if isinstance(event, NodeUp | NodeBooted) and event.more:
            return False
        kind = Submitted if event.enqueues else type(event)
        return kind in self._policy.triggers

    def _pass(self, events: Sequence[Event]) -> list[Decision]:
        """Let the policy decide on ``events``."""
        state = self.state
        if state.lease is not None:
            state, events = checks.usable(state, events)
        decisions = self._policy.decide(state, events)
        if decisions:
            self._enter(decisions)
        self._end_pass()
        return decisions

    def _end_pass(self) -> None:
        state = self.state
        state.needs_pass = False
        state.new_jobs.clear()
        state.reached_resize_point.clear()

    def _enter(self, decisions: Sequence[Decision]) -> None:
        """Enter decisions as requested, in order, until one breaks a rule."""
        state, ahead, taken = self.state, self._policy.placement.ahead, 0
        self._view = state.hour_plans = None
        try:
            for decision in decisions:
                checks.check(state, decision, ahead=ahead)
                transition.take(state, decision)
                taken += 1
        except checks.RuleError as error:
            error.taken = tuple(decisions[:taken])
            raise

    @property
    def look_s(self) -> float:
        """The time of the next decision without an event, inf for never.

        A driver enters a :class:`rms.core.model.events.Ticked` then.
        """
        look_s = self._policy.look_s(self.state) if self._policy.looks else inf
        if self.twin is not None:
            look_s = min(look_s, max(self.twin.next_s, self.state.now_s))
        return min(look_s, self.state.renewal_s)

    def explain(self, job_id: JobId) -> Later | None:
        """Return the reason why a job waits, None if it does not."""
        job, too_wide = self.state.pending.get(job_id), self.state.too_wide.get(job_id)
        if job_id in self.state.held:
            held = transition.waits_for(self.state, self.state.held[job_id], self.state.now_s)
            return held or Later(job_id, "BeginTime: its time has come", Reason.BEGIN)
        if too_wide is not None:
            there = node_words(self.state.nodes)
            reason = f"TooWide: needs {too_wide.least} nodes, the cluster has {there}"
            return Later(job_id, reason, Reason.TOO_WIDE)
        if job is None:
            return None
        if self._explained is None:  # once for all jobs
            self._explained = self._policy.explained(self.state) | checks.obstacles(self.state)
        explained = self._explained.get(job_id)
        if explained is not None:
            return explained
        return self._policy.explain(self.state, job, self._policy_view())

    def expected_starts(self, depth: int) -> dict[JobId, float]:
        """Return the expected starts of the first waiting jobs, except unknown ones."""
        view, cached = self._policy_view(), self._starts
        if view is None:
            return {}
        if cached is not None and cached[0] is view and cached[1] == depth:
            return cached[2]
        starts = expected_starts(view.state, view.room, islice(view.queue, depth), view.running)
        reserved = self._policy.reservation(view)
        if reserved is not None and reserved[1] < starts.get(reserved[0], inf):
            starts[reserved[0]] = reserved[1]  # running jobs may shrink for it
        self._starts = view, depth, starts
        return starts

    def _policy_view(self) -> View | None:
        """Return the policy's view of the waiting jobs, computed once after a change."""
        if self._view is None:
            self._view = self._policy.view(checks.usable(self.state, ())[0])
        return self._view


def answer(state: State, event: ResizeAsked, policy: Policy) -> JobDecision:
    """Return the decision on a user's request of a resize."""
    job = state.running[event.job]
    size, have = event.size, job.size
    refusal = None
    if not job.spec.mode.resizable:
        return Later(event.job, f"a {job.spec.mode} job is not resized", Reason.IMPOSSIBLE)
    if event.auto:
        return Later(event.job, "the policy chooses its size again", Reason.BY_POLICY)
    if size not in job.spec.sizes() or size > state.nodes:
        low, high = job.spec.nodes_min, min(job.spec.nodes_max, state.nodes)
        sizes = (f"{low} to " if low < high else "") + node_words(high)
        reason = f"expected a size of {sizes}, got {size}"
        return Later(event.job, reason, Reason.IMPOSSIBLE)
    if not job.resizable_now:
        if event.holds and job.requested_size is None and not job.rests:
            return Later(event.job, "waits for its first resize point", Reason.RESIZE_POINT)
        refusal = "it has not reached a resize point, is being resized, or rests after that"
    elif event.nodes:
        held = set(job.nodes)
        if any(n not in held and not state.vacant[n] for n in event.nodes) or state.counted:
            refusal = "wants nodes that are not free"
    elif size - have > state.free_count:
        off = f", {len(state.off)} off" if state.off else ""
        refusal = f"wants {node_words(size - have)} more, {free_words(state.free_count)}{off}"
    elif size == have:
        refusal = f"it has {node_words(size)} already"
    if refusal is None and state.power_cap_w is not None:
        more_w, budget = growth_w(state, job, size, event.nodes), PowerBudget(state)
        if not budget.covers(more_w):
            left_w = max(0.0, budget.left_w)
            refusal = f"PowerCap: takes {more_w:.4g} W more, {left_w:.4g} W are left"
    if refusal is not None:
        return Later(event.job, refusal, Reason.REFUSED)
    nodes = event.nodes or policy.place(state, job, size)
    if nodes and not event.nodes and len(nodes) != size:
        reason = f"nodes are free, but the power of a job on {size} fits on too few"
        return Later(event.job, reason, Reason.REFUSED)
    return Resize(event.job, nodes, "asked for by a user", count=size if state.counted else 0)
