"""The engine: event in, decisions out. The daemon and the simulator drive the same one."""

from __future__ import annotations

from rms import rules, transition
from rms.events import Decision, Event, Later, Reason, Resize, ResizeAsked
from rms.model import State
from rms.policies import Policy, placement


class Engine:
    """Holds the state and asks the policy after every event.

    Args:
        nodes: number of nodes of the cluster.
        policy: what the scheduler does with all jobs.
    """

    def __init__(self, nodes: int, policy: Policy) -> None:
        self.state = State(nodes)
        self.policy = policy

    def handle(self, event: Event) -> list[Decision]:
        """Take in what happened; return what to do, already entered as requested."""
        transition.apply(self.state, event)
        if isinstance(event, ResizeAsked):
            decisions = [asked_for(self.state, event)]
        else:
            decisions = self.policy.decide(self.state)
        for decision in decisions:
            rules.check(self.state, decision)
            if not isinstance(decision, Later):
                transition.take(self.state, decision)
        return decisions


def asked_for(state: State, event: ResizeAsked) -> Decision:
    """Return what becomes of a user's wish for a resize."""
    job = state.running[event.job]
    size, have = event.size, len(job.nodes)
    if not job.spec.mode.resizable:
        return Later(event.job, f"never: a {job.spec.mode} job is not resized", Reason.REFUSED)
    if size not in job.spec.sizes():
        sizes = f"{job.spec.nodes_min} to {job.spec.nodes_max}"
        return Later(
            event.job, f"never: expected a size of {sizes} nodes, got {size}", Reason.REFUSED
        )
    if not job.resizable_now:
        return Later(
            event.job,
            "later: it has not reached a resize point, or is being resized",
            Reason.REFUSED,
        )
    if size - have > len(state.free):
        return Later(
            event.job,
            f"later: wants {size - have} nodes, {len(state.free)} are free",
            Reason.REFUSED,
        )
    if size == have:
        return Later(event.job, f"it has {size} nodes already", Reason.REFUSED)
    return Resize(event.job, placement.resize(job.nodes, size, state.free), "asked for by a user")
