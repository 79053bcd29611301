"""The engine: event in, decisions out. The daemon and the simulator drive the same one."""

from __future__ import annotations

from rms import rules, transition
from rms.events import Decision, Event, Later
from rms.model import State
from rms.policies import Policy


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
        decisions = self.policy.decide(self.state)
        for decision in decisions:
            rules.check(self.state, decision)
            if not isinstance(decision, Later):
                transition.take(self.state, decision)
        return decisions
