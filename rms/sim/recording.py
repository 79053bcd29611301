"""A simulation with everything a chart needs: power over time, who held which node when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rms.core.books.spans import Timeline
from rms.core.model.jobs import JobSpec, Site
from rms.core.policies import Policy
from rms.sim.simulator import Hooks, Simulation


@dataclass
class Recording:
    """A simulation that is over: its sums, and what happened on its nodes (named by number)."""

    timeline: Timeline
    time_s: float = 0.0
    busy_j: float = 0.0
    idle_j: float = 0.0
    cluster_j: float = 0.0
    owned_j: float = 0.0
    busy_node_s: float = 0.0
    resizes: int = 0

    def observe(self, simulation: Simulation) -> None:
        """Take down how things are after an event."""
        state, timeline = simulation.engine.state, self.timeline
        simulation.ledger.follow(state)
        timeline.power(state.now_s, simulation.ledger.power_w)
        timeline.hold(state, state.now_s, [*timeline.holders(), *state.running])
        timeline.switch(state, state.now_s)


def record(specs: Sequence[JobSpec], site: Site, policy: Policy) -> Recording:
    """Run jobs to their ends and take down what happens."""
    found = Recording(Timeline([str(n + 1) for n in range(site.nodes)]))
    simulation = Simulation(specs, site, policy, hooks=Hooks(record=False, observer=found.observe))
    simulation.run()
    ledger = simulation.ledger
    ledger.check()
    first = min(spec.submit_s for spec in specs)
    found.time_s = max(job.end_s or 0.0 for job in simulation.engine.state.ended.values()) - first
    found.busy_j, found.idle_j = sum(ledger.busy_j.values()), ledger.idle_j
    found.cluster_j, found.owned_j = ledger.cluster_j, ledger.owned_j
    found.busy_node_s, found.resizes = ledger.busy_node_s, simulation.resized
    return found
